#include "dataplane/uncommon.h"

#include <algorithm>
#include <optional>

#include "dataplane/icmp.h"
#include "dataplane/parse.h"
#include "dataplane/track_flows.h"
#include "tables/flow_hash.h"

namespace maglev {
namespace {

// A flow in the direction of the client's packets. Addresses point into the packet.
struct FlowTuple {
  bool ipv6;
  const uint8_t* source;
  const uint8_t* destination;
  uint16_t source_port_be = 0;
  uint16_t destination_port_be = 0;
  uint8_t protocol = 0;
};

template <typename Key>
uint64_t hash_key(const Key& key, FlowHash kind, uint64_t seed) {
  return kind == FlowHash::kSource ? hash_source(key, seed) : hash_flow(key, seed);
}

uint64_t hash_tuple(const FlowTuple& flow, FlowHash kind, uint64_t seed) {
  const bool ports = kind == FlowHash::kFiveTuple;
  const uint16_t source_port = ports ? flow.source_port_be : uint16_t{0};
  const uint16_t destination_port = ports ? flow.destination_port_be : uint16_t{0};
  if (!flow.ipv6) {
    const FlowKey4 key{load<uint32_t>(flow.source), load<uint32_t>(flow.destination), source_port,
                       destination_port, flow.protocol};
    return hash_key(key, kind, seed);
  }
  FlowKey6 key{};
  std::memcpy(key.source, flow.source, 16);
  std::memcpy(key.destination, flow.destination, 16);
  key.source_port_be = source_port;
  key.destination_port_be = destination_port;
  key.protocol = flow.protocol;
  return hash_key(key, kind, seed);
}

FlowTuple addresses_of_flow(const uint8_t* ip) {
  const uint8_t* addresses = addresses_of(ip);
  const bool ipv6 = is_ipv6(ip);
  return {ipv6, addresses, addresses + (ipv6 ? 16 : 4)};
}

void set_ports(FlowTuple& flow, const uint8_t* ports) {
  flow.source_port_be = load<uint16_t>(ports);
  flow.destination_port_be = load<uint16_t>(ports + 2);
}

// The packet that a quote answers: what the backend sent, turned round.
void turn_round(FlowTuple& flow) {
  std::swap(flow.source, flow.destination);
  std::swap(flow.source_port_be, flow.destination_port_be);
}

bool carries_ports(uint8_t protocol) {
  return protocol == kProtocolTcp || protocol == kProtocolUdp;
}

uint32_t transport_header_length(uint8_t protocol) {
  return protocol == kProtocolTcp ? kTcpHeaderLength : kUdpHeaderLength;
}

const VipEntry* fragments_vip(const AddressEntry& address, uint8_t protocol) {
  if (protocol == kProtocolTcp) return address.tcp_fragments;
  return protocol == kProtocolUdp ? address.udp_fragments : nullptr;
}

// What one uncommon packet is, and the tables it is looked up in.
class Classifier {
 public:
  Classifier(Burst& burst, uint32_t number, const Snapshot& snapshot, PathState& state)
      : b_(burst), i_(number), snapshot_(snapshot), state_(state) {}

  Verdict run() {
    const auto link = parse_link(b_.frame[i_], b_.length[i_]);
    if (!link) return Verdict::kMalformed;
    link_ = *link;
    if (link_.ether_type != kEtherTypeIpv4 && link_.ether_type != kEtherTypeIpv6) {
      return Verdict::kNotIp;
    }
    ip_ = b_.frame[i_] + link_.length;
    const uint32_t available = b_.length[i_] - link_.length;
    const Verdict parsed = link_.ether_type == kEtherTypeIpv6
                               ? parse_ipv6(ip_, available, false, header_)
                               : parse_ipv4(ip_, available, false, header_);
    if (parsed != Verdict::kForwarded) return parsed;
    flow_ = addresses_of_flow(ip_);
    flow_.protocol = header_.protocol;
    b_.ip[i_] = ip_;
    b_.packet_length[i_] = header_.packet_length;
    b_.tag[i_] = link_.tag ? *link_.tag : kNoTag;
    if (header_.fragment) return fragment();
    if (carries_ports(header_.protocol)) return transport();
    if (header_.protocol == (flow_.ipv6 ? kProtocolIcmpv6 : kProtocolIcmp)) return icmp();
    return unsupported();
  }

