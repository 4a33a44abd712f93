#include "control/simulator_views.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "control/text_table.h"

namespace maglev {
namespace {

using Json = nlohmann::ordered_json;

std::string time_text(double ns) {
  if (ns < 1e3) return fmt::format("{:.0f} ns", ns);
  if (ns < 1e6) return fmt::format("{:.1f} us", ns / 1e3);
  return fmt::format("{:.1f} ms", ns / 1e6);
}

std::string memory_text(size_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  if (bytes < 1024 * 1024) return fmt::format("{:.1f} KiB", static_cast<double>(bytes) / 1024);
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1024 * 1024));
}

double percent(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : 100 * static_cast<double>(part) / static_cast<double>(whole);
}

// Nodes of both sides by name, those that leave and those that come included.
struct Row {
  const NodeLoad* before = nullptr;
  const NodeLoad* after = nullptr;
};
std::map<std::string_view, Row> rows_of(const Change& change) {
  std::map<std::string_view, Row> rows;
  for (const NodeLoad& node : change.before.nodes) rows[node.name].before = &node;
  for (const NodeLoad& node : change.after.nodes) rows[node.name].after = &node;
  return rows;
}

void add_load(std::vector<std::string>& cells, const NodeLoad* node) {
  if (node == nullptr) {
    cells.insert(cells.end(), 3, "-");
    return;
  }
  cells.push_back(fmt::format("{}", node->load));
  cells.push_back(fmt::format("{:.2f} %", node->share * 100));
  cells.push_back(fmt::format("{:.2f} %", node->wanted * 100));
}

using enum TextTable::Align;

std::string change_text(const Change& change, std::string_view unit) {
  TextTable table({{"NODE"},
                   {"BEFORE", kRight},
                   {"SHARE", kRight},
                   {"WANTED", kRight},
                   {"AFTER", kRight},
                   {"SHARE", kRight},
                   {"WANTED", kRight}});
  for (const auto& [name, row] : rows_of(change)) {
    std::vector<std::string> cells{std::string(name)};
    add_load(cells, row.before);
    add_load(cells, row.after);
    table.add(std::move(cells));
  }
  std::string text = table.text();
  const Movement& movement = change.movement;
  text += fmt::format("peak over mean {:.5f}, after {:.5f}; spread {:.6f}, after {:.6f}\n",
                      change.before.peak_over_mean, change.after.peak_over_mean,
                      change.before.spread, change.after.spread);
  text += fmt::format(
      "moved {} {} of {} ({:.2f} %), {} of them between nodes that did not change; ideal {:.0f} "
      "({:.2f} %)",
      movement.moved, unit, movement.total, percent(movement.moved, movement.total),
      movement.moved_between_unchanged, movement.ideal_moved,
      movement.total == 0 ? 0 : 100 * movement.ideal_moved / static_cast<double>(movement.total));
  return text;
}

Json balance_json(const Simulation& simulation, Balance Change::*side) {
  Json json;
  const Balance& keys = simulation.keys.*side;
  json["nodes"] = Json::array();
  for (size_t i = 0; i < keys.nodes.size(); ++i) {
    const NodeLoad& node = keys.nodes[i];
    Json entry{
        {"name", node.name}, {"keys", node.load}, {"share", node.share}, {"wanted", node.wanted}};
    if (simulation.bytes) entry["bytes"] = (*simulation.bytes.*side).nodes[i].load;
    if (simulation.requests) entry["requests"] = (*simulation.requests.*side).nodes[i].load;
    json["nodes"].push_back(std::move(entry));
  }
  json["peak_over_mean"] = keys.peak_over_mean;
  json["spread"] = keys.spread;
  const auto add = [&](const char* name, const std::optional<Change>& change) {
    if (!change) return;
    const Balance& balance = *change.*side;
    json[name] = {{"peak_over_mean", balance.peak_over_mean}, {"spread", balance.spread}};
  };
  add("bytes", simulation.bytes);
  add("requests", simulation.requests);
  return json;
}

