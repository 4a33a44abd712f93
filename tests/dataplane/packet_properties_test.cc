// What holds for many packets alike; single packets, byte for byte, are the cases of tests/packets.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <sstream>

#include <fmt/format.h>

#include "tests/dataplane/fixture.h"
#include "tests/packets/packet_text.h"

namespace maglev {
namespace {

using namespace testing;

// A frame from its text.
Bytes frame_of(const std::string& text) {
  std::vector<packets::Line> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    std::istringstream words(line);
    lines.push_back({text, {std::istream_iterator<std::string>(words), {}}});
  }
  return packets::encode(lines, {});
}

std::string header_of(bool ipv6, const std::string& source, const std::string& destination) {
  return fmt::format("eth\nip{} {} > {}\n", ipv6 ? 6 : 4, source, destination);
}

constexpr const char* kVip[] = {"198.51.100.10", "2001:db8:1::10"};
constexpr const char* kClient[] = {"198.18.0.2", "2001:db8::99"};
constexpr const char* kRouter[] = {"203.0.113.1", "2001:db8:9::1"};

Bytes udp_frame(bool ipv6, uint16_t source_port, uint32_t payload = 10) {
  return frame_of(header_of(ipv6, kClient[ipv6], kVip[ipv6]) +
                  fmt::format("udp {} > 53\ndata {}", source_port, payload));
}

// One VIP of each family on UDP port 53, both on five backends.
class ManyPackets : public ::testing::Test {
 protected:
  ManyPackets()
      : vips_{make_vip("v4", kVip[0], 53, VipProtocol::kUdp),
              make_vip("v6", kVip[1], 53, VipProtocol::kUdp)} {}

  void publish() { snapshot_ = bed_.adopt(make_tree(1, kBackends, 251, vips_)); }

  const BackendEntry* backend_of(const Bytes& frame) {
    runner_.run(std::vector<Bytes>{frame}, snapshot_.get());
    EXPECT_EQ(runner_.verdict(0), Verdict::kForwarded);
    return runner_.burst().backend[0];
  }

