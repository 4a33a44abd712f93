#include "tests/fuzz/output.h"

#include <algorithm>
#include <cstring>

#include "dataplane/icmp.h"
#include "dataplane/packet.h"
#include "dataplane/parse.h"
#include "tests/fuzz/require.h"

namespace maglev::fuzz {
namespace {

// The IP packet behind at most one tag, whose length is that of the frame.
ByteView outer_packet(ByteView frame) {
  require(frame.size() >= kEthernetHeaderLength, "a frame is shorter than its link header");
  uint32_t offset = kEthernetHeaderLength;
  uint16_t type = load_be16(frame.data() + kEtherTypeOffset);
  if (type == kEtherTypeVlan) {
    require(frame.size() >= kEthernetHeaderLength + kVlanTagLength, "a tag is cut short");
    type = load_be16(frame.data() + kEtherTypeOffset + kVlanTagLength);
    offset += kVlanTagLength;
  }
  const ByteView packet = frame.subspan(offset);
  if (type == kEtherTypeIpv4) {
    require(packet.size() >= kIpv4HeaderLength && packet[0] >> 4 == 4, "no IPv4 header");
    require(load_be16(packet.data() + kIpv4TotalLengthOffset) == packet.size(),
            "the IPv4 total length is not that of the frame");
  } else {
    require(type == kEtherTypeIpv6, "more than one tag, or another type of frame");
    require(packet.size() >= kIpv6HeaderLength && packet[0] >> 4 == 6, "no IPv6 header");
    require(
        load_be16(packet.data() + kIpv6PayloadLengthOffset) + kIpv6HeaderLength == packet.size(),
        "the IPv6 payload length is not that of the frame");
  }
  return packet;
}

uint32_t header_length4(const uint8_t* ip) {
  return (ip[0] & 15u) * 4;
}

bool header_checksum_right(const uint8_t* ip) {
  return is_ipv6(ip) || sum_words(ip, header_length4(ip)) == 0xffff;
}

bool same_prefix(const uint8_t* a, const uint8_t* b, uint32_t bits) {
  if (std::memcmp(a, b, bits / 8) != 0) return false;
  return bits % 8 == 0 || ((a[bits / 8] ^ b[bits / 8]) >> (8 - bits % 8)) == 0;
}

void check_link(ByteView frame, const Route& route) {
  require(std::memcmp(frame.data(), route.backend.next_hop_mac, 6) == 0,
          "a frame goes to another next hop than its backend's");
  require(std::memcmp(frame.data() + 6, route.port.mac.data(), 6) == 0,
          "a frame has another source than the port it leaves by");
}

void check_mtu(ByteView packet, const Route& route) {
  uint32_t mtu = route.port.mtu;
  if (route.backend.path_mtu_bytes != 0)
    mtu = std::min<uint32_t>(mtu, route.backend.path_mtu_bytes);
  require(packet.size() <= mtu, "a packet is longer than the MTU of the route to its backend");
}

void check_outer_ip(ByteView packet, const Route& route, uint8_t protocol) {
  const uint8_t* ip = packet.data();
  const bool ipv6 = route.backend.family == AddressFamily::kIpv6;
  require(is_ipv6(ip) == ipv6, "the outer header is of another family than the backend");
  const uint32_t bytes = ipv6 ? 16 : 4;
  const uint8_t* source = addresses_of(ip);
  require(same_prefix(source, route.backend.outer_source.bytes.data(),
                      route.backend.outer_source_prefix_length),
          "the outer source is outside its prefix");
  require(std::memcmp(source + bytes, route.backend.address.bytes.data(), bytes) == 0,
          "the outer destination is not the backend");
  require(ip[ipv6 ? kIpv6NextHeaderOffset : kIpv4ProtocolOffset] == protocol,
          "the outer header names another protocol");
  if (ipv6) return;
  require(ip[0] == 0x45 && load_be16(ip + kIpv4IdOffset) == 0 &&
              load_be16(ip + kIpv4FragmentOffset) == kIpv4DontFragment,
          "the outer IPv4 header may be cut on its way");
  require(header_checksum_right(ip), "the outer IPv4 header's checksum is wrong");
}

// Whether the UDP checksum around this packet may have been made from its own checksum, and is
// wrong with that.
bool carries_wrong_checksum(ByteView packet) {
  IpHeader header;
  if (parse_ip(packet.data(), static_cast<uint32_t>(packet.size()), false, header) !=
          Verdict::kForwarded ||
      header.fragment || (header.protocol != kProtocolTcp && header.protocol != kProtocolUdp)) {
    return false;
  }
  const uint32_t length = static_cast<uint32_t>(packet.size()) - header.transport_offset;
  const uint32_t sum = pseudo_header_sum(packet.data(), header.protocol, length) +
                       uint32_t{sum_words(packet.data() + header.transport_offset, length)};
  return fold_checksum(sum) != 0xffff;
}

// Returns the inner packet.
ByteView check_gue(ByteView packet, const Route& route) {
  const uint32_t ip_length = is_ipv6(packet.data()) ? kIpv6HeaderLength : kIpv4HeaderLength;
  require(packet.size() >= ip_length + kUdpHeaderLength + kGueHeaderLength, "no room for GUE");
  const uint8_t* udp = packet.data() + ip_length;
  const auto udp_length = static_cast<uint32_t>(packet.size() - ip_length);
  require(load_be16(udp + 2) == route.vip.gue_port, "GUE to another port");
  require(load_be16(udp) >= 0xc000, "the source port of GUE is not a dynamic one");
  require(load_be16(udp + kUdpLengthOffset) == udp_length, "the UDP length of GUE is wrong");
  uint32_t offset = ip_length + kUdpHeaderLength;
  if (route.vip.encapsulation == Encapsulation::kGueVariant0) {
    const uint8_t* gue = udp + kUdpHeaderLength;
    const bool inner6 = route.vip.family == AddressFamily::kIpv6;
    require(gue[0] == 0 && gue[1] == (inner6 ? kProtocolIpv6 : kProtocolIpInIp) &&
                load_be16(gue + 2) == 0,
            "the GUE header is wrong");
    offset += kGueHeaderLength;
  }
  const ByteView inner = packet.subspan(offset);
  const uint16_t checksum = load_be16(udp + kUdpChecksumOffset);
  const bool zero = route.backend.family == AddressFamily::kIpv4 ||
                    (route.vip.flags & kVipOuterChecksumZero) != 0;
  require((checksum == 0) == zero, "the UDP checksum of GUE is there or not, against the setting");
  if (!zero && !carries_wrong_checksum(inner)) {
    const uint32_t pseudo = pseudo_header_sum(packet.data(), kProtocolUdp, udp_length);
    require(fold_checksum(uint64_t{pseudo} + sum_words(udp, udp_length)) == 0xffff,
            "the UDP checksum of GUE is wrong");
  }
  return inner;
}

// Checks all that is in front of the inner packet, and returns that.
ByteView unwrap(ByteView frame, const Route& route) {
  const ByteView packet = outer_packet(frame);
  check_link(frame, route);
  check_mtu(packet, route);
  const uint8_t inner_protocol =
      route.vip.family == AddressFamily::kIpv6 ? kProtocolIpv6 : kProtocolIpInIp;
  const uint32_t outer_length =
      route.backend.family == AddressFamily::kIpv6 ? kIpv6HeaderLength : kIpv4HeaderLength;
  switch (route.vip.encapsulation) {
    case Encapsulation::kLayer2:
      return packet;
    case Encapsulation::kIpInIp:
      check_outer_ip(packet, route, inner_protocol);
      return packet.subspan(outer_length);
    case Encapsulation::kGre: {
      check_outer_ip(packet, route, kProtocolGre);
      require(packet.size() >= outer_length + kGreHeaderLength, "no room for GRE");
      const uint16_t type =
          route.vip.family == AddressFamily::kIpv6 ? kEtherTypeIpv6 : kEtherTypeIpv4;
      require(load_be32(packet.data() + outer_length) == type, "the GRE header is wrong");
      return packet.subspan(outer_length + kGreHeaderLength);
    }
    case Encapsulation::kGueVariant0:
    case Encapsulation::kGueVariant1:
      check_outer_ip(packet, route, kProtocolUdp);
      return check_gue(packet, route);
  }
  require(false, "a VIP has no encapsulation");
  return {};
}

// The inner packet and what came agree in all but the hop limit and the checksum over it.
void check_whole(ByteView inner, ByteView came) {
  const bool ipv6 = is_ipv6(came.data());
  const uint32_t changed = ipv6 ? kIpv6HopLimitOffset : kIpv4TtlOffset;
  require(inner[changed] == came[changed] - 1, "the hop limit did not go down by one");
  if (ipv6) {
    require(std::memcmp(inner.data(), came.data(), changed) == 0 &&
                std::memcmp(inner.data() + changed + 1, came.data() + changed + 1,
                            came.size() - changed - 1) == 0,
            "an IPv6 packet was changed on its way");
    return;
  }
  require(std::memcmp(inner.data(), came.data(), changed) == 0 &&
              inner[kIpv4ProtocolOffset] == came[kIpv4ProtocolOffset] &&
              std::memcmp(inner.data() + kIpv4SourceOffset, came.data() + kIpv4SourceOffset,
                          came.size() - kIpv4SourceOffset) == 0,
          "an IPv4 packet was changed on its way");
  require(header_checksum_right(inner.data()) == header_checksum_right(came.data()),
          "a right inner header checksum became wrong, or a wrong one right");
}

uint32_t fragment_offset(const uint8_t* ip) {
  return (load_be16(ip + kIpv4FragmentOffset) & kIpv4FragmentOffsetMask) * 8u;
}

bool more_follow(const uint8_t* ip) {
  return (load_be16(ip + kIpv4FragmentOffset) & kIpv4MoreFragments) != 0;
}

// A part of a packet, at its place in the datagram, with the bytes that stood there.
void check_part(ByteView inner, ByteView came, bool may_be_cut) {
  require(inner.size() >= kIpv4HeaderLength && inner[0] >> 4 == 4 && came[0] >> 4 == 4,
          "what was cut is not IPv4");
  require(may_be_cut || (load_be16(came.data() + kIpv4FragmentOffset) & kIpv4DontFragment) == 0,
          "a packet was cut against its will and the setting");
  const uint32_t header_length = header_length4(inner.data());
  require(load_be16(inner.data() + kIpv4TotalLengthOffset) == inner.size() &&
              header_length >= kIpv4HeaderLength && header_length < inner.size(),
          "a part of a packet has wrong lengths");
  require(header_checksum_right(inner.data()), "a part of a packet has a wrong header checksum");
  const ByteView payload = inner.subspan(header_length);
  const ByteView whole = came.subspan(header_length4(came.data()));
  const uint32_t start = fragment_offset(inner.data()) - fragment_offset(came.data());
  require(start + payload.size() <= whole.size() &&
              std::memcmp(payload.data(), whole.data() + start, payload.size()) == 0,
          "a part of a packet is not what stood there");
  const bool last = start + payload.size() == whole.size();
  require(last || payload.size() % 8 == 0, "a part that more follow is no multiple of 8 bytes");
  require(more_follow(inner.data()) == (!last || more_follow(came.data())),
          "a part of a packet is wrong about more to follow");
}

bool may_be_cut(const Route& route) {
  return (route.vip.flags & kVipFragmentTooBig) != 0;
}

}  // namespace

ByteView packet_in(ByteView frame) {
  const auto link = parse_link(frame.data(), static_cast<uint32_t>(frame.size()));
  if (!link) return {};
  const ByteView rest = frame.subspan(link->length);
  uint32_t length = 0;
  if (link->ether_type == kEtherTypeIpv4 && rest.size() >= kIpv4HeaderLength) {
    length = load_be16(rest.data() + kIpv4TotalLengthOffset);
  } else if (link->ether_type == kEtherTypeIpv6 && rest.size() >= kIpv6HeaderLength) {
    length = kIpv6HeaderLength + load_be16(rest.data() + kIpv6PayloadLengthOffset);
  }
  return length <= rest.size() ? rest.first(length) : ByteView{};
}

void check_forwarded(ByteView frame, const Route& route, ByteView packet) {
  require(!packet.empty(), "what holds no whole IP packet was forwarded");
  const ByteView inner = unwrap(frame, route);
  if (inner.size() == packet.size()) return check_whole(inner, packet);
  require(inner.size() < packet.size(), "a packet became longer than its IP length");
  check_part(inner, packet, may_be_cut(route));
  require(fragment_offset(inner.data()) == fragment_offset(packet.data()) &&
              header_length4(inner.data()) == header_length4(packet.data()),
          "what was forwarded is not the first part of its packet");
}

void check_further_part(ByteView frame, const Route& route, ByteView packet) {
  require(!packet.empty(), "what holds no whole IP packet was cut");
  const ByteView inner = unwrap(frame, route);
  check_part(inner, packet, may_be_cut(route));
  require(fragment_offset(inner.data()) > fragment_offset(packet.data()),
          "a further part of a packet is its first");
}

void check_answer(ByteView frame, Origin origin) {
  const ByteView packet = outer_packet(frame);
  const uint8_t* ip = packet.data();
  const bool ipv6 = is_ipv6(ip);
  const uint32_t ip_length = ipv6 ? kIpv6HeaderLength : kIpv4HeaderLength;
  require(packet.size() >= ip_length + kIcmpHeaderLength, "an answer is too short for ICMP");
  require(header_checksum_right(ip), "an answer's IPv4 header checksum is wrong");
  require((frame[0] & 1) == 0, "an answer goes to a group");
  require(ip[ipv6 ? kIpv6NextHeaderOffset : kIpv4ProtocolOffset] ==
              (ipv6 ? kProtocolIcmpv6 : kProtocolIcmp),
          "an answer is no ICMP");
  const uint8_t* to = addresses_of(ip) + (ipv6 ? 16 : 4);
  require(ipv6 ? to[0] != 0xff : to[0] != 0 && to[0] != 127 && to[0] < 224,
          "an answer goes to no single host");
  const uint8_t* icmp = ip + ip_length;
  const auto icmp_length = static_cast<uint32_t>(packet.size() - ip_length);
  const uint32_t pseudo = ipv6 ? pseudo_header_sum(ip, kProtocolIcmpv6, icmp_length) : 0;
  require(fold_checksum(uint64_t{pseudo} + sum_words(icmp, icmp_length)) == 0xffff,
          "an answer's ICMP checksum is wrong");
  if (origin == Origin::kEchoReply) {
    require(icmp[0] == (ipv6 ? kIcmpv6EchoReply : kIcmpEchoReply), "an echo reply is another type");
    return;
  }
  require(is_icmp_error(ipv6, icmp[0]), "an error is another type");
  require(packet.size() <= (ipv6 ? kLongestError6 : kLongestError4), "an error is too long");
}

}  // namespace maglev::fuzz
