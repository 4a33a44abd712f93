#include "dataplane/pipeline.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <random>

#include "tests/dataplane/fixture.h"

namespace maglev {
namespace {

using namespace testing;

// Of the header in front of an IPv4 packet in IPv4.
constexpr uint32_t kIpInIpLength = kEthernetHeaderLength + kIpv4HeaderLength;

class Pipeline : public ::testing::Test {
 protected:
  void SetUp() override {
    vips_ = {make_vip("web", "198.51.100.10", 80), make_vip("any", "198.51.100.11", kAnyPort),
             make_vip("dns", "198.51.100.10", 53, VipProtocol::kUdp)};
    snapshot_ = bed_.adopt(make_tree(1, 5, 251, vips_));
  }

  Verdict one_frame(const Bytes& frame) {
    runner_.run(std::vector<Bytes>{frame}, snapshot_.get());
    return runner_.verdict(0);
  }
  Verdict one(const PacketSpec& spec) { return one_frame(make_frame(spec)); }

  // Everything received has been counted under one verdict.
  void expect_counts_add_up() {
    const WorkerTotals totals = read_totals(bed_.counters);
    EXPECT_EQ(totals.received_packets,
              std::accumulate(totals.verdicts.begin(), totals.verdicts.end(), uint64_t{0}));
  }
  FlowCounters& vip_count(size_t i) { return bed_.counters.vips[snapshot_->vips()[i].counter]; }