  static constexpr uint32_t kBackends = 5;
  TestBed bed_;
  std::vector<RootVip> vips_;
  std::shared_ptr<const Snapshot> snapshot_;
  BurstRunner runner_{bed_.counters};
};

TEST_F(ManyPackets, IcmpErrorsGoToTheBackendOfTheFlowTheyQuote) {
  publish();
  for (uint16_t port = 1; port < 300; ++port) {
    for (const bool ipv6 : {false, true}) {
      const Bytes error = frame_of(header_of(ipv6, kRouter[ipv6], kVip[ipv6]) +
                                   (ipv6 ? "icmp6 2 0\nfirst 48\n" : "icmp4 3 4\nfirst 28\n") +
                                   header_of(ipv6, kVip[ipv6], kClient[ipv6]).substr(4) +
                                   fmt::format("udp 53 > {}\ndata 10", port));
      EXPECT_EQ(backend_of(error), backend_of(udp_frame(ipv6, port))) << port;
    }
  }
}

TEST_F(ManyPackets, TenThousandFlowsBehindOneAddressAreSpreadEvenly) {
  publish();
  for (const bool ipv6 : {false, true}) {
    std::map<const BackendEntry*, int> flows;
    for (uint16_t port = 1; port <= 10000; ++port) ++flows[backend_of(udp_frame(ipv6, port))];
    ASSERT_EQ(flows.size(), kBackends);
    for (const auto& [backend, count] : flows) EXPECT_NEAR(count, 2000, 200);
  }
}

// Of a thousand flows the birthday rule lets about 970 of 16384 ports differ.
TEST_F(ManyPackets, OuterHeadersDifferFromFlowToFlowAndNotWithinOne) {
  for (RootVip& vip : vips_) {
    vip.record.encapsulation = Encapsulation::kGueVariant0;
    vip.record.gue_port = kGuePort;
  }
  publish();
  std::set<uint16_t> ports;
  for (uint16_t port = 1; port <= 1000; ++port) {
    backend_of(udp_frame(false, port));
    const Bytes frame = runner_.output(0);
    ports.insert(load_be16(&frame[kEthernetHeaderLength + kIpv4HeaderLength]));
    backend_of(udp_frame(false, port));
    EXPECT_EQ(runner_.output(0), frame);
  }
  EXPECT_GT(ports.size(), 940u);
}

TEST(PartialChecksums, AreCompletedAndRightOnesStay) {
  for (const bool ipv6 : {false, true}) {
    for (uint32_t payload = 0; payload < 64; ++payload) {
      const Bytes right = udp_frame(ipv6, 4000, payload);
      const uint32_t udp = kEthernetHeaderLength + (ipv6 ? kIpv6HeaderLength : kIpv4HeaderLength);
      Bytes partial = right;
      store_be16(&partial[udp + kUdpChecksumOffset],
                 pseudo_header_sum(&partial[kEthernetHeaderLength], kProtocolUdp, 8 + payload));
      complete_checksum(partial.data(), static_cast<uint32_t>(partial.size()));
      EXPECT_EQ(partial, right);
      complete_checksum(partial.data(), static_cast<uint32_t>(partial.size()));
      EXPECT_EQ(partial, right);
    }
  }
}

TEST(FragmentTable, WhatIsHeldComesBackOnceInOrder) {
  FragmentTable table(std::pmr::new_delete_resource());
  DatagramKey key;
  key.id = 7;
  const uint64_t hash = key.hash(42);
  for (uint32_t i = 0; i < FragmentTable::kHeld; ++i) {
    EXPECT_TRUE(table.hold(key, hash, {nullptr, nullptr, i, Verdict::kForwarded}, 1));
  }
  EXPECT_FALSE(table.hold(key, hash, {}, 1)) << "no room";
  EXPECT_FALSE(table.has_released());
  table.learn(key, hash, {5, kProtocolUdp}, 2);
  EXPECT_EQ(table.find_transport(key, hash, 3)->ports, 5u);
  for (uint32_t i = 0; i < FragmentTable::kHeld; ++i) {
    ASSERT_TRUE(table.has_released());
    const HeldFrame frame = table.take_released();
    EXPECT_EQ(frame.length, i);
    EXPECT_EQ(frame.verdict, Verdict::kForwarded);
  }
  EXPECT_FALSE(table.has_released());
  EXPECT_EQ(table.held(), 0u);
}

TEST(FragmentTable, TheOldestOfASetGivesWay) {
  FragmentTable table(std::pmr::new_delete_resource());
  DatagramKey key;
  for (uint32_t id = 0; id <= FragmentTable::kWays; ++id) {  // all in one set
    key.id = 100 + id;
    EXPECT_TRUE(table.hold(key, 64 * 1024, {nullptr, nullptr, id, Verdict::kForwarded}, 1 + id));
  }
  ASSERT_TRUE(table.has_released());
  const HeldFrame oldest = table.take_released();
  EXPECT_EQ(oldest.length, 0u);
  EXPECT_EQ(oldest.verdict, Verdict::kFragmentOverflow);
  EXPECT_FALSE(table.has_released());
}

TEST(FlowHashWords, EqualTheHashOfTheKeyAsBytes) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 100000; ++i) {
    uint8_t bytes[44];
    for (uint8_t& b : bytes) b = static_cast<uint8_t>(random());
    const uint64_t seed = random();
    EXPECT_EQ(FlowHash4(seed)(load<uint64_t>(bytes), load<uint64_t>(bytes + 5)),
              hash_flow(load<FlowKey4>(bytes), seed));
    FlowKey6 key = load<FlowKey6>(bytes);
    const uint8_t protocol = bytes[43];
    key.protocol = protocol;
    ASSERT_EQ(FlowHash6(seed)(bytes, protocol), hash_flow(key, seed));
  }
}

// Of a packet whose own checksums are right, or which has none, the short way to its sum must be as
// good as the long one: checksums are equal where their difference is 0 or all ones.
TEST(SumOfPacket, IsThatOfAllItsWords) {
  std::mt19937 random(20261201);
  for (uint32_t round = 0; round < 20000; ++round) {
    const bool ipv6 = random() % 2 != 0;
    const char* const transport =
        std::array{"tcp 1 > 80", "udp 1 > 80", "udp 1 > 80 checksum 0"}[random() % 3];
    const Bytes frame =
        frame_of(header_of(ipv6,
                           ipv6 ? fmt::format("2001:db8::{:x}", random() % 0xffff + 1)
                                : fmt::format("198.18.{}.{}", random() % 256, random() % 256),
                           kVip[ipv6]) +
                 fmt::format("{}\ndata {}", transport, random() % 90));
    const uint8_t* const ip = frame.data() + kEthernetHeaderLength;
    const auto length = static_cast<uint32_t>(frame.size()) - kEthernetHeaderLength;
    EXPECT_EQ(wrapping::sum_of_packet(ip, length) % 0xffff, sum_words(ip, length) % 0xffff)
        << transport << ", " << length << " bytes";
  }
}

}  // namespace
}  // namespace maglev
