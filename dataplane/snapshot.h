// What workers look at: one immutable snapshot per generation, laid out for the pipeline.
//
// The main thread builds it from checked files; workers only read it, through a Publication. All
// that workers read comes from one memory resource (hugepages in the daemon, the heap in tests). A
// pool that did not change is shared between snapshots, whose lifetimes keep it alive.
#pragma once

#include <algorithm>
#include <cstdint>
#include <expected>
#include <map>
#include <memory>
#include <memory_resource>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "dataplane/counter_registry.h"
#include "dataplane/outer_header.h"
#include "dataplane/quic.h"
#include "dataplane/tracking.h"
#include "dataplane/vip_table.h"
#include "tables/history.h"
#include "tables/published.h"

namespace maglev {

// A slot that is not settled, with what tracking needs of it. Fallbacks that cannot serve are the
// owner.
struct UnsettledSlot {
  uint32_t slot;
  uint32_t owner;
  uint32_t fallback;
  uint64_t pending_until_ns;
  uint64_t inherit_until_ns;

  SlotView view() const { return {owner, fallback, pending_until_ns, inherit_until_ns}; }
};
static_assert(sizeof(UnsettledSlot) == 32);

// One pool. A slot's word is the index of its owner where it is settled, the number of backends
// and its place among the unsettled slots where it is not, and all ones where it is settled and no
// backend owns it.
struct PoolImage {
  PoolImage(std::pmr::memory_resource* memory, std::string pool_name)
      : name(std::move(pool_name)),
        slots16(memory),
        slots32(memory),
        unsettled(memory),
        serving(memory) {}

  std::string name;
  std::pmr::vector<uint16_t> slots16;  // while the words fit 16 bits, else slots32
  std::pmr::vector<uint32_t> slots32;
  std::pmr::vector<UnsettledSlot> unsettled;           // in order of their slots
  std::pmr::vector<uint16_t> serving;                  // by backend: incarnation, and kServes
  std::map<Way, std::pmr::vector<BackendEntry>> ways;  // each with all backends
  std::map<QuicCidFormat, QuicServers> quic_servers;   // each with all that have such an ID
  // Parallel to the backends:
  std::vector<std::string> backend_names;  // empty where there is none
  std::vector<CounterHold> counters;       // null where there is none

  static constexpr uint16_t kServes = 0x100;  // flows that are remembered may stay with it

  uint32_t size() const { return static_cast<uint32_t>(std::max(slots16.size(), slots32.size())); }
  uint32_t slot_bytes() const { return slots32.empty() ? sizeof(uint16_t) : sizeof(uint32_t); }
  const uint8_t* words() const {
    return slots32.empty() ? reinterpret_cast<const uint8_t*>(slots16.data())
                           : reinterpret_cast<const uint8_t*>(slots32.data());
  }
};

// A pool as tracking sees it, with what its VIPs say together.
struct TrackedPool {
  const PoolImage* image = nullptr;
  const uint16_t* serving = nullptr;  // of the image
  const UnsettledSlot* unsettled = nullptr;
  uint32_t backends = 0;
  uint32_t unsettled_count = 0;
  uint16_t number = 0;  // FlowEntry::pool
  bool full = false;    // some VIP tracks every flow
  FlowIdle idle;        // the longest of its VIPs

