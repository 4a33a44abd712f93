#include "tables/published.h"

#include <gtest/gtest.h>

#include <fmt/format.h>

namespace maglev {
namespace {

using Image = std::vector<std::byte>;

MaglevTable sample_table(uint32_t backends = 5, uint64_t size = 251) {
  std::vector<WeightedName> names;
  for (uint32_t i = 0; i < backends; ++i) names.push_back({fmt::format("b{}", i), i + 1});
  return *build_maglev(names, size);
}

BackendRecord sample_backend(uint8_t last) {
  BackendRecord record{};
  record.address.bytes = {198, 18, 0, last};
  record.outer_source.bytes = {198, 18, 0, 1};
  record.next_hop_mac[0] = 2;
  record.next_hop_mac[5] = last;
  record.family = AddressFamily::kIpv4;
  record.resolved = 1;
  record.flags = kBackendServes;
  record.outer_source_prefix_length = 32;
  return record;
}

// b0..b4 at indices 1..5, index 0 empty; b2 is unresolved.
std::vector<PoolBackend> sample_backends() {
  std::vector<PoolBackend> backends(6);
  for (uint8_t i = 0; i < 5; ++i) {
    backends[i + 1u] = {fmt::format("b{}", i), sample_backend(static_cast<uint8_t>(10 + i))};
  }
  backends[3].record.resolved = 0;
  backends[3].record.outer_source = {};
  backends[3].record.outer_source_prefix_length = 0;
  std::fill_n(backends[3].record.next_hop_mac, 6, uint8_t{0});
  return backends;
}

const std::vector<uint32_t> kOwnerBackends = {1, 2, 3, 4, 5};

Image sample_pool() {
  const auto table = check_table_file(build_table_file(sample_table()));
  return build_pool_file("web", table->checksum, sample_backends(), kOwnerBackends);
}

RootVip sample_vip(std::string name, uint16_t port, VipProtocol protocol = VipProtocol::kTcp) {
  RootVip vip{std::move(name), {}};
  vip.record.address.bytes = {198, 51, 100, 10};
  vip.record.family = AddressFamily::kIpv4;
  vip.record.prefix_length = 32;
  vip.record.protocol = protocol;
  vip.record.encapsulation = Encapsulation::kIpInIp;
  vip.record.hash_policy = HashPolicy::kFiveTuple;
  vip.record.fragment_policy = FragmentPolicy::kFlow;
  vip.record.port = port;
  vip.record.tracking = Tracking::kNone;
  return vip;
}

Image sample_root() {
  const std::vector<PoolReference> pools = {{check_pool_file(sample_pool())->checksum, {}}};
  return build_root_file(7, 42, pools, std::vector{sample_vip("web", 80), sample_vip("any", 0)});
}

TEST(PublishedTable, WhatIsWrittenIsRead) {
  const MaglevTable table = sample_table();
  const Image file = build_table_file(table);
  const auto view = check_table_file(file);
  ASSERT_TRUE(view) << view.error();
  ASSERT_EQ(view->size(), table.slots.size());
  for (uint32_t s = 0; s < view->size(); ++s) EXPECT_EQ(view->owner_of(s), table.slots[s]);
  ASSERT_EQ(view->owners.size(), table.owners.size());
  for (size_t i = 0; i < table.owners.size(); ++i) {
    EXPECT_EQ(view->owners[i], table.owners[i].name);
    EXPECT_EQ(view->weights[i], table.owners[i].weight);
  }
}

TEST(PublishedTable, ATableWithoutOwnersIsRead) {
  const Image file = build_table_file(*build_maglev({}, 251));
  const auto view = check_table_file(file);
  ASSERT_TRUE(view) << view.error();
  EXPECT_EQ(view->owner_of(250), kNoOwner);
}

TEST(PublishedTable, SlotsWidenWhenOwnersOutgrow16Bits) {
  std::vector<WeightedName> names;
  for (uint32_t i = 0; i < kMaxOwners16 + 1; ++i) names.push_back({fmt::format("b{:06}", i), 1});
  const Image wide = build_table_file(*build_maglev(names, 131071));
  EXPECT_EQ(check_table_file(wide)->slots32.size(), 131071u);
  names.pop_back();
  const Image narrow = build_table_file(*build_maglev(names, 131071));
  EXPECT_EQ(check_table_file(narrow)->slots16.size(), 131071u);
}

TEST(PublishedTable, StructuralFaultsAreRefusedThoughTheChecksumIsRight) {
  MaglevTable table = sample_table();
  table.slots[3] = 5;
  EXPECT_FALSE(check_table_file(build_table_file(table))) << "slot out of range";
  table = sample_table();
  table.slots[3] = kNoOwner;
  EXPECT_FALSE(check_table_file(build_table_file(table))) << "slot without owner";
  table = sample_table();
  std::swap(table.owners[0], table.owners[1]);
  EXPECT_FALSE(check_table_file(build_table_file(table))) << "owners out of order";
  table = sample_table();
  table.owners[4].name = "b\xff";
  EXPECT_FALSE(check_table_file(build_table_file(table))) << "no name";
  table = sample_table();
  table.owners[0].weight = 0;
  EXPECT_FALSE(check_table_file(build_table_file(table))) << "weight 0";
  table = sample_table();
  table.slots.pop_back();
  EXPECT_FALSE(check_table_file(build_table_file(table))) << "size not prime";
  EXPECT_FALSE(check_table_file(sample_pool())) << "another kind of file";
}

TEST(PublishedPool, WhatIsWrittenIsReadAndFitsItsTable) {
  const Image table_file = build_table_file(sample_table());
  const Image pool_file = sample_pool();
  const auto pool = check_pool_file(pool_file);
  ASSERT_TRUE(pool) << pool.error();
  EXPECT_EQ(pool->name, "web");
  EXPECT_EQ(pool->backend_names[0], "");
  EXPECT_EQ(pool->backend_names[5], "b4");
  EXPECT_EQ(pool->backends[5].address, sample_backend(14).address);
  EXPECT_TRUE(check_pool_fits_table(*pool, *check_table_file(table_file)));
  const Image other_table = build_table_file(sample_table(4));
  EXPECT_FALSE(check_pool_fits_table(*pool, *check_table_file(other_table)));
}

TEST(PublishedPool, StructuralFaultsAreRefusedThoughTheChecksumIsRight) {
  const Checksum table = check_table_file(build_table_file(sample_table()))->checksum;
  const auto refused = [&](auto change, std::vector<uint32_t> owners = kOwnerBackends) {
    auto backends = sample_backends();
    change(backends);
    return !check_pool_file(build_pool_file("web", table, backends, owners));
  };
  const auto unchanged = [](std::vector<PoolBackend>&) {};
  EXPECT_FALSE(refused(unchanged));
  EXPECT_TRUE(refused(unchanged, {1, 2, 3, 4, 6})) << "owner out of range";
  EXPECT_TRUE(refused(unchanged, {0, 2, 3, 4, 5})) << "owner at an empty place";
  EXPECT_TRUE(refused(unchanged, {1, 1, 3, 4, 5})) << "owner twice";
  EXPECT_TRUE(refused([](auto& b) { b[2].name = b[1].name; })) << "name twice";
  EXPECT_TRUE(refused([](auto& b) { b[2].name = "b\n1"; })) << "no name";
  EXPECT_TRUE(refused([](auto& b) { b[1].record.next_hop_mac[0] = 1; })) << "multicast MAC";
  EXPECT_TRUE(refused([](auto& b) { b[1].record.address.bytes[7] = 1; })) << "long IPv4";
  EXPECT_TRUE(refused([](auto& b) { b[1].record.resolved = 2; })) << "flag";
  EXPECT_TRUE(refused([](auto& b) { b[0].record.port = 1; })) << "empty place not empty";
  EXPECT_TRUE(refused([](auto& b) { b[3].record.path_mtu_bytes = 1400; })) << "no way, yet an MTU";
  EXPECT_TRUE(refused([](auto& b) { b[1].record.flags |= 4; })) << "flag";
  EXPECT_TRUE(refused([](auto& b) { b[3].record.flags |= kBackendOnLink; }))
      << "no way, yet on link";
  EXPECT_TRUE(refused([](auto& b) { b[1].record.flags = kBackendOnLink; }))
      << "owner does not serve";
  EXPECT_TRUE(refused([](auto& b) { b[0].record.incarnation = 1; })) << "empty place not empty";
  EXPECT_TRUE(refused([](auto& b) { b[0].record.flags = kBackendServes; })) << "likewise";
  EXPECT_TRUE(refused([](auto& b) { b[1].record.outer_source_prefix_length = 0; }));
  EXPECT_TRUE(refused([](auto& b) { b[1].record.outer_source_prefix_length = 33; }));
  EXPECT_TRUE(refused([](auto& b) { b[1].record.outer_source_prefix_length = 31; }))
      << "bits beyond the prefix";
  EXPECT_FALSE(refused([](auto& b) {
    b[1].record.outer_source.bytes[3] = 0;
    b[1].record.outer_source_prefix_length = 24;
  }));
}

TEST(PublishedRoot, WhatIsWrittenIsRead) {
  const Image file = sample_root();
  const auto root = check_root_file(file);
  ASSERT_TRUE(root) << root.error();
  EXPECT_EQ(root->generation, 7u);
  EXPECT_EQ(root->hash_seed, 42u);
  ASSERT_EQ(root->vips.size(), 2u);
  EXPECT_EQ(root->vip_names[1], "any");
  EXPECT_EQ(root->vips[0].port, 80);
}

TEST(PublishedRoot, StructuralFaultsAreRefusedThoughTheChecksumIsRight) {
  const std::vector<PoolReference> pools = {{check_pool_file(sample_pool())->checksum, {}}};
  const auto refused = [&](std::vector<RootVip> vips) {
    return !check_root_file(build_root_file(7, 42, pools, vips));
  };
  EXPECT_FALSE(refused({sample_vip("a", 80), sample_vip("b", 80, VipProtocol::kUdp)}));
  EXPECT_TRUE(refused({sample_vip("a", 80), sample_vip("a", 81)})) << "name twice";
  EXPECT_TRUE(refused({sample_vip("a", 80), sample_vip("b", 80)})) << "address twice";
  for (const char* name : {"", "a b", "a\nb", "\xff", ".a", "a\"b"}) {
    EXPECT_TRUE(refused({sample_vip(name, 80)})) << "no name: " << name;
  }
  RootVip vip = sample_vip("a", 80);
  vip.record.pool = 1;
  EXPECT_TRUE(refused({vip})) << "pool out of range";
  vip = sample_vip("a", 80);
  vip.record.protocol = VipProtocol{1};
  EXPECT_TRUE(refused({vip})) << "unknown protocol";
  EXPECT_FALSE(check_root_file(build_root_file(0, 42, pools, {}))) << "generation 0";
  const PoolReference with_history{pools[0].pool, {{1}}};
  EXPECT_TRUE(check_root_file(build_root_file(1, 42, std::vector{with_history}, {})));
  EXPECT_FALSE(check_root_file(build_root_file(1, 42, std::vector{pools[0], with_history}, {})));
}

TEST(PublishedRoot, EverySettingOfAVipIsChecked) {
  const std::vector<PoolReference> pools = {{check_pool_file(sample_pool())->checksum, {}}};
  const auto accepted = [&](auto change) {
    RootVip vip = sample_vip("a", 80);
    change(vip.record);
    return check_root_file(build_root_file(7, 42, pools, std::vector{vip})).has_value();
  };
  EXPECT_TRUE(accepted([](VipRecord& v) { v.protocol = VipProtocol::kTcpAndUdp; }));
  EXPECT_TRUE(accepted([](VipRecord& v) { v.flags = kVipAllFlags; }));
  EXPECT_FALSE(accepted([](VipRecord& v) { v.flags = kVipAllFlags + 1; }));
  EXPECT_TRUE(accepted([](VipRecord& v) { v.encapsulation = Encapsulation::kLayer2; }));
  EXPECT_FALSE(accepted([](VipRecord& v) { v.encapsulation = Encapsulation{6}; }));
  EXPECT_FALSE(accepted([](VipRecord& v) { v.encapsulation = Encapsulation{0}; }));
  EXPECT_FALSE(accepted([](VipRecord& v) { v.encapsulation = Encapsulation::kGueVariant1; }))
      << "no GUE port";
  EXPECT_FALSE(accepted([](VipRecord& v) { v.gue_port = kGuePort; })) << "GUE port without GUE";
  EXPECT_TRUE(accepted([](VipRecord& v) {
    v.encapsulation = Encapsulation::kGueVariant0;
    v.gue_port = kGuePort;
  }));
  EXPECT_FALSE(accepted([](VipRecord& v) { v.hash_policy = HashPolicy{3}; }));
  EXPECT_FALSE(accepted([](VipRecord& v) { v.fragment_policy = FragmentPolicy{0}; }));
  EXPECT_FALSE(accepted([](VipRecord& v) { v.tracking = Tracking{0}; }));
  EXPECT_FALSE(accepted([](VipRecord& v) { v.tracking = Tracking{4}; }));
  EXPECT_FALSE(accepted([](VipRecord& v) { v.quic.nonce_length = 4; }));
  EXPECT_FALSE(accepted([](VipRecord& v) { v.prefix_length = 0; }));
  EXPECT_FALSE(accepted([](VipRecord& v) { v.prefix_length = 33; }));
  EXPECT_FALSE(accepted([](VipRecord& v) { v.prefix_length = 30; })) << "bits beyond the prefix";
  EXPECT_TRUE(accepted([](VipRecord& v) { v.prefix_length = 31; }));
  EXPECT_TRUE(accepted([](VipRecord& v) {
    v.family = AddressFamily::kIpv6;
    v.address.bytes[15] = 1;
    v.prefix_length = 128;
  }));
}

TEST(PublishedRoot, IdleTimesAreThereWhereFlowsAreTracked) {
  const std::vector<PoolReference> pools = {{check_pool_file(sample_pool())->checksum, {}}};
  const auto accepted = [&](Tracking tracking, uint32_t tcp, uint32_t closing, uint32_t udp) {
    RootVip vip = sample_vip("a", 80);
    vip.record.tracking = tracking;
    vip.record.tcp_idle_s = tcp;
    vip.record.tcp_closing_idle_s = closing;
    vip.record.udp_idle_s = udp;
    return check_root_file(build_root_file(7, 42, pools, std::vector{vip})).has_value();
  };
  for (const Tracking tracking : {Tracking::kFull, Tracking::kChanged}) {
    EXPECT_TRUE(accepted(tracking, 900, 30, 60));
    EXPECT_TRUE(accepted(tracking, kMaxFlowIdle_s, 1, kMaxFlowIdle_s));
    EXPECT_FALSE(accepted(tracking, kMaxFlowIdle_s + 1, 1, 1));
    EXPECT_FALSE(accepted(tracking, 0, 30, 60));
    EXPECT_FALSE(accepted(tracking, 900, 0, 60));
    EXPECT_FALSE(accepted(tracking, 900, 30, 0));
  }
  EXPECT_TRUE(accepted(Tracking::kNone, 0, 0, 0));
  EXPECT_FALSE(accepted(Tracking::kNone, 0, 0, 60));
}

TEST(PublishedRoot, VipsOfOneAddressAgreeOnWhatHasNoPort) {
  const std::vector<PoolReference> pools = {{check_pool_file(sample_pool())->checksum, {}}};
  const auto accepted = [&](std::vector<RootVip> vips) {
    return check_root_file(build_root_file(7, 42, pools, vips)).has_value();
  };
  const RootVip web = sample_vip("a", 80);
  const auto other = [&](VipProtocol protocol, auto change) {
    RootVip vip = sample_vip("b", 81, protocol);
    change(vip.record);
    return vip;
  };
  const auto by_address = [](VipRecord& v) { v.fragment_policy = FragmentPolicy::kAddress; };
  EXPECT_FALSE(accepted({web, other(VipProtocol::kTcp, by_address)}));
  EXPECT_FALSE(accepted({web, other(VipProtocol::kTcpAndUdp, by_address)}));
  EXPECT_TRUE(accepted({web, other(VipProtocol::kUdp, by_address)}));
  const auto echo = [](VipRecord& v) { v.flags = kVipEchoToKernel; };
  EXPECT_FALSE(accepted({web, other(VipProtocol::kUdp, echo)}));
  EXPECT_FALSE(accepted({web, sample_vip("b", 80, VipProtocol::kTcpAndUdp)})) << "TCP twice";
  RootVip first = web, second = other(VipProtocol::kTcp, by_address);
  by_address(first.record);
  EXPECT_TRUE(accepted({first, second}));
  second.record.hash_policy = HashPolicy::kSource;
  EXPECT_FALSE(accepted({first, second})) << "which of them would take a later fragment?";
  second = other(VipProtocol::kTcp, by_address);
  second.record.tracking = Tracking::kChanged;
  second.record.tcp_idle_s = second.record.tcp_closing_idle_s = second.record.udp_idle_s = 1;
  EXPECT_FALSE(accepted({first, second})) << "would it be remembered?";
  second = other(VipProtocol::kTcp, echo);
  second.record.address.bytes[3] = 0;
  second.record.prefix_length = 24;
  EXPECT_TRUE(accepted({web, second})) << "another prefix";
}

TEST(Published, NoByteMayChangeAndNoTruncationPasses) {
  const auto check_all = [](const Image& file) {
    return check_table_file(file) || check_pool_file(file) || check_root_file(file);
  };
  for (Image file : {build_table_file(sample_table()), sample_pool(), sample_root()}) {
    ASSERT_TRUE(check_all(file));
    for (size_t i = 0; i < file.size(); ++i) {
      file[i] ^= std::byte{1};
      EXPECT_FALSE(check_all(file)) << "byte " << i;
      file[i] ^= std::byte{1};
    }
    while (!file.empty()) {
      file.pop_back();
      EXPECT_FALSE(check_all(file)) << file.size() << " bytes";
    }
  }
}

TEST(Published, EqualContentHasEqualNames) {
  EXPECT_EQ(check_pool_file(sample_pool())->checksum, check_pool_file(sample_pool())->checksum);
  const Checksum sum = check_pool_file(sample_pool())->checksum;
  EXPECT_EQ(Checksum::from_hex(sum.hex()), sum);
  EXPECT_EQ(Checksum::from_hex("xyz"), std::nullopt);
  EXPECT_EQ(Checksum::from_hex(std::string(32, 'G')), std::nullopt);
}

}  // namespace
}  // namespace maglev
