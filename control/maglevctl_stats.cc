#include "control/maglevctl_stats.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>

#include "control/text_table.h"

namespace maglev {

namespace {

using Json = nlohmann::ordered_json;

PacketCount read_count(const Json& count) {
  return {count.at("packets").get<uint64_t>(), count.at("bytes").get<uint64_t>()};
}

std::vector<NamedCount> read_named(const Json& list) {
  std::vector<NamedCount> named;
  for (const Json& item : list) {
    named.push_back({.pool = item.value("pool", ""),
                     .name = item.at("name").get<std::string>(),
                     .forwarded = read_count(item.at("forwarded")),
                     .dropped = read_count(item.at("dropped"))});
  }
  return named;
}

Report read_report(const Json& stats) {
  Report report;
  report.started_ns = stats.at("started_ns").get<uint64_t>();
  report.written_ns = stats.at("written_ns").get<uint64_t>();
  for (const auto& [name, count] : stats.at("verdicts").items()) report.verdicts.push_back(name);
  for (const Json& port : stats.at("ports")) {
    report.ports.push_back({.name = port.at("name").get<std::string>(),
                            .link_up = port.at("link_up").get<bool>(),
                            .receive_missed = port.at("receive_missed").get<uint64_t>(),
                            .receive_errors = port.at("receive_errors").get<uint64_t>(),
                            .no_buffer = port.at("no_buffer").get<uint64_t>(),
                            .steering_dropped = port.at("steering_dropped").get<uint64_t>()});
  }
  for (const Json& worker : stats.at("workers")) {
    const auto port =
        std::ranges::find(report.ports, worker.at("port").get<std::string>(), &PortReport::name);
    if (port == report.ports.end()) throw std::out_of_range("a worker's port is not listed");
    report.workers.push_back({.lcore = worker.at("lcore").get<uint32_t>(),
                              .port = static_cast<uint32_t>(port - report.ports.begin()),
                              .queue = worker.at("queue").get<uint32_t>(),
                              .generation = worker.at("generation").get<uint64_t>(),
                              .polls = worker.at("polls").get<uint64_t>(),
                              .empty_polls = worker.at("empty_polls").get<uint64_t>(),
                              .received = read_count(worker.at("received")),
                              .held = worker.at("held").get<uint64_t>(),
                              .handed_over = worker.at("handed_over").get<uint64_t>(),
                              .taken_over = worker.at("taken_over").get<uint64_t>()});
    for (const std::string& verdict : report.verdicts) {
      report.verdict_counts.push_back(worker.at("verdicts").at(verdict).get<uint64_t>());
    }
  }
  for (const auto& [name, count] : stats.at("events").items()) {
    report.events.push_back({name, count.get<uint64_t>()});
  }
  report.vips = read_named(stats.at("vips"));
  report.backends = read_named(stats.at("backends"));
  return report;
}

WantedShares read_wanted_shares(const Json& backends) {
  WantedShares shares;
  for (const Json& backend : backends) {
    shares[{backend.at("pool").get<std::string>(), backend.at("name").get<std::string>()}] =
        backend.at("wanted_share").get<double>();
  }
  return shares;
}

// Turns counters of two reports into figures: (after - before) * scale.
struct Scale {
  double packets = 1;
  double bytes = 1;

