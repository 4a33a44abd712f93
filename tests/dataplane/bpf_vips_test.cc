// What the steering program and the guard make of a frame, by its bytes. The kernel runs the
// programs from their object files.
#include <gtest/gtest.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>
#include <unistd.h>

#include <algorithm>

#include "dataplane/bpf/vip_maps.h"
#include "tests/dataplane/bpf_harness.h"

namespace maglev {
namespace {

constexpr Ipv4Address kVip4 = {198, 51, 100, 10};
constexpr Ipv4Address kOther4 = {198, 51, 100, 11};
constexpr Ipv6Address kVip6 = {0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10};
constexpr Ipv6Address kOther6 = {0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x11};

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
    add4(kVip4, 32);
    Vip6Key key{.prefix_length = 128, .address = {}};
    std::ranges::copy(kVip6, key.address);
    object_->add("vips6", &key);
  }

  void add4(const Ipv4Address& address, uint32_t prefix_length) {
    Vip4Key key{.prefix_length = prefix_length, .address = {}};
    std::ranges::copy(address, key.address);
    object_->add("vips4", &key);
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
    expect_drop(ethernet(tags, ETH_P_IPV6, ipv6(kVip6, udp(80, Bytes(40)))));
  }
}

TEST_P(VipProgram, PassesOtherDestinationsUntouched) {
  for (const auto& tags : kTags) {
    SCOPED_TRACE(tags.size());
    expect_untouched_pass(ethernet(tags, ETH_P_IP, to4(kOther4)));
    expect_untouched_pass(ethernet(tags, ETH_P_IPV6, ipv6(kOther6, udp(80, Bytes(40)))));
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
    Bytes frame6 = ethernet(tags, ETH_P_IPV6, ipv6(kVip6, Bytes(40)));
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
  add4({203, 0, 113, 128}, 25);
  expect_drop(ethernet({}, ETH_P_IP, to4({203, 0, 113, 128})));
  expect_drop(ethernet({}, ETH_P_IP, to4({203, 0, 113, 255})));
  expect_untouched_pass(ethernet({}, ETH_P_IP, to4({203, 0, 113, 127})));
  expect_untouched_pass(ethernet({}, ETH_P_IP, to4({203, 0, 114, 128})));
}

INSTANTIATE_TEST_SUITE_P(Of, VipProgram,
                         testing::Values(Subject{"Steering", MAGLEV_STEERING_OBJECT, XDP_DROP,
                                                 XDP_PASS, kSteeringDropped, kSteeringCounters},
                                         Subject{"Guard", MAGLEV_GUARD_OBJECT, TC_ACT_SHOT,
                                                 static_cast<uint32_t>(TC_ACT_UNSPEC),
                                                 kGuardDropped, kGuardCounters}),
                         [](const auto& subject) { return subject.param.name; });

TEST(SteeringProgram, CountsWhatItPasses) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root: loads BPF programs";
  LoadedObject steering(MAGLEV_STEERING_OBJECT);
  for (int i = 0; i < 3; ++i) steering.run(ethernet({}, ETH_P_IP, to4(kOther4)));
  EXPECT_EQ(steering.counters(kSteeringCounters), (std::vector<uint64_t>{0, 0, 3}));
}

}  // namespace
}  // namespace maglev
