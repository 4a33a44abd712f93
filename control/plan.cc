#include "control/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace maglev {
namespace {

namespace ip = boost::asio::ip;

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

// Whether checks find it up, as far as there are any.
bool is_healthy(const PoolSettings& settings, const std::string& name, const PoolSenses& senses) {
  if (settings.health.type == HealthType::kNone) return true;
  const HealthVerdict verdict = senses.verdict_of(name);
  return verdict == HealthVerdict::kUp ||
         (verdict == HealthVerdict::kUnknown && senses.is_settling(name));
}

PoolBackend describe_backend(const Numbering::Place& place, const Backend& backend, bool serves,
                             const WayOut& way_out) {
  PoolBackend described{place.name, {}, backend.quic_server_id};
  BackendRecord& record = described.record;
  if (serves) record.flags |= kBackendServes;
  record.address = to_record(backend.address);
  record.family = family_of(backend.address);
  record.incarnation = place.incarnation;
  if (way_out.next_hop.resolved) {
    record.resolved = 1;
    record.port = way_out.port;
    record.path_mtu_bytes =
        static_cast<uint16_t>(std::min<uint32_t>(way_out.path_mtu.bytes, UINT16_MAX));
    if (way_out.next_hop.on_link) record.flags |= kBackendOnLink;
    record.outer_source = to_record(way_out.outer_source.address);
    record.outer_source_prefix_length = way_out.outer_source.length;
    std::ranges::copy(way_out.next_hop.mac, record.next_hop_mac);
  }
  return described;
}

}  // namespace

Numbering::Numbering(std::vector<Place> places) : places_(std::move(places)) {
  for (uint32_t index = 0; index < places_.size(); ++index) {
    if (places_[index].lives()) indices_.emplace(places_[index].name, index);
  }
}