  // A name that was removed and added again starts at zero within one process.
  static double grown(uint64_t before, uint64_t after) {
    return static_cast<double>(after >= before ? after - before : after);
  }
  double count(uint64_t before, uint64_t after) const { return grown(before, after) * packets; }
  Traffic traffic(const PacketCount& before, const PacketCount& after) const {
    return {grown(before.packets, after.packets) * packets,
            grown(before.bytes, after.bytes) * bytes};
  }
};

void add(Traffic& sum, const Traffic& part) {
  sum.packets += part.packets;
  sum.volume += part.volume;
}

uint64_t verdict_total(const Report& report, std::string_view verdict) {
  const auto column =
      static_cast<size_t>(std::ranges::find(report.verdicts, verdict) - report.verdicts.begin());
  if (column == report.verdicts.size()) return 0;
  uint64_t sum = 0;
  for (size_t row = 0; row < report.workers.size(); ++row) {
    sum += report.verdict_counts[row * report.verdicts.size() + column];
  }
  return sum;
}

std::vector<NamedFigures> named_figures(const std::vector<NamedCount>& before,
                                        const std::vector<NamedCount>& after, const Scale& scale) {
  std::map<std::pair<std::string, std::string>, const NamedCount*> known;
  for (const NamedCount& count : before) known[{count.pool, count.name}] = &count;
  std::vector<NamedFigures> figures;
  for (const NamedCount& count : after) {
    const auto found = known.find({count.pool, count.name});
    const NamedCount old = found == known.end() ? NamedCount{} : *found->second;
    figures.push_back({.pool = count.pool,
                       .name = count.name,
                       .forwarded = scale.traffic(old.forwarded, count.forwarded),
                       .dropped_packets = scale.count(old.dropped.packets, count.dropped.packets)});
  }
  return figures;
}

template <typename T, typename Key>
T find_or_zero(const std::vector<T>& list, const Key& key, Key T::*member) {
  const auto found = std::ranges::find(list, key, member);
  return found == list.end() ? T{} : *found;
}

Figures difference(const Report& before, const Report& after, const Scale& scale) {
  Figures figures;
  for (const WorkerReport& worker : after.workers) {
    const WorkerReport old = find_or_zero(before.workers, worker.lcore, &WorkerReport::lcore);
    const double polls = Scale::grown(old.polls, worker.polls);
    const double empty = Scale::grown(old.empty_polls, worker.empty_polls);
    const Traffic received = scale.traffic(old.received, worker.received);
    figures.workers.push_back(
        {.lcore = worker.lcore,
         .port = after.ports[worker.port].name,
         .queue = worker.queue,
         .received = received,
         .busy_share = polls > 0 ? std::optional(1 - empty / polls) : std::nullopt,
         .burst_fill = polls > empty ? std::optional(Scale::grown(old.received.packets,
                                                                  worker.received.packets) /
                                                     (polls - empty))
                                     : std::nullopt});
    add(figures.received, received);
  }
  for (const std::string& verdict : after.verdicts) {
    figures.verdicts.emplace_back(
        verdict, scale.count(verdict_total(before, verdict), verdict_total(after, verdict)));
  }
  for (const PortReport& port : after.ports) {
    const PortReport old = find_or_zero(before.ports, port.name, &PortReport::name);
    figures.ports.push_back(
        {.name = port.name,
         .link_up = port.link_up,
         .missed = scale.count(old.receive_missed, port.receive_missed),
         .errors = scale.count(old.receive_errors, port.receive_errors),
         .no_buffer = scale.count(old.no_buffer, port.no_buffer),
         .steering_dropped = scale.count(old.steering_dropped, port.steering_dropped)});
  }
  figures.vips = named_figures(before.vips, after.vips, scale);
  figures.backends = named_figures(before.backends, after.backends, scale);
  return figures;
}

std::string format_share(std::optional<double> share) {
  return share ? fmt::format("{:.2f}%", *share * 100) : "-";
}

// How the cells of one set of figures are written: rates short, totals exact.
struct Style {
  bool per_second;

