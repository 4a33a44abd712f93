// What became of a packet. Every packet received ends in exactly one verdict, one cause each.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace maglev {

enum class Verdict : uint8_t {
  kForwarded,            // handed to the wire, encapsulated
  kNoTables,             // nothing has been published yet
  kSegmented,            // the device delivered it in several buffers
  kNotIpv4,              // another EtherType
  kMalformed,            // cut short, or its lengths contradict each other
  kFragment,             // a part of an IPv4 datagram
  kUnsupportedProtocol,  // neither TCP nor UDP
  kNoVip,                // no VIP has this address, protocol and port
  kTtlExpired,           // to a VIP, with a time to live that allows no further hop
  kNoBackend,            // the VIP's pool has no usable backend
  kUnresolved,           // the next hop to the backend is not known
  kTooBig,               // does not fit the way to the backend once encapsulated
  kTransmitFull,         // the transmit ring had no room
  kCount
};

inline constexpr uint32_t kVerdictCount = static_cast<uint32_t>(Verdict::kCount);

// Names in reports and metrics, in the order of the enum.
inline constexpr std::array<std::string_view, kVerdictCount> kVerdictNames = {
    "forwarded",
    "no_tables",
    "segmented",
    "not_ipv4",
    "malformed",
    "fragment",
    "unsupported_protocol",
    "no_vip",
    "ttl_expired",
    "no_backend",
    "unresolved",
    "too_big",
    "transmit_full"};

}  // namespace maglev
