#include "tables/published.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>

#include <fmt/format.h>

#include "tables/flow_hash.h"
#include "tables/prime.h"

namespace maglev {
namespace {

struct TableHead {
  uint32_t size_slots;
  uint32_t owner_count;
  uint64_t names_bytes;
};

struct OwnerRecord {
  uint32_t name_length;
};

struct PoolHead {
  Checksum table;
  uint32_t backend_count;
  uint32_t owner_count;
  uint32_t pool_name_length;
  uint32_t quic_server_id_count;  // that of the backends, or 0
  uint64_t names_bytes;
};
static_assert(sizeof(PoolHead) % 8 == 0);

struct RootHead {
  uint64_t generation;
  uint64_t hash_seed;
  uint32_t hash_version;
  uint32_t pool_count;
  uint32_t vip_count;
  uint32_t zero;
  uint64_t names_bytes;
};
static_assert(sizeof(RootHead) % 8 == 0);

constexpr uint16_t kNoOwner16 = std::numeric_limits<uint16_t>::max();

std::unexpected<std::string> bad(std::string why) {
  return std::unexpected(std::move(why));
}

bool is_zero(const Address& address, size_t from) {
  return std::all_of(address.bytes.begin() + static_cast<ptrdiff_t>(from), address.bytes.end(),
                     [](uint8_t b) { return b == 0; });
}

// Every slot names an owner, and where there is none every slot says so.
template <typename Slot>
bool slots_in_range(std::span<const Slot> slots, uint32_t owner_count) {
  if (owner_count == 0) {
    return std::ranges::all_of(slots, [](Slot s) { return s == std::numeric_limits<Slot>::max(); });
  }
  return std::ranges::all_of(slots, [owner_count](Slot s) { return s < owner_count; });
}

uint32_t address_bits(AddressFamily family) {
  return family == AddressFamily::kIpv6 ? 128 : 32;
}

bool is_address(const Address& address, AddressFamily family) {
  if (family == AddressFamily::kIpv6) return !is_zero(address, 0);
  return family == AddressFamily::kIpv4 && is_zero(address, 4) && !is_zero(address, 0);
}

bool is_prefix(const Address& address, AddressFamily family, uint32_t length) {
  if (!is_address(address, family) || length == 0 || length > address_bits(family)) return false;
  if (length % 8 != 0 && (address.bytes[length / 8] & (0xff >> length % 8)) != 0) return false;
  return is_zero(address, (length + 7) / 8);
}

std::expected<void, std::string> check_backend(const BackendRecord& b) {
  const bool no_mac = std::all_of(std::begin(b.next_hop_mac), std::end(b.next_hop_mac),
                                  [](uint8_t byte) { return byte == 0; });
  if (b.resolved > 1) return bad("a yes-or-no field is neither");
  if ((b.flags & ~kBackendAllFlags) != 0) return bad("unknown flags of a backend");
  const bool no_way = no_mac && is_zero(b.outer_source, 0) && b.port == 0 &&
                      b.path_mtu_bytes == 0 && b.outer_source_prefix_length == 0 &&
                      (b.flags & kBackendOnLink) == 0;
  if (b.family == AddressFamily::kNone) {
    const bool empty = is_zero(b.address, 0) && no_way && b.resolved == 0 && b.name_length == 0 &&
                       b.incarnation == 0 && b.flags == 0;
    if (!empty) return bad("a place without a backend is not empty");
    return {};
  }
  if (!is_address(b.address, b.family)) return bad("the address does not fit its family");
  if (b.name_length == 0) return bad("a backend has no name");
  if (b.resolved == 0) {
    if (!no_way) return bad("an unresolved backend has a next hop");
    return {};
  }
  if (no_mac || (b.next_hop_mac[0] & 1) != 0) return bad("the next hop's MAC is not unicast");
  if (!is_prefix(b.outer_source, b.family, b.outer_source_prefix_length)) {
    return bad("the outer source does not fit the family or its prefix");
  }
  return {};
}

bool is_gue(Encapsulation e) {
  return e == Encapsulation::kGueVariant0 || e == Encapsulation::kGueVariant1;
}

std::expected<void, std::string> check_tracking(const VipRecord& v) {
  if (v.tracking < Tracking::kNone || v.tracking > Tracking::kChanged) {
    return bad("unknown tracking");
  }
  for (const uint32_t idle_s : {v.tcp_idle_s, v.tcp_closing_idle_s, v.udp_idle_s}) {
    if (idle_s > kMaxFlowIdle_s || (idle_s == 0) != (v.tracking == Tracking::kNone)) {
      return bad("an idle time does not fit the tracking");
    }
  }
  return {};
}

std::expected<void, std::string> check_quic(const VipRecord& v) {
  if (v.quic == QuicCidFormat{}) return {};
  if (!v.quic.is_valid() || v.protocol != VipProtocol::kUdp ||
      v.fragment_policy != FragmentPolicy::kFlow) {
    return bad("connection IDs of no such form can be looked at for this VIP");
  }
  return {};
}

std::expected<void, std::string> check_vip(const VipRecord& v, uint32_t pool_count) {
  if (!is_prefix(v.address, v.family, v.prefix_length)) {
    return bad("the address does not fit its family or prefix");
  }
  if (v.protocol != VipProtocol::kTcp && v.protocol != VipProtocol::kUdp &&
      v.protocol != VipProtocol::kTcpAndUdp) {
    return bad("unknown protocol");
  }
  if (v.encapsulation < Encapsulation::kIpInIp || v.encapsulation > Encapsulation::kLayer2) {
    return bad("unknown encapsulation");
  }
  if (v.hash_policy != HashPolicy::kFiveTuple && v.hash_policy != HashPolicy::kSource) {
    return bad("unknown hash policy");
  }
  if (v.fragment_policy != FragmentPolicy::kFlow && v.fragment_policy != FragmentPolicy::kAddress) {
    return bad("unknown fragment policy");
  }
  if ((v.flags & ~kVipAllFlags) != 0) return bad("unknown flags");
  if (is_gue(v.encapsulation) != (v.gue_port != 0)) return bad("the GUE port does not fit");
  if (v.pool >= pool_count) return bad("the pool index is out of range");
  if (const auto ok = check_quic(v); !ok) return ok;
  return check_tracking(v);
}

// Where VIPs of one prefix must agree (VipRecord). vips: all of one family and prefix.
std::expected<void, std::string> check_agreement(std::span<const VipRecord* const> vips) {
  constexpr uint8_t kOfAddress = kVipEchoToKernel | kVipUnservedToKernel;
  const auto datagrams = [](const VipRecord& v) {
    return std::tuple(v.pool, v.encapsulation, v.hash_policy, v.gue_port, v.flags, v.tracking,
                      v.tcp_idle_s, v.tcp_closing_idle_s, v.udp_idle_s);
  };
  const VipRecord* of_protocol[2] = {};
  for (const VipRecord* vip : vips) {
    if (((vip->flags ^ vips.front()->flags) & kOfAddress) != 0) {
      return bad("VIPs of one address differ in what is the kernel's");
    }
    for (const bool udp : {false, true}) {
      if (vip->protocol == (udp ? VipProtocol::kTcp : VipProtocol::kUdp)) continue;
      const VipRecord*& first = of_protocol[udp ? 1 : 0];
      if (first == nullptr) first = vip;
      const bool by_address = vip->fragment_policy == FragmentPolicy::kAddress;
      if (vip->fragment_policy != first->fragment_policy ||
          (by_address && datagrams(*vip) != datagrams(*first))) {
        return bad("VIPs of one address and protocol differ in where fragments go");
      }
    }
  }
  return {};
}

// All of them: distinct services, and agreement within each prefix.
std::expected<void, std::string> check_services(std::span<const VipRecord> vips) {
  const auto prefix = [](const VipRecord& v) {
    return std::tie(v.family, v.address, v.prefix_length);
  };
  std::vector<const VipRecord*> sorted;
  for (const VipRecord& vip : vips) sorted.push_back(&vip);
  std::ranges::sort(sorted, [&](const VipRecord* a, const VipRecord* b) {
    return std::tuple_cat(prefix(*a), std::tie(a->port, a->protocol)) <
           std::tuple_cat(prefix(*b), std::tie(b->port, b->protocol));
  });
  for (auto first = sorted.begin(); first != sorted.end();) {
    const auto last = std::find_if(
        first, sorted.end(), [&](const VipRecord* v) { return prefix(*v) != prefix(**first); });
    for (auto vip = first + 1; vip < last; ++vip) {
      const VipRecord& before = **(vip - 1);
      // kTcpAndUdp sorts last, so what it clashes with stands right before it.
      if (before.port == (*vip)->port &&
          (before.protocol == (*vip)->protocol || (*vip)->protocol == VipProtocol::kTcpAndUdp)) {
        return bad("two VIPs have one address, protocol and port");
      }
    }
    if (const auto ok = check_agreement({first, last}); !ok) return ok;
    first = last;
  }
  return {};
}

template <typename Item>
bool all_distinct(std::span<const Item> items) {
  std::vector<Item> sorted(items.begin(), items.end());
  std::ranges::sort(sorted);
  return std::ranges::adjacent_find(sorted) == sorted.end();
}

}  // namespace

uint32_t TableView::owner_of(uint32_t slot) const {
  if (slots16.empty()) return slots32[slot];
  return slots16[slot] == kNoOwner16 ? kNoOwner : slots16[slot];
}

std::vector<std::byte> build_table_file(const MaglevTable& table) {
  FileWriter writer(FileKind::kTable);
  uint64_t names_bytes = 0;
  for (const WeightedName& owner : table.owners) names_bytes += owner.name.size();
  writer.append(TableHead{static_cast<uint32_t>(table.slots.size()),
                          static_cast<uint32_t>(table.owners.size()), names_bytes});
  for (const WeightedName& owner : table.owners) writer.append(owner.weight);
  writer.pad();
  for (const WeightedName& owner : table.owners) {
    writer.append(OwnerRecord{static_cast<uint32_t>(owner.name.size())});
  }
  writer.pad();
  if (table.owners.size() <= kMaxOwners16) {
    std::vector<uint16_t> slots(table.slots.size());
    std::ranges::transform(table.slots, slots.begin(), [](uint32_t owner) {
      return owner == kNoOwner ? kNoOwner16 : static_cast<uint16_t>(owner);
    });
    writer.append_all(std::span<const uint16_t>(slots));
  } else {
    writer.append_all(std::span<const uint32_t>(table.slots));
  }
  writer.pad();
  for (const WeightedName& owner : table.owners) writer.append_text(owner.name);
  return std::move(writer).finish();
}

std::expected<TableView, std::string> check_table_file(std::span<const std::byte> file) {
  const auto header = check_header(file, FileKind::kTable);
  if (!header) return bad(header.error());
  FileReader reader(file);
  const auto* head = reader.take<TableHead>();
  if (head == nullptr) return bad("too short for a table");
  if (!check_table_size(head->size_slots)) {
    return bad(fmt::format("size {} is not an allowed prime", head->size_slots));
  }
  if (head->owner_count > head->size_slots || head->owner_count > kMaxBackends) {
    return bad(fmt::format("{} owners for {} slots", head->owner_count, head->size_slots));
  }

  TableView view;
  view.checksum = (*header)->checksum;
  view.weights = reader.take_all<uint32_t>(head->owner_count);
  reader.skip_padding();
  const auto owners = reader.take_all<OwnerRecord>(head->owner_count);
  reader.skip_padding();
  if (head->owner_count <= kMaxOwners16) {
    view.slots16 = reader.take_all<uint16_t>(head->size_slots);
  } else {
    view.slots32 = reader.take_all<uint32_t>(head->size_slots);
  }
  reader.skip_padding();
  NameBlock names(reader.take_text(head->names_bytes));
  reader.skip_padding();
  if (!reader.at_end()) return bad("the parts of the table do not add up to its length");

  if (std::ranges::any_of(view.weights, [](uint32_t w) { return w == 0; })) {
    return bad("an owner has weight 0");
  }
  view.owners.reserve(owners.size());
  for (const OwnerRecord& owner : owners) {
    const auto name = names.take(owner.name_length);
    if (!name) return bad("an owner's name is none, or cut short");
    if (!view.owners.empty() && view.owners.back() >= *name) {
      return bad("the owners are not sorted by name");
    }
    view.owners.push_back(*name);
  }
  if (!names.empty()) return bad("bytes are left after the last name");
  const bool in_range = view.slots32.empty() ? slots_in_range(view.slots16, head->owner_count)
                                             : slots_in_range(view.slots32, head->owner_count);
  if (!in_range) return bad("a slot names no owner of this table");
  return view;
}

std::vector<std::byte> build_pool_file(std::string_view pool_name, const Checksum& table,
                                       std::span<const PoolBackend> backends,
                                       std::span<const uint32_t> owner_backends) {
  FileWriter writer(FileKind::kPool);
  uint64_t names_bytes = pool_name.size();
  for (const PoolBackend& backend : backends) names_bytes += backend.name.size();
  const bool with_ids = std::ranges::any_of(
      backends, [](const PoolBackend& b) { return b.quic_server_id.length != 0; });
  writer.append(PoolHead{table, static_cast<uint32_t>(backends.size()),
                         static_cast<uint32_t>(owner_backends.size()),
                         static_cast<uint32_t>(pool_name.size()),
                         with_ids ? static_cast<uint32_t>(backends.size()) : 0, names_bytes});
  for (const PoolBackend& backend : backends) {
    BackendRecord record = backend.record;
    record.name_length = static_cast<uint8_t>(backend.name.size());
    writer.append(record);
  }
  if (with_ids) {
    for (const PoolBackend& backend : backends) writer.append(backend.quic_server_id);
  }
  writer.append_all(owner_backends);
  writer.pad();
  writer.append_text(pool_name);
  for (const PoolBackend& backend : backends) writer.append_text(backend.name);
  return std::move(writer).finish();
}

std::expected<void, std::string> check_server_ids(std::span<const QuicServerId> ids) {
  std::vector<QuicServerId> used;
  for (const QuicServerId& id : ids) {
    const auto is_set = [](uint8_t octet) { return octet != 0; };
    if (id.length > id.octets.size() ||
        std::any_of(id.octets.begin() + id.length, id.octets.end(), is_set) ||
        std::ranges::any_of(id.zero, is_set)) {
      return bad("a server ID is longer than it says");
    }
    if (id.length != 0) used.push_back(id);
  }
  if (!all_distinct<QuicServerId>(used)) return bad("two backends have one server ID");
  return {};
}

std::expected<PoolView, std::string> check_pool_file(std::span<const std::byte> file) {
  const auto header = check_header(file, FileKind::kPool);
  if (!header) return bad(header.error());
  FileReader reader(file);
  const auto* head = reader.take<PoolHead>();
  if (head == nullptr) return bad("too short for a pool");
  if (head->backend_count > kMaxBackends) return bad("too many backends");
  if (head->quic_server_id_count != 0 && head->quic_server_id_count != head->backend_count) {
    return bad("there are server IDs for some backends");
  }

  PoolView view;
  view.checksum = (*header)->checksum;
  view.table = head->table;
  view.backends = reader.take_all<BackendRecord>(head->backend_count);
  view.quic_server_ids = reader.take_all<QuicServerId>(head->quic_server_id_count);
  view.owner_backends = reader.take_all<uint32_t>(head->owner_count);
  reader.skip_padding();
  NameBlock names(reader.take_text(head->names_bytes));
  reader.skip_padding();
  if (!reader.at_end()) return bad("the parts of the pool do not add up to its length");

  const auto pool_name = names.take(head->pool_name_length);
  if (!pool_name) return bad("the pool's name is none, or cut short");
  view.name = *pool_name;
  std::vector<std::string_view> used_names;
  for (const BackendRecord& backend : view.backends) {
    if (const auto ok = check_backend(backend); !ok) return bad(ok.error());
    std::string_view name;
    if (backend.family != AddressFamily::kNone) {
      const auto taken = names.take(backend.name_length);
      if (!taken) return bad("a backend's name is none, or cut short");
      name = *taken;
      used_names.push_back(name);
    }
    view.backend_names.push_back(name);
  }
  if (!names.empty()) return bad("bytes are left after the last name");
  if (!all_distinct<std::string_view>(used_names)) return bad("two backends have one name");
  if (const auto ok = check_server_ids(view.quic_server_ids); !ok) return bad(ok.error());

  std::vector<bool> owns(view.backends.size());
  for (uint32_t index : view.owner_backends) {
    if (index >= view.backends.size() || view.backend_names[index].empty()) {
      return bad("an owner is no backend of this pool");
    }
    if (owns[index]) return bad("a backend is two owners");
    if ((view.backends[index].flags & kBackendServes) == 0) return bad("an owner does not serve");
    owns[index] = true;
  }
  return view;
}

std::expected<void, std::string> check_pool_fits_table(const PoolView& pool,
                                                       const TableView& table) {
  if (pool.table != table.checksum) return bad("the pool names another table");
  if (pool.owner_backends.size() != table.owners.size()) {
    return bad(fmt::format("the pool lists {} owners, its table {}", pool.owner_backends.size(),
                           table.owners.size()));
  }
  for (size_t i = 0; i < table.owners.size(); ++i) {
    const std::string_view name = pool.backend_names[pool.owner_backends[i]];
    if (name != table.owners[i]) {
      return bad(fmt::format("owner {} is '{}' in the table and '{}' in the pool", i,
                             table.owners[i], name));
    }
  }
  return {};
}

std::vector<std::byte> build_root_file(uint64_t generation, uint64_t hash_seed,
                                       std::span<const PoolReference> pools,
                                       std::span<const RootVip> vips) {
  FileWriter writer(FileKind::kRoot);
  uint64_t names_bytes = 0;
  for (const RootVip& vip : vips) names_bytes += vip.name.size();
  writer.append(RootHead{generation, hash_seed, kFlowHashVersion,
                         static_cast<uint32_t>(pools.size()), static_cast<uint32_t>(vips.size()), 0,
                         names_bytes});
  writer.append_all(pools);
  for (const RootVip& vip : vips) {
    VipRecord record = vip.record;
    record.name_length = static_cast<uint8_t>(vip.name.size());
    writer.append(record);
  }
  for (const RootVip& vip : vips) writer.append_text(vip.name);
  return std::move(writer).finish();
}

std::expected<RootView, std::string> check_root_file(std::span<const std::byte> file) {
  const auto header = check_header(file, FileKind::kRoot);
  if (!header) return bad(header.error());
  FileReader reader(file);
  const auto* head = reader.take<RootHead>();
  if (head == nullptr) return bad("too short for a root");
  if (head->generation == 0) return bad("generation 0");
  if (head->zero != 0) return bad("a field that must be 0 is not");
  if (head->hash_version != kFlowHashVersion) {
    return bad(fmt::format("flow hash version {}, but this program computes version {}",
                           head->hash_version, kFlowHashVersion));
  }

  RootView view;
  view.checksum = (*header)->checksum;
  view.generation = head->generation;
  view.hash_seed = head->hash_seed;
  view.pools = reader.take_all<PoolReference>(head->pool_count);
  view.vips = reader.take_all<VipRecord>(head->vip_count);
  NameBlock names(reader.take_text(head->names_bytes));
  reader.skip_padding();
  if (!reader.at_end()) return bad("the parts of the root do not add up to its length");

  for (const VipRecord& vip : view.vips) {
    if (const auto ok = check_vip(vip, head->pool_count); !ok) return bad(ok.error());
    const auto name = names.take(vip.name_length);
    if (!name) return bad("a VIP's name is none, or cut short");
    view.vip_names.push_back(*name);
  }
  if (!names.empty()) return bad("bytes are left after the last name");
  if (!all_distinct<std::string_view>(view.vip_names)) return bad("two VIPs have one name");
  if (const auto ok = check_services(view.vips); !ok) return bad(ok.error());
  std::vector<Checksum> pools;
  for (const PoolReference& pool : view.pools) pools.push_back(pool.pool);
  if (!all_distinct<Checksum>(pools)) return bad("a pool is listed twice");
  return view;
}

}  // namespace maglev
