// Packet headers as bytes on the wire, and the few operations on them that the pipeline needs.
// Pure functions, any thread. Offsets and lengths in bytes, from the start of their header.
//
// Sources: IEEE 802.3 and 802.1Q, RFC 791 (IPv4), RFC 8200 (IPv6), RFC 792 and RFC 4443 (ICMP),
// RFC 1071 and RFC 1624 (Internet checksum).
#pragma once

#include <cstdint>
#include <cstring>

namespace maglev {

inline constexpr uint32_t kEthernetHeaderLength = 14;
inline constexpr uint32_t kVlanTagLength = 4;
inline constexpr uint32_t kEtherTypeOffset = 12;
inline constexpr uint16_t kEtherTypeIpv4 = 0x0800;
inline constexpr uint16_t kEtherTypeIpv6 = 0x86dd;
inline constexpr uint16_t kEtherTypeVlan = 0x8100;
inline constexpr uint16_t kEtherTypeServiceVlan = 0x88a8;

inline constexpr uint32_t kIpv4HeaderLength = 20;  // without options
inline constexpr uint32_t kIpv4TosOffset = 1;
inline constexpr uint32_t kIpv4TotalLengthOffset = 2;
inline constexpr uint32_t kIpv4IdOffset = 4;
inline constexpr uint32_t kIpv4FragmentOffset = 6;
inline constexpr uint32_t kIpv4TtlOffset = 8;
inline constexpr uint32_t kIpv4ProtocolOffset = 9;
inline constexpr uint32_t kIpv4ChecksumOffset = 10;
inline constexpr uint32_t kIpv4SourceOffset = 12;
inline constexpr uint32_t kIpv4DestinationOffset = 16;
inline constexpr uint16_t kIpv4DontFragment = 0x4000;
inline constexpr uint16_t kIpv4MoreFragments = 0x2000;
inline constexpr uint16_t kIpv4FragmentOffsetMask = 0x1fff;  // in units of 8 bytes

inline constexpr uint32_t kIpv6HeaderLength = 40;
inline constexpr uint32_t kIpv6PayloadLengthOffset = 4;
inline constexpr uint32_t kIpv6NextHeaderOffset = 6;
inline constexpr uint32_t kIpv6HopLimitOffset = 7;
inline constexpr uint32_t kIpv6SourceOffset = 8;
inline constexpr uint32_t kIpv6DestinationOffset = 24;
inline constexpr uint32_t kIpv6FragmentHeaderLength = 8;

inline constexpr uint8_t kProtocolHopByHop = 0;
inline constexpr uint8_t kProtocolIcmp = 1;
inline constexpr uint8_t kProtocolIpInIp = 4;
inline constexpr uint8_t kProtocolTcp = 6;
inline constexpr uint8_t kProtocolUdp = 17;
inline constexpr uint8_t kProtocolIpv6 = 41;
inline constexpr uint8_t kProtocolRouting = 43;
inline constexpr uint8_t kProtocolFragment = 44;
inline constexpr uint8_t kProtocolGre = 47;
inline constexpr uint8_t kProtocolAuthentication = 51;
inline constexpr uint8_t kProtocolIcmpv6 = 58;
inline constexpr uint8_t kProtocolDestinationOptions = 60;

inline constexpr uint32_t kTcpHeaderLength = 20;  // without options
inline constexpr uint32_t kTcpSequenceOffset = 4;
inline constexpr uint32_t kTcpFlagsOffset = 13;
inline constexpr uint32_t kTcpChecksumOffset = 16;
inline constexpr uint32_t kUdpHeaderLength = 8;
inline constexpr uint32_t kUdpLengthOffset = 4;
inline constexpr uint32_t kUdpChecksumOffset = 6;
inline constexpr uint32_t kIcmpHeaderLength = 8;
inline constexpr uint32_t kIcmpChecksumOffset = 2;

template <typename Word>
Word load(const uint8_t* bytes) {
  Word value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

template <typename Word>
void store(uint8_t* bytes, Word value) {
  std::memcpy(bytes, &value, sizeof value);
}

inline uint16_t load_be16(const uint8_t* bytes) {
  return __builtin_bswap16(load<uint16_t>(bytes));
}
inline uint32_t load_be32(const uint8_t* bytes) {
  return __builtin_bswap32(load<uint32_t>(bytes));
}
inline void store_be16(uint8_t* bytes, uint16_t value) {
  store(bytes, __builtin_bswap16(value));
}
inline void store_be32(uint8_t* bytes, uint32_t value) {
  store(bytes, __builtin_bswap32(value));
}

// The one's complement sum of 16-bit words, folded to 16 bits.
inline uint16_t fold_checksum(uint64_t sum) {
  sum = (sum & 0xffffffff) + (sum >> 32);
  sum = (sum & 0xffff) + (sum >> 16);
  sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<uint16_t>((sum & 0xffff) + (sum >> 16));
}

// Sum of the words of any number of bytes, an odd last one padded with zero; not complemented.
inline uint16_t sum_words(const uint8_t* bytes, uint32_t length) {
  uint64_t sum = 0;
  for (; length >= 4; bytes += 4, length -= 4) sum += load_be32(bytes);
  if (length >= 2) sum += load_be16(bytes);
  if (length % 2 != 0) sum += uint32_t{bytes[length - 1]} << 8;
  return fold_checksum(sum);
}

// Takes one off the time to live of an IPv4 header, which is not 0, and mends its checksum: the
// word of the TTL falls by 0x0100, so the checksum rises by as much (RFC 1624, equation 3), with
// the carry coming round and never to all ones, as when made anew. TTL, protocol and checksum are
// read as one little-endian word: the TTL lowest, the checksum uppermost with its bytes swapped,
// for which 0x0100 is 1 and the carry is the same.
inline void decrement_ttl(uint8_t* ip) {
  constexpr uint64_t kChecksumPlusOneTtlMinusOne = 0x10000 - 1;
  const uint64_t sum = load<uint32_t>(ip + kIpv4TtlOffset) + kChecksumPlusOneTtlMinusOne;
  const uint64_t carried = sum >= 0xffff0000 ? sum + 0x10000 : sum;
  store(ip + kIpv4TtlOffset, static_cast<uint32_t>(carried));
}

// Forwarding leaves a wrong one wrong. To be asked before the header's word is relied on, or its
// checksum is made anew.
inline bool is_ipv4_checksum_right(const uint8_t* ip) {
  return sum_words(ip, (ip[0] & 15u) * 4) == 0xffff;
}

// Computes the checksum of a whole IPv4 header anew.
inline void set_ipv4_checksum(uint8_t* ip) {
  store_be16(ip + kIpv4ChecksumOffset, 0);
  store_be16(ip + kIpv4ChecksumOffset, static_cast<uint16_t>(~sum_words(ip, (ip[0] & 15u) * 4)));
}

// Of a header whose version is 4 or 6.
inline bool is_ipv6(const uint8_t* ip) {
  return (ip[0] & 0x20) != 0;
}

// DSCP and ECN of either family.
inline uint8_t traffic_class(const uint8_t* ip) {
  return is_ipv6(ip) ? static_cast<uint8_t>(load_be16(ip) >> 4) : ip[kIpv4TosOffset];
}

inline uint8_t hop_limit(const uint8_t* ip) {
  return is_ipv6(ip) ? ip[kIpv6HopLimitOffset] : ip[kIpv4TtlOffset];
}

// Source and destination, one behind the other: 8 or 32 bytes.
inline const uint8_t* addresses_of(const uint8_t* ip) {
  return is_ipv6(ip) ? ip + kIpv6SourceOffset : ip + kIpv4SourceOffset;
}

// Sum of the pseudo-header that TCP, UDP and ICMPv6 put under their checksums, of either family.
inline uint16_t pseudo_header_sum(const uint8_t* ip, uint8_t protocol, uint32_t length) {
  const uint32_t addresses = is_ipv6(ip) ? 32 : 8;
  return fold_checksum(uint64_t{sum_words(addresses_of(ip), addresses)} + protocol +
                       (length & 0xffff) + (length >> 16));
}

}  // namespace maglev
