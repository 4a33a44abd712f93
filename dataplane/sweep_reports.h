// Looks at the flow tables again and again, and keeps what the last whole look saw for the report.
// Main thread only; the looking is the Sweeper's thread's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dataplane/flow_memory.h"
#include "dataplane/snapshot.h"
#include "dataplane/sweep.h"
#include "tables/report.h"

namespace maglev {

class SweepReports {
 public:
  SweepReports();

  // Takes what a look has seen and begins the next one when it is due. generation: the least that a
  // worker uses. True: there is something new.
  bool poll(const Snapshot* snapshot, const SharedFlows& flows, uint64_t generation,
            uint64_t now_ns);

  // Whether tables are being looked at, which must stay where they are meanwhile.
  bool looking() const { return looking_; }

  const SweepReport& last() const { return last_; }

 private:
  void take(Sweeper::Result result);

  Sweeper sweeper_;
  bool looking_ = false;
  uint64_t next_ns_ = 0;
  std::vector<std::string> names_;  // of the pools that are being looked at
  SweepReport last_;
};

}  // namespace maglev
