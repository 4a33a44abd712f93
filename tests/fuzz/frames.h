// Frames by template, for a VIP of the configuration in use: valid unless the step says otherwise,
// so that what the fuzzer changes afterwards is one thing at a time.
//
// A kFrame step:
//   a bits 0-2  TCP or UDP as the VIP serves, TCP, UDP, echo request, ICMP error, other ICMP,
//   another
//               protocol, no IP
//     bits 3-4  whole, first fragment, later fragment, last fragment
//     bits 5-7  which options or extension headers; of an ICMP error, those of the quoted packet
//   b bits 0-4  the VIP
//     bits 5-7  5: a port beside; 6: an address of the other family; 7: an address beside
//   c bits 0-3  source, and with it the client's port
//     bits 4-7  datagram; of an ICMP error, its type
//   d           payload bytes, up to 2047; from 0xf000 on sixteen times the rest
//   e bits 0-1  no tag, 802.1Q, priority tag, 802.1ad and 802.1Q
//     bits 2-3  hop limit 64, 1, 0, 2
//     bit 4     "don't fragment"
//     bits 5-6  trailer of 0, 1, 6, 18 bytes
//     bit 7     checksum of the transport header left as a sending kernel leaves it to hardware
//     bits 8-11 traffic class
//     bits 12-13 IP length as it is, one too long, one too short, 0
//     bit 14    delivered in several buffers
//     bit 15    sent to a group of hosts on the link
// Pure functions.
#pragma once

#include <cstdint>
#include <span>

#include "tables/published.h"
#include "tests/fuzz/steps.h"

namespace maglev::fuzz {

struct Frame {
  uint32_t length = 0;
  uint32_t ip = 0;         // offsets
  uint32_t transport = 0;  // behind options, extension headers and fragment header
  bool segmented = false;
};

// The longest that make_frame writes.
inline constexpr uint32_t kLongestFrame = 70000;

Frame make_frame(const Step& step, std::span<const VipRecord> vips, uint8_t* out);

}  // namespace maglev::fuzz
