#include "tables/placement.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tables/flow_hash.h"
#include "tables/placement_kinds.h"

namespace maglev {
namespace {

constexpr std::array<PlacementKind, 8> kKinds{PlacementKind::kMaglev, PlacementKind::kRing,
                                              PlacementKind::kKetama, PlacementKind::kRendezvous,
                                              PlacementKind::kJump,   PlacementKind::kBounded,
                                              PlacementKind::kSlots,  PlacementKind::kModulo};
constexpr std::array<std::string_view, 8> kKindNames{"maglev", "ring",    "ketama", "rendezvous",
                                                     "jump",   "bounded", "slots",  "modulo"};

class MaglevPlacement final : public Placement {
 public:
  MaglevPlacement(std::vector<Node> nodes, std::vector<uint32_t> slots, KeyHash hash)
      : Placement(std::move(nodes)), slots_(std::move(slots)), hash_(hash) {}

  uint32_t owner(std::string_view key) const override { return slots_[slot(hash_key(hash_, key))]; }
  void visit(std::string_view key, const std::function<bool(uint32_t)>& wanted) const override {
    visit_places(
        nodes().size(), slot(hash_key(hash_, key)), slots_.size(),
        [&](size_t slot) { return slots_[slot]; }, wanted);
  }
  KeyPlace locate(std::string_view key) const override {
    const uint64_t hash = hash_key(hash_, key);
    return {hash, "slot", slot(hash)};
  }
  std::vector<uint32_t> fill_table(uint64_t) const override { return slots_; }
  size_t memory_bytes() const override { return slots_.size() * sizeof slots_[0]; }

 private:
  uint32_t slot(uint64_t hash) const {
    return slot_of(widen(hash_, hash), static_cast<uint32_t>(slots_.size()));
  }

