#include "tables/report.h"

#include <algorithm>
#include <functional>
#include <utility>

#include <fmt/format.h>

namespace maglev {
namespace {

struct ReportHead {
  uint64_t started_ns;
  uint64_t written_ns;
  uint64_t adopted_generation;
  uint64_t refused_roots;
  uint32_t verdict_count;
  uint32_t worker_count;
  uint32_t port_count;
  uint32_t event_count;
  uint32_t vip_count;
  uint32_t backend_count;
  uint32_t last_refusal_length;
  uint32_t swept_pool_count;
  uint64_t sweep_began_ns;
  uint64_t sweep_ended_ns;
  uint64_t sweep_generation;
  uint64_t disagreeing_count;
  uint64_t backend_flows_count;
  uint64_t text_bytes;
};

struct SweptPoolRecord {
  uint32_t name_length;
  uint32_t disagreeing_count;
  uint64_t backend_count;
};

struct PortRecord {
  uint64_t receive_missed;
  uint64_t receive_errors;
  uint64_t no_buffer;
  uint64_t steering_dropped;
  uint32_t link_up;
  uint32_t name_length;
};

struct EventRecord {
  uint64_t count;
  uint64_t name_length;
};

struct CountRecord {
  PacketCount forwarded;
  PacketCount dropped;
  uint32_t pool_length;
  uint32_t name_length;
};

constexpr size_t kMaxRefusalLength = 4096;

CountRecord record_of(const NamedCount& count) {
  return {count.forwarded, count.dropped, static_cast<uint32_t>(count.pool.size()),
          static_cast<uint32_t>(count.name.size())};
}

// Copies the texts of one file in order; a length beyond the block empties it and is remembered.
class TextBlock {
 public:
  explicit TextBlock(std::string_view text) : rest_(text) {}
  std::string take(size_t length) {
    if (length > rest_.size()) {
      failed_ = true;
      return {};
    }
    std::string text(rest_.substr(0, length));
    rest_.remove_prefix(length);
    return text;
  }
  bool used_up() const { return !failed_ && rest_.empty(); }

