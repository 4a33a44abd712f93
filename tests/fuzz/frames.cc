#include "tests/fuzz/frames.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "dataplane/icmp.h"
#include "dataplane/packet.h"

namespace maglev::fuzz {
namespace {

enum class Payload : uint8_t { kServed, kTcp, kUdp, kEcho, kIcmpError, kOtherIcmp, kOther, kNotIp };

// A step of kind kFrame, read.
struct Recipe {
  explicit Recipe(const Step& step)
      : payload(static_cast<Payload>(step.a & 7)),
        fragment(step.a >> 3 & 3),
        headers(step.a >> 5),
        vip(step.b & 31),
        aside(step.b >> 5),
        source(step.c & 15),
        datagram(step.c >> 4),
        payload_bytes(step.d < 0xf000 ? step.d & 2047u : (step.d & 0xfffu) * 16),
        tags(step.e & 3),
        hop_limit(std::array<uint8_t, 4>{64, 1, 0, 2}[step.e >> 2 & 3]),
        dont_fragment((step.e >> 4 & 1) != 0),
        trailer(std::array<uint8_t, 4>{0, 1, 6, 18}[step.e >> 5 & 3]),
        partial_checksum((step.e >> 7 & 1) != 0),
        traffic(static_cast<uint8_t>(step.e >> 8 & 15)),
        length_lie(step.e >> 12 & 3),
        segmented((step.e >> 14 & 1) != 0),
        group((step.e >> 15 & 1) != 0) {}

  Payload payload;
  uint32_t fragment, headers, vip, aside, source, datagram, payload_bytes, tags;
  uint8_t hop_limit;
  bool dont_fragment;
  uint8_t trailer;
  bool partial_checksum;
  uint8_t traffic;
  uint32_t length_lie;
  bool segmented, group;
};

// Where the frame goes, as a client sees it.
struct Target {
  bool ipv6 = false;
  uint8_t protocol = kProtocolTcp;
  uint16_t port = 80;
  std::array<uint8_t, 16> address{};
  std::array<uint8_t, 16> client{};
  uint16_t client_port = 0;
};

Target target_of(const Recipe& recipe, std::span<const VipRecord> vips) {
  Target target;
  VipRecord vip{};
  vip.address = {{198, 51, 100, 10}};
  vip.family = AddressFamily::kIpv4;
  if (!vips.empty()) vip = vips[recipe.vip % vips.size()];
  target.ipv6 = (vip.family == AddressFamily::kIpv6) != (recipe.aside == 6);
  if (vip.protocol == VipProtocol::kUdp) target.protocol = kProtocolUdp;
  if (vip.protocol == VipProtocol::kTcpAndUdp && recipe.source % 2 == 1) {
    target.protocol = kProtocolUdp;
  }
  if (recipe.payload == Payload::kTcp) target.protocol = kProtocolTcp;
  if (recipe.payload == Payload::kUdp) target.protocol = kProtocolUdp;
  target.port = vip.port == kAnyPort ? uint16_t{8080} : vip.port;
  if (recipe.aside == 5) ++target.port;
  target.address = vip.address.bytes;
  const uint32_t last = target.ipv6 ? 15 : 3;
  if (vip.prefix_length < 8 * (last + 1))
    target.address[last] |= static_cast<uint8_t>(recipe.source);
  if (recipe.aside == 7) target.address[last] ^= 0xff;
  target.client = target.ipv6 ? std::array<uint8_t, 16>{0x20, 1, 0xd, 0xb8, 0xff}
                              : std::array<uint8_t, 16>{198, 18, 0};
  target.client[last] = static_cast<uint8_t>(2 + recipe.source);
  target.client_port = static_cast<uint16_t>(40000 + recipe.source);
  return target;
}

// Appends to a frame.
class Writer {
 public:
  explicit Writer(uint8_t* out) : start_(out) {}

  uint8_t* add(uint32_t count, uint8_t fill = 0) {
    uint8_t* bytes = start_ + length_;
    std::memset(bytes, fill, count);
    length_ += count;
    return bytes;
  }
  uint32_t length() const { return length_; }
  uint8_t* at(uint32_t offset) { return start_ + offset; }

