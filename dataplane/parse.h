// Any frame: link header, IP header with options or extension headers, and where its transport
// header stands. The pipeline reads the most common frames by fixed offsets on its own; all others
// are read here. Pure functions, any thread; nothing beyond the given lengths is read.
//
// Sources: IEEE 802.1Q and 802.1ad (tags), RFC 791, RFC 8200 (extension headers, section 4),
// RFC 4302 (length of AH), RFC 6946 (atomic fragments).
#pragma once

#include <cstdint>
#include <optional>

#include "dataplane/packet.h"
#include "dataplane/verdict.h"

namespace maglev {

inline constexpr uint32_t kMaxVlanTags = 2;
// IPv6 extension headers that are looked behind; a packet with more is unsupported.
inline constexpr uint32_t kMaxExtensionHeaders = 8;
// What the 16 bits of a length can say of a datagram put together again: of IPv4 all of it, of IPv6
// what follows the first header. A fragment beyond is malformed: its offset would not go into the
// field of a part cut off it.
inline constexpr uint32_t kLongestDatagram = 65535;

struct LinkHeader {
  uint32_t length = 0;
  uint16_t ether_type = 0;
  // TCI of the tag next to the packet; the frame sent on carries this one alone.
  std::optional<uint16_t> tag;
};

struct IpHeader {
  uint32_t packet_length = 0;     // header and payload, as the header says
  uint32_t transport_offset = 0;  // from the start of the IP header
  uint8_t protocol = 0;           // of the transport
  bool fragment = false;          // part of a datagram; an atomic fragment is none
  bool later_fragment = false;    // not the first part: what follows is no transport header
  uint32_t fragment_id = 0;
};

// Null where the frame ends within its link header.
inline std::optional<LinkHeader> parse_link(const uint8_t* frame, uint32_t length) {
  if (length < kEthernetHeaderLength) return std::nullopt;
  LinkHeader link{kEthernetHeaderLength, load_be16(frame + kEtherTypeOffset), std::nullopt};
  for (uint32_t tags = 0; tags < kMaxVlanTags && (link.ether_type == kEtherTypeVlan ||
                                                  link.ether_type == kEtherTypeServiceVlan);
       ++tags) {
    if (length < link.length + kVlanTagLength) return std::nullopt;
    link.tag = load_be16(frame + link.length);
    link.ether_type = load_be16(frame + link.length + 2);
    link.length += kVlanTagLength;
  }
  return link;
}

// `available` bytes may be read. A quoted packet may be longer than what is there of it.
inline Verdict parse_ipv4(const uint8_t* ip, uint32_t available, bool quoted, IpHeader& header) {
  if (available < kIpv4HeaderLength) return Verdict::kMalformed;
  const uint32_t header_length = (ip[0] & 15u) * 4;
  header.packet_length = load_be16(ip + kIpv4TotalLengthOffset);
  if (ip[0] >> 4 != 4 || header_length < kIpv4HeaderLength || header_length > available ||
      header.packet_length < header_length || (!quoted && header.packet_length > available)) {
    return Verdict::kMalformed;
  }
  const uint16_t fragment = load_be16(ip + kIpv4FragmentOffset);
  const uint32_t offset = (fragment & kIpv4FragmentOffsetMask) * 8u;
  if (offset + header.packet_length > kLongestDatagram) return Verdict::kMalformed;
  header.later_fragment = offset != 0;
  header.fragment = header.later_fragment || (fragment & kIpv4MoreFragments) != 0;
  header.fragment_id = load_be16(ip + kIpv4IdOffset);
  header.protocol = ip[kIpv4ProtocolOffset];
  header.transport_offset = header_length;
  return Verdict::kForwarded;
}

// Length of an extension header, or 0 where `next` is none.
inline uint32_t extension_length(uint8_t next, const uint8_t* extension) {
  switch (next) {
    case kProtocolHopByHop:
    case kProtocolRouting:
    case kProtocolDestinationOptions:
      return (extension[1] + 1u) * 8;
    case kProtocolAuthentication:
      return (extension[1] + 2u) * 4;
    case kProtocolFragment:
      return kIpv6FragmentHeaderLength;
    default:
      return 0;
  }
}

inline Verdict parse_ipv6(const uint8_t* ip, uint32_t available, bool quoted, IpHeader& header) {
  if (available < kIpv6HeaderLength || ip[0] >> 4 != 6) return Verdict::kMalformed;
  header.packet_length = kIpv6HeaderLength + load_be16(ip + kIpv6PayloadLengthOffset);
  if (!quoted && header.packet_length > available) return Verdict::kMalformed;
  const uint32_t end = header.packet_length < available ? header.packet_length : available;
  uint8_t next = ip[kIpv6NextHeaderOffset];
  uint32_t offset = kIpv6HeaderLength;
  for (uint32_t seen = 0; !header.later_fragment; ++seen) {
    constexpr uint32_t kShortest = 8;
    const uint8_t* extension = ip + offset;
    const bool readable = offset + kShortest <= end;
    const uint32_t length = readable ? extension_length(next, extension) : 0;
    if (length == 0) {
      // A header that cannot be read is one only if its kind is an extension's.
      const uint8_t none[2] = {};
      if (!readable && extension_length(next, none) != 0) return Verdict::kMalformed;
      break;
    }
    if (seen == kMaxExtensionHeaders) return Verdict::kUnsupportedProtocol;
    if (offset + length > end) return Verdict::kMalformed;
    if (next == kProtocolFragment) {
      const uint16_t fragment = load_be16(extension + 2);
      const uint32_t fragment_offset = fragment & 0xfff8u;
      if (fragment_offset + header.packet_length - kIpv6HeaderLength - length > kLongestDatagram) {
        return Verdict::kMalformed;
      }
      header.later_fragment = fragment_offset != 0;
      header.fragment = header.later_fragment || (fragment & 1) != 0;
      header.fragment_id = load_be32(extension + 4);
    }
    next = extension[0];
    offset += length;
  }
  header.protocol = next;
  header.transport_offset = offset;
  return Verdict::kForwarded;
}

inline Verdict parse_ip(const uint8_t* ip, uint32_t available, bool quoted, IpHeader& header) {
  if (available == 0) return Verdict::kMalformed;
  return is_ipv6(ip) ? parse_ipv6(ip, available, quoted, header)
                     : parse_ipv4(ip, available, quoted, header);
}

}  // namespace maglev