 private:
  std::string_view rest_;
  bool failed_ = false;
};

std::vector<NamedCount> take_counts(std::span<const CountRecord> records, TextBlock& text) {
  std::vector<NamedCount> counts;
  counts.reserve(records.size());
  for (const CountRecord& r : records) {
    std::string pool = text.take(r.pool_length);
    std::string name = text.take(r.name_length);
    counts.push_back({std::move(pool), std::move(name), r.forwarded, r.dropped});
  }
  return counts;
}

template <typename T>
std::span<const T> take_front(std::span<const T>& rest, uint64_t count) {
  const auto taken = rest.first(std::min<size_t>(rest.size(), count));
  rest = rest.subspan(taken.size());
  return taken;
}

template <typename Range, typename Key>
bool is_strictly_sorted(const Range& range, Key key) {
  const auto out_of_order = [&](const auto& a, const auto& b) { return key(a) >= key(b); };
  return std::ranges::adjacent_find(range, out_of_order) == std::ranges::end(range);
}

bool is_sound(const PoolFlows& pool) {
  const auto place = [](const BackendFlows& b) { return std::pair(b.backend, b.incarnation); };
  return is_strictly_sorted(pool.disagreeing, std::identity()) &&
         is_strictly_sorted(pool.backends, place) &&
         std::ranges::all_of(pool.backends, [](const BackendFlows& b) { return b.flows > 0; });
}

// What a report tells of a sweep, pool after pool.
struct SweepParts {
  std::span<const SweptPoolRecord> pools;
  std::span<const uint32_t> disagreeing;
  std::span<const BackendFlows> backends;
};

std::expected<std::vector<PoolFlows>, std::string> take_pools(SweepParts parts, TextBlock& text) {
  std::vector<PoolFlows> pools;
  for (const SweptPoolRecord& record : parts.pools) {
    const auto slots = take_front(parts.disagreeing, record.disagreeing_count);
    const auto backends = take_front(parts.backends, record.backend_count);
    if (slots.size() != record.disagreeing_count || backends.size() != record.backend_count) {
      return std::unexpected("a pool of the sweep has more records than there are");
    }
    pools.push_back({text.take(record.name_length),
                     {slots.begin(), slots.end()},
                     {backends.begin(), backends.end()}});
    if (!is_sound(pools.back())) return std::unexpected("a pool of the sweep is out of order");
  }
  if (!parts.disagreeing.empty() || !parts.backends.empty()) {
    return std::unexpected("the sweep has records of no pool");
  }
  return pools;
}

SweptPoolRecord record_of(const PoolFlows& pool) {
  return {static_cast<uint32_t>(pool.pool.size()), static_cast<uint32_t>(pool.disagreeing.size()),
          pool.backends.size()};
}

}  // namespace

std::vector<std::byte> build_report_file(const Report& report) {
  std::string text = report.last_refusal.substr(0, kMaxRefusalLength);
  const size_t refusal_length = text.size();
  for (const std::string& verdict : report.verdicts) text += verdict;
  for (const PortReport& port : report.ports) text += port.name;
  for (const EventCount& event : report.events) text += event.name;
  for (const NamedCount& vip : report.vips) text += vip.pool + vip.name;
  for (const NamedCount& backend : report.backends) text += backend.pool + backend.name;
  uint64_t disagreeing_count = 0, backend_flows_count = 0;
  for (const PoolFlows& pool : report.sweep.pools) {
    text += pool.pool;
    disagreeing_count += pool.disagreeing.size();
    backend_flows_count += pool.backends.size();
  }

  FileWriter writer(FileKind::kReport);
  writer.append(ReportHead{
      report.started_ns, report.written_ns, report.adopted_generation, report.refused_roots,
      static_cast<uint32_t>(report.verdicts.size()), static_cast<uint32_t>(report.workers.size()),
      static_cast<uint32_t>(report.ports.size()), static_cast<uint32_t>(report.events.size()),
      static_cast<uint32_t>(report.vips.size()), static_cast<uint32_t>(report.backends.size()),
      static_cast<uint32_t>(refusal_length), static_cast<uint32_t>(report.sweep.pools.size()),
      report.sweep.began_ns, report.sweep.ended_ns, report.sweep.generation, disagreeing_count,
      backend_flows_count, text.size()});
  writer.append_all(std::span<const WorkerReport>(report.workers));
  writer.append_all(std::span<const uint64_t>(report.verdict_counts));
  for (const PortReport& port : report.ports) {
    writer.append(PortRecord{port.receive_missed, port.receive_errors, port.no_buffer,
                             port.steering_dropped, port.link_up ? 1u : 0u,
                             static_cast<uint32_t>(port.name.size())});
  }
  for (const EventCount& event : report.events) {
    writer.append(EventRecord{event.count, event.name.size()});
  }
  for (const NamedCount& vip : report.vips) writer.append(record_of(vip));
  for (const NamedCount& backend : report.backends) writer.append(record_of(backend));
  for (const PoolFlows& pool : report.sweep.pools) writer.append(record_of(pool));
  for (const PoolFlows& pool : report.sweep.pools) {
    writer.append_all(std::span<const BackendFlows>(pool.backends));
  }
  for (const PoolFlows& pool : report.sweep.pools) {
    writer.append_all(std::span<const uint32_t>(pool.disagreeing));
  }
  for (const std::string& verdict : report.verdicts) {
    writer.append(static_cast<uint32_t>(verdict.size()));
  }
  writer.pad();
  writer.append_text(text);
  return std::move(writer).finish();
}

std::expected<Report, std::string> check_report_file(std::span<const std::byte> file) {
  const auto header = check_header(file, FileKind::kReport);
  if (!header) return std::unexpected(header.error());
  FileReader reader(file);
  const auto* head = reader.take<ReportHead>();
  if (head == nullptr) return std::unexpected("too short for a report");

  const auto workers = reader.take_all<WorkerReport>(head->worker_count);
  const auto verdict_counts =
      reader.take_all<uint64_t>(uint64_t{head->worker_count} * head->verdict_count);
  const auto ports = reader.take_all<PortRecord>(head->port_count);
  const auto events = reader.take_all<EventRecord>(head->event_count);
  const auto vips = reader.take_all<CountRecord>(head->vip_count);
  const auto backends = reader.take_all<CountRecord>(head->backend_count);
  SweepParts sweep;
  sweep.pools = reader.take_all<SweptPoolRecord>(head->swept_pool_count);
  sweep.backends = reader.take_all<BackendFlows>(head->backend_flows_count);
  sweep.disagreeing = reader.take_all<uint32_t>(head->disagreeing_count);
  const auto verdict_lengths = reader.take_all<uint32_t>(head->verdict_count);
  reader.skip_padding();
  TextBlock text(reader.take_text(head->text_bytes));
  reader.skip_padding();
  if (!reader.at_end()) {
    return std::unexpected("the parts of the report do not add up to its length");
  }

  Report report;
  report.started_ns = head->started_ns;
  report.written_ns = head->written_ns;
  report.adopted_generation = head->adopted_generation;
  report.refused_roots = head->refused_roots;
  report.last_refusal = text.take(head->last_refusal_length);
  for (uint32_t length : verdict_lengths) report.verdicts.push_back(text.take(length));
  report.workers.assign(workers.begin(), workers.end());
  report.verdict_counts.assign(verdict_counts.begin(), verdict_counts.end());
  for (const PortRecord& p : ports) {
    report.ports.push_back({text.take(p.name_length), p.link_up != 0, p.receive_missed,
                            p.receive_errors, p.no_buffer, p.steering_dropped});
  }
  for (const EventRecord& e : events) report.events.push_back({text.take(e.name_length), e.count});
  report.vips = take_counts(vips, text);
  report.backends = take_counts(backends, text);
  report.sweep = {head->sweep_began_ns, head->sweep_ended_ns, head->sweep_generation, {}};
  auto swept = take_pools(sweep, text);
  if (!swept) return std::unexpected(swept.error());
  report.sweep.pools = std::move(*swept);
  if (!text.used_up()) return std::unexpected("the texts do not add up to their length");
  if (std::ranges::any_of(report.workers,
                          [&](const WorkerReport& w) { return w.port >= report.ports.size(); })) {
    return std::unexpected("a worker polls a port that is not listed");
  }
  return report;
}

}  // namespace maglev
