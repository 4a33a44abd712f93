// A worker: one thread on one core that polls one RX queue and runs each burst to completion.
//
// The main thread makes it, launches run() on its core, and sets `stop`. Counters belong to the
// worker; anyone may read them. run() makes no system call of its own, locks nothing but a transmit
// queue that has to be shared, and allocates nothing but packet buffers.
#pragma once

#include <rte_mempool.h>
#include <rte_ring.h>

#include <atomic>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <vector>

#include "dataplane/counters.h"
#include "dataplane/pipeline.h"
#include "dataplane/port.h"
#include "dataplane/publication.h"

namespace maglev {

struct WorkerPlace {
  uint32_t number = 0;  // among the workers, and in the publication
  uint32_t lcore = 0;
  uint32_t port = 0;  // index of the port it polls
  uint16_t device = 0;
  uint16_t queue = 0;
};

// What all workers share, or have one of each.
struct WorkerSurroundings {
  Publication<Snapshot>& snapshots;
  const std::atomic<bool>& stop;
  rte_mempool* buffers;            // for frames of their own
  std::vector<rte_ring*> inboxes;  // by worker: fragments that others hand over; empty for a
                                   // single worker
  std::pmr::memory_resource* memory;
  uint64_t answers_per_second;  // ICMP errors, and likewise echo replies, of each worker
  const SharedFlows& flows;
};

class Worker {
 public:
  // transmit_queues[p] is this worker's way out of port p.
  Worker(const WorkerPlace& place, std::vector<TransmitQueue> transmit_queues,
         WorkerCounters& counters, const WorkerSurroundings& surroundings);
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void run();

  // Any thread: the clock of bursts.
  static uint64_t burst_time_ns();

  const WorkerPlace& place() const { return place_; }
  const WorkerCounters& counters() const { return counters_; }

 private:
  void forward(const Snapshot* snapshot);
  void transmit();
  void hand_over();
  void send_own_frames();
  void go_on_with_waiting(const Snapshot* snapshot);
  void take_burst(BurstSource source, std::span<rte_mbuf*> packets);
  void forward_released(const Snapshot* snapshot);
  rte_mbuf** buffers() { return reinterpret_cast<rte_mbuf**>(burst_.buffer); }

  WorkerPlace place_;
  std::vector<TransmitQueue> transmit_queues_;
  WorkerCounters& counters_;
  Publication<Snapshot>& snapshots_;
  const std::atomic<bool>& stop_;
  std::vector<rte_ring*> inboxes_;
  uint64_t next_expiry_ns_ = 0;
  bool partial_checksums_;
  PathState state_;
  Burst burst_;
};

}  // namespace maglev
