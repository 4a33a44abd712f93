#include "dataplane/reporter.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include <fmt/format.h>

#include "dataplane/file_descriptor.h"
#include "tables/published.h"

namespace maglev {
namespace {

NamedCount sum_over_workers(std::span<const WorkerState> workers,
                            FlowCounters* WorkerCounters::*counters, uint32_t index) {
  NamedCount sum;
  for (const WorkerState& worker : workers) {
    const FlowCounters& one = (worker.counters->*counters)[index];
    sum.forwarded.packets += one.forwarded_packets.get();
    sum.forwarded.bytes += one.forwarded_bytes.get();
    sum.dropped.packets += one.dropped_packets.get();
    sum.dropped.bytes += one.dropped_bytes.get();
  }
  return sum;
}

}  // namespace

void report_counters(std::span<const WorkerState> workers, const Snapshot* snapshot,
                     Report& report) {
  report.verdicts.assign(kVerdictNames.begin(), kVerdictNames.end());
  for (const WorkerState& worker : workers) {
    const WorkerTotals totals = read_totals(*worker.counters);
    report.workers.push_back({worker.lcore,
                              worker.port,
                              worker.queue,
                              0,
                              worker.counters->generation.get(),
                              worker.counters->polls.get(),
                              worker.counters->empty_polls.get(),
                              {totals.received_packets, totals.received_bytes}});
    report.verdict_counts.insert(report.verdict_counts.end(), totals.verdicts.begin(),
                                 totals.verdicts.end());
  }
  if (snapshot == nullptr) return;
  for (size_t i = 0; i < snapshot->vips().size(); ++i) {
    report.vips.push_back(
        sum_over_workers(workers, &WorkerCounters::vips, snapshot->vips()[i].counter));
    report.vips.back().name = snapshot->vip_names()[i];
  }
  for (const auto& pool : snapshot->pools()) {
    for (size_t i = 0; i < pool->backends.size(); ++i) {
      if (pool->backend_names[i].empty()) continue;
      report.backends.push_back(
          sum_over_workers(workers, &WorkerCounters::backends, pool->backends[i].counter));
      report.backends.back().pool = pool->name;
      report.backends.back().name = pool->backend_names[i];
    }
  }
}

std::expected<void, std::string> write_report(const std::string& directory, const Report& report) {
  const std::string path = fmt::format("{}/{}", directory, kReportFileName);
  const std::string aside = path + ".new";
  const std::vector<std::byte> image = build_report_file(report);
  const FileDescriptor file(open(aside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (write(file.get(), image.data(), image.size()) != static_cast<ssize_t>(image.size())) {
    return std::unexpected(fmt::format("cannot write {}: {}", aside, std::strerror(errno)));
  }
  if (std::rename(aside.c_str(), path.c_str()) != 0) {
    return std::unexpected(
        fmt::format("cannot rename {} to {}: {}", aside, path, std::strerror(errno)));
  }
  return {};
}

}  // namespace maglev