 private:
  uint8_t* start_;
  uint32_t length_ = 0;
};

void write_link(Writer& out, const Recipe& recipe, bool ipv6) {
  uint8_t* macs = out.add(12);
  macs[0] = recipe.group ? 3 : 2;
  macs[5] = 1;
  macs[6] = 2;
  macs[11] = 99;
  const uint16_t tci[2] = {static_cast<uint16_t>(recipe.tags == 2 ? 0x6000 : 0x2064), 0x0065};
  if (recipe.tags != 0) {
    uint8_t* tag = out.add(4);
    store_be16(tag, recipe.tags == 3 ? kEtherTypeServiceVlan : kEtherTypeVlan);
    store_be16(tag + 2, tci[0]);
  }
  if (recipe.tags == 3) {
    uint8_t* tag = out.add(4);
    store_be16(tag, kEtherTypeVlan);
    store_be16(tag + 2, tci[1]);
  }
  constexpr uint16_t kEtherTypeArp = 0x0806;
  const uint16_t type = ipv6 ? kEtherTypeIpv6 : kEtherTypeIpv4;
  store_be16(out.add(2), recipe.payload == Payload::kNotIp ? kEtherTypeArp : type);
}

struct IpFields {
  bool ipv6;
  const uint8_t* source;
  const uint8_t* destination;
  uint8_t protocol;
  uint32_t headers;
  uint32_t fragment;
  uint32_t datagram;
  uint8_t hop_limit;
  uint8_t traffic;
  bool dont_fragment;
};

// Offsets in units of 8 bytes, as the field holds them. Parts are 512 bytes but for the last.
uint32_t fragment_offset(uint32_t fragment) {
  return fragment < 2 ? 0 : (fragment - 1) * 64;
}
bool more_fragments(uint32_t fragment) {
  return fragment == 1 || fragment == 2;
}

void write_ipv4(Writer& out, const IpFields& fields) {
  constexpr uint8_t kOptionWords[8] = {0, 1, 2, 3, 5, 7, 9, 10};
  const uint32_t words = kOptionWords[fields.headers];
  uint8_t* ip = out.add(kIpv4HeaderLength);
  ip[0] = static_cast<uint8_t>(0x45 + words);
  ip[kIpv4TosOffset] = fields.traffic;
  store_be16(ip + kIpv4IdOffset, static_cast<uint16_t>(fields.datagram));
  store_be16(ip + kIpv4FragmentOffset,
             static_cast<uint16_t>(fragment_offset(fields.fragment) |
                                   (more_fragments(fields.fragment) ? kIpv4MoreFragments : 0) |
                                   (fields.dont_fragment ? kIpv4DontFragment : 0)));
  ip[kIpv4TtlOffset] = fields.hop_limit;
  ip[kIpv4ProtocolOffset] = fields.protocol;
  std::memcpy(ip + kIpv4SourceOffset, fields.source, 4);
  std::memcpy(ip + kIpv4DestinationOffset, fields.destination, 4);
  for (uint32_t word = 0; word < words; ++word) {
    // By turns an option that fragments copy and one that they do not, each behind a no-operation.
    uint8_t* option = out.add(4);
    option[0] = 1;
    option[1] = word % 2 == 0 ? 0x82 : 0x44;
    option[2] = 3;
  }
}

// Kinds of the extension headers before the fragment header, and behind it.
struct Chain {
  std::array<uint8_t, 9> before{};
  uint32_t before_count = 0;
  bool destination_options_behind = false;
};

Chain chain_of(uint32_t headers) {
  switch (headers) {
    case 1:
      return {{kProtocolHopByHop}, 1};
    case 2:
      return {{kProtocolRouting}, 1};
    case 3:
      return {{}, 0, true};
    case 4:
      return {{kProtocolAuthentication}, 1};
    case 5:
      return {{kProtocolHopByHop, kProtocolDestinationOptions, kProtocolRouting}, 3};
    case 6: {
      Chain chain{{}, 7};
      chain.before.fill(kProtocolDestinationOptions);
      return chain;
    }
    case 7: {
      Chain chain{{}, 9};
      chain.before.fill(kProtocolDestinationOptions);
      return chain;
    }
    default:
      return {};
  }
}

void write_ipv6(Writer& out, const IpFields& fields) {
  uint8_t* ip = out.add(kIpv6HeaderLength);
  store_be32(ip, 6u << 28 | uint32_t{fields.traffic} << 20);
  ip[kIpv6HopLimitOffset] = fields.hop_limit;
  std::memcpy(ip + kIpv6SourceOffset, fields.source, 16);
  std::memcpy(ip + kIpv6DestinationOffset, fields.destination, 16);
  uint8_t* next = ip + kIpv6NextHeaderOffset;
  const auto add_extension = [&](uint8_t kind, uint32_t length) {
    *next = kind;
    next = out.add(length);
    return next;
  };
  const Chain chain = chain_of(fields.headers);
  for (uint32_t i = 0; i < chain.before_count; ++i) {
    uint8_t* extension = add_extension(chain.before[i], i == 0 ? 16 : 8);
    // Of AH in words of 4 bytes less 2, of the others in words of 8 less 1.
    if (i == 0) extension[1] = chain.before[0] == kProtocolAuthentication ? 2 : 1;
  }
  if (fields.fragment != 0) {
    uint8_t* extension = add_extension(kProtocolFragment, kIpv6FragmentHeaderLength);
    store_be16(extension + 2, static_cast<uint16_t>(fragment_offset(fields.fragment) << 3 |
                                                    (more_fragments(fields.fragment) ? 1 : 0)));
    store_be32(extension + 4, fields.datagram);
  }
  if (chain.destination_options_behind) {
    add_extension(kProtocolDestinationOptions, 8);
  }
  *next = fields.protocol;
}

// Returns where the transport header goes.
uint32_t write_ip(Writer& out, const IpFields& fields) {
  if (fields.ipv6) {
    write_ipv6(out, fields);
  } else {
    write_ipv4(out, fields);
  }
  return out.length();
}

void write_transport(Writer& out, const Target& target, bool to_client, uint32_t payload_bytes) {
  const bool udp = target.protocol == kProtocolUdp;
  uint8_t* header = out.add(udp ? kUdpHeaderLength : kTcpHeaderLength);
  store_be16(header, to_client ? target.port : target.client_port);
  store_be16(header + 2, to_client ? target.client_port : target.port);
  if (udp) {
    store_be16(header + kUdpLengthOffset, static_cast<uint16_t>(kUdpHeaderLength + payload_bytes));
  } else {
    header[12] = 0x50;
  }
  out.add(payload_bytes, 0x5a);
}

// What a router on the way back to the client complains about.
void write_quote(Writer& out, const Recipe& recipe, const Target& target) {
  const uint32_t ip = out.length();
  const IpFields fields{target.ipv6,          target.address.data(),
                        target.client.data(), target.protocol,
                        recipe.headers,       recipe.fragment,
                        recipe.datagram,      60,
                        recipe.traffic,       true};
  const uint32_t transport = write_ip(out, fields);
  write_transport(out, target, true, recipe.payload_bytes);
  uint8_t* header = out.at(ip);
  const uint32_t length = out.length() - ip;
  if (target.ipv6) {
    store_be16(header + kIpv6PayloadLengthOffset,
               static_cast<uint16_t>(length - kIpv6HeaderLength));
  } else {
    store_be16(header + kIpv4TotalLengthOffset, static_cast<uint16_t>(length));
  }
  if (recipe.fragment >= 2) std::memset(out.at(transport), 0x5a, kUdpHeaderLength);
}

void write_icmp(Writer& out, const Recipe& recipe, const Target& target) {
  constexpr uint8_t kErrors4[4] = {kIcmpUnreachable, kIcmpTimeExceeded, kIcmpParameterProblem, 4};
  uint8_t* icmp = out.add(kIcmpHeaderLength);
  if (recipe.payload == Payload::kIcmpError) {
    icmp[0] =
        target.ipv6 ? static_cast<uint8_t>(1 + recipe.datagram % 5) : kErrors4[recipe.datagram % 4];
    icmp[1] = icmp[0] == kIcmpUnreachable ? kIcmpFragmentationNeeded : uint8_t{0};
    write_quote(out, recipe, target);
  } else {
    constexpr uint8_t kTimestamp = 13, kNeighbourSolicitation = 135;
    const bool echo = recipe.payload == Payload::kEcho;
    icmp[0] = target.ipv6 ? (echo ? kIcmpv6EchoRequest : kNeighbourSolicitation)
                          : (echo ? kIcmpEchoRequest : kTimestamp);
    out.add(recipe.payload_bytes, 0x5a);
  }
}

uint8_t protocol_of(const Recipe& recipe, const Target& target) {
  switch (recipe.payload) {
    case Payload::kEcho:
    case Payload::kIcmpError:
    case Payload::kOtherIcmp:
      return target.ipv6 ? kProtocolIcmpv6 : kProtocolIcmp;
    case Payload::kOther:
      return kProtocolGre;
    default:
      return target.protocol;
  }
}

void set_transport_checksum(uint8_t* ip, uint8_t* segment, uint32_t length, uint8_t protocol,
                            bool partial) {
  const bool ipv6 = is_ipv6(ip);
  uint32_t offset = kIcmpChecksumOffset;
  if (protocol == kProtocolTcp) offset = kTcpChecksumOffset;
  if (protocol == kProtocolUdp) offset = kUdpChecksumOffset;
  const bool pseudo_counts = protocol != kProtocolIcmp;
  const uint16_t pseudo = pseudo_counts ? pseudo_header_sum(ip, protocol, length) : uint16_t{0};
  const auto whole =
      static_cast<uint16_t>(~fold_checksum(uint64_t{pseudo} + sum_words(segment, length)));
  store_be16(segment + offset, partial ? pseudo : (whole == 0 && ipv6 ? uint16_t{0xffff} : whole));
}

}  // namespace

Frame make_frame(const Step& step, std::span<const VipRecord> vips, uint8_t* bytes) {
  const Recipe recipe(step);
  const Target target = target_of(recipe, vips);
  const uint8_t protocol = protocol_of(recipe, target);
  Writer out(bytes);
  write_link(out, recipe, target.ipv6);
  Frame frame;
  frame.ip = out.length();
  const bool error = recipe.payload == Payload::kIcmpError;
  frame.transport =
      write_ip(out, {target.ipv6, target.client.data(), target.address.data(), protocol,
                     error ? 0 : recipe.headers, error ? 0 : recipe.fragment, recipe.datagram,
                     recipe.hop_limit, recipe.traffic, recipe.dont_fragment});
  const bool later = !error && recipe.fragment >= 2;
  const bool ports = protocol == kProtocolTcp || protocol == kProtocolUdp;
  const bool icmp = protocol == kProtocolIcmp || protocol == kProtocolIcmpv6;
  if (later || (!ports && !icmp)) {
    out.add(recipe.payload_bytes, 0x5a);
  } else if (ports) {
    write_transport(out, target, false, recipe.payload_bytes);
  } else {
    write_icmp(out, recipe, target);
  }
  uint8_t* ip = out.at(frame.ip);
  const uint32_t packet_length = std::min(out.length() - frame.ip, 65535u);
  constexpr int32_t kLies[4] = {0, 1, -1, 0};
  const auto lie = static_cast<uint32_t>(kLies[recipe.length_lie]);
  const uint32_t header_part = target.ipv6 ? kIpv6HeaderLength : 0;
  store_be16(ip + (target.ipv6 ? kIpv6PayloadLengthOffset : kIpv4TotalLengthOffset),
             static_cast<uint16_t>(recipe.length_lie == 3 ? 0 : packet_length - header_part + lie));
  if (!target.ipv6) set_ipv4_checksum(ip);
  if (!later && (ports || icmp)) {
    set_transport_checksum(ip, out.at(frame.transport), out.length() - frame.transport, protocol,
                           recipe.partial_checksum);
  }
  out.add(recipe.trailer, 0xee);
  frame.length = out.length();
  frame.segmented = recipe.segmented;
  return frame;
}

}  // namespace maglev::fuzz