  // What a word above the backends' indices stands for is read soon.
  void prefetch(uint32_t word) const { __builtin_prefetch(unsettled + (word - backends)); }
  bool serves(uint32_t backend, uint8_t incarnation) const {
    return backend < backends && serving[backend] == (PoolImage::kServes | incarnation);
  }
  uint8_t incarnation(uint32_t backend) const { return static_cast<uint8_t>(serving[backend]); }
  SlotView slot_of_word(uint32_t word) const {
    if (word < backends) return {.owner = word, .fallback = word};
    if (word - backends < unsettled_count) return unsettled[word - backends].view();
    return {};
  }
  SlotView slot_of_hash(uint64_t hash) const {
    const size_t offset = size_t{maglev::slot_of(hash, image->size())} * image->slot_bytes();
    SlotView view = slot_of_word(slot_word(image->slot_bytes(), image->words() + offset));
    view.full = full;
    return view;
  }
};

// What a VIP says about tracking.
struct VipTracking {
  const TrackedPool* pool = nullptr;
  Tracking mode = Tracking::kNone;
  bool by_addresses = false;  // what identifies a flow, see track_flows.h
  FlowIdle idle;
  uint64_t udp_lead_ns = 0;           // SlotView::udp_lead_ns
  const QuicServers* quic = nullptr;  // whom connection IDs name; null: they are not looked at
};

class Snapshot {
 public:
  Snapshot(uint64_t generation, uint64_t hash_seed, std::pmr::memory_resource* memory)
      : generation_(generation),
        hash_seed_(hash_seed),
        vip_table_(memory),
        vip_tracking_(memory),
        tracked_pools_(memory),
        tracked_by_number_(memory) {}

  uint64_t generation() const { return generation_; }
  uint64_t hash_seed() const { return hash_seed_; }
  const VipTable& vip_table() const { return vip_table_; }

  // Null: no pool of the snapshot has this number.
  const TrackedPool* tracked_pool(uint16_t number) const {
    return number < tracked_by_number_.size() ? tracked_by_number_[number] : nullptr;
  }

  std::span<const VipEntry> vips() const { return vip_table_.vips(); }
  const std::vector<std::string>& vip_names() const { return vip_names_; }
  std::span<const VipRecord> vip_records() const { return vip_records_; }
  std::span<const std::shared_ptr<const PoolImage>> pools() const { return pools_; }
  std::span<const TrackedPool> tracked_pools() const {
    return tracked_pools_;
  }  // parallel to pools

 private:
  friend std::shared_ptr<const Snapshot> build_snapshot(
      const RootView&, std::vector<std::shared_ptr<const PoolImage>>, std::span<const uint16_t>,
      std::vector<CounterHold>, std::pmr::memory_resource*);

  uint64_t generation_;
  uint64_t hash_seed_;
  VipTable vip_table_;
  std::pmr::vector<VipTracking> vip_tracking_;  // parallel to the VIPs
  std::pmr::vector<TrackedPool> tracked_pools_;
  std::pmr::vector<const TrackedPool*> tracked_by_number_;
  // For the main thread alone:
  std::vector<std::shared_ptr<const PoolImage>> pools_;
  std::vector<CounterHold> holds_;
  std::vector<std::string> vip_names_;
  std::vector<VipRecord> vip_records_;
};

// What a root's VIPs need of a pool.
struct PoolNeeds {
  std::set<Way> ways;
  std::set<QuicCidFormat> quic;
};
// Of its pool with this index.
PoolNeeds needs_of_pool(const RootView& root, uint32_t pool);

// The pool must fit the table (check_pool_fits_table), and what is past both (check_history_fits).
// Fails where a backend names a port that this dataplane does not have, or where counters run out.
std::expected<std::shared_ptr<const PoolImage>, std::string> build_pool_image(
    const PoolView& pool, const TableView& table, std::span<const SlotHistory> past,
    const PoolNeeds& needs, std::span<const PortFacts> ports, CounterRegistry& backend_counters,
    std::pmr::memory_resource* memory);

// pools[i] is the image of the root's i-th pool, with the ways it needs; pool_numbers[i] what flow
// tables call it, below kMaxTrackedPools; vip_counters[i] the counter of its i-th VIP.
std::shared_ptr<const Snapshot> build_snapshot(const RootView& root,
                                               std::vector<std::shared_ptr<const PoolImage>> pools,
                                               std::span<const uint16_t> pool_numbers,
                                               std::vector<CounterHold> vip_counters,
                                               std::pmr::memory_resource* memory);

}  // namespace maglev
