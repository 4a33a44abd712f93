#include "tests/dataplane/fixture.h"

#include <algorithm>
#include <cstring>
#include <memory_resource>
#include <stdexcept>

#include <fmt/format.h>

namespace maglev::testing {
namespace {

template <typename T>
T value_of(std::expected<T, std::string> result) {
  if (!result) throw std::runtime_error(result.error());
  return *std::move(result);
}

}  // namespace

Address address(const std::string& text) {
  Address result;
  const int family = family_of(text) == AddressFamily::kIpv6 ? AF_INET6 : AF_INET;
  if (inet_pton(family, text.c_str(), result.bytes.data()) != 1) {
    throw std::runtime_error("not an IP address: " + text);
  }
  return result;
}

AddressFamily family_of(const std::string& text) {
  return text.contains(':') ? AddressFamily::kIpv6 : AddressFamily::kIpv4;
}

uint32_t address_be(const std::string& text) {
  uint32_t value;
  std::memcpy(&value, address(text).bytes.data(), sizeof value);
  return value;
}

BackendRecord resolved_backend(const std::string& address_text, uint8_t mac_last, uint16_t port) {
  BackendRecord record{};
  record.address = address(address_text);
  record.family = family_of(address_text);
  const bool ipv6 = record.family == AddressFamily::kIpv6;
  record.outer_source = address(ipv6 ? "2001:db8::2" : "198.18.2.2");
  record.next_hop_mac[0] = 2;
  record.next_hop_mac[5] = mac_last;
  record.port = port;
  record.resolved = 1;
  record.flags = kBackendServes | kBackendOnLink;
  record.outer_source_prefix_length = ipv6 ? 128 : 32;
  return record;
}

RootVip make_vip(std::string name, const std::string& address_text, uint16_t port,
                 VipProtocol protocol, uint32_t pool) {
  RootVip vip{std::move(name), {}};
  vip.record.address = address(address_text);
  vip.record.family = family_of(address_text);
  vip.record.prefix_length = vip.record.family == AddressFamily::kIpv6 ? 128 : 32;
  vip.record.protocol = protocol;
  vip.record.encapsulation = Encapsulation::kIpInIp;
  vip.record.hash_policy = HashPolicy::kFiveTuple;
  vip.record.fragment_policy = FragmentPolicy::kFlow;
  vip.record.port = port;
  vip.record.tracking = Tracking::kNone;
  vip.record.pool = pool;
  return vip;
}

Tree make_tree(uint64_t generation, uint32_t backends, uint64_t table_size,
               const std::vector<RootVip>& vips, uint64_t hash_seed, uint16_t out_port,
               const std::vector<SlotHistory>& past) {
  std::vector<WeightedName> names;
  std::vector<PoolBackend> pool;
  for (uint32_t i = 0; i < backends; ++i) {
    names.push_back({fmt::format("b{}", i), 1});
    pool.push_back(
        {names.back().name, resolved_backend(fmt::format("198.{}.{}.{}", 18 + i / 65536,
                                                         2 + i / 256 % 200, 10 + i % 240),
                                             static_cast<uint8_t>(i), out_port)});
  }
  const MaglevTable table = value_of(build_maglev(names, table_size));
  std::vector<uint32_t> owner_backends;
  for (const WeightedName& owner : table.owners) {
    owner_backends.push_back(static_cast<uint32_t>(std::stoul(owner.name.substr(1))));
  }
  Tree tree;
  tree.table = build_table_file(table);
  tree.pool = build_pool_file("pool", value_of(check_table_file(tree.table)).checksum, pool,
                              owner_backends);
  PoolReference reference{value_of(check_pool_file(tree.pool)).checksum, {}};
  if (!past.empty()) {
    tree.history = build_history_file(kBoot, past);
    reference.history = value_of(check_history_file(tree.history)).checksum;
  }
  tree.root = build_root_file(generation, hash_seed, std::vector{reference}, vips);
  return tree;
}

TestBed::TestBed()
    : vip_counters(64, [](uint32_t) {}),
      backend_counters(2048, [](uint32_t) {}),
      ports{{{2, 0, 0, 0, 0, 1}, 1600}},
      vip_flows_(64),
      backend_flows_(2048) {
  counters.vips = vip_flows_.data();
  counters.backends = backend_flows_.data();
}

std::shared_ptr<const Snapshot> TestBed::adopt(const Tree& tree) {
  const TableView table = value_of(check_table_file(tree.table));
  const PoolView pool = value_of(check_pool_file(tree.pool));
  const RootView root = value_of(check_root_file(tree.root));
  if (const auto fits = check_pool_fits_table(pool, table); !fits) {
    throw std::runtime_error(fits.error());
  }
  std::span<const SlotHistory> past;
  if (!tree.history.empty()) past = value_of(check_history_file(tree.history)).slots;
  auto* memory = std::pmr::new_delete_resource();
  std::vector<std::shared_ptr<const PoolImage>> pools = {value_of(build_pool_image(
      pool, table, past, needs_of_pool(root, 0), ports, backend_counters, memory))};
  std::vector<CounterHold> holds;
  for (std::string_view name : root.vip_names)
    holds.push_back(vip_counters.hold(std::string(name)));
  return build_snapshot(root, std::move(pools), std::array<uint16_t, 1>{0}, std::move(holds),
                        memory);
}

Bytes make_frame(const PacketSpec& spec) {
  const uint32_t transport = spec.protocol == kProtocolTcp ? kTcpHeaderLength : kUdpHeaderLength;
  const uint32_t total = kIpv4HeaderLength + transport + spec.payload_bytes;
  Bytes frame(kEthernetHeaderLength + total);
  for (size_t i = 0; i < frame.size(); ++i) frame[i] = static_cast<uint8_t>(i);
  store_be16(frame.data() + kEtherTypeOffset, kEtherTypeIpv4);
  uint8_t* ip = frame.data() + kEthernetHeaderLength;
  std::fill_n(ip, kIpv4HeaderLength, uint8_t{0});
  ip[0] = 0x45;
  store_be16(ip + kIpv4TotalLengthOffset, static_cast<uint16_t>(total));
  ip[kIpv4TtlOffset] = 64;
  ip[kIpv4ProtocolOffset] = spec.protocol;
  const uint32_t source = address_be(spec.source);
  const uint32_t destination = address_be(spec.destination);
  std::memcpy(ip + kIpv4SourceOffset, &source, 4);
  std::memcpy(ip + kIpv4DestinationOffset, &destination, 4);
  set_ipv4_checksum(ip);
  store_be16(ip + kIpv4HeaderLength, spec.source_port);
  store_be16(ip + kIpv4HeaderLength + 2, spec.destination_port);
  return frame;
}

void BurstRunner::run(std::span<const Bytes> frames, const Snapshot* snapshot) {
  burst_.count = static_cast<uint32_t>(frames.size());
  burst_.now_ns += 10'000'000;
  storage_.resize(std::max(storage_.size(), frames.size()));
  for (uint32_t i = 0; i < burst_.count; ++i) {
    // Exactly as long as the frame, so that a sanitizer sees every byte beyond.
    Bytes& room = storage_[i];
    if (room.size() != kRequiredHeadroom + frames[i].size()) {
      room = Bytes(kRequiredHeadroom + frames[i].size());
    }
    std::ranges::copy(frames[i], room.begin() + kRequiredHeadroom);
    burst_.frame[i] = room.data() + kRequiredHeadroom;
    burst_.length[i] = static_cast<uint32_t>(frames[i].size());
    burst_.verdict[i] = Verdict::kForwarded;
    burst_.buffer[i] = &room;
  }
  forward_burst(burst_, snapshot, state_);
  count_burst(burst_, counters_, state_);
  state_.outbox.clear();
  own_storage_.clear();
}

OutFrame BurstRunner::allocate(void* self, uint32_t room) {
  auto& storage = static_cast<BurstRunner*>(self)->own_storage_;
  storage.push_back(std::make_unique<Bytes>(kRequiredHeadroom + room));
  OutFrame out;
  out.buffer = storage.back().get();
  out.frame = storage.back()->data() + kRequiredHeadroom;
  return out;
}

}  // namespace maglev::testing
