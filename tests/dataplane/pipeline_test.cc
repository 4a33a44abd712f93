// Bursts, slots and tables; single packets, byte for byte, are the cases of tests/packets.
#include "dataplane/pipeline.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <random>
#include <set>

#include <fmt/format.h>

#include "tests/dataplane/fixture.h"

namespace maglev {
namespace {

using namespace testing;

class Pipeline : public ::testing::Test {
 protected:
  void SetUp() override {
    snapshot_ = bed_.adopt(make_tree(1, 5, 251, {make_vip("web", "198.51.100.10", 80)}));
  }

  Verdict one_frame(const Bytes& frame) {
    runner_.run(std::vector<Bytes>{frame}, snapshot_.get());
    return runner_.verdict(0);
  }
  Verdict one(const PacketSpec& spec) { return one_frame(make_frame(spec)); }

  TestBed bed_;
  std::shared_ptr<const Snapshot> snapshot_;
  BurstRunner runner_{bed_.counters};
};

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

TEST_F(Pipeline, TenThousandVipsAreEachFound) {
  constexpr uint32_t kVips = 10000;
  bed_.vip_counters = CounterRegistry(kVips, [](uint32_t) {});
  std::vector<FlowCounters> flows(kVips);
  bed_.counters.vips = flows.data();
  std::vector<RootVip> many;
  const auto address_of = [](uint32_t i) { return fmt::format("198.18.{}.{}", i / 250, i % 250); };
  for (uint32_t i = 0; i < kVips; ++i) {
    many.push_back(make_vip(fmt::format("v{}", i), address_of(i), static_cast<uint16_t>(1000 + i)));
  }
  snapshot_ = bed_.adopt(make_tree(2, 5, 251, many));
  for (uint32_t i = 0; i < kVips; ++i) {
    const PacketSpec spec{.source = "198.19.0.1",
                          .destination = address_of(i),
                          .destination_port = static_cast<uint16_t>(1000 + i)};
    ASSERT_EQ(one(spec), Verdict::kForwarded);
    ASSERT_EQ(runner_.burst().vip[0], &snapshot_->vips()[i]);
  }
}

// With one place for many, each look for an IPv6 VIP would walk past the others.
TEST(VipTable, NoTwoServicesOfABlockOfAddressesByARangeOfPortsShareTheirPlace) {
  for (uint32_t at = 4; at < 16; ++at) {  // which byte of the address counts
    std::set<uint64_t> places;
    for (uint32_t number = 0; number < 100; ++number) {
      std::array<uint8_t, 16> address = {0x20, 0x01, 0x0d, 0xb8};
      address[15] = 1;
      address[at] = static_cast<uint8_t>(number);
      for (uint16_t port = 8000; port < 8100; ++port) {
        places.insert(VipTable::mix6(load<uint64_t>(&address[0]), load<uint64_t>(&address[8]),
                                     VipTable::key6(__builtin_bswap16(port), kProtocolTcp)));
      }
    }
    EXPECT_EQ(places.size(), 100u * 100u) << "byte " << at;
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
