#include "control/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace maglev {
namespace {

Address address_of(boost::asio::ip::address_v4 address) {
  Address result;
  std::ranges::copy(address.to_bytes(), result.bytes.begin());
  return result;
}

// The table of these members, with its checksum and what each owns.
std::expected<void, std::string> plan_table(PlannedPool& plan) {
  const auto table = build_lookup_table(plan.placement, plan.membership.members, plan.table_size);
  if (!table) return std::unexpected(table.error());
  plan.table_file = build_table_file(*table);
  plan.table = check_table_file(plan.table_file)->checksum;
  plan.owned_slots.assign(table->owners.size(), 0);
  for (const uint32_t owner : table->slots) {
    if (owner != kNoOwner) ++plan.owned_slots[owner];
  }
  return {};
}

PoolBackend describe_backend(const Numbering::Place& place, const Backend& backend,
                             const WayOut& way_out) {
  PoolBackend described{place.name, {}};
  BackendRecord& record = described.record;
  record.address = address_of(backend.address);
  record.family = AddressFamily::kIpv4;
  record.incarnation = place.incarnation;
  if (way_out.next_hop.resolved) {
    record.resolved = 1;
    record.port = way_out.port;
    record.outer_source = address_of(way_out.next_hop.outer_source);
    record.outer_source_prefix_length = 32;
    std::ranges::copy(way_out.next_hop.mac, record.next_hop_mac);
  }
  return described;
}

}  // namespace

Numbering::Numbering(std::vector<Place> places) : places_(std::move(places)) {
  for (uint32_t index = 0; index < places_.size(); ++index) {
    if (!places_[index].name.empty()) indices_.emplace(places_[index].name, index);
  }
}

bool Numbering::update(const ByName<Backend>& backends) {
  bool changed = false;
  for (Place& place : places_) {
    if (place.name.empty() || backends.contains(place.name)) continue;
    indices_.erase(place.name);
    place.name.clear();
    changed = true;
  }
  uint32_t index = 0;
  for (const auto& [name, backend] : backends) {
    if (indices_.contains(name)) continue;
    while (index < places_.size() && !places_[index].name.empty()) ++index;
    if (index == places_.size()) places_.emplace_back();
    places_[index].name = name;
    ++places_[index].incarnation;
    indices_.emplace(name, index);
    changed = true;
  }
  return changed;
}

Membership choose_members(const Pool& pool, const PoolSenses& senses) {
  Membership ready;
  Membership healthy;
  for (const auto& [name, backend] : pool.backends) {
    if (backend.state != BackendState::kReady || backend.weight == 0) continue;
    ready.members.push_back({name, backend.weight});
    const HealthVerdict verdict = senses.verdict_of(name);
    const bool counts = pool.settings.health.type == HealthType::kNone ||
                        verdict == HealthVerdict::kUp ||
                        (verdict == HealthVerdict::kUnknown && senses.is_settling(name));
    if (counts) healthy.members.push_back({name, backend.weight});
  }
  const bool enough = healthy.members.size() >= pool.settings.min_healthy;
  if (enough || healthy.members.size() == ready.members.size()) return healthy;
  ready.fail_open = true;
  return ready;
}

std::expected<Change, std::string> plan_table_change(const PoolSettings& settings,
                                                     std::span<const WeightedName> before,
                                                     std::span<const WeightedName> after) {
  const auto was = build_lookup_table(settings.placement, before, settings.table_size);
  if (!was) return std::unexpected(was.error());
  const auto is = build_lookup_table(settings.placement, after, settings.table_size);
  if (!is) return std::unexpected(is.error());
  const auto nodes_of = [](const MaglevTable& table) {
    std::vector<Node> nodes;
    for (const WeightedName& owner : table.owners) nodes.push_back({owner.name, owner.weight, {}});
    return nodes;
  };
  const std::vector<Node> old_nodes = nodes_of(*was);
  const std::vector<Node> new_nodes = nodes_of(*is);
  return plan_change({old_nodes, was->slots}, {new_nodes, is->slots});
}

WayOut find_way_out(NextHop next_hop, const std::vector<PortSettings>& ports) {
  if (!next_hop.resolved) return {std::move(next_hop), 0};
  const auto port = std::ranges::find(ports, next_hop.interface, &PortSettings::interface);
  if (port != ports.end()) {
    return {std::move(next_hop), static_cast<uint16_t>(port - ports.begin())};
  }
  NextHop unresolved;
  unresolved.interface = next_hop.interface;
  unresolved.reason = fmt::format(
      "the route leads out of interface '{}', which is the interface of no port of the dataplane",
      next_hop.interface);
  return {std::move(unresolved), 0};
}

std::expected<PlannedPool, std::string> plan_pool(std::string_view name, const Pool& pool,
                                                  const Numbering& numbering,
                                                  const PoolSenses& senses,
                                                  const std::vector<PortSettings>& ports,
                                                  const PlannedPool* previous) {
  PlannedPool plan;
  plan.membership = choose_members(pool, senses);
  plan.placement = pool.settings.placement;
  plan.table_size = pool.settings.table_size;
  if (previous != nullptr && previous->placement == plan.placement &&
      previous->table_size == plan.table_size &&
      previous->membership.members == plan.membership.members) {
    plan.table = previous->table;
    plan.owned_slots = previous->owned_slots;
  } else if (const auto planned = plan_table(plan); !planned) {
    return std::unexpected(fmt::format("pool '{}': {}", name, planned.error()));
  }

  std::vector<PoolBackend> backends;
  for (const Numbering::Place& place : numbering.places()) {
    if (place.name.empty()) {
      backends.emplace_back();
      continue;
    }
    const Backend& backend = pool.backends.find(place.name)->second;
    const WayOut way_out = find_way_out(senses.next_hop_of(backend.address), ports);
    if (!way_out.next_hop.resolved) ++plan.unresolved;
    backends.push_back(describe_backend(place, backend, way_out));
  }
  std::vector<uint32_t> owner_backends;
  for (const WeightedName& member : plan.membership.members) {
    owner_backends.push_back(numbering.index_of(member.name));
  }
  plan.pool_file = build_pool_file(name, plan.table, backends, owner_backends);
  // What the dataplane would refuse is not published.
  const auto checked = check_pool_file(plan.pool_file);
  if (!checked) return std::unexpected(fmt::format("pool '{}': {}", name, checked.error()));
  plan.pool = checked->checksum;
  return plan;
}

std::vector<std::byte> plan_root(uint64_t generation, uint64_t hash_seed,
                                 const ByName<PlannedPool>& pools, const ByName<Vip>& vips) {
  std::vector<Checksum> pool_files;
  ByName<uint32_t> pool_indices;
  for (const auto& [name, pool] : pools) {
    pool_indices.emplace(name, static_cast<uint32_t>(pool_files.size()));
    pool_files.push_back(pool.pool);
  }
  std::vector<RootVip> root_vips;
  for (const auto& [name, vip] : vips) {
    RootVip root_vip{name, {}};
    root_vip.record.address = address_of(vip.address);
    root_vip.record.family = AddressFamily::kIpv4;
    root_vip.record.prefix_length = 32;
    root_vip.record.protocol = vip.protocol;
    root_vip.record.encapsulation = vip.encapsulation;
    root_vip.record.hash_policy = vip.hash;
    root_vip.record.fragment_policy = FragmentPolicy::kFlow;
    root_vip.record.port = vip.port;
    root_vip.record.pool = pool_indices.at(vip.pool);
    root_vips.push_back(std::move(root_vip));
  }
  return build_root_file(generation, hash_seed, pool_files, root_vips);
}

}  // namespace maglev