std::string_view hash_of(const Simulation& simulation, const Scenario& scenario) {
  return own_hash(simulation.kind).value_or(to_text(scenario.settings.hash));
}

}  // namespace

std::string simulation_text(const Simulation& simulation, const Scenario& scenario) {
  std::string text = fmt::format(
      "{}, {} keys, {}{}\n", to_text(simulation.kind), scenario.workload.keys.size(),
      hash_of(simulation, scenario),
      scenario.replicas > 1 ? fmt::format(", {} replicas a key", scenario.replicas) : "");
  text += change_text(simulation.keys, scenario.replicas > 1 ? "copies of keys" : "keys");
  text += fmt::format("; modulo {} keys\n", simulation.modulo_moved);
  if (simulation.bytes) text += "\n" + change_text(*simulation.bytes, "bytes") + "\n";
  if (simulation.requests) text += "\n" + change_text(*simulation.requests, "requests") + "\n";
  text += fmt::format("build {}, lookup {} a key, memory {}\n",
                      time_text(static_cast<double>(simulation.build_time.count())),
                      time_text(simulation.lookup_ns), memory_text(simulation.memory_bytes));
  return text;
}

Json simulation_json(const Simulation& simulation, const Scenario& scenario,
                     const std::vector<std::string>& warnings) {
  const Movement& movement = simulation.keys.movement;
  Json json{{"placement", to_text(simulation.kind)},
            {"hash", hash_of(simulation, scenario)},
            {"keys", scenario.workload.keys.size()},
            {"replicas", scenario.replicas},
            {"before", balance_json(simulation, &Change::before)},
            {"after", balance_json(simulation, &Change::after)},
            {"moved", movement.moved},
            {"moved_between_unchanged", movement.moved_between_unchanged},
            {"ideal_moved", std::llround(movement.ideal_moved)},
            {"modulo_moved", simulation.modulo_moved}};
  if (simulation.bytes) json["moved_bytes"] = simulation.bytes->movement.moved;
  if (simulation.requests) json["moved_requests"] = simulation.requests->movement.moved;
  json["flows"] = Json::array();
  for (const auto& [pair, keys] : movement.flows) {
    json["flows"].push_back({{"from", pair.first}, {"to", pair.second}, {"keys", keys}});
  }
  json["build_ns"] = simulation.build_time.count();
  json["lookup_ns"] = simulation.lookup_ns;
  json["memory_bytes"] = simulation.memory_bytes;
  json["warnings"] = warnings;
  return json;
}

std::string comparison_text(const std::vector<Simulation>& simulations, const Refusals& refusals,
                            uint32_t replicas) {
  TextTable table({{"PLACEMENT"},
                   {"PEAK", kRight},
                   {"SPREAD", kRight},
                   {"MOVED", kRight},
                   {"BETWEEN", kRight},
                   {"BUILD", kRight},
                   {"LOOKUP", kRight},
                   {"MEMORY", kRight}});
  for (const Simulation& s : simulations) {
    const Movement& movement = s.keys.movement;
    table.add({std::string(to_text(s.kind)), fmt::format("{:.4f}", s.keys.after.peak_over_mean),
               fmt::format("{:.4f}", s.keys.after.spread), fmt::format("{}", movement.moved),
               fmt::format("{}", movement.moved_between_unchanged),
               time_text(static_cast<double>(s.build_time.count())), time_text(s.lookup_ns),
               memory_text(s.memory_bytes)});
  }
  const Simulation& any = simulations.front();
  std::string text = table.text();
  text += fmt::format("of {} {}, {:.0f} would move ideally; {} keys by hashing modulo the nodes\n",
                      any.keys.movement.total, replicas > 1 ? "copies of keys" : "keys",
                      any.keys.movement.ideal_moved, any.modulo_moved);
  for (const auto& [kind, reason] : refusals) {
    text += fmt::format("{} refused: {}\n", to_text(kind), reason);
  }
  return text;
}

}  // namespace maglev
