// What goes in front of a packet on its way to a backend, by the VIP's encapsulation.
//
// The main thread makes one BackendEntry per backend and way: a header ready but for what differs
// from packet to packet. A worker copies it in front of the packet and fills these in. Headers lie
// right-aligned in blocks of a fixed size, so the copy is a few fixed-size moves whatever is in
// them; what the copy writes in front of the frame is headroom.
//
// Of every encapsulation: the inner hop limit goes down by one (RFC 2003, section 3.1; RFC 2473,
// section 3.1); DSCP and ECN are copied outwards (RFC 6040, normal mode). The outer packet is never
// cut: IPv4 with DF and identification 0 (RFC 6864). Per flow, from bits of the hash that do not
// choose the slot: the UDP source port of GUE, the IPv6 flow label (RFC 6438), and the outer
// source's bits beyond its prefix.
//
// Sources: RFC 2003 and RFC 2473 (IP in IP), RFC 2784 (GRE), draft-ietf-intarea-gue-09 (GUE),
// RFC 6935 and RFC 6936 (UDP checksums of tunnels over IPv6).
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "dataplane/packet.h"
#include "tables/published.h"

namespace maglev {

// Which headers stand in front, by what has to be filled in.
enum class Wrapping : uint8_t { kIpv4, kIpv4Udp, kIpv6, kIpv6Udp, kLayer2 };

inline constexpr uint32_t kIpv4Block = 48;  // longest: Ethernet, IPv4, UDP, GUE: 46
inline constexpr uint32_t kIpv6Block = 80;  // longest: Ethernet, IPv6, UDP, GUE: 66
inline constexpr uint32_t kGueHeaderLength = 4;
inline constexpr uint32_t kGreHeaderLength = 4;

// All that is common to the packets that go one way to a backend: with an IPv4 header, one cache
// line.
struct alignas(64) BackendEntry {
  uint32_t counter = 0;            // index into WorkerCounters::backends
  uint16_t max_packet_length = 0;  // longest IP packet that fits; 0 while unresolved
  uint16_t checksum_base = 0;      // of IPv4: of the header below; of UDP over IPv6: what is fixed
  uint16_t port = 0;               // index of the port to send on
  uint8_t header_length = 0;       // of the whole header, Ethernet included
  Wrapping wrapping = Wrapping::kIpv4;
  bool resolved = false;
  bool udp_checksum = false;
  uint8_t source_bits = 0;  // of the outer source, chosen per flow; at most 32
  // The first kIpv4Block or kIpv6Block bytes are the block; lengths, checksums and what is chosen
  // per flow are zero in it.
  alignas(16) std::array<uint8_t, kIpv6Block> block{};
};
static_assert(sizeof(BackendEntry) == 128);

// The way out of the host, as far as headers depend on it.
struct PortFacts {
  std::array<uint8_t, 6> mac{};
  uint32_t mtu = 0;
  bool operator==(const PortFacts&) const = default;
};

// What of a VIP decides how its packets are wrapped.
struct Way {
  Encapsulation encapsulation = Encapsulation::kIpInIp;
  AddressFamily inner = AddressFamily::kIpv4;
  uint16_t gue_port = 0;
  bool udp_checksum = false;
  auto operator<=>(const Way&) const = default;
};
Way way_of(const VipRecord& vip);

// The entry of a backend whose counter is set by the caller. Unresolved where the record says so,
// and for layer-2 rewriting where the backend is not on the link. port belongs to record.port.
BackendEntry make_backend_entry(const BackendRecord& record, const Way& way, const PortFacts& port);

// Bits for what differs from flow to flow: none of them alone tells the slot.
inline uint32_t entropy_of(uint64_t hash) {
  return static_cast<uint32_t>((hash * 0x9e3779b97f4a7c15u) >> 32);
}

namespace wrapping {

// Sum over a whole packet for the UDP checksum around it. Where the packet is TCP or UDP and not a
// fragment its own checksum makes the sum known without reading the payload: a right IPv4 header
// sums up to zero, and a right segment to the complement of its pseudo-header.
uint16_t sum_of_packet(const uint8_t* ip, uint32_t packet_length);

inline uint32_t source_entropy(const BackendEntry& e, uint64_t hash) {
  return static_cast<uint32_t>(uint64_t{entropy_of(hash)} & ((uint64_t{1} << e.source_bits) - 1));
}

inline void fill_ports(uint8_t* udp, uint64_t hash, uint32_t udp_length) {
  store_be16(udp, static_cast<uint16_t>(0xc000 | entropy_of(hash) >> 18));  // RFC 6335: dynamic
  store_be16(udp + kUdpLengthOffset, static_cast<uint16_t>(udp_length));
}

inline void fill_ipv4(uint8_t* outer, const BackendEntry& e, uint8_t tos, uint32_t length,
                      uint64_t hash) {
  outer[kIpv4TosOffset] = tos;
  store_be16(outer + kIpv4TotalLengthOffset, static_cast<uint16_t>(length));
  uint32_t sum = uint32_t{e.checksum_base} + tos + length;
  if (e.source_bits != 0) [[unlikely]] {
    const uint32_t chosen = source_entropy(e, hash);
    store_be32(outer + kIpv4SourceOffset, load_be32(outer + kIpv4SourceOffset) | chosen);
    sum += (chosen >> 16) + (chosen & 0xffff);
  }
  // Upper and lower half added into both halves: the carry out of the lower one comes round.
  const uint32_t folded = sum + std::rotl(sum, 16);
  store_be16(outer + kIpv4ChecksumOffset, static_cast<uint16_t>(~folded >> 16));
}

inline void fill_ipv6(uint8_t* outer, const BackendEntry& e, uint8_t traffic, uint32_t length,
                      uint64_t hash) {
  store_be32(outer, 6u << 28 | uint32_t{traffic} << 20 | entropy_of(hash) >> 12);
  store_be16(outer + kIpv6PayloadLengthOffset, static_cast<uint16_t>(length - kIpv6HeaderLength));
  if (e.source_bits != 0) [[unlikely]] {
    uint8_t* low = outer + kIpv6DestinationOffset - 4;
    store_be32(low, load_be32(low) | source_entropy(e, hash));
  }
}

inline void fill_udp6_checksum(uint8_t* udp, const BackendEntry& e, uint32_t udp_length,
                               const uint8_t* inner, uint32_t packet_length, uint64_t hash) {
  const uint32_t chosen = source_entropy(e, hash);
  const uint64_t sum = uint64_t{e.checksum_base} + load_be16(udp) + 2 * uint64_t{udp_length} +
                       (chosen >> 16) + (chosen & 0xffff) + sum_of_packet(inner, packet_length);
  const auto checksum = static_cast<uint16_t>(~fold_checksum(sum));
  store_be16(udp + kUdpChecksumOffset, checksum == 0 ? uint16_t{0xffff} : checksum);
}

}  // namespace wrapping

// Lowers the hop limit; returns DSCP and ECN.
inline uint8_t lower_hop_limit(uint8_t* ip) {
  if (is_ipv6(ip)) {
    --ip[kIpv6HopLimitOffset];
    return traffic_class(ip);
  }
  decrement_ttl(ip);
  return ip[kIpv4TosOffset];
}

// Puts the header in front of the IP packet at `inner`, whose hop limit it lowers; returns where
// the frame starts now. kIpv6Block bytes in front of the packet may be written.
inline uint8_t* wrap(uint8_t* inner, uint32_t packet_length, const BackendEntry& e,
                     const uint64_t& hash) {
  const uint8_t traffic = lower_hop_limit(inner);
  uint8_t* frame = inner - e.header_length;
  uint8_t* outer = frame + kEthernetHeaderLength;
  const uint32_t length = packet_length + e.header_length - kEthernetHeaderLength;
  if (e.wrapping == Wrapping::kIpv4) [[likely]] {
    std::memcpy(inner - kIpv4Block, e.block.data(), kIpv4Block);
    wrapping::fill_ipv4(outer, e, traffic, length, hash);
  } else if (e.wrapping == Wrapping::kIpv4Udp) {
    std::memcpy(inner - kIpv4Block, e.block.data(), kIpv4Block);
    wrapping::fill_ipv4(outer, e, traffic, length, hash);
    wrapping::fill_ports(outer + kIpv4HeaderLength, hash, length - kIpv4HeaderLength);
  } else if (e.wrapping == Wrapping::kLayer2) {
    std::memcpy(frame, e.block.data(), kEthernetHeaderLength);
  } else {
    std::memcpy(inner - kIpv6Block, e.block.data(), kIpv6Block);
    wrapping::fill_ipv6(outer, e, traffic, length, hash);
    if (e.wrapping == Wrapping::kIpv6Udp) {
      uint8_t* const udp = outer + kIpv6HeaderLength;
      const uint32_t udp_length = length - kIpv6HeaderLength;
      wrapping::fill_ports(udp, hash, udp_length);
      if (e.udp_checksum) {
        wrapping::fill_udp6_checksum(udp, e, udp_length, inner, packet_length, hash);
      }
    }
  }
  return frame;
}

// Puts an 802.1Q tag behind the MAC addresses of a frame, 4 bytes of room in front of it; returns
// where the frame starts now.
inline uint8_t* insert_tag(uint8_t* frame, uint16_t tag) {
  std::memmove(frame - kVlanTagLength, frame, kEtherTypeOffset);
  frame -= kVlanTagLength;
  store_be16(frame + kEtherTypeOffset, kEtherTypeVlan);
  store_be16(frame + kEtherTypeOffset + 2, tag);
  return frame;
}

}  // namespace maglev
