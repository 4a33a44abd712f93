// One look at the flow tables of all workers: which slots still have live flows of another backend
// than their owner, and how many live flows each backend has.
//
// FlowSweep is the look itself: used by one thread, any but it need not be a worker; it only reads
// the tables. Sweeper is a thread that takes such looks at a bounded rate. Its start() and take()
// are for the main thread; what a Job names must live until its result has been taken or the
// Sweeper is gone.
//
// Invariant: an entry that is live all the while is seen, unless its worker is writing it at the
// very moment. What is written once a slot's window is over agrees with its owner, so nothing that
// keeps a slot unsettled is missed.
//
// Entries of a pool are all taken alike: where one of its VIPs tracks every flow, its flows too
// keep slots unsettled.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <unordered_map>
#include <vector>

#include "dataplane/flow_table.h"
#include "dataplane/tracking.h"

namespace maglev {

// The owner of a slot that is not settled.
struct UnsettledOwner {
  uint32_t slot = 0;
  uint32_t backend = 0;  // kNoBackendIndex: none
  uint8_t incarnation = 0;
};

struct PoolToSweep {
  uint16_t pool = 0;  // the number in the entries
  uint32_t slots = 0;
  uint32_t backends = 0;                    // indices in use are below
  FlowIdle idle{};                          // the longest of its VIPs
  std::vector<UnsettledOwner> unsettled{};  // sorted by slot
};

struct LiveFlows {
  uint32_t backend = 0;
  uint8_t incarnation = 0;
  uint64_t flows = 0;
  bool operator==(const LiveFlows&) const = default;
};

struct SweptPool {
  uint16_t pool = 0;
  std::vector<uint32_t> disagreeing;  // slots, sorted, each once
  std::vector<LiveFlows> live_flows;  // by backend and incarnation; none where there are none
};

class FlowSweep {
 public:
  explicit FlowSweep(std::vector<PoolToSweep> pools);

  // Places first to first + count, as far as there are any.
  void look(const FlowTable& table, uint64_t first, uint64_t count, uint32_t tick);

  // Once, at the end; in the order of the pools given.
  std::vector<SweptPool> finish();

 private:
  std::vector<PoolToSweep> pools_;
  std::vector<SweptPool> swept_;  // parallel to pools_
  // Parallel to pools_, by backend and incarnation.
  std::vector<std::unordered_map<uint32_t, uint64_t>> live_;
  std::vector<uint32_t> by_number_;  // index into pools_
};

class Sweeper {
 public:
  struct Job {
    std::vector<const FlowTable*> tables;
    std::vector<PoolToSweep> pools;
    uint64_t generation = 0;  // the least that a worker used just before
  };
  struct Result {
    uint64_t began_ns = 0;  // CLOCK_BOOTTIME
    uint64_t ended_ns = 0;
    uint64_t generation = 0;
    std::vector<SweptPool> pools;
  };

  explicit Sweeper(uint64_t places_per_second);

  // False: there is a sweep under way, or one whose result has not been taken.
  bool start(Job job);
  std::optional<Result> take();

 private:
  void run(std::stop_token stop);
  Result sweep(Job job, std::stop_token stop);

  const uint64_t places_per_second_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::optional<Job> job_;
  bool busy_ = false;
  std::optional<Result> result_;
  std::jthread thread_;  // last: it uses all of the above
};

}  // namespace maglev