bool Numbering::update(const ByName<Backend>& backends, uint64_t generation) {
  bool changed = false;
  for (Place& place : places_) {
    if (!place.lives() || backends.contains(place.name)) continue;
    indices_.erase(place.name);
    place.left_in = generation;
    changed = true;
  }
  for (size_t left = leaving(); left > kMostLeaving; --left) free_oldest();
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

bool Numbering::free_swept(uint64_t generation,
                           const std::function<bool(uint32_t place)>& is_named) {
  bool changed = false;
  for (uint32_t index = 0; index < places_.size(); ++index) {
    Place& place = places_[index];
    if (place.left_in == 0 || place.left_in > generation || is_named(index)) continue;
    place.name.clear();
    place.left_in = 0;
    changed = true;
  }
  return changed;
}

size_t Numbering::leaving() const {
  return static_cast<size_t>(
      std::ranges::count_if(places_, [](const Place& place) { return place.left_in != 0; }));
}

void Numbering::free_oldest() {
  const auto age = [](const Place& place) { return place.left_in - 1; };  // of others: the largest
  Place& oldest = *std::ranges::min_element(places_, {}, age);
  oldest.name.clear();
  oldest.left_in = 0;
}

std::optional<size_t> Membership::place_of(std::string_view name) const {
  const auto member = std::ranges::lower_bound(members, name, {}, &WeightedName::name);
  if (member == members.end() || member->name != name) return std::nullopt;
  return static_cast<size_t>(member - members.begin());
}

uint32_t PlannedPool::slots_of(std::string_view backend) const {
  const auto place = membership.place_of(backend);
  return place ? owned_slots[*place] : 0;
}

Membership choose_members(const Pool& pool, const PoolSenses& senses) {
  Membership ready;
  Membership healthy;
  for (const auto& [name, backend] : pool.backends) {
    if (backend.state != BackendState::kReady || backend.weight == 0) continue;
    ready.members.push_back({name, backend.weight});
    if (is_healthy(pool.settings, name, senses)) healthy.members.push_back({name, backend.weight});
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

Prefix choose_outer_source(const std::vector<Prefix>& prefixes, const ip::address& preferred) {
  const auto prefix = std::ranges::find_if(prefixes, [&](const Prefix& candidate) {
    return candidate.address.is_v4() == preferred.is_v4();
  });
  return prefix == prefixes.end() ? only(preferred) : *prefix;
}

WayOut find_way_out(NextHop next_hop, const std::optional<PathMtuMemory::Entry>& learnt,
                    const Configuration& configuration) {
  WayOut way_out;
  way_out.next_hop = std::move(next_hop);
  NextHop& hop = way_out.next_hop;
  if (!hop.resolved) return way_out;
  const auto& ports = configuration.dataplane.ports;
  const auto port = std::ranges::find(ports, hop.interface, &PortSettings::interface);
  if (port == ports.end()) {
    NextHop unresolved;
    unresolved.reason = fmt::format(
        "the route leads out of interface '{}', which is the interface of no port of the dataplane",
        hop.interface);
    unresolved.interface = std::move(hop.interface);
    hop = std::move(unresolved);
    return way_out;
  }
  way_out.port = static_cast<uint16_t>(port - ports.begin());
  way_out.outer_source = choose_outer_source(configuration.outer_source_prefixes, hop.outer_source);
  way_out.path_mtu = {hop.mtu_bytes,
                      hop.mtu_is_of_route ? "the route's" : "interface " + hop.interface,
                      std::nullopt};
  if (learnt && (hop.mtu_bytes == 0 || learnt->mtu_bytes < hop.mtu_bytes)) {
    way_out.path_mtu = {learnt->mtu_bytes, "said by " + learnt->router.to_string(), learnt->until};
  }
  return way_out;
}

std::expected<PlannedPool, std::string> plan_pool(std::string_view name, const Pool& pool,
                                                  const Numbering& numbering,
                                                  const PoolSenses& senses,
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
    if (!place.lives()) {
      backends.emplace_back();
      continue;
    }
    const Backend& backend = pool.backends.find(place.name)->second;
    const WayOut way_out = senses.way_out_of(backend.address);
    if (!way_out.next_hop.resolved) {
      ++plan.unresolved;
    } else if (!way_out.next_hop.on_link) {
      ++plan.off_link;
    }
    const bool serves =
        backend.state != BackendState::kMaintenance &&
        (plan.membership.fail_open || is_healthy(pool.settings, place.name, senses));
    backends.push_back(describe_backend(place, backend, serves, way_out));
  }
  std::vector<uint32_t> owner_backends;
  for (const WeightedName& member : plan.membership.members) {
    const uint32_t index = numbering.index_of(member.name);
    owner_backends.push_back(index);
    plan.owners.push_back({index, numbering.places()[index].incarnation});
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
  std::vector<PoolReference> pool_files;
  ByName<uint32_t> pool_indices;
  for (const auto& [name, pool] : pools) {
    pool_indices.emplace(name, static_cast<uint32_t>(pool_files.size()));
    pool_files.push_back({pool.pool, pool.history});
  }
  std::vector<RootVip> root_vips;
  for (const auto& [name, vip] : vips) {
    RootVip root_vip{name, {}};
    const IdleTimes idle = vip.tracking == Tracking::kNone ? IdleTimes{0, 0, 0} : vip.idle;
    root_vip.record = {.address = to_record(vip.prefix.address),
                       .family = family_of(vip.prefix.address),
                       .prefix_length = vip.prefix.length,
                       .protocol = vip.protocol,
                       .encapsulation = vip.encapsulation,
                       .hash_policy = vip.hash,
                       .fragment_policy = vip.fragments,
                       .flags = vip.flags,
                       .name_length = 0,  // the builder's to fill
                       .port = vip.port,
                       .gue_port = vip.gue_port,
                       .pool = pool_indices.at(vip.pool),
                       .tcp_idle_s = idle.tcp_s,
                       .tcp_closing_idle_s = idle.tcp_closing_s,
                       .udp_idle_s = idle.udp_s,
                       .tracking = vip.tracking,
                       .quic = vip.quic};
    root_vips.push_back(std::move(root_vip));
  }
  return build_root_file(generation, hash_seed, pool_files, root_vips);
}

}  // namespace maglev
