// What the decapsulation program makes of a frame that a load balancer sent: byte by byte, and the
// ECN field in all combinations.
#include <arpa/inet.h>

#include "tests/dataplane/bpf_decap_fixture.h"

namespace maglev {
namespace {

class EachTunnel : public DecapProgram {
 protected:
  // Of every tunnel, outer and inner family.
  static void for_each(auto action) {
    for (Tunnel tunnel : kTunnels)
      for (Family out : kFamilies)
        for (Family in : kFamilies) {
          SCOPED_TRACE(name_of(in) + " inside " + name_of(tunnel) + " over " + name_of(out));
          action(tunnel, out, in);
        }
  }
};

TEST_F(EachTunnel, IsTakenOffAndTheEtherTypeFollowsUnderUpToTwoTags) {
  for_each([&](Tunnel tunnel, Family out, Family in) {
    for (const auto& tags : kTagStacks)
      expect_unwrapped(ethernet(tags, ethertype_of(out), wrap(tunnel, out, in, inner(in))),
                       ethernet(tags, ethertype_of(in), inner(in)));
  });
}

TEST_F(EachTunnel, IsTakenOffPacketsOfAllLengths) {
  // Up to several steps of the checksum, at both ends of each; then past the first buffer.
  for_each([&](Tunnel tunnel, Family out, Family in) {
    for (size_t length = 0; length < 300; ++length) {
      Bytes packet = inner(in, 0, Bytes(length, static_cast<uint8_t>(length * 7 + 1)));
      expect_unwrapped(frame(out, wrap(tunnel, out, in, packet)), frame(in, packet));
    }
    Bytes jumbo = inner(in, 0, Bytes(8900, 0xa7));
    expect_unwrapped(frame(out, wrap(tunnel, out, in, jumbo)), frame(in, jumbo));
  });
}

TEST_F(EachTunnel, LeavesPaddingToTheKernel) {
  for_each([&](Tunnel tunnel, Family out, Family in) {
    expect_unwrapped(frame(out, wrap(tunnel, out, in, inner(in)) + Bytes(6, 0xee)),
                     frame(in, inner(in) + Bytes(6, 0xee)));
  });
}

TEST_F(EachTunnel, BringsFragmentsOfTheClient) {
  const Bytes fragment = ipv4({.fragment = 0x2005}, Bytes(16));
  for (Tunnel tunnel : kTunnels)
    for (Family out : kFamilies)
      expect_unwrapped(frame(out, wrap(tunnel, out, Family::kIpv4, fragment)),
                       frame(Family::kIpv4, fragment));
}

TEST_F(EachTunnel, DropsFramesCutInsideTheOuterPacket) {
  for_each([&](Tunnel tunnel, Family out, Family in) {
    const Bytes whole = frame(out, wrap(tunnel, out, in, inner(in)));
    // A UDP port has to be there to be known for ours.
    const bool is_udp = tunnel != Tunnel::kIpInIp && tunnel != Tunnel::kGre;
    const size_t known = 14 + (out == Family::kIpv4 ? 20u : 40u) + (is_udp ? 8u : 0u);
    for (size_t length = 14; length < whole.size(); ++length) {
      SCOPED_TRACE(length);
      const Bytes cut(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(length));
      if (length < known)
        expect_untouched_pass(cut);
      else
        expect_drop(cut, kDecapMalformed);
    }
  });
}

// RFC 6040, figure 4; the two bits: 0 not ECT, 1 ECT(1), 2 ECT(0), 3 congestion. -1: drop.
constexpr int kEcnResult[4][4] = {
    // outer 0, 1, 2, 3
    {0, 0, 0, -1},  // inner not ECT
    {1, 1, 1, 3},   // inner ECT(1)
    {2, 1, 2, 3},   // inner ECT(0)
    {3, 3, 3, 3},   // inner congestion
};

TEST_F(EachTunnel, CombinesEcnAndKeepsTheInnerCodePoint) {
  for_each([&](Tunnel tunnel, Family out, Family in) {
    // Code points chosen so that the inner checksum passes through its whole range.
    for (int dscp = 0; dscp < 64; dscp += tunnel == Tunnel::kIpInIp ? 1 : 21)
      for (int inside = 0; inside < 4; ++inside)
        for (int outside = 0; outside < 4; ++outside) {
          SCOPED_TRACE(testing::Message()
                       << "dscp " << dscp << " inner " << inside << " outer " << outside);
          auto traffic_class = [&](int ecn) { return static_cast<uint8_t>(dscp << 2 | ecn); };
          const Bytes sent = frame(out, wrap(tunnel, out, in, inner(in, traffic_class(inside)),
                                             static_cast<uint8_t>(0xb8 | outside)));
          const int result = kEcnResult[inside][outside];
          if (result < 0)
            expect_drop(sent, kDecapEcnDropped);
          else
            expect_unwrapped(sent, frame(in, inner(in, traffic_class(result))));
        }
  });
}

TEST_F(DecapProgram, DoesNotRepairAWrongInnerChecksum) {
  // The kernel behind must still see that the packet is damaged. RFC 1624: one more in the word,
  // one less in the checksum.
  const Bytes sent = ipv4({.tos = 2, .checksum = 0x1234}, Bytes(8));
  const Bytes marked = ipv4({.tos = 3, .checksum = 0x1233}, Bytes(8));
  for (Family out : kFamilies)
    expect_unwrapped(frame(out, outer(out, kIpv4InIp, sent, 3)), frame(Family::kIpv4, marked));
}

TEST_F(DecapProgram, TakesOuterOptionsOffAndLeavesInnerOnes) {
  for (size_t length = 0; length <= 40; length += 4) {
    const Bytes client = ipv4({.options = Bytes(40 - length, 1)}, Bytes(8));
    const Bytes sent =
        ipv4({.source = kBalancer4, .protocol = 4, .options = Bytes(length, 1)}, client);
    expect_unwrapped(frame(Family::kIpv4, sent), frame(Family::kIpv4, client));
  }
}

TEST_F(DecapProgram, LeavesExtensionHeadersOfTheClient) {
  const Bytes client = ipv6({.next_header = 0}, Bytes{17, 0, 1, 4, 0, 0, 0, 0} + udp(80, {}));
  for (Family out : kFamilies)
    expect_unwrapped(frame(out, outer(out, kIpv6InIp, client)), frame(Family::kIpv6, client));
}

TEST_F(DecapProgram, ListensOnEachConfiguredPort) {
  use({.gue_ports_be = {htons(1), htons(2), htons(3), htons(4), htons(5), htons(6), htons(7),
                        htons(65535)},
       .refuse_zero_checksum = 0});
  const Bytes packet = inner(Family::kIpv4);
  for (Family out : kFamilies) {
    for (uint16_t port : std::vector<uint16_t>{1, 2, 3, 4, 5, 6, 7, 65535})
      expect_unwrapped(frame(out, outer(out, kUdp, udp(port, packet))),
                       frame(Family::kIpv4, packet));
    for (uint16_t port : std::vector<uint16_t>{8, 6080})
      expect_untouched_pass(frame(out, outer(out, kUdp, udp(port, packet))));
  }
}

TEST_F(DecapProgram, NeverListensOnPortZero) {
  expect_untouched_pass(
      frame(Family::kIpv4, outer(Family::kIpv4, kUdp, udp(0, inner(Family::kIpv4)))));
}

TEST_F(DecapProgram, AcceptsPrefixesOfSources) {
  allow4({198, 18, 4, 0}, 23);
  allow6({0x20, 0x01, 0x0d, 0xb8, 5}, 40);
  auto from4 = [](const Ipv4Address& source) {
    return frame(Family::kIpv4, ipv4({.source = source, .protocol = 4}, inner(Family::kIpv4)));
  };
  auto from6 = [](const Ipv6Address& source) {
    return frame(Family::kIpv6, ipv6({.source = source, .next_header = 4}, inner(Family::kIpv4)));
  };
  const Bytes unwrapped = frame(Family::kIpv4, inner(Family::kIpv4));
  expect_unwrapped(from4({198, 18, 4, 0}), unwrapped);
  expect_unwrapped(from4({198, 18, 5, 255}), unwrapped);
  expect_refused_source(from4({198, 18, 6, 0}));
  expect_refused_source(from4({198, 18, 3, 255}));
  expect_unwrapped(from6({0x20, 0x01, 0x0d, 0xb8, 5, 0xff}), unwrapped);
  expect_refused_source(from6({0x20, 0x01, 0x0d, 0xb8, 6}));
}

}  // namespace
}  // namespace maglev
