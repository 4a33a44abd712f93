// What the steering program and the guard make of a frame, by its bytes. The kernel runs the
// programs from their object files.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>
#include <unistd.h>

#include <algorithm>
#include <random>

#include "dataplane/bpf/vip_maps.h"
#include "tests/dataplane/bpf_harness.h"

namespace maglev {
namespace {

constexpr Ipv4Address kVip4 = {198, 51, 100, 10};
constexpr Ipv4Address kOther4 = {198, 51, 100, 11};
constexpr Ipv6Address kVip6 = {0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10};
constexpr Ipv6Address kOther6 = {0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x11};

constexpr int kRandomFrames = 20000;
constexpr uint32_t kId4 = 7;
constexpr uint32_t kId6 = 9;

// Both programs ask the same question and differ in what they do with the answer.
struct Subject {
  const char* name;
  const char* object_path;
  uint32_t drop;
  uint32_t pass;
  uint32_t drop_counter;
  uint32_t counters;
};

class VipProgram : public testing::TestWithParam<Subject> {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "needs root: loads BPF programs";
    object_ = std::make_unique<LoadedObject>(GetParam().object_path);
    add4(kVip4, 32, 0);
    add6(0);
  }

  void add4(const Ipv4Address& address, uint32_t prefix_length, uint32_t flags) {
    Prefix4Key key{.prefix_length = prefix_length, .address = {}};
    std::ranges::copy(address, key.address);
    object_->put("vips4", key, VipRule{.prefix_id = kId4, .flags = flags});
  }

  void add6(uint32_t flags) {
    Prefix6Key key{.prefix_length = 128, .address = {}};
    std::ranges::copy(kVip6, key.address);
    object_->put("vips6", key, VipRule{.prefix_id = kId6, .flags = flags});
  }

  void use(uint32_t flags) {
    add4(kVip4, 32, flags);
    add6(flags);
  }

  // Under IPv4 and IPv6 alike.
  void serve(uint8_t protocol, uint16_t port) {
    for (uint32_t id : {kId4, kId6})
      object_->put(
          "services",
          ServiceKey{.prefix_id = id, .port_be = htons(port), .protocol = protocol, .zero = 0},
          uint8_t{1});
  }

  uint64_t dropped() const {
    return object_->counters(GetParam().counters)[GetParam().drop_counter];
  }

  void expect_drop(const Bytes& frame) {
    uint64_t before = dropped();
    EXPECT_EQ(object_->run(frame).verdict, GetParam().drop);
    EXPECT_EQ(dropped(), before + 1);
  }

  void expect_untouched_pass(const Bytes& frame) {
    uint64_t before = dropped();
    RunResult result = object_->run(frame);
    EXPECT_EQ(result.verdict, GetParam().pass);
    EXPECT_EQ(result.frame, frame);
    EXPECT_EQ(dropped(), before);
  }

