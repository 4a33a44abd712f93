// Packet headers as bytes on the wire, and the few operations on them that the pipeline needs.
// Pure functions, any thread. Offsets and lengths in bytes.
//
// Sources: RFC 791 (IPv4), RFC 1071 and RFC 1624 (Internet checksum), IEEE 802.3.
#pragma once

#include <cstdint>
#include <cstring>

namespace maglev {

inline constexpr uint32_t kEthernetHeaderLength = 14;
inline constexpr uint32_t kEtherTypeOffset = 12;
inline constexpr uint16_t kEtherTypeIpv4 = 0x0800;

inline constexpr uint32_t kIpv4HeaderLength = 20;  // without options
inline constexpr uint32_t kIpv4TosOffset = 1;
inline constexpr uint32_t kIpv4TotalLengthOffset = 2;
inline constexpr uint32_t kIpv4FragmentOffset = 6;
inline constexpr uint32_t kIpv4TtlOffset = 8;
inline constexpr uint32_t kIpv4ProtocolOffset = 9;
inline constexpr uint32_t kIpv4ChecksumOffset = 10;
inline constexpr uint32_t kIpv4SourceOffset = 12;
inline constexpr uint32_t kIpv4DestinationOffset = 16;
inline constexpr uint16_t kIpv4DontFragment = 0x4000;
inline constexpr uint16_t kIpv4MoreFragmentsAndOffset = 0x3fff;

inline constexpr uint8_t kProtocolIpInIp = 4;
inline constexpr uint8_t kProtocolTcp = 6;
inline constexpr uint8_t kProtocolUdp = 17;
inline constexpr uint32_t kTcpHeaderLength = 20;  // without options
inline constexpr uint32_t kUdpHeaderLength = 8;

inline uint16_t load_be16(const uint8_t* bytes) {
  uint16_t value;
  std::memcpy(&value, bytes, sizeof value);
  return __builtin_bswap16(value);
}

inline void store_be16(uint8_t* bytes, uint16_t value) {
  value = __builtin_bswap16(value);
  std::memcpy(bytes, &value, sizeof value);
}

// The one's complement sum of 16-bit words, folded to 16 bits.
inline uint16_t fold_checksum(uint32_t sum) {
  sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<uint16_t>(sum + (sum >> 16));
}

// Sum of the words of an even number of bytes, not complemented.
inline uint16_t sum_words(const uint8_t* bytes, uint32_t length) {
  uint32_t sum = 0;
  for (uint32_t i = 0; i < length; i += 2) sum += load_be16(bytes + i);
  return fold_checksum(sum);
}

// Takes one off the time to live of an IPv4 header and mends its checksum: the word that holds the
// TTL falls by 0x0100, so the checksum rises by as much (RFC 1624, equation 3). TTL, protocol and
// checksum are read and written as one word.
inline void decrement_ttl(uint8_t* ip) {
  uint32_t word;
  std::memcpy(&word, ip + kIpv4TtlOffset, sizeof word);
  word = __builtin_bswap32(word) - 0x01000000u;
  const uint32_t sum = (word & 0xffff) + 0x0100u;
  const uint32_t checksum = (sum + (sum >= 0xffff)) & 0xffff;  // never all ones, as when made anew
  word = __builtin_bswap32((word & 0xffff0000u) | checksum);
  std::memcpy(ip + kIpv4TtlOffset, &word, sizeof word);
}

}  // namespace maglev
