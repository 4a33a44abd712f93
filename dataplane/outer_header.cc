#include "dataplane/outer_header.h"

#include <algorithm>

#include "dataplane/parse.h"

namespace maglev {
namespace {

constexpr uint8_t kOuterHopLimit = 64;

bool is_gue(Encapsulation encapsulation) {
  return encapsulation == Encapsulation::kGueVariant0 ||
         encapsulation == Encapsulation::kGueVariant1;
}

// The header as bytes in order, before it is laid into its block.
struct Header {
  std::array<uint8_t, kIpv6Block> bytes{};
  uint32_t length = 0;

  uint8_t* append(uint32_t count) {
    uint8_t* start = bytes.data() + length;
    length += count;
    return start;
  }
};

uint8_t inner_protocol(const Way& way) {
  return way.inner == AddressFamily::kIpv6 ? kProtocolIpv6 : kProtocolIpInIp;
}

uint16_t inner_ether_type(const Way& way) {
  return way.inner == AddressFamily::kIpv6 ? kEtherTypeIpv6 : kEtherTypeIpv4;
}

uint8_t outer_protocol(const Way& way) {
  if (way.encapsulation == Encapsulation::kGre) return kProtocolGre;
  return is_gue(way.encapsulation) ? kProtocolUdp : inner_protocol(way);
}

void write_ethernet(Header& header, const BackendRecord& record, const PortFacts& port,
                    uint16_t ether_type) {
  uint8_t* ethernet = header.append(kEthernetHeaderLength);
  std::copy_n(record.next_hop_mac, 6, ethernet);
  std::copy_n(port.mac.data(), 6, ethernet + 6);
  store_be16(ethernet + kEtherTypeOffset, ether_type);
}

void write_outer_ip(Header& header, const BackendRecord& record, uint8_t protocol) {
  if (record.family == AddressFamily::kIpv4) {
    uint8_t* ip = header.append(kIpv4HeaderLength);
    ip[0] = 0x45;
    store_be16(ip + kIpv4FragmentOffset, kIpv4DontFragment);
    ip[kIpv4TtlOffset] = kOuterHopLimit;
    ip[kIpv4ProtocolOffset] = protocol;
    std::copy_n(record.outer_source.bytes.data(), 4, ip + kIpv4SourceOffset);
    std::copy_n(record.address.bytes.data(), 4, ip + kIpv4DestinationOffset);
    return;
  }
  uint8_t* ip = header.append(kIpv6HeaderLength);
  ip[0] = 0x60;
  ip[kIpv6NextHeaderOffset] = protocol;
  ip[kIpv6HopLimitOffset] = kOuterHopLimit;
  std::copy_n(record.outer_source.bytes.data(), 16, ip + kIpv6SourceOffset);
  std::copy_n(record.address.bytes.data(), 16, ip + kIpv6DestinationOffset);
}

void write_tunnel(Header& header, const Way& way) {
  if (way.encapsulation == Encapsulation::kGre) {
    store_be16(header.append(kGreHeaderLength) + 2, inner_ether_type(way));
  } else if (is_gue(way.encapsulation)) {
    store_be16(header.append(kUdpHeaderLength) + 2, way.gue_port);
  }
  if (way.encapsulation == Encapsulation::kGueVariant0) {
    header.append(kGueHeaderLength)[1] = inner_protocol(way);
  }
}

Wrapping wrapping_of(const BackendRecord& record, const Way& way) {
  if (way.encapsulation == Encapsulation::kLayer2) return Wrapping::kLayer2;
  if (record.family == AddressFamily::kIpv4) {
    return is_gue(way.encapsulation) ? Wrapping::kIpv4Udp : Wrapping::kIpv4;
  }
  return is_gue(way.encapsulation) ? Wrapping::kIpv6Udp : Wrapping::kIpv6;
}

// What a checksum over the finished header starts from.
uint16_t checksum_base(const Header& header, Wrapping wrapping) {
  const uint8_t* ip = header.bytes.data() + kEthernetHeaderLength;
  if (wrapping == Wrapping::kIpv4 || wrapping == Wrapping::kIpv4Udp) {
    return sum_words(ip, kIpv4HeaderLength);
  }
  if (wrapping != Wrapping::kIpv6Udp) return 0;
  const uint32_t udp_and_gue = header.length - kEthernetHeaderLength - kIpv6HeaderLength;
  return fold_checksum(uint64_t{pseudo_header_sum(ip, kProtocolUdp, 0)} +
                       sum_words(ip + kIpv6HeaderLength, udp_and_gue));
}

uint16_t max_packet_length(const BackendRecord& record, const PortFacts& port, uint32_t overhead) {
  uint32_t mtu = std::min<uint32_t>(port.mtu, 65535);
  if (record.path_mtu_bytes != 0) mtu = std::min<uint32_t>(mtu, record.path_mtu_bytes);
  return static_cast<uint16_t>(mtu > overhead ? mtu - overhead : 0);
}

}  // namespace

Way way_of(const VipRecord& vip) {
  return {vip.encapsulation, vip.family, vip.gue_port,
          is_gue(vip.encapsulation) && (vip.flags & kVipOuterChecksumZero) == 0};
}

BackendEntry make_backend_entry(const BackendRecord& record, const Way& way,
                                const PortFacts& port) {
  BackendEntry entry;
  const bool layer2 = way.encapsulation == Encapsulation::kLayer2;
  const bool reachable =
      record.family != AddressFamily::kNone && record.resolved != 0 &&
      (!layer2 || ((record.flags & kBackendOnLink) != 0 && record.family == way.inner));
  if (!reachable) return entry;
  Header header;
  const uint16_t ether_type =
      record.family == AddressFamily::kIpv6 ? kEtherTypeIpv6 : kEtherTypeIpv4;
  write_ethernet(header, record, port, ether_type);
  if (!layer2) {
    write_outer_ip(header, record, outer_protocol(way));
    write_tunnel(header, way);
  }
  entry.wrapping = wrapping_of(record, way);
  entry.checksum_base = checksum_base(header, entry.wrapping);
  entry.max_packet_length = max_packet_length(record, port, header.length - kEthernetHeaderLength);
  entry.resolved = entry.max_packet_length != 0;
  entry.port = record.port;
  entry.header_length = static_cast<uint8_t>(header.length);
  entry.udp_checksum = way.udp_checksum && entry.wrapping == Wrapping::kIpv6Udp;
  const uint32_t bits = record.family == AddressFamily::kIpv6 ? 128 : 32;
  if (!layer2) {
    entry.source_bits =
        static_cast<uint8_t>(std::min<uint32_t>(bits - record.outer_source_prefix_length, 32));
  }
  const uint32_t block = record.family == AddressFamily::kIpv6 && !layer2 ? kIpv6Block : kIpv4Block;
  const uint32_t start = layer2 ? 0 : block - header.length;
  std::copy_n(header.bytes.data(), header.length, entry.block.data() + start);
  return entry;
}

namespace wrapping {
namespace {

// Whether a transport checksum stands for the whole segment.
bool is_summed(uint8_t protocol, const uint8_t* segment, uint32_t length) {
  if (protocol == kProtocolTcp) return true;
  return protocol == kProtocolUdp && length >= kUdpHeaderLength &&
         load_be16(segment + kUdpLengthOffset) == length &&
         load_be16(segment + kUdpChecksumOffset) != 0;
}

}  // namespace

// Header and segment sum up to header - pseudo-header: the addresses cancel out, and of IPv6 the
// length too.
uint16_t sum_of_packet(const uint8_t* ip, uint32_t packet_length) {
  constexpr uint64_t kZero = 0xffff;  // of one's complement sums
  if (is_ipv6(ip)) {
    const uint8_t protocol = ip[kIpv6NextHeaderOffset];
    if (is_summed(protocol, ip + kIpv6HeaderLength, packet_length - kIpv6HeaderLength)) {
      return fold_checksum(kZero + load_be16(ip) + load_be16(ip + 2) +
                           load_be16(ip + kIpv6NextHeaderOffset) - protocol);
    }
  } else if (ip[0] == 0x45 && (load_be16(ip + kIpv4FragmentOffset) &
                               (kIpv4MoreFragments | kIpv4FragmentOffsetMask)) == 0) {
    const uint8_t protocol = ip[kIpv4ProtocolOffset];
    const uint32_t length = packet_length - kIpv4HeaderLength;
    if (is_summed(protocol, ip + kIpv4HeaderLength, length)) {
      return fold_checksum(2 * kZero + sum_words(ip, kIpv4SourceOffset) - protocol - length);
    }
  }
  return sum_words(ip, packet_length);
}

}  // namespace wrapping

}  // namespace maglev
