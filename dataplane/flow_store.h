// The flow tables of all workers, in a file that outlives the process: a restart finds every flow
// again.
//
//   PATH          a header, the numbers of pools, one table for each worker
//   PATH.before   likewise, of workers that were others in number or had tables of another size:
//                 only read, until no flow in there can be live
//
// The files lie on hugetlbfs or tmpfs: a page cache that is written to a disk would stop a worker
// now and then. They are taken over as a whole or not at all: from the same boot of the machine,
// with this layout and flow hash, and of this user.
//
// Main thread only. Workers use what shared() names, which lives as long as the store.
//
// Invariant: at any instant a process may be killed, and its follower finds tables as a worker
// might have left them between two packets; at most the entry that was being written is lost.
#pragma once

#include <cstdint>
#include <deque>
#include <expected>
#include <memory>
#include <optional>
#include <string>

#include "dataplane/flow_memory.h"
#include "dataplane/mapped_file.h"
#include "dataplane/pool_numbers.h"
#include "tables/boot_id.h"

namespace maglev {

struct FlowLayout {
  uint32_t workers = 1;
  uint64_t entries_per_worker = 1u << 20;  // at least 8, a power of two
  bool operator==(const FlowLayout&) const = default;
};

class FlowStore {
 public:
  // An error says why there can be no store at this path.
  static std::expected<std::unique_ptr<FlowStore>, std::string> open(const std::string& path,
                                                                     const FlowLayout& layout,
                                                                     const BootId& boot,
                                                                     uint64_t now_ns);

  // What is stored there, when no dataplane will come back.
  static void remove(const std::string& path);

  SharedFlows& shared() { return shared_; }
  PoolNumbers& pool_numbers() { return *pool_numbers_; }

  // For the log: flows found in the files, live or expired; and why others were not taken over.
  uint64_t kept() const { return kept_; }
  const std::string& not_kept() const { return not_kept_; }

  // Before a snapshot is published. Flows by another seed mean nothing: they are forgotten, unless
  // workers may be writing already; then they expire, for no packet asks for them.
  void use_seed(uint64_t hash_seed, bool workers_write);

  // The longest idle time of all VIPs published, for the next start.
  void set_longest_idle(uint64_t idle_ns);

  // Gives the tables of before back, in two steps: once their time is over workers are told to look
  // there no more (true: they have just been told); each must have begun a burst since when
  // drop_before() is called.
  bool end_before(uint64_t now_ns);
  void drop_before();

 private:
  explicit FlowStore(std::string path) : path_(std::move(path)) {}
  std::string path_of_before() const { return path_ + ".before"; }

  std::expected<void, std::string> open_files(const FlowLayout& layout, const BootId& boot,
                                              uint64_t now_ns);
  void share(const FlowLayout& layout, uint64_t now_ns);

  std::string path_;
  MappedFile file_;
  std::optional<MappedFile> before_;
  std::deque<FlowTable> tables_;
  std::deque<FlowTable> tables_before_;
  std::optional<PoolNumbers> pool_numbers_;
  SharedFlows shared_;
  uint64_t kept_ = 0;
  std::string not_kept_;
};

}  // namespace maglev
