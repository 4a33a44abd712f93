// ICMP: reading the packet that an error quotes, and writing the answers that a router and the
// owner of a VIP's address owe. Pure functions, any thread.
//
// Sources: RFC 792, RFC 1122 section 3.2.2 (when not to answer), RFC 1191 (next-hop MTU), RFC 1812
// section 4.3.2 (quote up to 576 bytes in all), RFC 4443 (up to 1280).
#pragma once

#include <cstdint>

#include "dataplane/packet.h"
#include "dataplane/parse.h"

namespace maglev {

inline constexpr uint8_t kIcmpEchoReply = 0;
inline constexpr uint8_t kIcmpUnreachable = 3;
inline constexpr uint8_t kIcmpEchoRequest = 8;
inline constexpr uint8_t kIcmpTimeExceeded = 11;
inline constexpr uint8_t kIcmpParameterProblem = 12;
inline constexpr uint8_t kIcmpFragmentationNeeded = 4;  // code of kIcmpUnreachable
inline constexpr uint8_t kIcmpv6PacketTooBig = 2;
inline constexpr uint8_t kIcmpv6TimeExceeded = 3;
inline constexpr uint8_t kIcmpv6ParameterProblem = 4;
inline constexpr uint8_t kIcmpv6EchoRequest = 128;
inline constexpr uint8_t kIcmpv6EchoReply = 129;

// Longest answer to an error, as an IP packet.
inline constexpr uint32_t kLongestError4 = 576;
inline constexpr uint32_t kLongestError6 = 1280;
// Room for any answer to an error, from the start of its frame, a tag included.
inline constexpr uint32_t kErrorRoom = kEthernetHeaderLength + kVlanTagLength + kLongestError6;

inline bool is_icmp_error(bool ipv6, uint8_t type) {
  if (ipv6) return type >= 1 && type <= kIcmpv6ParameterProblem;
  return type == kIcmpUnreachable || type == kIcmpTimeExceeded || type == kIcmpParameterProblem;
}

inline bool is_echo_request(bool ipv6, uint8_t type) {
  return type == (ipv6 ? kIcmpv6EchoRequest : kIcmpEchoRequest);
}

// The packet that an answer is about: its frame's link header, where its IP header is and what that
// says.
struct Offender {
  const uint8_t* frame;
  LinkHeader link;
  IpHeader header;
};

// Whether it may be answered: not ICMP other than a request, nor a later fragment, nor what was
// sent to a group or by one, or by nobody, nor what has a damaged header.
bool may_be_answered(const Offender& offender);

// Each writes a frame to where the offender came from, from the address it was sent to, and returns
// its length. `out` has kErrorRoom bytes.
uint32_t write_time_exceeded(const Offender& offender, uint8_t* out);
uint32_t write_too_big(const Offender& offender, uint16_t mtu_bytes, uint8_t* out);
// `out` has the offender's link and packet length.
uint32_t write_echo_reply(const Offender& request, uint8_t* out);

}  // namespace maglev