 private:
  const VipTable& table() const { return snapshot_.vip_table(); }

  Service find_service() const {
    return table().find(flow_.ipv6, flow_.destination, flow_.destination_port_be, flow_.protocol);
  }

  const AddressEntry* find_address() const {
    return table().find(flow_.ipv6, flow_.destination, kAnyPort, 0).address;
  }

  // The packet belongs to this VIP. transport is its TCP or UDP header; null: it has none and only
  // follows its flow.
  Verdict take(const VipEntry& vip, const uint8_t* transport) {
    b_.vip[i_] = &vip;
    b_.hash[i_] = hash_tuple(flow_, vip.flow_hash, snapshot_.hash_seed());
    b_.slot[i_] = slot_address(vip, b_.hash[i_]);
    if (vip.tracking->mode != Tracking::kNone) read_flow(*vip.tracking, transport);
    if (hop_limit(ip_) > 1) return Verdict::kForwarded;
    b_.undeliverable = true;
    return Verdict::kTtlExpired;
  }

  void read_flow(const VipTracking& tracking, const uint8_t* transport) {
    FlowPacket& flow = b_.flow[i_];
    flow = {};
    flow.second_hash =
        hash_tuple(flow_, tracking.by_addresses ? FlowHash::kAddresses : FlowHash::kFiveTuple,
                   second_seed(snapshot_.hash_seed()));
    flow.only_follows = transport == nullptr;
    if (transport == nullptr) return;
    const TransportKind read = kind_of_packet(flow_.protocol, transport, tracking.by_addresses);
    flow.kind = read.kind;
    flow.opening = read.opening;
  }

  Verdict unsupported() const {
    const AddressEntry* address = find_address();
    if (address == nullptr) return Verdict::kNoVip;
    return address->unserved_to_kernel ? Verdict::kForKernel : Verdict::kUnsupportedProtocol;
  }

  // The transport header is there, whole.
  Verdict transport() {
    if (header_.packet_length <
        header_.transport_offset + transport_header_length(header_.protocol)) {
      return Verdict::kMalformed;
    }
    const uint8_t* const header = ip_ + header_.transport_offset;
    set_ports(flow_, header);
    return serve(header);
  }

  Verdict serve(const uint8_t* transport) {
    const Service service = find_service();
    if (service.address == nullptr) return Verdict::kNoVip;
    if (service.vip != nullptr) return take(*service.vip, transport);
    return service.address->unserved_to_kernel ? Verdict::kForKernel : Verdict::kUnservedPort;
  }

  // Of an IPv6 datagram whose transport stands behind extension headers only the first fragment
  // tells which it is.
  bool may_carry_ports() const {
    return carries_ports(header_.protocol) ||
           (header_.later_fragment && header_.protocol == kProtocolDestinationOptions);
  }

  Verdict fragment() {
    const AddressEntry* address = find_address();
    if (address == nullptr) return Verdict::kNoVip;
    if (!may_carry_ports()) return unsupported();
    if (const VipEntry* vip = fragments_vip(*address, header_.protocol)) {
      return header_.later_fragment ? take(*vip, nullptr) : transport();
    }
    if (!address->fragments_by_flow) {
      return header_.later_fragment ? Verdict::kUnservedPort : transport();
    }
    return fragment_of_flow();
  }

  Verdict fragment_of_flow() {
    const DatagramKey key = DatagramKey::of(ip_, header_);
    const uint64_t hash = key.hash(snapshot_.hash_seed());
    const uint32_t owner = static_cast<uint32_t>((hash >> 32) % state_.workers);
    if (owner != state_.worker && b_.source == BurstSource::kDevice) {
      b_.out_port[i_] = static_cast<uint16_t>(owner);
      return Verdict::kHandedOver;
    }
    if (header_.later_fragment) return later_fragment(key, hash);
    const Verdict verdict = transport();
    if (verdict != Verdict::kMalformed) {
      const auto ports = load<uint32_t>(ip_ + header_.transport_offset);
      state_.fragments.learn(key, hash, {ports, header_.protocol}, b_.now_ns);
    }
    return verdict;
  }

