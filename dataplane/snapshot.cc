#include "dataplane/snapshot.h"

#include <algorithm>
#include <bit>
#include <limits>

#include <fmt/format.h>

namespace maglev {
namespace {

constexpr uint8_t kOuterTtl = 64;

// RFC 2003: protocol 4 in a header of our own. Identification 0 with DF set: the outer packet is
// atomic (RFC 6864) and is never cut on the way.
void write_outer_header(BackendEntry& entry, const BackendRecord& record, const PortFacts& port) {
  uint8_t* frame = entry.header.data();
  std::copy_n(record.next_hop_mac, 6, frame);
  std::copy_n(port.mac.data(), 6, frame + 6);
  store_be16(frame + kEtherTypeOffset, kEtherTypeIpv4);
  uint8_t* ip = frame + kEthernetHeaderLength;
  ip[0] = 0x45;
  store_be16(ip + kIpv4FragmentOffset, kIpv4DontFragment);
  ip[kIpv4TtlOffset] = kOuterTtl;
  ip[kIpv4ProtocolOffset] = kProtocolIpInIp;
  std::copy_n(record.outer_source.bytes.data(), 4, ip + kIpv4SourceOffset);
  std::copy_n(record.address.bytes.data(), 4, ip + kIpv4DestinationOffset);
  entry.checksum_base = sum_words(ip, kIpv4HeaderLength);
}

std::expected<BackendEntry, std::string> make_backend(const BackendRecord& record,
                                                      std::string_view name,
                                                      std::span<const PortFacts> ports) {
  BackendEntry entry;
  if (record.family == AddressFamily::kNone) return entry;
  if (record.family != AddressFamily::kIpv4) {
    return std::unexpected(fmt::format("backend '{}' has no IPv4 address", name));
  }
  if (record.resolved == 0) return entry;
  if (record.port >= ports.size()) {
    return std::unexpected(fmt::format("backend '{}' is reached by port {}, but there are only {}",
                                       name, record.port, ports.size()));
  }
  const PortFacts& port = ports[record.port];
  entry.resolved = true;
  entry.port = record.port;
  entry.max_packet_length = port.mtu > kIpv4HeaderLength ? port.mtu - kIpv4HeaderLength : 0;
  write_outer_header(entry, record, port);
  return entry;
}

template <typename Slot>
void fill_slots(std::pmr::vector<Slot>& slots, const PoolView& pool, const TableView& table) {
  slots.resize(table.size());
  for (uint32_t s = 0; s < table.size(); ++s) {
    const uint32_t owner = table.owner_of(s);
    slots[s] = owner == kNoOwner ? std::numeric_limits<Slot>::max()
                                 : static_cast<Slot>(pool.owner_backends[owner]);
  }
}

uint32_t load_address_be(const Address& address) {
  uint32_t value;
  std::memcpy(&value, address.bytes.data(), sizeof value);
  return value;
}

}  // namespace

std::expected<std::shared_ptr<const PoolImage>, std::string> build_pool_image(
    const PoolView& pool, const TableView& table, std::span<const PortFacts> ports,
    CounterRegistry& backend_counters, std::pmr::memory_resource* memory) {
  auto image = std::allocate_shared<PoolImage>(std::pmr::polymorphic_allocator<PoolImage>(memory),
                                               memory, std::string(pool.name));
  image->backends.reserve(pool.backends.size());
  for (size_t i = 0; i < pool.backends.size(); ++i) {
    auto entry = make_backend(pool.backends[i], pool.backend_names[i], ports);
    if (!entry) return std::unexpected(entry.error());
    CounterHold hold;
    if (!pool.backend_names[i].empty()) {
      hold = backend_counters.hold(fmt::format("{}\n{}", pool.name, pool.backend_names[i]));
      if (hold == nullptr) return std::unexpected("there are more backends than counters for them");
      entry->counter = *hold;
    }
    image->backends.push_back(*entry);
    image->backend_names.emplace_back(pool.backend_names[i]);
    image->holds.push_back(std::move(hold));
  }
  if (pool.backends.size() <= kNoBackend16) {
    fill_slots(image->slots16, pool, table);
  } else {
    fill_slots(image->slots32, pool, table);
  }
  return image;
}

void Snapshot::insert(uint64_t key, uint64_t vip) {
  size_t b = bucket_of(key);
  while (table_[b].key != 0) b = (b + 1) & (table_.size() - 1);
  table_[b] = {key, vip};
}

std::expected<std::shared_ptr<const Snapshot>, std::string> build_snapshot(
    const RootView& root, std::vector<std::shared_ptr<const PoolImage>> pools,
    std::vector<CounterHold> vip_counters, std::pmr::memory_resource* memory) {
  auto snapshot = std::allocate_shared<Snapshot>(std::pmr::polymorphic_allocator<Snapshot>(memory),
                                                 root.generation, root.hash_seed, memory);
  const size_t buckets = std::bit_ceil(std::max<size_t>(2, 2 * root.vips.size()));
  snapshot->table_.resize(buckets);
  snapshot->shift_ = 64 - static_cast<uint32_t>(std::countr_zero(buckets));
  snapshot->vips_.reserve(root.vips.size());
  for (size_t i = 0; i < root.vips.size(); ++i) {
    const VipRecord& record = root.vips[i];
    if (record.family != AddressFamily::kIpv4) {
      return std::unexpected(fmt::format("VIP '{}' has no IPv4 address", root.vip_names[i]));
    }
    const PoolImage& pool = *pools[record.pool];
    VipEntry entry;
    entry.slots16 = pool.slots16.empty() ? nullptr : pool.slots16.data();
    entry.slots32 = pool.slots32.empty() ? nullptr : pool.slots32.data();
    entry.backends = pool.backends.data();
    entry.size = static_cast<uint32_t>(std::max(pool.slots16.size(), pool.slots32.size()));
    entry.counter = *vip_counters[i];
    entry.hash_policy = record.hash_policy;
    snapshot->vips_.push_back(entry);
    snapshot->vip_names_.emplace_back(root.vip_names[i]);
    snapshot->has_any_port_ |= record.port == kAnyPort;
    snapshot->insert(vip_key(load_address_be(record.address), __builtin_bswap16(record.port),
                             static_cast<uint8_t>(record.protocol)),
                     i);
  }
  snapshot->vip_records_.assign(root.vips.begin(), root.vips.end());
  snapshot->pools_ = std::move(pools);
  snapshot->holds_ = std::move(vip_counters);
  return snapshot;
}

}  // namespace maglev
