#include "dataplane/icmp.h"

#include <algorithm>

namespace maglev {
namespace {

constexpr uint8_t kAnswerHopLimit = 64;

const uint8_t* ip_of(const Offender& offender) {
  return offender.frame + offender.link.length;
}

// Back to where the frame came from, with its tag. Returns the length.
uint32_t write_link(const Offender& offender, uint8_t* out) {
  std::memcpy(out, offender.frame + 6, 6);
  std::memcpy(out + 6, offender.frame, 6);
  uint32_t length = kEtherTypeOffset;
  if (offender.link.tag) {
    store_be16(out + length, kEtherTypeVlan);
    store_be16(out + length + 2, *offender.link.tag);
    length += kVlanTagLength;
  }
  store_be16(out + length, offender.link.ether_type);
  return length + 2;
}

// Source and destination are the offender's, turned round.
void write_ipv4(const Offender& offender, uint8_t* ip, uint32_t packet_length) {
  const uint8_t* theirs = ip_of(offender);
  std::memset(ip, 0, kIpv4HeaderLength);
  ip[0] = 0x45;
  // RFC 1812, section 4.3.2.5: the answer has the offender's precedence, which the DSCP took over.
  ip[kIpv4TosOffset] = theirs[kIpv4TosOffset] & 0xfc;
  store_be16(ip + kIpv4TotalLengthOffset, static_cast<uint16_t>(packet_length));
  store_be16(ip + kIpv4FragmentOffset, kIpv4DontFragment);
  ip[kIpv4TtlOffset] = kAnswerHopLimit;
  ip[kIpv4ProtocolOffset] = kProtocolIcmp;
  std::memcpy(ip + kIpv4SourceOffset, theirs + kIpv4DestinationOffset, 4);
  std::memcpy(ip + kIpv4DestinationOffset, theirs + kIpv4SourceOffset, 4);
  set_ipv4_checksum(ip);
}

void write_ipv6(const Offender& offender, uint8_t* ip, uint32_t packet_length) {
  const uint8_t* theirs = ip_of(offender);
  store_be32(ip, 6u << 28 | uint32_t{traffic_class(theirs) & 0xfcu} << 20);
  store_be16(ip + kIpv6PayloadLengthOffset,
             static_cast<uint16_t>(packet_length - kIpv6HeaderLength));
  ip[kIpv6NextHeaderOffset] = kProtocolIcmpv6;
  ip[kIpv6HopLimitOffset] = kAnswerHopLimit;
  std::memcpy(ip + kIpv6SourceOffset, theirs + kIpv6DestinationOffset, 16);
  std::memcpy(ip + kIpv6DestinationOffset, theirs + kIpv6SourceOffset, 16);
}

void set_icmp_checksum(const uint8_t* ip, uint8_t* icmp, uint32_t length) {
  store_be16(icmp + kIcmpChecksumOffset, 0);
  const uint32_t pseudo = is_ipv6(ip) ? pseudo_header_sum(ip, kProtocolIcmpv6, length) : 0;
  store_be16(icmp + kIcmpChecksumOffset,
             static_cast<uint16_t>(~fold_checksum(pseudo + uint64_t{sum_words(icmp, length)})));
}

// `rest` is the second word of the ICMP header.
uint32_t write_error(const Offender& offender, uint8_t type, uint8_t code, uint32_t rest,
                     uint8_t* out) {
  const bool ipv6 = is_ipv6(ip_of(offender));
  const uint32_t headers = (ipv6 ? kIpv6HeaderLength : kIpv4HeaderLength) + kIcmpHeaderLength;
  const uint32_t longest = (ipv6 ? kLongestError6 : kLongestError4) - headers;
  const uint32_t quote = std::min(offender.header.packet_length, longest);
  const uint32_t link_length = write_link(offender, out);
  uint8_t* ip = out + link_length;
  if (ipv6) {
    write_ipv6(offender, ip, headers + quote);
  } else {
    write_ipv4(offender, ip, headers + quote);
  }
  uint8_t* icmp = ip + headers - kIcmpHeaderLength;
  icmp[0] = type;
  icmp[1] = code;
  store_be32(icmp + 4, rest);
  std::memcpy(icmp + kIcmpHeaderLength, ip_of(offender), quote);
  set_icmp_checksum(ip, icmp, kIcmpHeaderLength + quote);
  return link_length + headers + quote;
}

bool is_unicast_source(const uint8_t* ip) {
  if (is_ipv6(ip)) {
    constexpr uint8_t kZeros[15] = {};  // the unspecified and the loopback address differ behind
    const uint8_t* source = ip + kIpv6SourceOffset;
    const bool special = std::memcmp(source, kZeros, sizeof kZeros) == 0 && source[15] <= 1;
    return source[0] != 0xff && !special;
  }
  const uint8_t first = ip[kIpv4SourceOffset];
  return first != 0 && first != 127 && first < 224;
}

}  // namespace

bool may_be_answered(const Offender& offender) {
  const uint8_t* ip = ip_of(offender);
  const bool ipv6 = is_ipv6(ip);
  // The link addresses of destination and source: the answer goes to the latter.
  const bool group = ((offender.frame[0] | offender.frame[6]) & 1) != 0;
  if (group || offender.header.later_fragment || !is_unicast_source(ip)) return false;
  if (!ipv6 && !is_ipv4_checksum_right(ip)) return false;
  if (offender.header.protocol != (ipv6 ? kProtocolIcmpv6 : kProtocolIcmp)) return true;
  return offender.header.transport_offset < offender.header.packet_length &&
         is_echo_request(ipv6, ip[offender.header.transport_offset]);
}

uint32_t write_time_exceeded(const Offender& offender, uint8_t* out) {
  const bool ipv6 = is_ipv6(ip_of(offender));
  return write_error(offender, ipv6 ? kIcmpv6TimeExceeded : kIcmpTimeExceeded, 0, 0, out);
}

uint32_t write_too_big(const Offender& offender, uint16_t mtu_bytes, uint8_t* out) {
  if (is_ipv6(ip_of(offender)))
    return write_error(offender, kIcmpv6PacketTooBig, 0, mtu_bytes, out);
  return write_error(offender, kIcmpUnreachable, kIcmpFragmentationNeeded, mtu_bytes, out);
}

uint32_t write_echo_reply(const Offender& request, uint8_t* out) {
  const uint8_t* theirs = ip_of(request);
  const bool ipv6 = is_ipv6(theirs);
  const uint32_t header_length = ipv6 ? kIpv6HeaderLength : kIpv4HeaderLength;
  const uint32_t length = request.header.packet_length - request.header.transport_offset;
  const uint32_t link_length = write_link(request, out);
  uint8_t* ip = out + link_length;
  if (ipv6) {
    write_ipv6(request, ip, header_length + length);
  } else {
    write_ipv4(request, ip, header_length + length);
  }
  uint8_t* icmp = ip + header_length;
  std::memcpy(icmp, theirs + request.header.transport_offset, length);
  icmp[0] = ipv6 ? kIcmpv6EchoReply : kIcmpEchoReply;
  set_icmp_checksum(ip, icmp, length);
  return link_length + header_length + length;
}

}  // namespace maglev
