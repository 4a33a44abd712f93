// One writer hands generations of an immutable object to many readers, without a lock, a
// read-modify-write or a system call on the reading side.
//
//   - publish() makes an object current with one release store of a pointer; a reader's current()
//     takes it with one acquire load, so all that was written before is seen.
//   - The replaced object is freed once every reader has passed a quiescent point after the store:
//     rte_rcu_qsbr counts those (quiescent-state-based reclamation; Hart et al., IPDPS 2006).
//   - At most kMaxRetired replaced objects wait for that. While a reader is stuck and they are used
//     up, may_publish() is false: the writer keeps what comes next to itself, merged.
//
// The writer's side is one thread. Each reader has an id of its own below max_readers, is one
// thread, and must not use a pointer from current() after its next quiescent().
#pragma once

#include <rte_rcu_qsbr.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <memory>
#include <new>

namespace maglev {

template <typename T>
class Publication {
 public:
  static constexpr size_t kMaxRetired = 2;

  explicit Publication(uint32_t max_readers)
      : qsbr_(static_cast<rte_rcu_qsbr*>(
            std::aligned_alloc(RTE_CACHE_LINE_SIZE, rte_rcu_qsbr_get_memsize(max_readers)))) {
    if (qsbr_ == nullptr || rte_rcu_qsbr_init(qsbr_.get(), max_readers) != 0) {
      throw std::bad_alloc();
    }
  }

  // Writer: reclaim() first, it may have become true.
  bool may_publish() const { return retired_.size() < kMaxRetired; }
  size_t retired_count() const { return retired_.size(); }

  void publish(std::shared_ptr<const T> next) {
    // Release: orders the building of *next before any reader's load of the pointer.
    pointer_.store(next.get(), std::memory_order_release);
    if (owner_ != nullptr) {
      // Taken after the store: a reader that reports this token or a later one can only have
      // loaded the new pointer since.
      retired_.push_back({rte_rcu_qsbr_start(qsbr_.get()), std::move(owner_)});
    }
    owner_ = std::move(next);
  }

  // Frees what no reader can see any more; returns how much still waits. Never blocks.
  size_t reclaim() {
    while (!retired_.empty() &&
           rte_rcu_qsbr_check(qsbr_.get(), retired_.front().token, false) == 1) {
      retired_.pop_front();
    }
    return retired_.size();
  }

  const std::shared_ptr<const T>& owner() const { return owner_; }

  class Reader {
   public:
    Reader(Publication& publication, uint32_t id) : publication_(publication), id_(id) {
      rte_rcu_qsbr_thread_register(publication_.qsbr_.get(), id_);
      rte_rcu_qsbr_thread_online(publication_.qsbr_.get(), id_);
    }
    ~Reader() {
      rte_rcu_qsbr_thread_offline(publication_.qsbr_.get(), id_);
      rte_rcu_qsbr_thread_unregister(publication_.qsbr_.get(), id_);
    }
    Reader(const Reader&) = delete;
    Reader& operator=(const Reader&) = delete;

    // Null before the first publication.
    const T* current() const {
      // Acquire: orders the load of the pointer before every read through it.
      return publication_.pointer_.load(std::memory_order_acquire);
    }
    // This reader holds no pointer from before.
    void quiescent() { rte_rcu_qsbr_quiescent(publication_.qsbr_.get(), id_); }

   private:
    Publication& publication_;
    uint32_t id_;
  };

 private:
  struct Retired {
    uint64_t token;
    std::shared_ptr<const T> object;
  };
  struct FreeQsbr {
    void operator()(rte_rcu_qsbr* qsbr) const { std::free(qsbr); }
  };

  std::unique_ptr<rte_rcu_qsbr, FreeQsbr> qsbr_;
  alignas(64) std::atomic<const T*> pointer_{nullptr};
  alignas(64) std::shared_ptr<const T> owner_;  // of what pointer_ points to
  std::deque<Retired> retired_;                 // oldest first
};

}  // namespace maglev
