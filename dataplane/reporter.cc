#include "dataplane/reporter.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>

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
    sum.forwarded.packets += one.forwarded.packets.get();
    sum.forwarded.bytes += one.forwarded.bytes.get();
    sum.dropped.packets += one.dropped.packets.get();
    sum.dropped.bytes += one.dropped.bytes.get();
  }
  return sum;
}

// In the order of FlowWorth.
constexpr std::array<std::string_view, kFlowWorthCount> kWorthNames = {
    "useless", "one_packet", "spare_half_open", "half_open", "spare", "needed"};

// In the order of QuicRoute.
constexpr std::array<std::string_view, kQuicRouteCount> kQuicRouteNames = {
    "server", "unreadable", "client_chosen", "unroutable", "unknown_server"};

void add_flow_events(std::span<const WorkerState> workers, std::vector<EventCount>& events) {
  const auto add = [&](std::string name, auto counter_of) {
    uint64_t sum = 0;
    for (const WorkerState& worker : workers) {
      if (worker.flows != nullptr) sum += counter_of(worker.flows->counters()).get();
    }
    events.push_back({std::move(name), sum});
  };
  add("flow_stored", [](const FlowTableCounters& c) -> const Counter& { return c.stored; });
  add("flow_forgotten", [](const FlowTableCounters& c) -> const Counter& { return c.forgotten; });
  for (uint32_t w = 0; w < kFlowWorthCount; ++w) {
    if (static_cast<FlowWorth>(w) == FlowWorth::kNeeded) continue;  // these never give way
    add(fmt::format("flow_evicted_{}", kWorthNames[w]),
        [w](const FlowTableCounters& c) -> const Counter& { return c.evicted[w]; });
  }
}

// Frames of the workers' own, ICMP errors that were owed and not sent, and what happened to flows.
std::vector<EventCount> sum_events(std::span<const WorkerState> workers) {
  std::vector<EventCount> events;
  const auto add = [&](std::string name, auto counter_of) {
    uint64_t sum = 0;
    for (const WorkerState& worker : workers) sum += counter_of(*worker.counters).get();
    events.push_back({std::move(name), sum});
  };
  for (uint32_t o = 0; o < kOriginCount; ++o) {
    add(fmt::format("sent_{}", kOriginNames[o]),
        [o](const WorkerCounters& c) -> const Counter& { return c.originated[o]; });
  }
  add("sent_transmit_full",
      [](const WorkerCounters& c) -> const Counter& { return c.originated_lost; });
  add("icmp_limited", [](const WorkerCounters& c) -> const Counter& { return c.errors_limited; });
  add("icmp_no_buffer",
      [](const WorkerCounters& c) -> const Counter& { return c.errors_unbuffered; });
  const auto track = [&](std::string name, Counter TrackingCounters::*counter) {
    add(std::move(name),
        [counter](const WorkerCounters& c) -> const Counter& { return c.tracking.*counter; });
  };
  track("flow_known", &TrackingCounters::known);
  track("flow_unknown", &TrackingCounters::unknown);
  track("flow_inherited", &TrackingCounters::inherited);
  track("flow_moved", &TrackingCounters::moved);
  track("flow_reused_ports", &TrackingCounters::reused_ports);
  track("flow_found_elsewhere", &TrackingCounters::found_elsewhere);
  track("flow_opening_unstored", &TrackingCounters::openings_unstored);
  track("flow_other_unstored", &TrackingCounters::others_unstored);
  for (uint32_t r = 0; r < kQuicRouteCount; ++r) {
    add(fmt::format("quic_{}", kQuicRouteNames[r]),
        [r](const WorkerCounters& c) -> const Counter& { return c.tracking.quic[r]; });
  }
  track("quic_moved", &TrackingCounters::quic_moved);
  add_flow_events(workers, events);
  return events;
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
                              {totals.received_packets, totals.received_bytes},
                              totals.held,
                              totals.handed_over,
                              totals.taken_over,
                              worker.flows == nullptr ? 0 : worker.flows->capacity(),
                              worker.flows == nullptr ? 0 : worker.flows->counters().used.get()});
    report.verdict_counts.insert(report.verdict_counts.end(), totals.verdicts.begin(),
                                 totals.verdicts.end());
  }
  report.events = sum_events(workers);
  if (snapshot == nullptr) return;
  for (size_t i = 0; i < snapshot->vips().size(); ++i) {
    report.vips.push_back(
        sum_over_workers(workers, &WorkerCounters::vips, snapshot->vips()[i].counter));
    report.vips.back().name = snapshot->vip_names()[i];
  }
  for (const auto& pool : snapshot->pools()) {
    for (size_t i = 0; i < pool->backend_names.size(); ++i) {
      if (pool->backend_names[i].empty()) continue;
      report.backends.push_back(
          sum_over_workers(workers, &WorkerCounters::backends, *pool->counters[i]));
      report.backends.back().pool = pool->name;
      report.backends.back().name = pool->backend_names[i];
    }
  }
}

// Made anew each time, so that nothing laid in its place (a link, a fifo) is written to.
std::expected<void, std::string> write_report(const std::string& directory, const Report& report) {
  const std::string path = fmt::format("{}/{}", directory, kReportFileName);
  const std::string aside = path + ".new";
  const auto failed = [](std::string_view what, const std::string& file) {
    return std::unexpected(fmt::format("cannot {} {}: {}", what, file, std::strerror(errno)));
  };
  const std::vector<std::byte> image = build_report_file(report);
  unlink(aside.c_str());
  const FileDescriptor file(open(aside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (file.get() < 0) return failed("make", aside);
  for (std::span<const std::byte> left(image); !left.empty();) {
    const ssize_t written = write(file.get(), left.data(), left.size());
    if (written < 0) return failed("write", aside);
    left = left.subspan(static_cast<size_t>(written));
  }
  if (std::rename(aside.c_str(), path.c_str()) != 0) return failed("replace", path);
  return {};
}

}  // namespace maglev
