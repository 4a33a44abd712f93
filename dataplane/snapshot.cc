#include "dataplane/snapshot.h"

#include <algorithm>

#include <fmt/format.h>

namespace maglev {
namespace {

uint32_t owner_index(const PoolView& pool, const TableView& table, uint32_t slot) {
  const uint32_t owner = table.owner_of(slot);
  return owner == kNoOwner ? kNoBackendIndex : pool.owner_backends[owner];
}

template <typename Slot>
void fill_slots(std::pmr::vector<Slot>& slots, const PoolView& pool, const TableView& table,
                std::span<const SlotHistory> past) {
  slots.resize(table.size());
  for (uint32_t s = 0; s < table.size(); ++s) {
    slots[s] = static_cast<Slot>(owner_index(pool, table, s));
  }
  for (size_t k = 0; k < past.size(); ++k) {
    slots[past[k].slot] = static_cast<Slot>(pool.backends.size() + k);
  }
}

bool can_serve(const PoolView& pool, const SlotHistory& past) {
  if (past.fallback == kNoOwner) return false;
  const BackendRecord& record = pool.backends[past.fallback];
  return (record.flags & kBackendServes) != 0 && record.incarnation == past.fallback_incarnation;
}

// The idle times of VIPs together: the longest of each.
void extend(FlowIdle& idle, const FlowIdle& other) {
  for (size_t i = 0; i < idle.ticks.size(); ++i) {
    idle.ticks[i] = std::max(idle.ticks[i], other.ticks[i]);
  }
}

FlowIdle idle_of(const VipRecord& vip) {
  if (vip.tracking == Tracking::kNone) return {};
  return flow_idle(vip.tcp_idle_s, vip.tcp_closing_idle_s, vip.udp_idle_s);
}

// The pools of a root, with what its VIPs say together.
void fill(std::span<TrackedPool> tracked, const RootView& root,
          std::span<const std::shared_ptr<const PoolImage>> pools,
          std::span<const uint16_t> numbers) {
  for (size_t p = 0; p < pools.size(); ++p) {
    const PoolImage& image = *pools[p];
    tracked[p].image = &image;
    tracked[p].serving = image.serving.data();
    tracked[p].backends = static_cast<uint32_t>(image.serving.size());
    tracked[p].unsettled = image.unsettled.data();
    tracked[p].unsettled_count = static_cast<uint32_t>(image.unsettled.size());
    tracked[p].number = numbers[p];
  }
  for (const VipRecord& vip : root.vips) {
    TrackedPool& pool = tracked[vip.pool];
    pool.full |= vip.tracking == Tracking::kFull;
    extend(pool.idle, idle_of(vip));
  }
}

// A window is as long as the longest idle time of the pool's VIPs that ask for windows.
std::vector<uint32_t> window_idle_times(const RootView& root) {
  std::vector<uint32_t> longest_s(root.pools.size());
  for (const VipRecord& vip : root.vips) {
    if (vip.tracking != Tracking::kChanged) continue;
    longest_s[vip.pool] =
        std::max({longest_s[vip.pool], vip.tcp_idle_s, vip.tcp_closing_idle_s, vip.udp_idle_s});
  }
  return longest_s;
}

std::expected<QuicServers, std::string> make_quic_servers(const PoolView& pool,
                                                          const QuicCidFormat& format) {
  QuicServers::Formats formats;
  const uint32_t rotation = format.config_rotation();
  formats[rotation] = format;
  std::vector<QuicServer> servers;
  for (uint32_t i = 0; i < pool.quic_server_ids.size(); ++i) {
    const QuicServerId& id = pool.quic_server_ids[i];
    if (id.length != format.server_id_length) continue;
    servers.push_back(
        {static_cast<uint8_t>(rotation), {id.octets.begin(), id.octets.begin() + id.length}, i});
  }
  return QuicServers::make(formats, servers);
}

VipTracking tracking_of(const VipRecord& vip, const TrackedPool& pool, uint32_t window_idle_s) {
  VipTracking tracking{.pool = &pool, .mode = vip.tracking, .idle = idle_of(vip)};
  tracking.by_addresses = vip.fragment_policy == FragmentPolicy::kAddress;
  if (vip.quic.exists()) tracking.quic = &pool.image->quic_servers.at(vip.quic);
  if (vip.tracking == Tracking::kChanged) {
    tracking.udp_lead_ns = uint64_t{window_idle_s - vip.udp_idle_s} * 1'000'000'000;
  }
  return tracking;
}

FlowHash flow_hash_of(const VipRecord& vip) {
  if (vip.hash_policy == HashPolicy::kSource) return FlowHash::kSource;
  return vip.fragment_policy == FragmentPolicy::kAddress ? FlowHash::kAddresses
                                                         : FlowHash::kFiveTuple;
}

VipEntry make_vip(const VipRecord& record, const VipTracking& tracking, uint32_t counter) {
  const PoolImage& pool = *tracking.pool->image;
  VipEntry entry;
  entry.slots = pool.words();
  entry.slot_bytes = pool.slot_bytes();
  entry.backends = pool.ways.at(way_of(record)).data();
  entry.size = pool.size();
  const bool slot_decides = tracking.mode != Tracking::kFull && tracking.quic == nullptr;
  entry.settled_below = slot_decides ? tracking.pool->backends : 0;
  entry.counter = counter;
  entry.tracking = &tracking;
  entry.flow_hash = flow_hash_of(record);
  entry.cut_too_big = (record.flags & kVipFragmentTooBig) != 0;
  return entry;
}

}  // namespace

PoolNeeds needs_of_pool(const RootView& root, uint32_t pool) {
  PoolNeeds needs;
  for (const VipRecord& vip : root.vips) {
    if (vip.pool != pool) continue;
    needs.ways.insert(way_of(vip));
    if (vip.quic.exists()) needs.quic.insert(vip.quic);
  }
  return needs;
}

std::expected<std::shared_ptr<const PoolImage>, std::string> build_pool_image(
    const PoolView& pool, const TableView& table, std::span<const SlotHistory> past,
    const PoolNeeds& needs, std::span<const PortFacts> ports, CounterRegistry& backend_counters,
    std::pmr::memory_resource* memory) {
  auto image = std::allocate_shared<PoolImage>(std::pmr::polymorphic_allocator<PoolImage>(memory),
                                               memory, std::string(pool.name));
  for (size_t i = 0; i < pool.backends.size(); ++i) {
    const BackendRecord& record = pool.backends[i];
    const std::string_view name = pool.backend_names[i];
    if (record.resolved != 0 && record.port >= ports.size()) {
      return std::unexpected(
          fmt::format("backend '{}' is reached by port {}, but there are only {}", name,
                      record.port, ports.size()));
    }
    CounterHold hold;
    if (!name.empty()) {
      hold = backend_counters.hold(fmt::format("{}\n{}", pool.name, name));
      if (hold == nullptr) return std::unexpected("there are more backends than counters for them");
    }
    image->serving.push_back(static_cast<uint16_t>(
        record.incarnation | ((record.flags & kBackendServes) != 0 ? PoolImage::kServes : 0)));
    image->backend_names.emplace_back(name);
    image->counters.push_back(std::move(hold));
  }
  for (const QuicCidFormat& format : needs.quic) {
    auto servers = make_quic_servers(pool, format);
    if (!servers) return std::unexpected(servers.error());
    image->quic_servers.emplace(format, *std::move(servers));
  }
  for (const Way& way : needs.ways) {
    std::pmr::vector<BackendEntry> entries(memory);
    entries.reserve(pool.backends.size());
    for (size_t i = 0; i < pool.backends.size(); ++i) {
      const BackendRecord& record = pool.backends[i];
      entries.push_back(
          make_backend_entry(record, way, record.resolved != 0 ? ports[record.port] : PortFacts{}));
      if (image->counters[i] != nullptr) entries.back().counter = *image->counters[i];
    }
    image->ways.emplace(way, std::move(entries));
  }
  if (pool.backends.size() + past.size() <= kNoBackend16) {
    fill_slots(image->slots16, pool, table, past);
  } else {
    fill_slots(image->slots32, pool, table, past);
  }
  for (const SlotHistory& slot : past) {
    const uint32_t owner = owner_index(pool, table, slot.slot);
    const SlotView view = unsettled_view(owner, slot.fallback, can_serve(pool, slot),
                                         slot.pending_until_ns, slot.inherit_until_ns, 0);
    image->unsettled.push_back(
        {slot.slot, view.owner, view.fallback, view.pending_until_ns, view.inherit_until_ns});
  }
  return image;
}

std::shared_ptr<const Snapshot> build_snapshot(const RootView& root,
                                               std::vector<std::shared_ptr<const PoolImage>> pools,
                                               std::span<const uint16_t> pool_numbers,
                                               std::vector<CounterHold> vip_counters,
                                               std::pmr::memory_resource* memory) {
  auto snapshot = std::allocate_shared<Snapshot>(std::pmr::polymorphic_allocator<Snapshot>(memory),
                                                 root.generation, root.hash_seed, memory);
  snapshot->tracked_pools_.resize(pools.size());
  fill(snapshot->tracked_pools_, root, pools, pool_numbers);
  for (const TrackedPool& pool : snapshot->tracked_pools_) {
    auto& by_number = snapshot->tracked_by_number_;
    by_number.resize(std::max<size_t>(by_number.size(), pool.number + 1u));
    by_number[pool.number] = &pool;
  }
  const std::vector<uint32_t> window_idle_s = window_idle_times(root);
  std::vector<VipEntry> entries;
  snapshot->vip_tracking_.reserve(root.vips.size());  // entries point there
  for (size_t i = 0; i < root.vips.size(); ++i) {
    const VipRecord& vip = root.vips[i];
    snapshot->vip_tracking_.push_back(
        tracking_of(vip, snapshot->tracked_pools_[vip.pool], window_idle_s[vip.pool]));
    entries.push_back(make_vip(vip, snapshot->vip_tracking_.back(), *vip_counters[i]));
    snapshot->vip_names_.emplace_back(root.vip_names[i]);
  }
  snapshot->vip_table_.build(root.vips, entries);
  snapshot->vip_records_.assign(root.vips.begin(), root.vips.end());
  snapshot->pools_ = std::move(pools);
  snapshot->holds_ = std::move(vip_counters);
  return snapshot;
}

}  // namespace maglev
