// Gathers what the dataplane tells about itself (tables/report.h) and puts it in place as one file.
// Main thread only.
#pragma once

#include <cstdint>
#include <expected>
#include <span>
#include <string>

#include "dataplane/counters.h"
#include "dataplane/flow_table.h"
#include "dataplane/snapshot.h"
#include "tables/report.h"

namespace maglev {

struct WorkerState {
  uint32_t lcore = 0;
  uint32_t port = 0;
  uint32_t queue = 0;
  const WorkerCounters* counters = nullptr;
  const FlowTable* flows = nullptr;  // null: it remembers none
};

// Fills workers, verdicts, VIPs and backends; the VIPs and backends are those of the snapshot,
// summed over workers. snapshot may be null.
void report_counters(std::span<const WorkerState> workers, const Snapshot* snapshot,
                     Report& report);

// Writes aside and renames.
std::expected<void, std::string> write_report(const std::string& directory, const Report& report);

}  // namespace maglev