  Verdict later_fragment(const DatagramKey& key, uint64_t hash) {
    const auto first = state_.fragments.find_transport(key, hash, b_.now_ns);
    if (!first) {
      const HeldFrame frame{b_.buffer[i_], b_.frame[i_], b_.length[i_], Verdict::kForwarded};
      return state_.fragments.hold(key, hash, frame, b_.now_ns) ? Verdict::kHeld
                                                                : Verdict::kFragmentOverflow;
    }
    flow_.protocol = first->protocol;
    uint8_t ports[4];
    store(ports, first->ports);
    set_ports(flow_, ports);
    return serve(nullptr);
  }

  Verdict icmp() {
    if (header_.packet_length < header_.transport_offset + kIcmpHeaderLength) {
      return Verdict::kMalformed;
    }
    const AddressEntry* address = find_address();
    if (address == nullptr) return Verdict::kNoVip;
    const uint8_t type = ip_[header_.transport_offset];
    if (is_icmp_error(flow_.ipv6, type)) return icmp_error();
    if (is_echo_request(flow_.ipv6, type)) return echo(*address);
    return unsupported();
  }

  // Follows the flow of the packet it quotes: one that the VIP sent.
  Verdict icmp_error() {
    const uint32_t quote_offset = header_.transport_offset + kIcmpHeaderLength;
    const uint8_t* quote = ip_ + quote_offset;
    const uint32_t available = header_.packet_length - quote_offset;
    IpHeader quoted;
    const bool readable = parse_ip(quote, available, true, quoted) == Verdict::kForwarded &&
                          is_ipv6(quote) == flow_.ipv6 && carries_ports(quoted.protocol);
    if (!readable) return Verdict::kIcmpUnmatched;
    FlowTuple flow = addresses_of_flow(quote);
    flow.protocol = quoted.protocol;
    if (std::memcmp(flow.source, flow_.destination, flow_.ipv6 ? 16 : 4) != 0) {
      return Verdict::kIcmpUnmatched;
    }
    if (!quoted.later_fragment) {
      if (available < quoted.transport_offset + 4) return Verdict::kIcmpUnmatched;
      set_ports(flow, quote + quoted.transport_offset);
    }
    turn_round(flow);
    flow_ = flow;
    const Service service = find_service();
    const VipEntry* vip = quoted.later_fragment && service.address != nullptr
                              ? fragments_vip(*service.address, flow.protocol)
                              : service.vip;
    return vip == nullptr ? Verdict::kIcmpUnmatched : take(*vip, nullptr);
  }

  Verdict echo(const AddressEntry& address) {
    if (address.echo_to_kernel) return Verdict::kForKernel;
    if (!flow_.ipv6 && !is_ipv4_checksum_right(ip_)) return Verdict::kMalformed;
    const uint8_t* message = ip_ + header_.transport_offset;
    const uint32_t length = header_.packet_length - header_.transport_offset;
    const uint32_t pseudo = flow_.ipv6 ? pseudo_header_sum(ip_, kProtocolIcmpv6, length) : 0;
    if (fold_checksum(uint64_t{pseudo} + sum_words(message, length)) != 0xffff) {
      return Verdict::kMalformed;
    }
    const Offender request{b_.frame[i_], link_, header_};
    if (!may_be_answered(request)) return unsupported();
    if (!state_.echo_limit.allows(b_.now_ns)) return Verdict::kEchoLimited;
    OutFrame* reply = state_.outbox.add(link_.length + header_.packet_length);
    if (reply == nullptr) return Verdict::kNoBuffer;
    reply->length = write_echo_reply(request, reply->frame);
    reply->port = b_.in_port;
    reply->origin = Origin::kEchoReply;
    return Verdict::kEchoAnswered;
  }

