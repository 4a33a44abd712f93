// A worker: one thread on one core that polls one RX queue and runs each burst to completion.
//
// The main thread makes it, launches run() on its core, and sets `stop`. Counters belong to the
// worker; anyone may read them. run() makes no system call of its own, locks nothing but a transmit
// queue that has to be shared, and allocates nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "dataplane/counters.h"
#include "dataplane/pipeline.h"
#include "dataplane/port.h"
#include "dataplane/publication.h"

namespace maglev {

struct WorkerPlace {
  uint32_t lcore = 0;
  uint32_t port = 0;  // index of the port it polls
  uint16_t device = 0;
  uint16_t queue = 0;
};

class Worker {
 public:
  // transmit_queues[p] is this worker's way out of port p. `reader` is its id in the publication.
  Worker(const WorkerPlace& place, std::vector<TransmitQueue> transmit_queues,
         WorkerCounters& counters, Publication<Snapshot>& snapshots, uint32_t reader,
         const std::atomic<bool>& stop)
      : place_(place),
        transmit_queues_(std::move(transmit_queues)),
        counters_(counters),
        snapshots_(snapshots),
        reader_(reader),
        stop_(stop) {}

  void run();

  const WorkerPlace& place() const { return place_; }
  const WorkerCounters& counters() const { return counters_; }

 private:
  void transmit(Burst& burst, rte_mbuf** buffers);

  WorkerPlace place_;
  std::vector<TransmitQueue> transmit_queues_;
  WorkerCounters& counters_;
  Publication<Snapshot>& snapshots_;
  uint32_t reader_;
  const std::atomic<bool>& stop_;
};

}  // namespace maglev