  std::string number(double value) const {
    return per_second ? format_rate(value) : fmt::format("{:.0f}", value);
  }
  std::string title(const std::string& thing) const { return per_second ? thing + "/S" : thing; }
  TextTable::Column column(const std::string& thing) const {
    return {title(thing), TextTable::Align::kRight};
  }
  TextTable::Column packets() const { return column("PACKETS"); }
  TextTable::Column volume() const { return column(per_second ? "BITS" : "BYTES"); }
};

using enum TextTable::Align;

// At most `rows` of them: the busiest as they are, in their order, the others in sum.
std::vector<NamedFigures> busiest(const std::vector<NamedFigures>& all, size_t rows) {
  if (all.size() <= rows) return all;
  const auto load = [](const NamedFigures* figures) {
    return figures->forwarded.packets + figures->dropped_packets;
  };
  std::vector<const NamedFigures*> order;
  for (const NamedFigures& figures : all) order.push_back(&figures);
  const auto first_other = order.begin() + static_cast<ptrdiff_t>(rows - 1);
  std::ranges::nth_element(order, first_other, std::ranges::greater(), load);
  std::sort(order.begin(), first_other);  // by address: the order they came in

  std::vector<NamedFigures> shown;
  for (auto it = order.begin(); it != first_other; ++it) shown.push_back(**it);
  NamedFigures others{.pool = "",
                      .name = fmt::format("{} more", all.size() - shown.size()),
                      .forwarded = {},
                      .dropped_packets = 0};
  for (auto it = first_other; it != order.end(); ++it) {
    add(others.forwarded, (*it)->forwarded);
    others.dropped_packets += (*it)->dropped_packets;
  }
  shown.push_back(others);
  return shown;
}

std::string format_vips(const std::vector<NamedFigures>& vips, const Style& style) {
  TextTable table({{"VIP"}, style.packets(), style.volume(), style.column("DROPPED")});
  for (const NamedFigures& vip : vips) {
    table.add({vip.name, style.number(vip.forwarded.packets), style.number(vip.forwarded.volume),
               style.number(vip.dropped_packets)});
  }
  return table.text();
}

// The share of its pool's packets that each backend got; none in a pool without packets.
std::function<std::optional<double>(const NamedFigures&)> seen_shares(
    const std::vector<NamedFigures>& backends) {
  std::map<std::string, double> pool_packets;
  for (const NamedFigures& backend : backends) {
    pool_packets[backend.pool] += backend.forwarded.packets;
  }
  return [pool_packets](const NamedFigures& backend) -> std::optional<double> {
    const auto pool = pool_packets.find(backend.pool);
    if (pool == pool_packets.end() || pool->second == 0) return std::nullopt;
    return backend.forwarded.packets / pool->second;
  };
}

std::optional<double> wanted_share(const WantedShares& wanted, const NamedFigures& backend) {
  const auto share = wanted.find({backend.pool, backend.name});
  return share == wanted.end() ? std::nullopt : std::optional(share->second);
}

std::string format_backends(const std::vector<NamedFigures>& backends, size_t rows,
                            const WantedShares& wanted, const Style& style) {
  const auto seen = seen_shares(backends);
  TextTable table({{"BACKEND"},
                   style.packets(),
                   style.volume(),
                   style.column("DROPPED"),
                   {"WANTED", kRight},
                   {"SEEN", kRight}});
  for (const NamedFigures& backend : busiest(backends, rows)) {
    table.add({backend.pool.empty() ? backend.name : backend.pool + "/" + backend.name,
               style.number(backend.forwarded.packets), style.number(backend.forwarded.volume),
               style.number(backend.dropped_packets), format_share(wanted_share(wanted, backend)),
               format_share(seen(backend))});
  }
  return table.text();
}

std::string format_workers(const std::vector<WorkerFigures>& workers, const Style& style) {
  TextTable table({{"PORT"},
                   {"QUEUE", kRight},
                   {"LCORE", kRight},
                   style.packets(),
                   style.volume(),
                   {"BUSY", kRight},
                   {"BURST", kRight}});
  for (const WorkerFigures& worker : workers) {
    table.add({worker.port, std::to_string(worker.queue), std::to_string(worker.lcore),
               style.number(worker.received.packets), style.number(worker.received.volume),
               format_share(worker.busy_share),
               worker.burst_fill ? fmt::format("{:.1f}", *worker.burst_fill) : "-"});
  }
  return table.text();
}

std::string format_ports(const std::vector<PortFigures>& ports, const Style& style) {
  TextTable table({{"PORT"},
                   {"LINK"},
                   style.column("MISSED"),
                   style.column("NO BUFFER"),
                   style.column("ERRORS"),
                   style.column("STEERING DROPPED")});
  for (const PortFigures& port : ports) {
    table.add({port.name, port.link_up ? "up" : "down", style.number(port.missed),
               style.number(port.no_buffer), style.number(port.errors),
               style.number(port.steering_dropped)});
  }
  return table.text();
}

std::string format_verdicts(const std::vector<std::pair<std::string, double>>& verdicts,
                            const Style& style) {
  TextTable table({{"VERDICT"}, style.packets()});
  for (const auto& [verdict, packets] : verdicts) {
    if (packets > 0) table.add({verdict, style.number(packets)});
  }
  return table.text();
}

}  // namespace

std::expected<Stats, std::string> read_stats(const Json& answer) {
  try {
    return Stats{read_report(answer), read_wanted_shares(answer.at("backends"))};
  } catch (const std::exception& error) {  // a field is missing or of another type
    return std::unexpected(fmt::format("the answer is not what /v1/stats gives: {}", error.what()));
  }
}

Figures totals(const Report& report) {
  return difference(Report{}, report, Scale{});
}

std::optional<Figures> rates(const Report& before, const Report& after) {
  if (before.started_ns != after.started_ns || after.written_ns <= before.written_ns) {
    return std::nullopt;
  }
  const double seconds = static_cast<double>(after.written_ns - before.written_ns) * 1e-9;
  Figures figures = difference(before, after, {.packets = 1 / seconds, .bytes = 8 / seconds});
  figures.interval_s = seconds;
  return figures;
}

std::string format_rate(double value) {
  if (value == 0) return "0";
  constexpr std::array<const char*, 6> kUnits = {"", " k", " M", " G", " T", " P"};
  size_t unit = 0;
  // 999.5 and more would be written as 1000.
  while (value >= 999.5 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  const int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f}{}", value, decimals, kUnits[unit]);
}

std::string format_figures(const Figures& figures, const WantedShares& wanted, size_t rows) {
  const Style style{figures.interval_s.has_value()};
  TextTable all({{"TOTAL"}, style.packets(), style.volume()});
  all.add(
      {"received", style.number(figures.received.packets), style.number(figures.received.volume)});
  std::string text = all.text();
  for (const std::string& part :
       {format_verdicts(figures.verdicts, style), format_workers(figures.workers, style),
        format_ports(figures.ports, style)}) {
    text += "\n" + part;
  }
  // The two lists share what is left by need; each has a title and an empty line before it.
  const auto used = static_cast<size_t>(std::ranges::count(text, '\n')) + 4;
  const size_t left = rows > used + 2 ? rows - used : 2;
  const size_t half = left / 2;
  const size_t vips = std::max(half, left - std::min(left - half, figures.backends.size()));
  const size_t backends = left - std::min(vips, figures.vips.size());
  return text + "\n" + format_vips(busiest(figures.vips, vips), style) + "\n" +
         format_backends(figures.backends, std::max(backends, size_t{1}), wanted, style);
}

Json rates_to_json(const Figures& rates, const WantedShares& wanted) {
  const auto traffic = [](const Traffic& t) {
    return Json{{"packets_per_s", t.packets}, {"bits_per_s", t.volume}};
  };
  const auto optional = [](std::optional<double> value) { return value ? Json(*value) : Json(); };
  Json json = {{"interval_s", optional(rates.interval_s)}, {"received", traffic(rates.received)}};
  json["verdicts"] = Json::object();
  for (const auto& [verdict, packets] : rates.verdicts) {
    json["verdicts"][verdict] = {{"packets_per_s", packets}};
  }
  for (const char* list : {"workers", "ports", "vips", "backends"}) json[list] = Json::array();
  for (const WorkerFigures& worker : rates.workers) {
    json["workers"].push_back({{"lcore", worker.lcore},
                               {"port", worker.port},
                               {"queue", worker.queue},
                               {"received", traffic(worker.received)},
                               {"busy_share", optional(worker.busy_share)},
                               {"packets_per_burst", optional(worker.burst_fill)}});
  }
  for (const PortFigures& port : rates.ports) {
    json["ports"].push_back({{"name", port.name},
                             {"link_up", port.link_up},
                             {"receive_missed_per_s", port.missed},
                             {"receive_errors_per_s", port.errors},
                             {"no_buffer_per_s", port.no_buffer},
                             {"steering_dropped_per_s", port.steering_dropped}});
  }
  for (const NamedFigures& vip : rates.vips) {
    json["vips"].push_back({{"name", vip.name},
                            {"forwarded", traffic(vip.forwarded)},
                            {"dropped", {{"packets_per_s", vip.dropped_packets}}}});
  }
  const auto seen = seen_shares(rates.backends);
  for (const NamedFigures& backend : rates.backends) {
    json["backends"].push_back({{"pool", backend.pool},
                                {"name", backend.name},
                                {"forwarded", traffic(backend.forwarded)},
                                {"dropped", {{"packets_per_s", backend.dropped_packets}}},
                                {"wanted_share", optional(wanted_share(wanted, backend))},
                                {"seen_share", optional(seen(backend))}});
  }
  return json;
}

}  // namespace maglev