  Burst& b_;
  const uint32_t i_;
  const Snapshot& snapshot_;
  PathState& state_;
  LinkHeader link_;
  IpHeader header_;
  uint8_t* ip_ = nullptr;
  FlowTuple flow_{};
};

// One ICMP error about a packet that the pipeline has read before, in the form it came in.
void answer(Burst& b, uint32_t i, PathState& state) {
  Offender offender{b.frame[i], *parse_link(b.frame[i], b.length[i]), {}};
  parse_ip(b.ip[i], b.packet_length[i], false, offender.header);
  if (!may_be_answered(offender)) return;
  if (!state.error_limit.allows(b.now_ns)) {
    ++state.errors_limited;
    return;
  }
  OutFrame* out = state.outbox.add(kErrorRoom);
  if (out == nullptr) {
    ++state.errors_unbuffered;
    return;
  }
  const bool expired = b.verdict[i] == Verdict::kTtlExpired;
  out->length = expired ? write_time_exceeded(offender, out->frame)
                        : write_too_big(offender, b.backend[i]->max_packet_length, out->frame);
  out->port = b.in_port;
  out->origin = expired ? Origin::kTimeExceeded : Origin::kPacketTooBig;
}

// RFC 791, section 3.1: options that every fragment carries have the first bit of their kind set.
// Writes those of a header behind a new one; returns the length of that header.
uint32_t copy_header_of_later_fragment(const uint8_t* ip, uint8_t* out) {
  constexpr uint8_t kEnd = 0, kNoOperation = 1, kCopied = 0x80;
  std::memcpy(out, ip, kIpv4HeaderLength);
  const uint32_t header_length = (ip[0] & 15u) * 4;
  uint32_t length = kIpv4HeaderLength;
  for (uint32_t at = kIpv4HeaderLength; at < header_length && ip[at] != kEnd;) {
    if (ip[at] == kNoOperation) {
      ++at;
      continue;
    }
    if (at + 1 >= header_length || ip[at + 1] < 2 || at + ip[at + 1] > header_length) break;
    if ((ip[at] & kCopied) != 0) {
      std::memcpy(out + length, ip + at, ip[at + 1]);
      length += ip[at + 1];
    }
    at += ip[at + 1];
  }
  while (length % 4 != 0) out[length++] = kEnd;
  out[0] = static_cast<uint8_t>(0x40 | length / 4);
  return length;
}

void finish_fragment(uint8_t* ip, uint32_t length, uint32_t offset_bytes, bool more) {
  store_be16(ip + kIpv4TotalLengthOffset, static_cast<uint16_t>(length));
  store_be16(ip + kIpv4FragmentOffset,
             static_cast<uint16_t>((more ? kIpv4MoreFragments : 0) | offset_bytes / 8));
  set_ipv4_checksum(ip);
}

// A whole packet with "don't fragment" may have any identification, often 0 (RFC 6864,
// section 4.1): its parts get one that others under way do not have. Counted on, from where the
// flow and the worker say, so that neither two workers nor two hosts give the same ones in turn.
void identify_parts(uint8_t* ip, uint64_t hash, PathState& state) {
  constexpr uint16_t kReserved = 0x8000;
  if ((load_be16(ip + kIpv4FragmentOffset) & ~kReserved) != kIpv4DontFragment) return;
  store_be16(ip + kIpv4IdOffset,
             static_cast<uint16_t>(entropy_of(hash) + state.next_identification++));
}

uint8_t* wrap_with_tag(uint8_t* ip, uint32_t length, int32_t tag, const BackendEntry& backend,
                       uint64_t hash) {
  uint8_t* frame = wrap(ip, length, backend, hash);
  return tag == kNoTag ? frame : insert_tag(frame, static_cast<uint16_t>(tag));
}

// Cuts an IPv4 packet into fragments that fit (RFC 791, section 3.2). The first takes the packet's
// own buffer, the others new ones.
Verdict cut(Burst& b, uint32_t i, PathState& state) {
  uint8_t* ip = b.ip[i];
  if (!is_ipv4_checksum_right(ip)) return Verdict::kMalformed;
  const BackendEntry& backend = *b.backend[i];
  const uint32_t header_length = (ip[0] & 15u) * 4;
  if (backend.max_packet_length < header_length + 8) return Verdict::kTooBig;
  const uint32_t payload = b.packet_length[i] - header_length;
  const uint32_t part = (backend.max_packet_length - header_length) / 8 * 8;
  const uint16_t field = load_be16(ip + kIpv4FragmentOffset);
  const uint32_t first_offset = (field & kIpv4FragmentOffsetMask) * 8u;
  const bool more_follow = (field & kIpv4MoreFragments) != 0;
  const uint32_t tag_length = b.tag[i] == kNoTag ? 0 : kVlanTagLength;
  identify_parts(ip, b.hash[i], state);
  for (uint32_t at = part; at < payload; at += part) {
    const uint32_t length = std::min(part, payload - at);
    OutFrame* out = state.outbox.add(kEthernetHeaderLength + header_length + length);
    if (out == nullptr) return Verdict::kNoBuffer;
    uint8_t* out_ip = out->frame + kEthernetHeaderLength;
    const uint32_t out_header = copy_header_of_later_fragment(ip, out_ip);
    std::memcpy(out_ip + out_header, ip + header_length + at, length);
    finish_fragment(out_ip, out_header + length, first_offset + at,
                    more_follow || at + length < payload);
    out->frame = wrap_with_tag(out_ip, out_header + length, b.tag[i], backend, b.hash[i]);
    out->length = out_header + length + backend.header_length + tag_length;
    out->port = backend.port;
    out->origin = Origin::kFragment;
  }
  finish_fragment(ip, header_length + part, first_offset, true);
  b.frame[i] = wrap_with_tag(ip, header_length + part, b.tag[i], backend, b.hash[i]);
  b.length[i] = header_length + part + backend.header_length + tag_length;
  b.out_port[i] = backend.port;
  return Verdict::kForwarded;
}

bool may_be_cut(const uint8_t* ip, const VipEntry& vip) {
  if (is_ipv6(ip)) return false;
  return vip.cut_too_big || (load_be16(ip + kIpv4FragmentOffset) & kIpv4DontFragment) == 0;
}

}  // namespace

void classify_uncommon(Burst& b, uint32_t i, const Snapshot& snapshot, PathState& state) {
  b.verdict[i] = Classifier(b, i, snapshot, state).run();
}

void deliver_otherwise(Burst& b, uint32_t i, PathState& state) {
  if (b.verdict[i] == Verdict::kTooBig && may_be_cut(b.ip[i], *b.vip[i])) {
    b.verdict[i] = cut(b, i, state);
  } else {
    answer(b, i, state);
  }
}

void complete_checksum(uint8_t* frame, uint32_t length) {
  const auto link = parse_link(frame, length);
  if (!link) return;
  uint8_t* ip = frame + link->length;
  IpHeader header;
  if (parse_ip(ip, length - link->length, false, header) != Verdict::kForwarded ||
      header.fragment || !carries_ports(header.protocol) ||
      header.packet_length < header.transport_offset + transport_header_length(header.protocol)) {
    return;
  }
  uint8_t* segment = ip + header.transport_offset;
  const uint32_t segment_length = header.packet_length - header.transport_offset;
  uint8_t* checksum =
      segment + (header.protocol == kProtocolTcp ? kTcpChecksumOffset : kUdpChecksumOffset);
  const uint16_t pseudo = pseudo_header_sum(ip, header.protocol, segment_length);
  if (load_be16(checksum) != pseudo) return;
  // The field holds the pseudo-header's sum already, so the sum over the segment is the whole one.
  const auto whole = static_cast<uint16_t>(~sum_words(segment, segment_length));
  const bool udp_zero = whole == 0 && header.protocol == kProtocolUdp;
  store_be16(checksum, udp_zero ? uint16_t{0xffff} : whole);
}

}  // namespace maglev
