// The VIPs of Steering, on a real veth pair: what is the workers' and what the kernel's, also while
// the set changes.
#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <gmock/gmock.h>

#include "dataplane/bpf/vip_maps.h"
#include "tests/dataplane/bpf_steering_fixture.h"

namespace maglev {
namespace {

using testing::HasSubstr;

class SteeredVips : public SteeringOwner {
 protected:
  static std::set<VipPrefix> prefixes(const Steering& steering) {
    std::set<VipPrefix> prefixes;
    for (const auto& [prefix, rule] : steering.rules()) prefixes.insert(prefix);
    return prefixes;
  }

  const std::vector<SteeredVip> vips_ = {vip4("198.51.100.10"), vip6("2001:db8::10")};
};

TEST_F(SteeredVips, AddsBeforeAndRemovesAfter) {
  Steering steering = ready({vip4("203.0.113.1")});
  EXPECT_EQ(answer_from_far(), Answer::kReset);

  ASSERT_TRUE(steering.add_vips(vips_));
  EXPECT_EQ(prefixes(steering),
            (std::set{vip4("203.0.113.1").prefix, vips_[0].prefix, vips_[1].prefix}));
  EXPECT_EQ(answer_from_far(), Answer::kSilence);
  EXPECT_EQ(steering.counters()->dropped, 1u);

  ASSERT_TRUE(steering.set_vips(vips_));
  EXPECT_EQ(prefixes(steering), (std::set{vips_[0].prefix, vips_[1].prefix}));
  EXPECT_EQ(answer_from_far(), Answer::kSilence);

  ASSERT_TRUE(steering.set_vips({}));
  EXPECT_EQ(answer_from_far(), Answer::kReset);
  EXPECT_EQ(steering.counters()->dropped, 2u);
  EXPECT_EQ(steering.counters()->guarded, 0u);
}

TEST_F(SteeredVips, LeavesEchoAndTheUnservedToTheKernelWhereToldTo) {
  for (uint8_t flags = 0; flags < 4; ++flags) {
    SCOPED_TRACE(int{flags});
    auto steering = prepare({tcp_vip(80, flags)});
    ASSERT_TRUE(steering) << steering.error();
    // With the guard alone, then with both.
    for (bool is_bound : {false, true}) {
      if (is_bound) {
        attach_as_the_driver(network_->index());
        ASSERT_TRUE(steering->bind());
      }
      EXPECT_EQ(answer_from_far(80), Answer::kSilence);
      EXPECT_EQ(answer_from_far(81) == Answer::kReset, (flags & kVipUnservedToKernel) != 0);
      EXPECT_EQ(ping_is_answered(), (flags & kVipEchoToKernel) != 0);
    }
  }
}

TEST_F(SteeredVips, ServesWhatTheOldAndTheNewSetServeUntilTheNewOneIsSet) {
  const std::vector<SteeredVip> old_vips = {tcp_vip(80), tcp_vip(81)};
  const std::vector<SteeredVip> new_vips = {tcp_vip(81), tcp_vip(82)};
  Steering steering = ready(old_vips);
  EXPECT_EQ(answer_from_far(82), Answer::kReset);
  ASSERT_TRUE(steering.add_vips(new_vips));
  for (uint16_t port : std::vector<uint16_t>{80, 81, 82})
    EXPECT_EQ(answer_from_far(port), Answer::kSilence) << port;
  EXPECT_EQ(answer_from_far(83), Answer::kReset);
  ASSERT_TRUE(steering.set_vips(new_vips));
  EXPECT_EQ(answer_from_far(80), Answer::kReset);
  for (uint16_t port : std::vector<uint16_t>{81, 82})
    EXPECT_EQ(answer_from_far(port), Answer::kSilence) << port;
}

TEST_F(SteeredVips, TakesFromTheKernelAtOnceAndGivesToItLast) {
  Steering steering = ready({tcp_vip(80, 0)});
  const uint8_t all = kVipEchoToKernel | kVipUnservedToKernel;
  const std::vector<SteeredVip> giving = {tcp_vip(80, all)};
  ASSERT_TRUE(steering.add_vips(giving));
  EXPECT_EQ(answer_from_far(81), Answer::kSilence);
  EXPECT_FALSE(ping_is_answered());
  ASSERT_TRUE(steering.set_vips(giving));
  EXPECT_EQ(answer_from_far(81), Answer::kReset);
  EXPECT_TRUE(ping_is_answered());
  const std::vector<SteeredVip> taking = {tcp_vip(80, kVipEchoToKernel)};
  ASSERT_TRUE(steering.add_vips(taking));
  EXPECT_EQ(answer_from_far(81), Answer::kSilence);
  EXPECT_TRUE(ping_is_answered());
}

TEST_F(SteeredVips, LeavesNoServiceBehind) {
  auto steering = prepare({});
  ASSERT_TRUE(steering) << steering.error();
  auto object = attach_as_the_driver(network_->index());
  ASSERT_TRUE(steering->bind());
  auto services = [&] {
    ServiceKey key{};
    int count = 0;
    for (void* last = nullptr; bpf_map_get_next_key(object->map_fd("services"), last, &key) == 0;
         last = &key)
      ++count;
    return count;
  };
  SteeredVip both = vip4("203.0.113.0", 24);
  ASSERT_TRUE(steering->set_vips(std::vector{tcp_vip(80), tcp_vip(81), both}));
  EXPECT_EQ(services(), 4);
  ASSERT_TRUE(steering->set_vips(std::vector{tcp_vip(81), both}));
  EXPECT_EQ(services(), 3);
  ASSERT_TRUE(steering->set_vips({}));
  EXPECT_EQ(services(), 0);
}

TEST_F(SteeredVips, NeverGivesAServedPortToTheKernelWhileOthersComeAndGo) {
  const std::vector<std::vector<SteeredVip>> sets = {{tcp_vip(80), tcp_vip(81)},
                                                     {tcp_vip(80)},
                                                     {tcp_vip(80, 0)},
                                                     {tcp_vip(0), tcp_vip(80)},
                                                     {tcp_vip(82), tcp_vip(80)}};
  Steering steering = ready(sets[0]);
  Prober prober(*network_);
  for (size_t round = 1; prober.attempts() < 1000; ++round) {
    const auto& next = sets[round % sets.size()];
    EXPECT_TRUE(steering.add_vips(next));
    EXPECT_TRUE(steering.set_vips(next));
  }
  EXPECT_EQ(prober.resets(), 0) << "of " << prober.attempts();
  EXPECT_GE(steering.counters()->dropped, 1000u);
}

TEST_F(SteeredVips, WritesOnlyDifferences) {
  auto steering = prepare(vips_);
  ASSERT_TRUE(steering) << steering.error();
  auto object = attach_as_the_driver(network_->index());
  ASSERT_TRUE(steering->bind());
  // Taken out behind its back: an update of what it believes to be there would put it back.
  const std::array<uint8_t, 8> key{32, 0, 0, 0, 198, 51, 100, 10};
  ASSERT_EQ(bpf_map_delete_elem(object->map_fd("vips4"), key.data()), 0);
  const std::vector<SteeredVip> more = {vips_[0], vips_[1], vip4("203.0.113.1")};
  ASSERT_TRUE(steering->set_vips(more));
  VipRule value;
  EXPECT_NE(bpf_map_lookup_elem(object->map_fd("vips4"), key.data(), &value), 0);
}

TEST_F(SteeredVips, RefusesPrefixesThatMakeNoSenseAndKeepsTheRest) {
  auto steering = prepare(vips_);
  ASSERT_TRUE(steering) << steering.error();
  const std::vector<std::pair<SteeredVip, const char*>> cases = {
      {vip4("198.51.100.10", 33), "VIP 198.51.100.10/33: the prefix length is at most 32"},
      {vip6("2001:db8::1", 129), "VIP 2001:db8::1/129: the prefix length is at most 128"},
      {vip4("198.51.100.10", 24), "VIP 198.51.100.10/24: the address has bits beyond its prefix"},
      {SteeredVip{}, "a VIP has no address family"}};
  for (const auto& [vip, message] : cases) {
    const std::vector<SteeredVip> vips = {vip4("203.0.113.1"), vip};
    auto set = steering->set_vips(vips);
    ASSERT_FALSE(set);
    EXPECT_THAT(set.error(), HasSubstr(message));
    EXPECT_EQ(steering->rules().size(), vips_.size());
  }
  EXPECT_FALSE(prepare({vip4("198.51.100.10", 33)}));
}

TEST_F(SteeredVips, SaysThatAMapIsFullAndKeepsTheRest) {
  auto steering = prepare({});
  ASSERT_TRUE(steering) << steering.error();
  std::vector<SteeredVip> vips;
  for (uint32_t i = 0; i <= 65536; ++i) {
    SteeredVip vip = vip4("198.18.0.0");
    vip.protocol = VipProtocol::kTcp;
    std::array<uint8_t, 16>& bytes = vip.prefix.address.bytes;
    bytes[1] = static_cast<uint8_t>(18 + (i >> 16));
    bytes[2] = static_cast<uint8_t>(i >> 8);
    bytes[3] = static_cast<uint8_t>(i);
    vips.push_back(vip);
  }
  auto set = steering->set_vips(vips);
  ASSERT_FALSE(set);
  EXPECT_THAT(set.error(), HasSubstr("lb0: cannot add VIP 198.19.0.0/32"));
  EXPECT_THAT(set.error(), HasSubstr("is full"));
  EXPECT_EQ(steering->rules().size(), 65536u);
  EXPECT_TRUE(steering->set_vips(vips_));
  EXPECT_EQ(answer_from_far(), Answer::kSilence);
}

}  // namespace
}  // namespace maglev
