// Where flows are remembered: what all workers share, and what each has of it.
//
// The main thread makes SharedFlows before any worker runs and changes nothing in it meanwhile but
// the atomics, each of which workers read once per burst. A worker writes its own table and only
// reads the others.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "dataplane/counters.h"
#include "dataplane/flow_table.h"

namespace maglev {

struct SharedFlows {
  std::vector<FlowTable*> tables;  // by worker
  // Of workers that were before, spread otherwise: only read, and only until elsewhere_until_ns.
  std::vector<const FlowTable*> tables_before;
  // Until then a worker may get packets of flows that another has remembered. CLOCK_BOOTTIME.
  std::atomic<uint64_t> elsewhere_until_ns{0};
  // CLOCK_BOOTTIME less the clock of bursts.
  std::atomic<uint64_t> boot_offset_ns{0};
};

struct FlowMemory {
  FlowTable* own = nullptr;
  const SharedFlows* shared = nullptr;
  TrackingCounters* counters = nullptr;
};

}  // namespace maglev
