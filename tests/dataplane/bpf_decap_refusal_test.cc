// What the decapsulation program does not unwrap: what it leaves to the kernel, and what it drops,
// each for one cause.
#include <arpa/inet.h>

#include "tests/dataplane/bpf_decap_fixture.h"

namespace maglev {
namespace {

constexpr Family k4 = Family::kIpv4;
constexpr Family k6 = Family::kIpv6;
constexpr Ipv4Address kStranger4 = {198, 18, 2, 3};
constexpr Ipv6Address kStranger6 = {0x20, 0x01, 0x0d, 0xb8, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3};

Bytes in_gue(const Bytes& payload) {
  return udp(kGuePort, payload);
}

// Behind the outer IPv6 header; fragment in units of eight bytes and the "more" bit.
Bytes fragment_header(uint8_t next_header, uint16_t offset_and_more) {
  return Bytes{next_header, 0} + u16(offset_and_more) + Bytes{0, 0, 0, 7};
}

// An outer IPv4 header with one thing changed.
Bytes changed4(auto change, const Bytes& payload = inner(k4)) {
  Ipv4Header header{.source = kBalancer4, .destination = kBackend4, .protocol = kIpv4InIp};
  change(header);
  return ipv4(header, payload);
}

Bytes changed6(auto change, const Bytes& payload = inner(k6)) {
  Ipv6Header header{.source = kBalancer6, .destination = kBackend6, .next_header = kIpv6InIp};
  change(header);
  return ipv6(header, payload);
}

struct Case {
  const char* sentence;
  Family family;
  Bytes packet;
};

class Refusal : public DecapProgram {
 protected:
  void expect_drops(DecapCounter counter, const std::vector<Case>& cases) {
    for (const Case& one : cases) {
      SCOPED_TRACE(one.sentence);
      expect_drop(frame(one.family, one.packet), counter);
    }
  }
};

TEST_F(Refusal, LeavesToTheKernelWhatIsNoTunnelOfOurs) {
  const std::vector<Case> cases = {
      {"a client's own packet", k4, inner(k4)},
      {"a client's own packet, IPv6", k6, inner(k6)},
      {"TCP from the load balancer", k4, outer(k4, 6, Bytes(20))},
      {"UDP to another port", k4, outer(k4, kUdp, udp(6081, inner(k4)))},
      {"UDP to another port, IPv6", k6, outer(k6, kUdp, udp(6081, inner(k4)))},
      {"UDP cut before its port", k4, outer(k4, kUdp, Bytes(7))},
      {"a later fragment of UDP", k4,
       changed4([](auto& header) { header.protocol = kUdp, header.fragment = 1; },
                in_gue(inner(k4)))},
      {"a later fragment of UDP, IPv6", k6,
       outer(k6, 44, fragment_header(kUdp, 8) + in_gue(inner(k4)))},
      {"a fragment of something else, IPv6", k6, outer(k6, 44, fragment_header(6, 1) + Bytes(20))},
      {"a fragment header cut short", k6, outer(k6, 44, Bytes(7))},
      {"hop-by-hop options before the tunnel", k6,
       outer(k6, 0, Bytes{kIpv6InIp, 0, 1, 4, 0, 0, 0, 0} + inner(k6))},
      {"destination options before the tunnel", k6,
       outer(k6, 60, Bytes{kIpv6InIp, 0, 1, 4, 0, 0, 0, 0} + inner(k6))},
      {"IP-in-IP inside an authentication header", k4, outer(k4, 51, Bytes(24) + inner(k4))},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.sentence);
    expect_untouched_pass(frame(one.family, one.packet));
  }
  expect_untouched_pass(ethernet({}, ETH_P_ARP, Bytes(28)));
  expect_untouched_pass(ethernet({}, 0x88cc, outer(k4, kIpv4InIp, inner(k4))));
  expect_untouched_pass(
      ethernet({ETH_P_8021Q, ETH_P_8021Q, ETH_P_8021Q}, ETH_P_IP, outer(k4, kIpv4InIp, inner(k4))));
  expect_untouched_pass(Bytes{0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 2, 0x81, 0x00, 0x20});
}

TEST_F(Refusal, LeavesOtherSourcesToTheKernelAndCountsThem) {
  for (uint8_t protocol : {kIpv4InIp, kIpv6InIp, kGre}) {
    expect_refused_source(frame(k4, ipv4({.source = kStranger4, .protocol = protocol}, inner(k4))));
    expect_refused_source(
        frame(k6, ipv6({.source = kStranger6, .next_header = protocol}, inner(k4))));
  }
  expect_refused_source(
      frame(k4, ipv4({.source = kStranger4, .protocol = kUdp}, in_gue(inner(k4)))));
  expect_refused_source(
      frame(k6, ipv6({.source = kStranger6, .next_header = kUdp}, in_gue(inner(k4)))));
  // An IPv6 address that begins as the IPv4 one does is another address.
  expect_refused_source(
      frame(k6, ipv6({.source = {198, 18, 2, 2}, .next_header = kIpv4InIp}, inner(k4))));
}

TEST_F(Refusal, DropsOuterIpv4HeadersThatLie) {
  auto with_length = [](size_t length) {
    return changed4([&](auto& header) { header.total_length = static_cast<int>(length); });
  };
  auto with_words = [](int words) {
    return changed4([&](auto& header) { header.header_words = words; });
  };
  const size_t right = 20 + inner(k4).size();
  expect_drops(kDecapMalformed,
               {{"length 0", k4, with_length(0)},
                {"length 19", k4, with_length(19)},
                {"a header alone", k4, with_length(20)},
                {"an inner header too short", k4, with_length(39)},
                {"one byte less than inside", k4, with_length(right - 1)},
                {"one byte more than there is", k4, with_length(right + 1)},
                {"length 65535", k4, with_length(65535)},
                {"version 5", k4, changed4([](auto& header) { header.version = 5; })},
                {"version 6", k4, changed4([](auto& header) { header.version = 6; })},
                {"header of 0 words", k4, with_words(0)},
                {"header of 4 words", k4, with_words(4)}});
  for (int words = 6; words < 16; ++words) {
    // Its end is right by luck, or the checksum over it is not.
    const Bytes sent = frame(k4, with_words(words));
    EXPECT_EQ(object_->run(sent).verdict, static_cast<uint32_t>(XDP_DROP));
    const auto counters = counted();
    EXPECT_EQ(counters[kDecapMalformed] + counters[kDecapBadChecksum], 1u);
  }
}

TEST_F(Refusal, DropsOuterIpv6HeadersThatLie) {
  auto with_length = [](size_t length) {
    return changed6([&](auto& header) { header.payload_length = static_cast<int>(length); });
  };
  const size_t right = inner(k6).size();
  expect_drops(kDecapMalformed,
               {{"length 0", k6, with_length(0)},
                {"an inner header too short", k6, with_length(39)},
                {"one byte less than inside", k6, with_length(right - 1)},
                {"one byte more than there is", k6, with_length(right + 1)},
                {"length 65535", k6, with_length(65535)},
                {"version 4", k6, changed6([](auto& header) { header.version = 4; })},
                {"version 7", k6, changed6([](auto& header) { header.version = 7; })}});
}

TEST_F(Refusal, DropsInnerHeadersThatLie) {
  auto inner4 = [](auto change) {
    Ipv4Header header;
    change(header);
    return ipv4(header, Bytes(8));
  };
  auto inner6 = [](auto change) {
    Ipv6Header header;
    change(header);
    return ipv6(header, Bytes(8));
  };
  std::vector<std::pair<Family, Bytes>> packets;
  for (int length : {0, 19, 29, 65535})
    packets.emplace_back(k4, inner4([&](auto& header) { header.total_length = length; }));
  for (int words : {0, 4, 8, 15})
    packets.emplace_back(k4, inner4([&](auto& header) { header.header_words = words; }));
  packets.emplace_back(k4, Bytes(19, 0x45));
  for (int length : {9, 65535})
    packets.emplace_back(k6, inner6([&](auto& header) { header.payload_length = length; }));
  packets.emplace_back(k6, Bytes(39, 0x60));
  packets.emplace_back(k4, Bytes{});
  packets.emplace_back(k6, Bytes{});
  for (const auto& [family, packet] : packets)
    for (Tunnel tunnel : kTunnels)
      for (Family out : kFamilies) {
        SCOPED_TRACE(name_of(family) + " inside " + name_of(tunnel) + " over " + name_of(out));
        expect_drop(frame(out, wrap(tunnel, out, family, packet)), kDecapMalformed);
      }
}

TEST_F(Refusal, DropsAnInnerPacketOfTheOtherFamily) {
  for (Family out : kFamilies)
    expect_drops(kDecapMalformed,
                 {{"IPv6 announced as IPv4", out, outer(out, kIpv4InIp, inner(k6))},
                  {"IPv4 announced as IPv6", out, outer(out, kIpv6InIp, inner(k4))},
                  {"the same in GRE", out, outer(out, kGre, gre(0, ETH_P_IP) + inner(k6))},
                  {"the same in GUE", out, outer(out, kUdp, in_gue(gue(0, 41) + inner(k4)))}});
}

TEST_F(Refusal, DropsWrongChecksumsOfOuterHeaders) {
  expect_drops(kDecapBadChecksum,
               {{"of IPv4", k4, changed4([](auto& header) { header.checksum = 0x1234; })}});
  for (Family out : kFamilies)
    for (Tunnel tunnel : {Tunnel::kGue0Checksum, Tunnel::kGue1Checksum}) {
      const Bytes sent = frame(out, wrap(tunnel, out, k4, inner(k4)));
      const size_t first = 14 + (out == k4 ? 20u : 40u);
      for (size_t at = first; at < sent.size(); ++at) {
        const size_t in_udp = at - first;
        // The port makes it a tunnel; the length is judged before the checksum.
        if (in_udp >= 2 && in_udp < 6) continue;
        SCOPED_TRACE(at);
        Bytes damaged = sent;
        damaged[at] ^= 0x10;
        expect_drop(damaged, kDecapBadChecksum);
      }
    }
}

TEST_F(Refusal, CoversTheAddressesWithTheUdpChecksum) {
  for (Family out : kFamilies) {
    Bytes sent = frame(out, wrap(Tunnel::kGue1Checksum, out, k4, inner(k4)));
    sent[14 + (out == k4 ? 19u : 39u)] ^= 0x01;  // the destination's last byte
    if (out == k4) set_ipv4_checksum(std::span(sent).subspan(14, 20));
    expect_drop(sent, kDecapBadChecksum);
  }
}

TEST_F(Refusal, DropsIpv6WithoutUdpChecksumWhereToldTo) {
  use({.gue_ports_be = {htons(kGuePort)}, .refuse_zero_checksum = 1});
  for (Family in : kFamilies) {
    const Bytes without = frame(k6, wrap(Tunnel::kGue0, k6, in, inner(in)));
    expect_drop(without, kDecapBadChecksum);
    expect_unwrapped(frame(k6, wrap(Tunnel::kGue0Checksum, k6, in, inner(in))),
                     frame(in, inner(in)));
    expect_unwrapped(frame(k4, wrap(Tunnel::kGue0, k4, in, inner(in))), frame(in, inner(in)));
  }
}

TEST_F(Refusal, DropsUdpLengthsThatLie) {
  const Bytes right = in_gue(gue(0, 4) + inner(k4));
  for (size_t length :
       {size_t{0}, size_t{7}, size_t{8}, right.size() - 1, right.size() + 1, size_t{65535}}) {
    SCOPED_TRACE(length);
    Bytes lying = right;
    lying[4] = static_cast<uint8_t>(length >> 8);
    lying[5] = static_cast<uint8_t>(length);
    for (Family out : kFamilies) expect_drop(frame(out, outer(out, kUdp, lying)), kDecapMalformed);
  }
}

TEST_F(Refusal, DropsOuterFragments) {
  for (uint16_t fragment : std::vector<uint16_t>{0x2000, 0x2001, 0x0001, 0x1fff})
    for (uint8_t protocol : {kIpv4InIp, kIpv6InIp, kGre}) {
      SCOPED_TRACE(fragment);
      auto change = [&](auto& header) { header.protocol = protocol, header.fragment = fragment; };
      expect_drop(frame(k4, changed4(change)), kDecapFragment);
    }
  // Offset in units of eight bytes, three bits to the left; the last one: more follow.
  for (uint16_t fragment : std::vector<uint16_t>{0x0000, 0x0001, 0x0008, 0xfff9})
    for (uint8_t protocol : {kIpv4InIp, kIpv6InIp, kGre}) {
      SCOPED_TRACE(fragment);
      expect_drop(frame(k6, outer(k6, 44, fragment_header(protocol, fragment) + inner(k4))),
                  kDecapFragment);
    }
  const Bytes gue_packet = in_gue(inner(k4));
  expect_drops(kDecapFragment,
               {{"the first fragment of GUE", k4,
                 changed4([](auto& header) { header.protocol = kUdp, header.fragment = 0x2000; },
                          gue_packet)},
                {"the first fragment of GUE, IPv6", k6,
                 outer(k6, 44, fragment_header(kUdp, 1) + gue_packet)}});
  expect_unwrapped(frame(k4, changed4([](auto& header) { header.fragment = 0x4000; })),
                   frame(k4, inner(k4)));
}

TEST_F(Refusal, DropsGreThatSaysMoreThanTheTypeOfAPacket) {
  for (Family out : kFamilies) {
    auto with = [&](uint16_t flags, uint16_t type) {
      return outer(out, kGre, gre(flags, type) + inner(k4));
    };
    expect_drops(kDecapUnsupported, {{"a checksum", out, with(0x8000, ETH_P_IP)},
                                     {"routing", out, with(0x4000, ETH_P_IP)},
                                     {"a key", out, with(0x2000, ETH_P_IP)},
                                     {"a sequence number", out, with(0x1000, ETH_P_IP)},
                                     {"a strict source route", out, with(0x0800, ETH_P_IP)},
                                     {"recursion", out, with(0x0400, ETH_P_IP)},
                                     {"version 1 (PPTP)", out, with(0x0001, ETH_P_IP)},
                                     {"version 7", out, with(0x0007, ETH_P_IP)},
                                     {"an Ethernet frame", out, with(0, 0x6558)},
                                     {"type 0", out, with(0, 0)}});
    expect_drops(kDecapMalformed, {{"less than a header", out, outer(out, kGre, Bytes(3))}});
    // RFC 2784: a receiver ignores the other reserved bits.
    expect_unwrapped(frame(out, with(0x03f8, ETH_P_IP)), frame(k4, inner(k4)));
  }
}

TEST_F(Refusal, DropsGueThatSaysMoreThanTheProtocolOfAPacket) {
  for (Family out : kFamilies) {
    auto with = [&](const Bytes& header) { return outer(out, kUdp, in_gue(header + inner(k4))); };
    expect_drops(kDecapUnsupported,
                 {{"a control message", out, with(gue(0x20, 4))},
                  {"optional words", out, with(gue(0x01, 4) + Bytes(4))},
                  {"the most optional words", out, with(gue(0x1f, 4) + Bytes(124))},
                  {"private data by flag", out, with(gue(0, 4, 0x0001))},
                  {"group identifier by flag", out, with(gue(0, 4, 0x8000))},
                  {"protocol 0", out, with(gue(0, 0))},
                  {"UDP inside", out, with(gue(0, 17))},
                  {"no next header", out, with(gue(0, 59))},
                  {"variant 1, IP version 5", out, with({0x55, 0, 0, 20})},
                  {"variant 1, IP version 7", out, with({0x75, 0, 0, 20})},
                  {"variant 2", out, with(gue(0x80, 4))},
                  {"variant 3", out, with(gue(0xc0, 4))}});
    expect_drops(kDecapMalformed, {{"less than a header", out, outer(out, kUdp, in_gue(Bytes(3)))},
                                   {"nothing at all", out, outer(out, kUdp, in_gue({}))}});
  }
}

}  // namespace
}  // namespace maglev
