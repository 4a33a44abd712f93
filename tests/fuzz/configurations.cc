#include "tests/fuzz/configurations.h"

#include <array>
#include <cstring>
#include <expected>
#include <string>

#include <fmt/format.h>

#include "tables/maglev.h"
#include "tests/fuzz/require.h"

namespace maglev::fuzz {
namespace {

constexpr uint32_t kBackends = 8;
constexpr uint32_t kTableSize = 251;

constexpr Address kVip4{{198, 51, 100, 10}};
constexpr Address kVip4Any{{198, 51, 100, 11}};
constexpr Address kPrefix4{{198, 51, 100, 64}};
constexpr Address kVip6{{0x20, 1, 0xd, 0xb8, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10}};
constexpr Address kVip6Any{{0x20, 1, 0xd, 0xb8, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x11}};
constexpr Address kPrefix6{{0x20, 1, 0xd, 0xb8, 0, 1, 0, 2}};

struct Place {
  Address address;
  AddressFamily family;
  uint8_t prefix_length;
  VipProtocol protocol;
  uint16_t port;
};
constexpr Place kPlaces[] = {
    {kVip4, AddressFamily::kIpv4, 32, VipProtocol::kTcp, 80},
    {kVip4, AddressFamily::kIpv4, 32, VipProtocol::kUdp, 53},
    {kVip4Any, AddressFamily::kIpv4, 32, VipProtocol::kTcpAndUdp, kAnyPort},
    {kPrefix4, AddressFamily::kIpv4, 26, VipProtocol::kTcpAndUdp, 443},
    {kPrefix4, AddressFamily::kIpv4, 30, VipProtocol::kUdp, kAnyPort},
    {kVip6, AddressFamily::kIpv6, 128, VipProtocol::kTcp, 80},
    {kVip6, AddressFamily::kIpv6, 128, VipProtocol::kUdp, 53},
    {kVip6Any, AddressFamily::kIpv6, 128, VipProtocol::kTcpAndUdp, kAnyPort},
    {kPrefix6, AddressFamily::kIpv6, 63, VipProtocol::kTcpAndUdp, 443},
    {kPrefix6, AddressFamily::kIpv6, 80, VipProtocol::kTcp, kAnyPort},
};

struct Settings {
  explicit Settings(uint16_t number) : bits(number) {}
  uint32_t field(uint32_t first, uint32_t count) const {
    return bits >> first & ((1u << count) - 1);
  }
  uint32_t bits;
};

bool is_gue(Encapsulation encapsulation) {
  return encapsulation == Encapsulation::kGueVariant0 ||
         encapsulation == Encapsulation::kGueVariant1;
}

VipRecord make_vip(const Place& place, uint32_t number, Settings settings) {
  VipRecord vip{};
  vip.address = place.address;
  vip.family = place.family;
  vip.prefix_length = place.prefix_length;
  vip.protocol = place.protocol;
  vip.port = place.port;
  const uint32_t chosen = settings.field(2, 3);
  vip.encapsulation = static_cast<Encapsulation>(1 + (chosen < 5 ? chosen : chosen + number) % 5);
  vip.gue_port = is_gue(vip.encapsulation) ? kGuePort : uint16_t{0};
  vip.fragment_policy = static_cast<FragmentPolicy>(1 + settings.field(5, 1));
  vip.hash_policy = static_cast<HashPolicy>(1 + settings.field(6, 1));
  vip.flags = static_cast<uint8_t>(settings.field(7, 4));
  vip.tracking = Tracking::kNone;
  return vip;
}

uint16_t path_mtu(uint32_t kind, uint32_t backend) {
  constexpr uint16_t kMtus[4][kBackends] = {{0, 0, 0, 0, 0, 0, 0, 0},
                                            {1280, 1300, 1301, 1303, 1340, 1399, 1400, 0},
                                            {68, 69, 88, 100, 116, 296, 576, 600},
                                            {1, 20, 28, 29, 40, 48, 56, 60}};
  return kMtus[kind][backend];
}

BackendRecord make_backend(uint32_t number, Settings settings) {
  const uint32_t families = settings.field(0, 2);
  const bool ipv6 = families == 1 || (families >= 2 && number % 2 == 1);
  BackendRecord backend{};
  backend.family = ipv6 ? AddressFamily::kIpv6 : AddressFamily::kIpv4;
  backend.address = ipv6 ? Address{{0x20, 1, 0xd, 0xb8, 0, 2}} : Address{{198, 18, 2}};
  backend.address.bytes[ipv6 ? 15 : 3] = static_cast<uint8_t>(10 + number);
  backend.flags = kBackendServes;
  if (families == 3 && number / 2 % 2 == 1) return backend;  // unresolved
  const bool prefix = settings.field(13, 1) != 0;
  backend.outer_source = ipv6 ? Address{{0x20, 1, 0xd, 0xb8, 0, 3}} : Address{{198, 18, 16}};
  if (!prefix) backend.outer_source.bytes[ipv6 ? 15 : 3] = 2;
  backend.outer_source_prefix_length =
      static_cast<uint8_t>(prefix ? (ipv6 ? 64 : 20) : (ipv6 ? 128 : 32));
  backend.next_hop_mac[0] = 2;
  backend.next_hop_mac[5] = static_cast<uint8_t>(10 + number);
  backend.port = static_cast<uint16_t>(number % 3);
  backend.resolved = 1;
  backend.path_mtu_bytes = path_mtu(settings.field(11, 2), number);
  if (settings.field(15, 1) == 0) backend.flags |= kBackendOnLink;
  return backend;
}

std::vector<std::byte> make_table(std::span<const WeightedName> names) {
  const auto table = build_maglev(names, kTableSize);
  require(table.has_value(), "the fuzzer's own table cannot be built");
  return build_table_file(*table);
}

template <typename Record>
std::vector<Record> records_of(std::span<const uint8_t> bytes) {
  std::vector<Record> records(bytes.size() / sizeof(Record));
  if (!records.empty()) std::memcpy(records.data(), bytes.data(), records.size() * sizeof(Record));
  return records;
}

template <typename View>
Checksum checksum_of(const std::expected<View, std::string>& view) {
  require(view.has_value(), "a file does not pass its own check");
  return view->checksum;
}

std::vector<std::byte> make_root(const Configuration& configuration, uint64_t generation,
                                 uint64_t hash_seed, std::span<const PoolReference> pools) {
  std::vector<RootVip> vips;
  for (const VipRecord& record : configuration.vips) {
    vips.push_back({fmt::format("v{}", vips.size()), record});
  }
  return build_root_file(generation, hash_seed, pools, vips);
}

}  // namespace

Configuration configuration_of(uint16_t number) {
  const Settings settings(number);
  Configuration configuration;
  for (const Place& place : kPlaces) {
    const auto vip = static_cast<uint32_t>(configuration.vips.size());
    configuration.vips.push_back(make_vip(place, vip, settings));
    configuration.vips.back().pool = 0;
  }
  for (uint32_t i = 0; i < kBackends; ++i) {
    configuration.backends.push_back(make_backend(i, settings));
  }
  configuration.backends.insert(configuration.backends.begin() + 3, BackendRecord{});
  configuration.owned = settings.field(14, 1) == 0;
  return configuration;
}

Configuration configuration_with_wide_slots() {
  Configuration configuration = configuration_of(0);
  std::erase_if(configuration.vips,
                [](const VipRecord& vip) { return vip.family == AddressFamily::kIpv6; });
  configuration.backends.insert(configuration.backends.begin(), 65536, BackendRecord{});
  return configuration;
}

Configuration configuration_of_records(std::span<const uint8_t> vips,
                                       std::span<const uint8_t> backends) {
  return {records_of<VipRecord>(vips), records_of<BackendRecord>(backends)};
}

void patch(Configuration& configuration, uint32_t record, uint32_t offset, uint16_t value) {
  const size_t vips = configuration.vips.size(), backends = configuration.backends.size();
  if (vips + backends == 0) return;
  const size_t chosen = record % (vips + backends);
  uint8_t* bytes;
  size_t length;
  if (chosen < vips) {
    bytes = reinterpret_cast<uint8_t*>(&configuration.vips[chosen]);
    length = sizeof(VipRecord);
  } else {
    bytes = reinterpret_cast<uint8_t*>(&configuration.backends[chosen - vips]);
    length = sizeof(BackendRecord);
  }
  std::memcpy(bytes + offset % (length - 1), &value, sizeof value);
}

Published publish(const Configuration& configuration, uint64_t generation, uint64_t hash_seed,
                  std::span<const PortFacts> ports, Registries& registries) {
  std::vector<WeightedName> names;
  std::vector<PoolBackend> backends;
  std::vector<uint32_t> owner_backends;
  for (const BackendRecord& record : configuration.backends) {
    const auto index = static_cast<uint32_t>(backends.size());
    if (record.family == AddressFamily::kNone) {
      backends.push_back({"", record});
      continue;
    }
    // As long as each other, so that their order by name is that by index.
    backends.push_back({fmt::format("b{:05}", index), record});
    if (!configuration.owned) continue;
    names.push_back({backends.back().name, 1});
    owner_backends.push_back(index);
  }
  const auto table_file = make_table(names);
  const auto table = check_table_file(table_file);
  const auto pool_file = build_pool_file("pool", checksum_of(table), backends, owner_backends);
  const auto pool = check_pool_file(pool_file);
  if (!pool) return {};
  require(check_pool_fits_table(*pool, *table).has_value(), "a pool does not fit its own table");
  const auto root_file = make_root(configuration, generation, hash_seed,
                                   std::array{PoolReference{pool->checksum, {}}});
  const auto root = check_root_file(root_file);
  if (!root) return {};

  auto* memory = std::pmr::new_delete_resource();
  auto image = build_pool_image(*pool, *table, {}, needs_of_pool(*root, 0), ports,
                                registries.backends, memory);
  if (!image) return {};
  Published published;
  published.records.resize(kCountedBackends);
  for (size_t i = 0; i < pool->backends.size(); ++i) {
    const CounterHold& counter = (*image)->counters[i];
    if (counter != nullptr) published.records[*counter] = pool->backends[i];
  }
  std::vector<CounterHold> vip_counters;
  for (const std::string_view name : root->vip_names) {
    vip_counters.push_back(registries.vips.hold(std::string(name)));
  }
  published.snapshot =
      build_snapshot(*root, {*image}, std::array<uint16_t, 1>{0}, std::move(vip_counters), memory);
  registries.vips.forget_unheld();
  registries.backends.forget_unheld();
  return published;
}

}  // namespace maglev::fuzz