  TestBed bed_;
  std::vector<RootVip> vips_;
  std::shared_ptr<const Snapshot> snapshot_;
  BurstRunner runner_{bed_.counters};
};

TEST_F(Pipeline, AForwardedPacketIsTheInnerOneInAHeaderOfTheBackend) {
  const Bytes in = make_frame({.tos = 0x2e, .payload_bytes = 100});
  ASSERT_EQ(one_frame(in), Verdict::kForwarded);
  const Bytes out = runner_.output(0);
  ASSERT_EQ(out.size(), in.size() + kIpv4HeaderLength);

  const Bytes source_mac = {2, 0, 0, 0, 0, 1};
  EXPECT_EQ(Bytes(out.begin() + 6, out.begin() + 12), source_mac);
  EXPECT_EQ(load_be16(&out[kEtherTypeOffset]), kEtherTypeIpv4);
  const uint8_t* outer = &out[kEthernetHeaderLength];
  EXPECT_EQ(outer[0], 0x45);
  EXPECT_EQ(outer[kIpv4TosOffset], 0x2e);
  EXPECT_EQ(load_be16(outer + kIpv4TotalLengthOffset), out.size() - kEthernetHeaderLength);
  EXPECT_EQ(load_be16(outer + kIpv4FragmentOffset), kIpv4DontFragment);
  EXPECT_EQ(outer[kIpv4ProtocolOffset], kProtocolIpInIp);
  EXPECT_EQ(sum_words(outer, kIpv4HeaderLength), 0xffff) << "outer checksum";

  Bytes inner(out.begin() + kIpInIpLength, out.end());
  Bytes expected(in.begin() + kEthernetHeaderLength, in.end());
  EXPECT_EQ(inner[kIpv4TtlOffset], 63);
  EXPECT_EQ(sum_words(inner.data(), kIpv4HeaderLength), 0xffff) << "inner checksum";
  for (Bytes* packet : {&inner, &expected}) {
    (*packet)[kIpv4TtlOffset] = 0;
    store_be16(packet->data() + kIpv4ChecksumOffset, 0);
  }
  EXPECT_EQ(inner, expected) << "all else is untouched";
}

TEST_F(Pipeline, ThePacketGoesToTheOwnerOfItsSlot) {
  for (uint16_t port = 1; port < 2000; ++port) {
    const Bytes frame = make_frame({.source_port = port});
    ASSERT_EQ(one_frame(frame), Verdict::kForwarded);
    const FlowKey4 key{address_be("198.18.0.2"), address_be("198.51.100.10"), htons(port),
                       htons(80), kProtocolTcp};
    const uint32_t slot = slot_of(hash_flow(key, 42), 251);
    const uint16_t backend = snapshot_->pools()[0]->slots16[slot];
    const uint8_t* outer = runner_.burst().frame[0] + kEthernetHeaderLength;
    EXPECT_EQ(outer[kIpv4DestinationOffset + 3], 10 + backend);
    EXPECT_EQ(runner_.burst().frame[0][5], backend) << "next hop's MAC address";
  }
}

TEST_F(Pipeline, TheChecksumOfTheInnerHeaderStaysRightForEveryTtlAndChecksum) {
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i) {
    uint8_t ip[kIpv4HeaderLength];
    for (uint8_t& b : ip) b = static_cast<uint8_t>(random());
    if (ip[kIpv4TtlOffset] == 0) continue;
    store_be16(ip + kIpv4ChecksumOffset, 0);
    store_be16(ip + kIpv4ChecksumOffset, static_cast<uint16_t>(~sum_words(ip, sizeof ip)));
    decrement_ttl(ip);
    ASSERT_EQ(sum_words(ip, sizeof ip), 0xffff);
  }
}

TEST_F(Pipeline, HeaderOptionsAreHonoured) {
  for (uint32_t options = 0; options <= 40; options += 4) {
    const Bytes plain = make_frame({.source_port = 7});
    EXPECT_EQ(one_frame(make_frame({.source_port = 7, .option_bytes = options})),
              Verdict::kForwarded);
    const Bytes with_options = runner_.output(0);
    EXPECT_EQ(one_frame(plain), Verdict::kForwarded);
    EXPECT_EQ(with_options[kEthernetHeaderLength + kIpv4DestinationOffset + 3],
              runner_.output(0)[kEthernetHeaderLength + kIpv4DestinationOffset + 3])
        << "ports are read behind the options";
  }
}

TEST_F(Pipeline, OnlyTheIpLengthIsForwarded) {
  Bytes frame = make_frame({});
  const size_t length = frame.size();
  frame.resize(length + 17, 0xee);
  ASSERT_EQ(one_frame(frame), Verdict::kForwarded);
  EXPECT_EQ(runner_.output(0).size(), length + kIpv4HeaderLength);
  EXPECT_EQ(vip_count(0).forwarded_bytes.get(), length + 17) << "bytes are those received";
}

TEST_F(Pipeline, LengthsThatLieAreMalformed) {
  const Bytes good = make_frame({});
  const size_t ip = kEthernetHeaderLength;
  for (size_t length = 0; length < good.size(); ++length) {
    EXPECT_EQ(one_frame(Bytes(good.begin(), good.begin() + static_cast<ptrdiff_t>(length))),
              Verdict::kMalformed)
        << length;
  }
  for (uint8_t words = 0; words < 5; ++words) {
    Bytes frame = good;
    frame[ip] = static_cast<uint8_t>(0x40 | words);
    EXPECT_EQ(one_frame(frame), Verdict::kMalformed) << "header of " << int{words} << " words";
  }
  Bytes frame = good;
  frame[ip] = 0x4f;
  EXPECT_EQ(one_frame(frame), Verdict::kMalformed) << "header longer than the packet";
  frame = good;
  frame[ip] = 0x65;
  EXPECT_EQ(one_frame(frame), Verdict::kMalformed) << "version 6 under the EtherType of IPv4";
  for (uint16_t total : std::initializer_list<uint16_t>{0, 19, 20, 27, 39}) {
    frame = good;
    store_be16(&frame[ip + kIpv4TotalLengthOffset], total);
    EXPECT_EQ(one_frame(frame), Verdict::kMalformed) << "total length " << total;
  }
  expect_counts_add_up();
}

TEST_F(Pipeline, WhatIsNotForAVipIsToldApart) {
  Bytes arp = make_frame({});
  store_be16(&arp[kEtherTypeOffset], 0x0806);
  EXPECT_EQ(one_frame(arp), Verdict::kNotIp);
  EXPECT_EQ(one({.destination_port = 81}), Verdict::kUnservedPort);
  EXPECT_EQ(one({.protocol = kProtocolUdp}), Verdict::kUnservedPort);
  EXPECT_EQ(one({.destination = "198.51.100.12"}), Verdict::kNoVip);
  EXPECT_EQ(one({.protocol = 2}), Verdict::kUnsupportedProtocol);
  EXPECT_EQ(one({.destination = "198.51.100.12", .protocol = 2}), Verdict::kNoVip);
  EXPECT_EQ(one({.fragment_field = kIpv4DontFragment}), Verdict::kForwarded);
  runner_.run(std::vector<Bytes>{make_frame({})}, nullptr);
  EXPECT_EQ(runner_.verdict(0), Verdict::kNoTables);
  expect_counts_add_up();
}

TEST_F(Pipeline, AVipOfAnyPortTakesWhatNoOtherNames) {
  for (uint16_t port : std::initializer_list<uint16_t>{0, 1, 80, 65535}) {
    EXPECT_EQ(one({.destination = "198.51.100.11", .destination_port = port}), Verdict::kForwarded);
  }
  EXPECT_EQ(vip_count(1).forwarded_packets.get(), 4u);
  EXPECT_EQ(one({.destination_port = 53, .protocol = kProtocolUdp}), Verdict::kForwarded);
  EXPECT_EQ(vip_count(2).forwarded_packets.get(), 1u);
  EXPECT_EQ(vip_count(0).forwarded_packets.get(), 0u);
}

TEST_F(Pipeline, AnExpiredTimeToLiveGoesNoFurther) {
  EXPECT_EQ(one({.ttl = 0}), Verdict::kTtlExpired);
  EXPECT_EQ(one({.ttl = 1}), Verdict::kTtlExpired);
  EXPECT_EQ(one({.ttl = 2}), Verdict::kForwarded);
  EXPECT_EQ(runner_.output(0)[kIpInIpLength + kIpv4TtlOffset], 1);
}

TEST_F(Pipeline, TheLargestPacketThatFitsIsExact) {
  const uint32_t headers = kIpv4HeaderLength + kTcpHeaderLength;
  const uint16_t whole = kIpv4DontFragment;
  EXPECT_EQ(one({.payload_bytes = 1600 - 20 - headers, .fragment_field = whole}),
            Verdict::kForwarded);
  EXPECT_EQ(one({.payload_bytes = 1600 - 20 - headers + 1, .fragment_field = whole}),
            Verdict::kTooBig);
}

TEST_F(Pipeline, APoolWithoutBackendsDropsAndCounts) {
  snapshot_ = bed_.adopt(make_tree(2, 0, 251, vips_));
  EXPECT_EQ(one(PacketSpec{}), Verdict::kNoBackend);
  EXPECT_EQ(vip_count(0).dropped_packets.get(), 1u);
}

TEST_F(Pipeline, AnUnresolvedNextHopDropsAndCountsForTheBackend) {
  std::vector<WeightedName> names = {{"b0", 1}};
  const MaglevTable table = *build_maglev(names, 251);
  Tree tree;
  tree.table = build_table_file(table);
  BackendRecord record{};
  record.address = address("198.18.2.10");
  record.family = AddressFamily::kIpv4;
  tree.pool = build_pool_file("pool", check_table_file(tree.table)->checksum,
                              std::vector<PoolBackend>{{"b0", record}}, std::vector<uint32_t>{0});
  tree.root = build_root_file(2, 42, std::vector{check_pool_file(tree.pool)->checksum}, vips_);
  snapshot_ = bed_.adopt(tree);
  EXPECT_EQ(one(PacketSpec{}), Verdict::kUnresolved);
  const uint32_t counter = *snapshot_->pools()[0]->counters[0];
  EXPECT_EQ(bed_.counters.backends[counter].dropped_packets.get(), 1u);
}

TEST_F(Pipeline, TheSourcePolicyIgnoresPorts) {
  vips_[0].record.hash_policy = HashPolicy::kSource;
  snapshot_ = bed_.adopt(make_tree(2, 5, 251, vips_));
  std::map<uint8_t, int> destinations;
  for (uint16_t port = 1; port < 100; ++port) {
    ASSERT_EQ(one({.source_port = port}), Verdict::kForwarded);
    ++destinations[runner_.output(0)[kEthernetHeaderLength + kIpv4DestinationOffset + 3]];
  }
  EXPECT_EQ(destinations.size(), 1u);
}

TEST_F(Pipeline, EachPacketOfAMixedBurstHasItsOwnVerdict) {
  Bytes arp = make_frame({});
  store_be16(&arp[kEtherTypeOffset], 0x0806);
  std::vector<Bytes> frames;
  for (int i = 0; i < 16; ++i) {
    frames.push_back(make_frame({.source_port = static_cast<uint16_t>(i)}));
    frames.push_back(arp);
    frames.push_back(Bytes(3));
    frames.push_back(make_frame({.destination_port = 99}));
  }
  runner_.run(frames, snapshot_.get());
  for (uint32_t i = 0; i < frames.size(); i += 4) {
    EXPECT_EQ(runner_.verdict(i), Verdict::kForwarded);
    EXPECT_EQ(runner_.verdict(i + 1), Verdict::kNotIp);
    EXPECT_EQ(runner_.verdict(i + 2), Verdict::kMalformed);
    EXPECT_EQ(runner_.verdict(i + 3), Verdict::kUnservedPort);
  }
  const WorkerTotals totals = read_totals(bed_.counters);
  EXPECT_EQ(totals.received_packets, 64u);
  for (Verdict v :
       {Verdict::kForwarded, Verdict::kNotIp, Verdict::kMalformed, Verdict::kUnservedPort}) {
    EXPECT_EQ(totals.verdicts[static_cast<uint32_t>(v)], 16u);
  }
}

TEST_F(Pipeline, AnEmptyBurstCountsNothing) {
  runner_.run({}, snapshot_.get());
  EXPECT_EQ(read_totals(bed_.counters).received_packets, 0u);
}

TEST_F(Pipeline, ManyVipsAreEachFound) {
  std::vector<RootVip> many;
  for (int i = 0; i < 50; ++i) {
    many.push_back(make_vip("v" + std::to_string(i), "198.51.100." + std::to_string(i + 1),
                            static_cast<uint16_t>(1000 + i)));
  }
  snapshot_ = bed_.adopt(make_tree(2, 5, 251, many));
  for (uint32_t i = 0; i < many.size(); ++i) {
    const PacketSpec spec{.destination = "198.51.100." + std::to_string(i + 1),
                          .destination_port = static_cast<uint16_t>(1000 + i)};
    ASSERT_EQ(one(spec), Verdict::kForwarded);
    EXPECT_EQ(runner_.burst().vip[0], &snapshot_->vips()[i]);
  }
}

TEST(SlotWidth, PoolsOfMoreThan65535BackendIndicesUseWideSlots) {
  TestBed bed;
  bed.backend_counters = CounterRegistry(70000, [](uint32_t) {});
  std::vector<FlowCounters> flows(70000);
  bed.counters.backends = flows.data();
  const auto snapshot =
      bed.adopt(make_tree(1, 65536, 131071, {make_vip("web", "198.51.100.10", 80)}));
  EXPECT_TRUE(snapshot->pools()[0]->slots16.empty());
  BurstRunner runner(bed.counters);
  std::map<const BackendEntry*, int> chosen;
  for (uint16_t port = 1; port < 1000; ++port) {
    runner.run(std::vector<Bytes>{make_frame({.source_port = port})}, snapshot.get());
    ASSERT_EQ(runner.verdict(0), Verdict::kForwarded);
    ++chosen[runner.burst().backend[0]];
  }
  EXPECT_GT(chosen.size(), 900u);
}

TEST(CounterRegistry, APlaceIsClearedBeforeAnotherNameGetsIt) {
  std::vector<uint32_t> cleared;
  CounterRegistry registry(1, [&](uint32_t i) { cleared.push_back(i); });
  CounterHold first = registry.hold("a");
  EXPECT_EQ(registry.hold("a"), first) << "a name keeps its place";
  EXPECT_EQ(registry.hold("b"), nullptr) << "all places are taken";
  EXPECT_TRUE(cleared.empty());
  first.reset();
  EXPECT_EQ(cleared, std::vector<uint32_t>{0});
  EXPECT_NE(registry.hold("b"), nullptr);
}

}  // namespace
}  // namespace maglev
