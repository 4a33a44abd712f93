// What became of a packet. Every packet received ends in exactly one verdict, one cause each.
// Constants, any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace maglev {

enum class Verdict : uint8_t {
  kForwarded,            // handed to the wire, encapsulated
  kNoTables,             // nothing has been published yet
  kSegmented,            // the device delivered it in several buffers, or without room in front
  kNotIp,                // another EtherType
  kMalformed,            // cut short, or its lengths contradict each other
  kUnsupportedProtocol,  // to a VIP, but neither TCP, UDP nor ICMP that concerns them
  kNoVip,                // the destination is no VIP's address
  kUnservedPort,         // a VIP's address, but no VIP has this port
  kForKernel,            // to a VIP's address, left to the kernel by its settings
  kTtlExpired,           // to a VIP, with a time to live that allows no further hop
  kNoBackend,            // the VIP's pool has no usable backend
  kUnresolved,           // the next hop to the backend is not known
  kTooBig,               // does not fit the way to the backend and must not be cut
  kNoBuffer,             // had to be cut, but there was no packet buffer to do it
  kIcmpUnmatched,        // an ICMP error that quotes no packet of a VIP
  kEchoAnswered,         // an echo request, whose reply was handed to the wire
  kEchoLimited,          // an echo request beyond the rate, left unanswered
  kFragmentExpired,      // a later fragment whose first did not come in time
  kFragmentOverflow,     // a later fragment that found no room to wait
  kTransmitFull,         // the transmit ring had no room
  kCount,

  // No verdicts: the packet lives on.
  kHeld = kCount,  // waits for the first fragment of its datagram
  kHandedOver      // another worker goes on with it
};

inline constexpr uint32_t kVerdictCount = static_cast<uint32_t>(Verdict::kCount);

// Names in reports and metrics, in the order of the enum.
inline constexpr std::array<std::string_view, kVerdictCount> kVerdictNames = {
    "forwarded",
    "no_tables",
    "segmented",
    "not_ip",
    "malformed",
    "unsupported_protocol",
    "no_vip",
    "unserved_port",
    "for_kernel",
    "ttl_expired",
    "no_backend",
    "unresolved",
    "too_big",
    "no_buffer",
    "icmp_unmatched",
    "echo_answered",
    "echo_limited",
    "fragment_expired",
    "fragment_overflow",
    "transmit_full"};

// What a worker sends on its own account. Such frames have no verdict.
enum class Origin : uint8_t {
  kEchoReply,
  kTimeExceeded,
  kPacketTooBig,  // ICMP "fragmentation needed" or ICMPv6 "packet too big"
  kFragment,      // a further part of a packet that was cut
  kCount
};

inline constexpr uint32_t kOriginCount = static_cast<uint32_t>(Origin::kCount);
inline constexpr std::array<std::string_view, kOriginCount> kOriginNames = {
    "echo_reply", "time_exceeded", "packet_too_big", "fragment"};

}  // namespace maglev
