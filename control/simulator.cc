#include "control/simulator.h"

#include <algorithm>
#include <span>

#include <fmt/format.h>

namespace maglev {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kKeysPerReport = 16384;
constexpr double kBusy = 1.2;  // times the mean

using Owners = std::vector<uint32_t>;

// The owners of all keys, `replicas` a key.
std::expected<Owners, std::string> assign(const Placement& placement, PlacementKind kind,
                                          const std::vector<std::string>& keys, uint32_t replicas,
                                          const OnProgress& on_progress) {
  Owners owners(keys.size() * replicas);
  if (replicas > 1) {
    for (size_t i = 0; i < keys.size(); ++i) {
      if (i % kKeysPerReport == 0) {
        on_progress(static_cast<double>(i) / static_cast<double>(keys.size()));
      }
      const auto list = preference_list(placement, keys[i], replicas);
      if (!list) return std::unexpected(list.error());
      std::ranges::copy(*list, owners.begin() + static_cast<std::ptrdiff_t>(i * replicas));
    }
    return owners;
  }
  // Bounded loads depend on all keys, so they are placed in one go.
  const size_t step = kind == PlacementKind::kBounded ? keys.size() : kKeysPerReport;
  for (size_t first = 0; first < keys.size(); first += step) {
    on_progress(static_cast<double>(first) / static_cast<double>(keys.size()));
    const size_t count = std::min(step, keys.size() - first);
    placement.place(std::span(keys).subspan(first, count), std::span(owners).subspan(first, count));
  }
  return owners;
}

std::expected<uint64_t, std::string> moved_by_modulo(const Scenario& scenario,
                                                     const OnProgress& on_progress) {
  Owners owners[2];
  std::unique_ptr<Placement> placements[2];
  const std::vector<Node>* nodes[2] = {&scenario.before, &scenario.after};
  for (int i = 0; i < 2; ++i) {
    auto made = make_placement(PlacementKind::kModulo, *nodes[i], scenario.settings);
    if (!made) return std::unexpected(made.error());
    placements[i] = std::move(*made);
    owners[i] = *assign(*placements[i], PlacementKind::kModulo, scenario.workload.keys, 1,
                        [&](double share) { on_progress((i + share) / 2); });
  }
  return compare_assignments({placements[0]->nodes(), owners[0]},
                             {placements[1]->nodes(), owners[1]})
      .moved;
}

}  // namespace

std::expected<Simulation, std::string> simulate(PlacementKind kind, const Scenario& scenario,
                                                const OnProgress& on_progress) {
  if (scenario.replicas > 1 && kind == PlacementKind::kBounded) {
    return std::unexpected("bounded gives each key one owner: ask for 1 replica");
  }
  Simulation result;
  result.kind = kind;
  const auto started = Clock::now();
  auto before = make_placement(kind, scenario.before, scenario.settings);
  if (!before) return std::unexpected(before.error());
  result.build_time = Clock::now() - started;
  auto after = make_placement(kind, scenario.after, scenario.settings, before->get());
  if (!after) return std::unexpected(after.error());
  result.before = std::move(*before);
  result.after = std::move(*after);
  result.memory_bytes = result.after->memory_bytes();

  const Workload& work = scenario.workload;
  const auto placing = Clock::now();
  const auto was = assign(*result.before, kind, work.keys, scenario.replicas,
                          [&](double share) { on_progress(share / 3); });
  if (!was) return std::unexpected(was.error());
  const std::chrono::duration<double, std::nano> placing_time = Clock::now() - placing;
  result.lookup_ns = placing_time.count() / static_cast<double>(work.keys.size());
  const auto is = assign(*result.after, kind, work.keys, scenario.replicas,
                         [&](double share) { on_progress((1 + share) / 3); });
  if (!is) return std::unexpected(is.error());
  const auto modulo =
      moved_by_modulo(scenario, [&](double share) { on_progress((2 + share) / 3); });
  if (!modulo) return std::unexpected(modulo.error());
  result.modulo_moved = *modulo;

  const Assignment before_owners{result.before->nodes(), *was, scenario.replicas};
  const Assignment after_owners{result.after->nodes(), *is, scenario.replicas};
  result.keys = plan_change(before_owners, after_owners);
  if (!work.bytes.empty()) result.bytes = plan_change(before_owners, after_owners, work.bytes);
  if (!work.requests.empty()) {
    result.requests = plan_change(before_owners, after_owners, work.requests);
  }
  on_progress(1);
  return result;
}

std::vector<std::string> find_warnings(const Simulation& simulation,
                                       std::optional<double> headroom) {
  std::vector<std::string> warnings;
  const auto warn_if_busy = [&](const Change& change, std::string_view unit) {
    const auto& nodes = change.after.nodes;
    if (change.after.peak_over_mean <= kBusy) return;
    const auto busiest = std::ranges::max_element(
        nodes, {}, [](const NodeLoad& node) { return node.share / node.wanted; });
    warnings.push_back(fmt::format(
        "{}: '{}' gets {:.1f} % of the {}, {:.2f} times the mean: more vnodes, a larger table or "
        "another placement would even it out",
        to_text(simulation.kind), busiest->name, busiest->share * 100, unit,
        change.after.peak_over_mean));
  };
  warn_if_busy(simulation.keys, "keys");
  if (simulation.bytes) warn_if_busy(*simulation.bytes, "bytes");
  if (simulation.requests) warn_if_busy(*simulation.requests, "requests");

  const bool by_request = simulation.requests.has_value();
  const Movement& wave = (by_request ? *simulation.requests : simulation.keys).movement;
  const double share =
      wave.total == 0 ? 0 : static_cast<double>(wave.moved) / static_cast<double>(wave.total);
  if (headroom && share > *headroom) {
    warnings.push_back(fmt::format(
        "{}: the change makes {:.1f} % of the {} miss at once, more than the headroom of {:.1f} %: "
        "change in smaller steps",
        to_text(simulation.kind), share * 100, by_request ? "requests" : "keys", *headroom * 100));
  }
  return warnings;
}

}  // namespace maglev