  std::vector<uint32_t> slots_;
  KeyHash hash_;
};

bool keeps_order(PlacementKind kind) {
  return kind == PlacementKind::kJump || kind == PlacementKind::kSlots;
}

std::expected<void, std::string> check_nodes(std::span<const Node> nodes) {
  if (nodes.empty()) return std::unexpected("there is no node: name at least one");
  std::set<std::string_view> names;
  for (const Node& node : nodes) {
    if (node.name.empty()) return std::unexpected("a node has an empty name: give each one a name");
    if (!names.insert(node.name).second) {
      return std::unexpected(fmt::format("two nodes are named '{}': names must differ", node.name));
    }
    if (node.weight < 1 || node.weight > kMaxNodeWeight) {
      return std::unexpected(fmt::format("node '{}' has weight {}: weights are from 1 to {}",
                                         node.name, node.weight, kMaxNodeWeight));
    }
  }
  return {};
}

// Whatever the kind looks at: a setting that is wrong is not what was meant.
std::expected<void, std::string> check_settings(const PlacementSettings& settings) {
  if (const auto size = check_table_size(settings.size); !size) {
    return std::unexpected(size.error());
  }
  if (settings.vnodes == 0) {
    return std::unexpected("0 vnodes leave nodes without a token: take 1 or more");
  }
  if (!(settings.epsilon >= 0 && settings.epsilon <= 1e6)) {
    return std::unexpected(
        fmt::format("epsilon {} is not from 0 to 1000000: it is how far above its share a node may "
                    "be, 0.25 for a quarter",
                    settings.epsilon));
  }
  return {};
}

// Brings weights to lowest terms, and to a sum of about `most` where it is more.
void fit_weights(std::vector<Node>& nodes, uint64_t most) {
  uint32_t divisor = 0;
  for (const Node& node : nodes) divisor = std::gcd(divisor, node.weight);
  uint64_t sum = 0;
  for (Node& node : nodes) sum += node.weight /= divisor;
  if (sum <= most) return;
  for (Node& node : nodes) {
    const uint64_t scaled = (node.weight * most + sum / 2) / sum;
    node.weight = static_cast<uint32_t>(std::max<uint64_t>(1, scaled));
  }
}

}  // namespace

std::span<const PlacementKind> all_placement_kinds() {
  return kKinds;
}

std::string_view to_text(PlacementKind kind) {
  return kKindNames[std::to_underlying(kind)];
}

std::optional<std::string_view> own_hash(PlacementKind kind) {
  if (kind == PlacementKind::kKetama) return "crc-32";
  if (kind == PlacementKind::kSlots) return "crc-16";
  return std::nullopt;
}

std::expected<PlacementKind, std::string> parse_placement_kind(std::string_view text) {
  const auto name = std::ranges::find(kKindNames, text);
  if (name != kKindNames.end()) return kKinds[static_cast<size_t>(name - kKindNames.begin())];
  return std::unexpected(
      fmt::format("unknown placement '{}': choose one of {}", text, fmt::join(kKindNames, ", ")));
}

void Placement::place(std::span<const std::string> keys, std::span<uint32_t> owners) const {
  for (size_t i = 0; i < keys.size(); ++i) owners[i] = owner(keys[i]);
}

std::vector<uint32_t> Placement::fill_table(uint64_t size) const {
  std::vector<std::string> keys;
  keys.reserve(size);
  for (uint64_t slot = 0; slot < size; ++slot) keys.push_back(fmt::format("slot#{}", slot));
  std::vector<uint32_t> owners(size);
  place(keys, owners);
  return owners;
}

MadePlacement make_maglev_placement(std::vector<Node> nodes, const PlacementSettings& settings) {
  std::vector<WeightedName> members;
  for (const Node& node : nodes) members.push_back({node.name, node.weight});
  auto table = build_maglev(members, settings.size);
  if (!table) return std::unexpected(table.error());
  return std::make_unique<MaglevPlacement>(std::move(nodes), std::move(table->slots),
                                           settings.hash);
}

MadePlacement make_placement(PlacementKind kind, std::vector<Node> nodes,
                             const PlacementSettings& settings, const Placement* before) {
  if (const auto good = check_nodes(nodes); !good) return std::unexpected(good.error());
  if (const auto good = check_settings(settings); !good) return std::unexpected(good.error());
  if (!keeps_order(kind)) std::ranges::sort(nodes, {}, &Node::name);
  switch (kind) {
    case PlacementKind::kMaglev:
      return make_maglev_placement(std::move(nodes), settings);
    case PlacementKind::kRing:
      return make_ring(std::move(nodes), settings);
    case PlacementKind::kKetama:
      return make_ketama(std::move(nodes));
    case PlacementKind::kRendezvous:
      return make_rendezvous(std::move(nodes), settings);
    case PlacementKind::kJump:
      return make_jump(std::move(nodes), settings, before);
    case PlacementKind::kBounded:
      return make_bounded(std::move(nodes), settings);
    case PlacementKind::kSlots:
      return make_slots(std::move(nodes), before);
    case PlacementKind::kModulo:
      return make_modulo(std::move(nodes), settings);
  }
  std::unreachable();
}

std::expected<std::vector<uint32_t>, std::string> preference_list(const Placement& placement,
                                                                  std::string_view key,
                                                                  uint32_t count) {
  std::set<std::string_view> zones;
  size_t without_zone = 0;
  for (const Node& node : placement.nodes()) {
    if (node.zone.empty())
      ++without_zone;
    else
      zones.insert(node.zone);
  }
  if (!zones.empty() && without_zone > 0) {
    return std::unexpected(fmt::format("{} of {} nodes have no zone: give every node one, or none",
                                       without_zone, placement.nodes().size()));
  }
  const size_t most = zones.empty() ? placement.nodes().size() : zones.size();
  if (count > most) {
    return std::unexpected(fmt::format("{} distinct {} were asked for, but there are only {}",
                                       count, zones.empty() ? "nodes" : "zones", most));
  }
  std::vector<uint32_t> list;
  std::set<std::string_view> used;
  if (count == 0) return list;
  placement.visit(key, [&](uint32_t node) {
    const std::string& zone = placement.nodes()[node].zone;
    if (zone.empty() || used.insert(zone).second) list.push_back(node);
    return list.size() < count;
  });
  return list;
}

std::expected<MaglevTable, std::string> build_lookup_table(PlacementKind kind,
                                                           std::span<const WeightedName> members,
                                                           uint64_t size) {
  if (kind == PlacementKind::kMaglev) return build_maglev(members, size);
  if (kind != PlacementKind::kRing && kind != PlacementKind::kRendezvous &&
      kind != PlacementKind::kBounded) {
    return std::unexpected(fmt::format(
        "placement '{}' fills no lookup table: choose one of maglev, ring, rendezvous, bounded",
        to_text(kind)));
  }
  const auto checked_size = check_table_size(size);
  if (!checked_size) return std::unexpected(checked_size.error());
  std::vector<Node> nodes;
  for (const WeightedName& member : members) {
    if (member.weight > 0) nodes.push_back({member.name, member.weight, {}});
  }
  MaglevTable table;
  if (nodes.empty()) {
    table.slots.assign(*checked_size, kNoOwner);
    return table;
  }
  PlacementSettings settings;
  settings.hash = KeyHash::kXxh64;
  settings.vnodes =
      static_cast<uint32_t>(std::clamp<uint64_t>(kTableTokens / nodes.size(), 1, settings.vnodes));
  fit_weights(nodes, kTableTokens / settings.vnodes);
  const auto placement = make_placement(kind, std::move(nodes), settings);
  if (!placement) return std::unexpected(placement.error());
  for (const WeightedName& member : members) {
    if (member.weight > 0) table.owners.push_back(member);
  }
  std::ranges::sort(table.owners, {}, &WeightedName::name);
  table.slots = (*placement)->fill_table(*checked_size);
  return table;
}

}  // namespace maglev
