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
void fill_slots(std::pmr::vector<Slot>& slots, const PoolView& pool, const TableView& table) {
  slots.resize(table.size());
  for (uint32_t s = 0; s < table.size(); ++s) {
    slots[s] = static_cast<Slot>(owner_index(pool, table, s));
  }
}

bool can_serve(const PoolView& pool, const SlotHistory& past) {
  if (past.fallback == kNoOwner) return false;
  const BackendRecord& record = pool.backends[past.fallback];
  return (record.flags & kBackendServes) != 0 && record.incarnation == past.fallback_incarnation;
}

// Where the old owner cannot serve nothing waits for it: all that the owner gets is remembered.
SlotView view_of(const SlotHistory& past, const PoolView& pool, uint32_t owner) {
  SlotView view{.owner = owner, .fallback = owner, .inherit_until_ns = past.inherit_until_ns};
  if (!can_serve(pool, past)) return view;
  view.fallback = past.fallback;
  view.pending_until_ns = past.pending_until_ns;
  return view;
}

FlowHash flow_hash_of(const VipRecord& vip) {
  if (vip.hash_policy == HashPolicy::kSource) return FlowHash::kSource;
  return vip.fragment_policy == FragmentPolicy::kAddress ? FlowHash::kAddresses
                                                         : FlowHash::kFiveTuple;
}

VipEntry make_vip(const VipRecord& record, const PoolImage& pool, uint32_t counter) {
  VipEntry entry;
  const bool narrow = pool.slots32.empty();
  entry.slots = narrow ? reinterpret_cast<const uint8_t*>(pool.slots16.data())
                       : reinterpret_cast<const uint8_t*>(pool.slots32.data());
  entry.slot_bytes = narrow ? sizeof(uint16_t) : sizeof(uint32_t);
  entry.backends = pool.ways.at(way_of(record)).data();
  entry.size = static_cast<uint32_t>(std::max(pool.slots16.size(), pool.slots32.size()));
  entry.counter = counter;
  entry.flow_hash = flow_hash_of(record);
  entry.cut_too_big = (record.flags & kVipFragmentTooBig) != 0;
  return entry;
}

}  // namespace

std::set<Way> ways_of_pool(const RootView& root, uint32_t pool) {
  std::set<Way> ways;
  for (const VipRecord& vip : root.vips) {
    if (vip.pool == pool) ways.insert(way_of(vip));
  }
  return ways;
}

std::expected<std::shared_ptr<const PoolImage>, std::string> build_pool_image(
    const PoolView& pool, const TableView& table, std::span<const SlotHistory> past,
    const std::set<Way>& ways, std::span<const PortFacts> ports, CounterRegistry& backend_counters,
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
    image->backend_names.emplace_back(name);
    image->counters.push_back(std::move(hold));
  }
  for (const Way& way : ways) {
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
  if (pool.backends.size() <= kNoBackend16) {
    fill_slots(image->slots16, pool, table);
  } else {
    fill_slots(image->slots32, pool, table);
  }
  for (const SlotHistory& slot : past) {
    image->unsettled.push_back(
        {slot.slot, view_of(slot, pool, owner_index(pool, table, slot.slot))});
  }
  return image;
}

std::shared_ptr<const Snapshot> build_snapshot(const RootView& root,
                                               std::vector<std::shared_ptr<const PoolImage>> pools,
                                               std::vector<CounterHold> vip_counters,
                                               std::pmr::memory_resource* memory) {
  auto snapshot = std::allocate_shared<Snapshot>(std::pmr::polymorphic_allocator<Snapshot>(memory),
                                                 root.generation, root.hash_seed, memory);
  std::vector<VipEntry> entries;
  for (size_t i = 0; i < root.vips.size(); ++i) {
    entries.push_back(make_vip(root.vips[i], *pools[root.vips[i].pool], *vip_counters[i]));
    snapshot->vip_names_.emplace_back(root.vip_names[i]);
  }
  snapshot->vip_table_.build(root.vips, entries);
  snapshot->vip_records_.assign(root.vips.begin(), root.vips.end());
  snapshot->pools_ = std::move(pools);
  snapshot->holds_ = std::move(vip_counters);
  return snapshot;
}

}  // namespace maglev
