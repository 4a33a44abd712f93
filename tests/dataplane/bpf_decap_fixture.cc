#include "tests/dataplane/bpf_decap_fixture.h"

#include <arpa/inet.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace maglev {
namespace {

constexpr Ipv4Address kClientAddress4 = {203, 0, 113, 1};
constexpr Ipv4Address kVipAddress4 = {198, 51, 100, 10};
constexpr Ipv6Address kVipAddress6 = {0x20, 0x01, 0x0d, 0xb8, 1, 0, 0, 0,
                                      0,    0,    0,    0,    0, 0, 0, 0x10};

}  // namespace

std::string name_of(Tunnel tunnel) {
  switch (tunnel) {
    case Tunnel::kIpInIp:
      return "IP-in-IP";
    case Tunnel::kGre:
      return "GRE";
    case Tunnel::kGue0:
      return "GUE variant 0";
    case Tunnel::kGue0Checksum:
      return "GUE variant 0 with checksum";
    case Tunnel::kGue1:
      return "GUE variant 1";
    case Tunnel::kGue1Checksum:
      return "GUE variant 1 with checksum";
  }
  return "";
}

Bytes inner(Family family, uint8_t traffic_class, const Bytes& payload) {
  if (family == Family::kIpv4)
    return ipv4({.source = kClientAddress4, .destination = kVipAddress4, .tos = traffic_class},
                udp(80, payload));
  return ipv6({.destination = kVipAddress6, .traffic_class = traffic_class}, udp(80, payload));
}

Bytes outer(Family family, uint8_t protocol, const Bytes& payload, uint8_t traffic_class) {
  if (family == Family::kIpv4)
    return ipv4({.source = kBalancer4,
                 .destination = kBackend4,
                 .protocol = protocol,
                 .tos = traffic_class},
                payload);
  return ipv6({.source = kBalancer6,
               .destination = kBackend6,
               .next_header = protocol,
               .traffic_class = traffic_class},
              payload);
}

Bytes gre(uint16_t flags, uint16_t ethertype) {
  return u16(flags) + u16(ethertype);
}

Bytes gue(uint8_t first, uint8_t protocol, uint16_t flags) {
  return Bytes{first, protocol} + u16(flags);
}

Bytes wrap(Tunnel tunnel, Family outer_family, Family inner_family, const Bytes& packet,
           uint8_t outer_class) {
  const uint8_t protocol = inner_family == Family::kIpv4 ? kIpv4InIp : kIpv6InIp;
  auto in_udp = [&](const Bytes& payload) {
    return outer(outer_family, kUdp, udp(kGuePort, payload), outer_class);
  };
  switch (tunnel) {
    case Tunnel::kIpInIp:
      return outer(outer_family, protocol, packet, outer_class);
    case Tunnel::kGre:
      return outer(outer_family, kGre, gre(0, ethertype_of(inner_family)) + packet, outer_class);
    case Tunnel::kGue0:
      return in_udp(gue(0, protocol) + packet);
    case Tunnel::kGue0Checksum:
      return with_udp_checksum(in_udp(gue(0, protocol) + packet));
    case Tunnel::kGue1:
      return in_udp(packet);
    case Tunnel::kGue1Checksum:
      return with_udp_checksum(in_udp(packet));
  }
  return {};
}

void DecapProgram::SetUp() {
  if (geteuid() != 0) GTEST_SKIP() << "needs root: loads BPF programs";
  object_ = std::make_unique<LoadedObject>(MAGLEV_DECAP_OBJECT);
  counters_.assign(kDecapCounters, 0);
  allow4(kBalancer4, 32);
  allow6(kBalancer6, 128);
  use({.gue_ports_be = {htons(kGuePort)}, .refuse_zero_checksum = 0});
}

void DecapProgram::allow4(const Ipv4Address& address, uint32_t prefix_length) {
  Prefix4Key key{.prefix_length = prefix_length, .address = {}};
  std::ranges::copy(address, key.address);
  object_->put("sources4", key, uint8_t{1});
}

void DecapProgram::allow6(const Ipv6Address& address, uint32_t prefix_length) {
  Prefix6Key key{.prefix_length = prefix_length, .address = {}};
  std::ranges::copy(address, key.address);
  object_->put("sources6", key, uint8_t{1});
}

void DecapProgram::use(const DecapSettings& settings) {
  object_->put("settings", uint32_t{0}, settings);
}

std::vector<uint64_t> DecapProgram::counted() {
  auto now = object_->counters(kDecapCounters);
  auto difference = now;
  for (size_t i = 0; i < now.size(); ++i) difference[i] -= counters_[i];
  counters_ = std::move(now);
  return difference;
}

void DecapProgram::expect_result(const Bytes& frame, const Bytes& expected, int counter) {
  std::vector<uint64_t> expected_counters(kDecapCounters);
  if (counter >= 0) expected_counters[static_cast<size_t>(counter)] = 1;
  RunResult result = object_->run(frame);
  EXPECT_EQ(result.verdict, static_cast<uint32_t>(XDP_PASS));
  EXPECT_EQ(result.frame, expected);
  EXPECT_EQ(counted(), expected_counters);
}

void DecapProgram::expect_unwrapped(const Bytes& frame, const Bytes& expected) {
  expect_result(frame, expected, kDecapUnwrapped);
}

void DecapProgram::expect_untouched_pass(const Bytes& frame) {
  expect_result(frame, frame, -1);
}

void DecapProgram::expect_refused_source(const Bytes& frame) {
  expect_result(frame, frame, kDecapRefusedSource);
}

void DecapProgram::expect_drop(const Bytes& frame, DecapCounter counter) {
  std::vector<uint64_t> expected_counters(kDecapCounters);
  expected_counters[counter] = 1;
  EXPECT_EQ(object_->run(frame).verdict, static_cast<uint32_t>(XDP_DROP));
  EXPECT_EQ(counted(), expected_counters);
}

}  // namespace maglev
