#include "control/vip.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>

#include "control/json_form.h"
#include "control/plan.h"

namespace maglev {
namespace {

Vip vip(std::string_view prefix, VipProtocol protocol, uint16_t port) {
  Vip made;
  made.prefix = *parse_prefix(prefix);
  made.protocol = protocol;
  made.port = port;
  made.pool = "web";
  return made;
}

std::string clash_of(const VipSet& vips, std::string_view name, const Vip& added) {
  const auto clash = vips.find_clash(name, added);
  return clash ? clash->message : "";
}

constexpr auto kTcp = VipProtocol::kTcp;
constexpr auto kUdp = VipProtocol::kUdp;
constexpr auto kBoth = VipProtocol::kTcpAndUdp;

TEST(Prefix, IsWrittenInOneWayAndHoldsItsAddresses) {
  EXPECT_EQ(to_text(*parse_prefix("198.51.100.7/32")), "198.51.100.7");
  EXPECT_EQ(to_text(*parse_prefix("198.51.100.0/24")), "198.51.100.0/24");
  EXPECT_EQ(to_text(*parse_prefix("2001:DB8:0:0::0/33")), "2001:db8::/33");
  const Prefix prefix = *parse_prefix("198.51.100.64/26");
  const auto holds = [&](const char* text) {
    return contains(prefix, boost::asio::ip::make_address(text));
  };
  EXPECT_TRUE(holds("198.51.100.64"));
  EXPECT_TRUE(holds("198.51.100.127"));
  EXPECT_FALSE(holds("198.51.100.63"));
  EXPECT_FALSE(holds("198.51.100.128"));
  EXPECT_FALSE(holds("2001:db8::1"));
}

TEST(VipSet, OneServiceHasOneVip) {
  VipSet vips;
  vips.put("a", vip("198.51.100.1", kBoth, 53));
  for (const VipProtocol protocol : {kTcp, kUdp, kBoth}) {
    const auto clash = vips.find_clash("b", vip("198.51.100.1", protocol, 53));
    ASSERT_TRUE(clash);
    EXPECT_TRUE(clash->same_service);
    EXPECT_NE(clash->message.find("VIP 'a' has this address"), std::string::npos);
  }
  EXPECT_EQ(clash_of(vips, "b", vip("198.51.100.1", kTcp, 54)), "");
  EXPECT_EQ(clash_of(vips, "b", vip("198.51.100.1", kTcp, kAnyPort)), "");
  EXPECT_EQ(clash_of(vips, "b", vip("198.51.100.0/31", kTcp, 53)), "") << "another prefix";
  EXPECT_EQ(clash_of(vips, "a", vip("198.51.100.1", kTcp, 53)), "") << "its own place";
  vips.erase("a");
  EXPECT_EQ(clash_of(vips, "b", vip("198.51.100.1", kTcp, 53)), "");
}

TEST(VipSet, VipsOfOneAddressAgreeInWhatIsTheKernels) {
  VipSet vips;
  vips.put("a", vip("198.51.100.1", kTcp, 80));
  Vip other = vip("198.51.100.1", kUdp, 53);
  other.flags = kVipEchoToKernel;
  EXPECT_EQ(clash_of(vips, "b", other),
            "echo is not as in VIP 'a', but all VIPs of one address have it alike: set the same in "
            "all of them");
  other.flags = kVipUnservedToKernel;
  EXPECT_NE(clash_of(vips, "b", other).find("unserved_ports is not as in VIP 'a'"),
            std::string::npos);
  other.flags = kVipFragmentTooBig;
  EXPECT_EQ(clash_of(vips, "b", other), "");
}

TEST(VipSet, VipsOfOneAddressAndProtocolAgreeInWhereFragmentsGo) {
  VipSet vips;
  Vip first = vip("198.51.100.1", kTcp, 80);
  first.fragments = FragmentPolicy::kAddress;
  vips.put("a", first);
  EXPECT_EQ(clash_of(vips, "b", vip("198.51.100.1", kUdp, 80)), "") << "of the other protocol";
  EXPECT_NE(clash_of(vips, "b", vip("198.51.100.1", kBoth, 443)).find("fragments is not as"),
            std::string::npos);

  Vip good = first;
  good.port = 443;
  EXPECT_EQ(clash_of(vips, "b", good), "");
  const auto refused_for = [&](std::string_view setting, auto change) {
    Vip bad = good;
    change(bad);
    return clash_of(vips, "b", bad).starts_with(fmt::format("{} is not as in VIP 'a'", setting));
  };
  EXPECT_TRUE(refused_for("pool", [](Vip& bad) { bad.pool = "other"; }));
  EXPECT_TRUE(
      refused_for("encapsulation", [](Vip& bad) { bad.encapsulation = Encapsulation::kGre; }));
  EXPECT_TRUE(refused_for("hash", [](Vip& bad) { bad.hash = HashPolicy::kSource; }));
  EXPECT_TRUE(refused_for("gue_port", [](Vip& bad) { bad.gue_port = 6081; }));
  EXPECT_TRUE(refused_for("tracking", [](Vip& bad) { bad.tracking = Tracking::kFull; }));
  EXPECT_TRUE(refused_for("idle", [](Vip& bad) { bad.idle.udp_s = 7; }));
  EXPECT_TRUE(refused_for("too_big", [](Vip& bad) { bad.flags = kVipFragmentTooBig; }));
  EXPECT_TRUE(refused_for("outer_checksum", [](Vip& bad) { bad.flags = kVipOuterChecksumZero; }));
}

// Any VIPs the set takes, the check of the published root takes, and what it refuses is refused
// there: the two tell the same rules.
TEST(VipSet, AgreesWithTheCheckOfThePublishedRoot) {
  const auto seed = std::random_device()();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937 random(seed);
  ByName<PlannedPool> pools;
  pools["web"].pool = {1, 1};
  pools["other"].pool = {2, 2};
  int taken = 0;
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    VipSet vips;
    ByName<Vip> published;
    for (int i = 0; i < 4; ++i) {
      const VipProtocol protocol = std::array{kTcp, kUdp, kBoth}[random() % 3];
      Vip next = vip(random() % 4 == 0 ? "198.51.100.0/24" : "198.51.100.1", protocol,
                     static_cast<uint16_t>(random() % 3));
      next.pool = random() % 6 == 0 ? "other" : "web";
      if (random() % 6 == 0) next.encapsulation = Encapsulation::kGueVariant0;
      if (is_gue(next.encapsulation)) next.gue_port = random() % 2 == 0 ? 6080 : 6081;
      if (random() % 6 == 0) next.hash = HashPolicy::kSource;
      if (random() % 3 == 0) next.fragments = FragmentPolicy::kAddress;
      if (random() % 4 == 0) next.flags = static_cast<uint8_t>(random() % (kVipAllFlags + 1));
      if (random() % 6 == 0) next.tracking = Tracking::kNone;
      if (random() % 6 == 0) next.idle.tcp_closing_s = 1;
      const std::string name = fmt::format("v{}", i);
      published.insert_or_assign(name, next);
      const auto file = plan_root(1, 1, pools, published);
      const auto checked = check_root_file(file);
      const std::string clash = clash_of(vips, name, next);
      ASSERT_EQ(checked.has_value(), clash.empty())
          << (checked ? clash : checked.error()) << ", round " << round;
      if (clash.empty()) {
        vips.put(name, next);
        ++taken;
      } else {
        published.erase(name);
        ++refused;
      }
    }
  }
  EXPECT_GT(taken, 1000);
  EXPECT_GT(refused, 1000);
}

TEST(VipSet, PutsInPlaceAndForgetsWhatItErases) {
  VipSet vips;
  Vip layer2 = vip("198.51.100.1", kTcp, 80);
  layer2.encapsulation = Encapsulation::kLayer2;
  vips.put("a", layer2);
  ASSERT_NE(vips.find_layer2("web", AddressFamily::kIpv4), nullptr);
  EXPECT_EQ(*vips.find_layer2("web", AddressFamily::kIpv4), "a");
  EXPECT_EQ(vips.find_layer2("web", AddressFamily::kIpv6), nullptr);
  Vip gue = vip("198.51.100.1", kTcp, 80);
  gue.encapsulation = Encapsulation::kGueVariant0;
  gue.gue_port = 6080;
  vips.put("a", gue);
  EXPECT_EQ(vips.find_layer2("web", AddressFamily::kIpv4), nullptr);
  EXPECT_TRUE(vips.uses_gue_port(6080));
  vips.erase("a");
  EXPECT_FALSE(vips.uses_gue_port(6080));
  EXPECT_TRUE(vips.all().empty());
}

TEST(Vip, WhatIsWrittenAsJsonIsReadAsTheSame) {
  for (const Encapsulation encapsulation :
       {Encapsulation::kIpInIp, Encapsulation::kGre, Encapsulation::kGueVariant0,
        Encapsulation::kGueVariant1, Encapsulation::kLayer2}) {
    Vip written = vip("2001:db8::/64", kBoth, kAnyPort);
    written.encapsulation = encapsulation;
    written.flags = kVipEchoToKernel | kVipFragmentTooBig;
    written.fragments = FragmentPolicy::kAddress;
    written.tracking = encapsulation == Encapsulation::kGre ? Tracking::kNone : Tracking::kFull;
    if (written.tracking != Tracking::kNone) written.idle = {1, 2, 3};
    if (is_gue(encapsulation)) {
      written.gue_port = 6081;
      written.flags |= kVipOuterChecksumZero;
    }
    std::vector<std::string> errors;
    const auto [name, read] =
        read_vip(YamlCursor::parse(to_json("v", written).dump(), "json", errors));
    ASSERT_TRUE(errors.empty()) << errors.front();
    EXPECT_EQ(read, written);
  }
}

}  // namespace
}  // namespace maglev