  std::unique_ptr<LoadedObject> object_;
};

Bytes to4(const Ipv4Address& destination) {
  return ipv4({.source = {203, 0, 113, 1}, .destination = destination}, udp(80, Bytes(40)));
}

const std::vector<std::vector<uint16_t>> kTags = {
    {}, {ETH_P_8021Q}, {ETH_P_8021AD}, {ETH_P_8021AD, ETH_P_8021Q}, {ETH_P_8021Q, ETH_P_8021Q}};

TEST_P(VipProgram, StopsVipTrafficUnderUpToTwoTags) {
  for (const auto& tags : kTags) {
    SCOPED_TRACE(tags.size());
    expect_drop(ethernet(tags, ETH_P_IP, to4(kVip4)));
    expect_drop(ethernet(tags, ETH_P_IPV6, ipv6({.destination = kVip6}, udp(80, Bytes(40)))));
  }
}

TEST_P(VipProgram, PassesOtherDestinationsUntouched) {
  for (const auto& tags : kTags) {
    SCOPED_TRACE(tags.size());
    expect_untouched_pass(ethernet(tags, ETH_P_IP, to4(kOther4)));
    expect_untouched_pass(
        ethernet(tags, ETH_P_IPV6, ipv6({.destination = kOther6}, udp(80, Bytes(40)))));
  }
}

TEST_P(VipProgram, LooksAtTheDestinationAlone) {
  expect_untouched_pass(
      ethernet({}, ETH_P_IP, ipv4({.source = kVip4, .destination = kOther4}, Bytes(40))));
}

TEST_P(VipProgram, StopsEveryProtocolOptionAndFragmentToAVip) {
  for (uint8_t protocol : Bytes{1, 4, 6, 17, 132, 255})
    expect_drop(
        ethernet({}, ETH_P_IP, ipv4({.destination = kVip4, .protocol = protocol}, Bytes(40))));
  expect_drop(ethernet({}, ETH_P_IP, ipv4({.destination = kVip4, .options = Bytes(40)}, Bytes(8))));
  expect_drop(ethernet({}, ETH_P_IP, ipv4({.destination = kVip4, .fragment = 0x2001}, Bytes(8))));
}

TEST_P(VipProgram, PassesArpThatAsksForAVip) {
  const Bytes request{0,   1,  8, 0, 6, 4, 0, 1, 0x02, 0, 0,   0,  0,   0x02,
                      198, 18, 1, 2, 0, 0, 0, 0, 0,    0, 198, 51, 100, 10};
  expect_untouched_pass(ethernet({}, ETH_P_ARP, request));
}

TEST_P(VipProgram, PassesOtherEtherTypesWhateverTheirBytes) {
  expect_untouched_pass(ethernet({}, 0x88cc, to4(kVip4)));
  // Two tags are understood, not three.
  expect_untouched_pass(ethernet({ETH_P_8021Q, ETH_P_8021Q, ETH_P_8021Q}, ETH_P_IP, to4(kVip4)));
}

TEST_P(VipProgram, PassesFramesCutBeforeTheEndOfTheIpHeader) {
  for (const auto& tags : kTags) {
    // BPF_PROG_TEST_RUN itself refuses to show such frames to a filter, unless they are tagged.
    if (GetParam().drop == TC_ACT_SHOT && tags.empty()) continue;
    size_t link_length = 14 + 4 * tags.size();
    Bytes frame4 = ethernet(tags, ETH_P_IP, to4(kVip4));
    Bytes frame6 = ethernet(tags, ETH_P_IPV6, ipv6({.destination = kVip6}, Bytes(40)));
    for (size_t length = 15; length < link_length + 40; ++length) {
      SCOPED_TRACE(length);
      Bytes cut4(frame4.begin(), frame4.begin() + static_cast<ptrdiff_t>(length));
      Bytes cut6(frame6.begin(), frame6.begin() + static_cast<ptrdiff_t>(length));
      if (length < link_length + 20)
        expect_untouched_pass(cut4);
      else
        expect_drop(cut4);
      expect_untouched_pass(cut6);
    }
    frame6.resize(link_length + 40);
    expect_drop(frame6);
  }
}

TEST_P(VipProgram, MatchesPrefixes) {
  add4({203, 0, 113, 128}, 25, 0);
  expect_drop(ethernet({}, ETH_P_IP, to4({203, 0, 113, 128})));
  expect_drop(ethernet({}, ETH_P_IP, to4({203, 0, 113, 255})));
  expect_untouched_pass(ethernet({}, ETH_P_IP, to4({203, 0, 113, 127})));
  expect_untouched_pass(ethernet({}, ETH_P_IP, to4({203, 0, 114, 128})));
}

Bytes to_vip(Family family, uint8_t protocol, const Bytes& payload) {
  return frame(family, family == Family::kIpv4
                           ? ipv4({.destination = kVip4, .protocol = protocol}, payload)
                           : ipv6({.destination = kVip6, .next_header = protocol}, payload));
}

Bytes to_port(Family family, uint8_t protocol, uint16_t port) {
  return to_vip(family, protocol, udp(port, Bytes(12)));
}

// With a fragment header in IPv6. Offset in units of eight bytes.
Bytes fragment_to_vip(Family family, uint8_t protocol, uint16_t offset, bool more,
                      const Bytes& payload) {
  if (family == Family::kIpv4)
    return frame(family, ipv4({.destination = kVip4,
                               .protocol = protocol,
                               .fragment = static_cast<uint16_t>(offset | (more ? 0x2000 : 0))},
                              payload));
  return to_vip(family, 44,
                Bytes{protocol, 0} + u16(static_cast<size_t>(offset << 3 | (more ? 1 : 0))) +
                    Bytes(4) + payload);
}

Bytes icmp(uint8_t type) {
  return Bytes{type, 0} + Bytes(30);
}

uint8_t icmp_protocol(Family family) {
  return family == Family::kIpv4 ? 1 : 58;
}
uint8_t echo_request(Family family) {
  return family == Family::kIpv4 ? 8 : 128;
}

TEST_P(VipProgram, LeavesEchoRequestsToTheKernelWhereToldTo) {
  for (uint32_t flags : {0, 1, 2, 3}) {
    use(flags);
    const bool to_kernel = (flags & kRuleEchoToKernel) != 0;
    for (Family family : kFamilies) {
      SCOPED_TRACE(name_of(family) + " flags " + std::to_string(flags));
      const uint8_t protocol = icmp_protocol(family);
      const Bytes request = icmp(echo_request(family));
      const Bytes whole = to_vip(family, protocol, request);
      const Bytes first = fragment_to_vip(family, protocol, 0, true, request);
      const Bytes later = fragment_to_vip(family, protocol, 100, false, icmp(3));
      for (const Bytes& frame : {whole, first, later})
        to_kernel ? expect_untouched_pass(frame) : expect_drop(frame);
    }
  }
}

TEST_P(VipProgram, KeepsIcmpErrorsForTheWorkers) {
  for (uint32_t flags : {0, 1, 2, 3}) {
    use(flags);
    for (uint8_t type : Bytes{3, 4, 5, 11, 12}) expect_drop(to_vip(Family::kIpv4, 1, icmp(type)));
    for (uint8_t type : Bytes{1, 2, 3, 4, 100, 127})
      expect_drop(to_vip(Family::kIpv6, 58, icmp(type)));
  }
}

TEST_P(VipProgram, LeavesOtherIcmpToTheKernelWithTheUnserved) {
  for (uint32_t flags : {0, 1, 2, 3}) {
    use(flags);
    const bool to_kernel = (flags & kRuleUnservedToKernel) != 0;
    for (uint8_t type : Bytes{0, 9, 13, 14, 17, 42, 200}) {
      const Bytes frame = to_vip(Family::kIpv4, 1, icmp(type));
      to_kernel ? expect_untouched_pass(frame) : expect_drop(frame);
    }
    // The hop limit is not that of neighbour discovery.
    for (uint8_t type : Bytes{129, 130, 135, 136, 160, 255}) {
      const Bytes frame = to_vip(Family::kIpv6, 58, icmp(type));
      to_kernel ? expect_untouched_pass(frame) : expect_drop(frame);
    }
  }
}

TEST_P(VipProgram, LeavesNeighbourDiscoveryToTheKernel) {
  auto discovery = [](uint8_t type, uint8_t hop_limit) {
    return frame(
        Family::kIpv6,
        ipv6({.destination = kVip6, .next_header = 58, .hop_limit = hop_limit}, icmp(type)));
  };
  for (uint32_t flags : {0, 3}) {
    use(flags);
    for (uint8_t type : Bytes{133, 134, 135, 136, 137}) expect_untouched_pass(discovery(type, 255));
  }
  use(0);
  expect_drop(discovery(135, 254));
  expect_drop(discovery(132, 255));
  expect_drop(discovery(138, 255));
  expect_drop(discovery(128, 255));
}

TEST_P(VipProgram, LeavesPortsThatNobodyServesToTheKernelWhereToldTo) {
  serve(6, 80);
  serve(17, 53);
  for (uint32_t flags : {0, 1, 2, 3}) {
    use(flags);
    for (Family family : kFamilies) {
      SCOPED_TRACE(name_of(family) + " flags " + std::to_string(flags));
      expect_drop(to_port(family, 6, 80));
      expect_drop(to_port(family, 17, 53));
      const bool to_kernel = (flags & kRuleUnservedToKernel) != 0;
      for (const Bytes& frame :
           {to_port(family, 6, 53), to_port(family, 17, 80), to_port(family, 6, 0),
            to_port(family, 6, 20480), to_vip(family, 132, Bytes(20)), to_vip(family, 4, Bytes(40)),
            to_vip(family, 47, Bytes(40)), to_vip(family, 50, Bytes(40)),
            to_vip(family, 59, Bytes(40)),
            to_vip(family, family == Family::kIpv4 ? 58 : 1, icmp(3)),
            fragment_to_vip(family, 132, 100, true, Bytes(8))})
        to_kernel ? expect_untouched_pass(frame) : expect_drop(frame);
    }
  }
}

TEST_P(VipProgram, KeepsAllPortsOfAProtocolThatIsServedOnAny) {
  use(kRuleUnservedToKernel);
  serve(6, 0);
  for (Family family : kFamilies)
    for (uint16_t port : std::vector<uint16_t>{0, 1, 80, 65535}) {
      expect_drop(to_port(family, 6, port));
      expect_untouched_pass(to_port(family, 17, port));
    }
}

TEST_P(VipProgram, KnowsServicesOfThisPrefixAlone) {
  use(kRuleUnservedToKernel);
  object_->put("services",
               ServiceKey{.prefix_id = kId4, .port_be = htons(80), .protocol = 6, .zero = 0},
               uint8_t{1});
  expect_drop(to_port(Family::kIpv4, 6, 80));
  expect_untouched_pass(to_port(Family::kIpv6, 6, 80));
}

TEST_P(VipProgram, ReadsPortsOfWholePacketsAndFirstFragmentsAlone) {
  use(kRuleUnservedToKernel);
  serve(17, 53);
  for (Family family : kFamilies) {
    SCOPED_TRACE(name_of(family));
    for (bool more : {false, true}) {
      expect_drop(fragment_to_vip(family, 17, 0, more, udp(53, Bytes(8))));
      expect_untouched_pass(fragment_to_vip(family, 17, 0, more, udp(54, Bytes(8))));
      // What looks like a port there is none.
      expect_drop(fragment_to_vip(family, 17, 1, more, udp(54, Bytes(8))));
      expect_drop(fragment_to_vip(family, 17, 0x1fff, more, udp(54, Bytes(8))));
    }
    // Cut before the ports' end.
    expect_drop(to_vip(family, 17, Bytes(3)));
    expect_drop(to_vip(family, 6, {}));
    expect_untouched_pass(to_vip(family, 17, Bytes{0, 1, 0, 1}));
  }
}

TEST_P(VipProgram, ReadsPortsBehindIpv4Options) {
  use(kRuleUnservedToKernel);
  serve(17, 53);
  auto with = [](int words, size_t options, uint16_t port) {
    return frame(Family::kIpv4,
                 ipv4({.destination = kVip4, .options = Bytes(options), .header_words = words},
                      udp(port, Bytes(8))));
  };
  for (size_t options = 0; options <= 40; options += 4) {
    expect_drop(with(-1, options, 53));
    expect_untouched_pass(with(-1, options, 54));
  }
  // A header that is no header names no port.
  for (int words = 0; words < 5; ++words) expect_drop(with(words, 0, 54));
}

// Extension headers by number and length in bytes: 51 counts in words of four, others of eight.
Bytes chained(const std::vector<std::pair<uint8_t, size_t>>& headers, const Bytes& payload) {
  Bytes chain;
  for (size_t i = 0; i < headers.size(); ++i) {
    const auto [number, length] = headers[i];
    const uint8_t next = i + 1 < headers.size() ? headers[i + 1].first : 17;
    chain = chain + Bytes{next, static_cast<uint8_t>(number == 51   ? length / 4 - 2
                                                     : number == 44 ? 0
                                                                    : length / 8 - 1)};
    chain = chain + Bytes(length - 2);
  }
  return to_vip(Family::kIpv6, headers.front().first, chain + payload);
}

TEST_P(VipProgram, ReadsPortsBehindIpv6ExtensionHeaders) {
  use(kRuleUnservedToKernel);
  serve(17, 53);
  using Chain = std::vector<std::pair<uint8_t, size_t>>;
  const std::vector<Chain> chains = {{{0, 8}},
                                     {{43, 24}},
                                     {{60, 16}},
                                     {{51, 12}},
                                     {{51, 24}},
                                     {{44, 8}},
                                     {{0, 8}, {60, 8}, {43, 24}, {44, 8}, {51, 24}, {60, 8}},
                                     Chain(8, {60, 8})};
  for (const Chain& chain : chains) {
    SCOPED_TRACE(testing::PrintToString(chain));
    expect_drop(chained(chain, udp(53, Bytes(8))));
    expect_untouched_pass(chained(chain, udp(54, Bytes(8))));
  }
  // Nine are too many; headers cut short, or longer than the frame, hide the port.
  expect_drop(chained(Chain(9, {60, 8}), udp(54, Bytes(8))));
  expect_drop(chained({{60, 8}}, {}));
  expect_drop(to_vip(Family::kIpv6, 60, Bytes{17, 255, 0, 0, 0, 0, 0, 0} + udp(54, {})));
  expect_drop(to_vip(Family::kIpv6, 60, Bytes(7)));
}

TEST_P(VipProgram, PassesFramesToAnotherHost) {
  for (Family family : kFamilies) {
    Bytes sent = to_port(family, 17, 80);
    expect_drop(sent);
    for (size_t at = 0; at < 6; ++at) {
      Bytes other = sent;
      other[at] = 2;
      expect_untouched_pass(other);
    }
    sent[0] = 0x01;
    expect_drop(sent);
    std::fill_n(sent.begin(), 6, 0xff);
    expect_drop(sent);
  }
}

TEST_P(VipProgram, TakesWhatIsBrokenForTheWorkersOrPassesIt) {
  use(kRuleEchoToKernel | kRuleUnservedToKernel);
  serve(17, 80);
  std::mt19937 random(1);
  auto below = [&](size_t limit) {
    return std::uniform_int_distribution<size_t>(0, limit - 1)(random);
  };
  using Chain = std::vector<std::pair<uint8_t, size_t>>;
  const std::vector<Bytes> frames = {
      to_port(Family::kIpv4, 17, 80), to_port(Family::kIpv6, 17, 80),
      to_vip(Family::kIpv4, 1, icmp(8)), to_vip(Family::kIpv6, 58, icmp(128)),
      chained(Chain{{0, 8}, {43, 24}, {44, 8}, {51, 24}, {60, 8}}, udp(81, Bytes(8)))};
  uint64_t passed = 0;
  const uint64_t before = dropped();
  for (int i = 0; i < kRandomFrames; ++i) {
    Bytes sent = frames[below(frames.size())];
    // A filter is shown no frame shorter than its headers.
    if (below(3) == 0) sent.resize(14 + 40 + below(sent.size() - 14 - 40 + 1));
    for (size_t changes = below(4); changes > 0; --changes)
      sent[12 + below(sent.size() - 12)] = static_cast<uint8_t>(below(256));
    const RunResult result = object_->run(sent);
    ASSERT_EQ(result.frame, sent);
    if (result.verdict != GetParam().drop) {
      ASSERT_EQ(result.verdict, GetParam().pass);
      ++passed;
    }
  }
  EXPECT_EQ(dropped() - before, kRandomFrames - passed);
  EXPECT_GT(passed, kRandomFrames / 10u);
  EXPECT_LT(passed, kRandomFrames * 9u / 10);
}

INSTANTIATE_TEST_SUITE_P(Of, VipProgram,
                         testing::Values(Subject{"Steering", MAGLEV_STEERING_OBJECT, XDP_DROP,
                                                 XDP_PASS, kSteeringDropped, kSteeringCounters},
                                         Subject{"Guard", MAGLEV_GUARD_OBJECT, TC_ACT_SHOT,
                                                 static_cast<uint32_t>(TC_ACT_UNSPEC),
                                                 kGuardDropped, kGuardCounters}),
                         [](const auto& subject) { return subject.param.name; });

TEST(SteeringProgram, KnowsItsOwnAddress) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root: loads BPF programs";
  LoadedObject steering(MAGLEV_STEERING_OBJECT);
  Prefix4Key key{.prefix_length = 32, .address = {}};
  std::ranges::copy(kVip4, key.address);
  steering.put("vips4", key, VipRule{.prefix_id = 0, .flags = 0});
  steering.put("interface_mac", uint32_t{0}, InterfaceMac{.bytes = {2, 0, 0, 0, 0, 9}});
  Bytes sent = ethernet({}, ETH_P_IP, to4(kVip4));
  EXPECT_EQ(steering.run(sent).verdict, static_cast<uint32_t>(XDP_PASS));
  sent[0] = 2;
  sent[5] = 9;
  EXPECT_EQ(steering.run(sent).verdict, static_cast<uint32_t>(XDP_DROP));
}

TEST(SteeringProgram, CountsWhatItPasses) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root: loads BPF programs";
  LoadedObject steering(MAGLEV_STEERING_OBJECT);
  for (int i = 0; i < 3; ++i) steering.run(ethernet({}, ETH_P_IP, to4(kOther4)));
  EXPECT_EQ(steering.counters(kSteeringCounters), (std::vector<uint64_t>{0, 0, 3}));
}

}  // namespace
}  // namespace maglev
