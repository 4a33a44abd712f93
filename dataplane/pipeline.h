// A packet's way, read top to bottom:
//
//   parse -> classify (which VIP)    classify()
//   choose (which backend)           choose(), track_flows()
//   encapsulate                      encapsulate()
//   transmit                         the worker
//   count                            count_burst()
//
// Each line is a loop over the burst that looks only at packets whose verdict is still kForwarded,
// and prefetches what the next one reads: where the slots of many pools or the headers of many
// backends are far away, all packets wait for theirs at once. No stage allocates, logs, locks,
// reads a clock or makes a system call. Nothing here knows DPDK: a frame is a pointer and a length.
//
// A settled slot names the backend and costs one comparison. The packets of all others, and of VIPs
// that track every flow, go by what is remembered of their flows (track_flows.h).
//
// Plain packets (untagged; IPv4 without options or IPv6 without extension headers; TCP or UDP,
// whole, with a hop left) are read by fixed offsets here, all others by uncommon.h. Both meet again
// where a backend is chosen.
//
// Called by a worker thread with a burst, state and counters of its own; the snapshot is shared and
// immutable. Invariant: every packet of the burst ends in exactly one verdict, which is final once
// transmit has turned what found no room into kTransmitFull, or it lives on (kHeld, kHandedOver)
// and comes back in a later burst; count_burst() counts each exactly once. Over all workers, at
// every burst boundary: received = sum of verdicts + held + handed over - taken over.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "dataplane/burst.h"
#include "dataplane/counters.h"
#include "dataplane/packet.h"
#include "dataplane/track_flows.h"
#include "dataplane/uncommon.h"
#include "tables/flow_hash.h"

namespace maglev {

namespace pipeline {

// Bytes that a plain frame has at least: Ethernet, IP, and UDP.
inline constexpr uint32_t kPlain4Length = kEthernetHeaderLength + kIpv4HeaderLength + 8;
inline constexpr uint32_t kPlain6Length = kEthernetHeaderLength + kIpv6HeaderLength + 8;

// The least length of a packet by protocol, with an IPv4 header of 20 bytes; none suffices where it
// is neither TCP nor UDP.
inline constexpr auto kLeastLength4 = [] {
  std::array<uint32_t, 256> least{};
  least.fill(0xffffffff);
  least[kProtocolTcp] = kIpv4HeaderLength + kTcpHeaderLength;
  least[kProtocolUdp] = kIpv4HeaderLength + kUdpHeaderLength;
  return least;
}();

// The fields of a plain IPv4 frame that are read more than once. Words as they stand in memory:
// little endian.
struct Plain4 {
  uint32_t packet_length;
  uint64_t protocol;
  uint64_t addresses;    // source and destination
  uint64_t destination;  // its address and both ports
};

// At least kPlain4Length bytes may be read.
inline bool parse_plain4(const uint8_t* frame, uint32_t length, Plain4& packet) {
  const uint8_t* ip = frame + kEthernetHeaderLength;
  const auto head = load<uint32_t>(frame + kEtherTypeOffset);
  const auto middle = load<uint32_t>(ip + kIpv4FragmentOffset);
  constexpr uint32_t kTypeVersionAndLength = 0x450008;
  constexpr uint32_t kFragmented = 0xff3f;         // offset and "more fragments"
  constexpr uint32_t kSeveralHopsLeft = 0xfe0000;  // any of these bits: 2 or more
  packet.packet_length = load_be16(ip + kIpv4TotalLengthOffset);
  packet.protocol = middle >> 24;
  packet.addresses = load<uint64_t>(ip + kIpv4SourceOffset);
  packet.destination = load<uint64_t>(ip + kIpv4DestinationOffset);
  return (head & 0xffffff) == kTypeVersionAndLength && (middle & kFragmented) == 0 &&
         (middle & kSeveralHopsLeft) != 0 &&
         packet.packet_length <= length - kEthernetHeaderLength &&
         packet.packet_length >= kLeastLength4[packet.protocol];
}

// At least kPlain6Length bytes may be read.
inline bool parse_plain6(const uint8_t* frame, uint32_t length, uint32_t& packet_length) {
  const uint8_t* ip = frame + kEthernetHeaderLength;
  const auto head = load<uint32_t>(frame + kEtherTypeOffset);
  const auto middle = load<uint32_t>(ip + kIpv6PayloadLengthOffset);
  constexpr uint32_t kTypeAndVersion = 0x60dd86;
  const uint32_t payload = __builtin_bswap16(static_cast<uint16_t>(middle));
  packet_length = payload + kIpv6HeaderLength;
  return (head & 0xf0ffff) == kTypeAndVersion && middle >> 24 > 1 &&
         packet_length <= length - kEthernetHeaderLength &&
         payload + kIpv4HeaderLength >= kLeastLength4[middle >> 16 & 0xff];
}

// A plain packet to no exact service may be for a prefix or for a VIP of any port, or for none.
[[gnu::noinline]] inline const VipEntry* find_by_rule(Burst& b, uint32_t i,
                                                      const Snapshot& snapshot) {
  const uint8_t* ip = b.ip[i];
  const bool ipv6 = is_ipv6(ip);
  const uint8_t* transport = ip + (ipv6 ? kIpv6HeaderLength : kIpv4HeaderLength);
  const Service service = snapshot.vip_table().find(
      ipv6, ip + (ipv6 ? kIpv6DestinationOffset : kIpv4DestinationOffset),
      load<uint16_t>(transport + 2), ip[ipv6 ? kIpv6NextHeaderOffset : kIpv4ProtocolOffset]);
  if (service.vip != nullptr) return service.vip;
  if (service.address == nullptr) {
    b.verdict[i] = Verdict::kNoVip;
  } else {
    b.verdict[i] =
        service.address->unserved_to_kernel ? Verdict::kForKernel : Verdict::kUnservedPort;
  }
  return nullptr;
}

inline uint64_t hash_of(const VipEntry& vip, const Plain4& packet, const FlowHash4& flow_hash) {
  uint64_t last = packet.destination >> 8 | packet.protocol << 56;  // bytes 5 to 12 of FlowKey4
  if (vip.flow_hash != FlowHash::kFiveTuple) [[unlikely]] {
    if (vip.flow_hash == FlowHash::kSource) {
      return hash_source(FlowKey4{static_cast<uint32_t>(packet.addresses), 0, 0, 0, 0},
                         flow_hash.seed);
    }
    constexpr uint64_t kPorts = 0x00ffffffff000000;
    last &= ~kPorts;
  }
  return flow_hash(packet.addresses, last);
}

inline uint64_t hash_of(const VipEntry& vip, const uint8_t* ip6, const FlowHash6& flow_hash,
                        uint64_t seed) {
  if (vip.flow_hash == FlowHash::kFiveTuple) [[likely]] {
    return flow_hash(ip6 + kIpv6SourceOffset, ip6[kIpv6NextHeaderOffset]);
  }
  FlowKey6 key{};
  std::memcpy(key.source, ip6 + kIpv6SourceOffset, 32);
  key.protocol = ip6[kIpv6NextHeaderOffset];
  return vip.flow_hash == FlowHash::kSource ? hash_source(key, seed) : maglev::hash_flow(key, seed);
}

inline void set_flow(Burst& b, uint32_t i, const VipEntry* vip, uint64_t hash) {
  const uint8_t* const slot = slot_address(*vip, hash);
  __builtin_prefetch(slot);
  b.vip[i] = vip;
  b.slot[i] = slot;
  b.hash[i] = hash;
}

// False: not plain.
inline bool classify_plain4(Burst& b, uint32_t i, const Snapshot& snapshot,
                            const VipTable::Exact4& exact, const FlowHash4& flow_hash) {
  Plain4 packet;
  if (!parse_plain4(b.frame[i], b.length[i], packet)) return false;
  b.ip[i] = b.frame[i] + kEthernetHeaderLength;
  b.packet_length[i] = packet.packet_length;
  const VipEntry* vip = exact.find(VipTable::key4(packet.destination, packet.protocol));
  if (vip == nullptr) [[unlikely]] {
    vip = find_by_rule(b, i, snapshot);
    if (vip == nullptr) return true;
  }
  set_flow(b, i, vip, hash_of(*vip, packet, flow_hash));
  return true;
}

inline bool classify_plain6(Burst& b, uint32_t i, const Snapshot& snapshot,
                            const FlowHash6& flow_hash) {
  const uint8_t* ip = b.frame[i] + kEthernetHeaderLength;
  if (b.length[i] < kPlain6Length || !parse_plain6(b.frame[i], b.length[i], b.packet_length[i])) {
    return false;
  }
  b.ip[i] = b.frame[i] + kEthernetHeaderLength;
  const uint8_t* destination = ip + kIpv6DestinationOffset;
  const VipEntry* vip = snapshot.vip_table().find6(
      load<uint64_t>(destination), load<uint64_t>(destination + 8),
      VipTable::key6(load<uint16_t>(ip + kIpv6HeaderLength + 2), ip[kIpv6NextHeaderOffset]));
  if (vip == nullptr) [[unlikely]] {
    vip = find_by_rule(b, i, snapshot);
    if (vip == nullptr) return true;
  }
  set_flow(b, i, vip, hash_of(*vip, ip, flow_hash, snapshot.hash_seed()));
  return true;
}

inline void classify(Burst& b, const Snapshot& snapshot, PathState& state) {
  const VipTable::Exact4 exact = snapshot.vip_table().exact4();
  const FlowHash4 flow_hash4(snapshot.hash_seed());
  const FlowHash6 flow_hash6(snapshot.hash_seed());
  const uint32_t count = b.count;
  uint32_t uncommon = 0;
  for (uint32_t i = 0; i < count; ++i) {
    if (b.verdict[i] != Verdict::kForwarded) continue;
    if (b.length[i] >= kPlain4Length && classify_plain4(b, i, snapshot, exact, flow_hash4))
      continue;
    if (!classify_plain6(b, i, snapshot, flow_hash6))
      b.uncommon[uncommon++] = static_cast<uint16_t>(i);
  }
  b.uncommon_count = uncommon;
  for (uint32_t n = 0; n < uncommon; ++n) {
    classify_uncommon(b, b.uncommon[n], snapshot, state);
  }
}

inline void choose(Burst& b) {
  const uint32_t count = b.count;
  uint32_t tracked = 0;
  for (uint32_t i = 0; i < count; ++i) {
    if (b.verdict[i] != Verdict::kForwarded) continue;
    const VipEntry& vip = *b.vip[i];
    const uint32_t word = slot_word(vip.slot_bytes, b.slot[i]);
    if (word >= vip.settled_below) [[unlikely]] {
      b.tracked[tracked++] = static_cast<uint16_t>(i);
      continue;
    }
    const BackendEntry* const backend = vip.backends + word;
    __builtin_prefetch(backend);
    b.backend[i] = backend;
  }
  b.tracked_count = tracked;
}

inline void encapsulate(Burst& b) {
  const uint32_t count = b.count;
  for (uint32_t i = 0; i < count; ++i) {
    if (b.verdict[i] != Verdict::kForwarded) continue;
    const BackendEntry& backend = *b.backend[i];
    const uint32_t packet_length = b.packet_length[i];
    if (packet_length > backend.max_packet_length) [[unlikely]] {
      b.verdict[i] = backend.resolved ? Verdict::kTooBig : Verdict::kUnresolved;
      b.undeliverable = true;
      continue;
    }
    b.length[i] = packet_length + backend.header_length;
    b.out_port[i] = backend.port;
    b.frame[i] = wrap(b.ip[i], packet_length, backend, b.hash[i]);
  }
}

inline void put_tags_back(Burst& b) {
  for (uint32_t n = 0; n < b.uncommon_count; ++n) {
    const uint32_t i = b.uncommon[n];
    if (b.verdict[i] != Verdict::kForwarded || b.tag[i] == kNoTag) continue;
    b.frame[i] = insert_tag(b.frame[i], static_cast<uint16_t>(b.tag[i]));
    b.length[i] += kVlanTagLength;
  }
}

// Without a branch per packet, which values in turn would mispredict.
template <typename Value>
bool are_equal(const Value* values, uint32_t count) {
  uint32_t differences = 0;
  for (uint32_t i = 0; i < count; ++i) differences += values[i] != values[0];
  return differences == 0;
}

// Packets of one verdict.
inline void count_run(const Burst& b, uint32_t first, uint32_t last, WorkerCounters& counters) {
  const Verdict verdict = b.verdict[first];
  const bool ended = verdict < Verdict::kCount;
  const bool one_vip = are_equal(b.vip + first, last - first);
  const auto end =
      verdict == Verdict::kForwarded ? &FlowCounters::forwarded : &FlowCounters::dropped;
  FlowCounters* const backends = counters.backends;
  FlowCounters* const vips = counters.vips;
  uint64_t bytes = 0;
  for (uint32_t i = first; i < last; ++i) {
    const uint64_t length = b.received_length[i];
    bytes += length;
    if (b.backend[i] != nullptr) [[likely]] {
      (backends[b.backend[i]->counter].*end).add(1, length);
    }
    if (!one_vip && ended && b.vip[i] != nullptr) (vips[b.vip[i]->counter].*end).add(1, length);
  }
  if (one_vip && ended && b.vip[first] != nullptr) {
    (vips[b.vip[first]->counter].*end).add(last - first, bytes);
  }
  if (b.source == BurstSource::kDevice) counters.received_bytes.add(bytes);
  if (ended) {
    counters.verdicts[static_cast<uint32_t>(verdict)].add(last - first);
  } else {
    (verdict == Verdict::kHeld ? counters.held : counters.handed_over).add(last - first);
  }
}

inline void count_flows(const Burst& b, WorkerCounters& counters) {
  if (are_equal(b.verdict, b.count)) {
    count_run(b, 0, b.count, counters);
  } else {
    for (uint32_t i = 0; i < b.count; ++i) count_run(b, i, i + 1, counters);
  }
}

inline Counter& counter_of_source(BurstSource source, WorkerCounters& counters) {
  switch (source) {
    case BurstSource::kHold:
      return counters.released;
    case BurstSource::kWorker:
      return counters.taken_over;
    case BurstSource::kDevice:
      break;
  }
  return counters.received_packets;
}

inline void begin(Burst& b) {
  std::copy_n(b.length, b.count, b.received_length);
  std::fill_n(b.vip, b.count, nullptr);
  std::fill_n(b.backend, b.count, nullptr);
  std::fill_n(b.tag, b.count, kNoTag);
  b.uncommon_count = 0;
  b.undeliverable = false;
}

}  // namespace pipeline

// From frames as received to frames to send. snapshot is null before the first publication. The
// outbox of the state holds frames to send besides.
inline void forward_burst(Burst& b, const Snapshot* snapshot, PathState& state) {
  pipeline::begin(b);
  if (snapshot == nullptr) {
    std::replace(b.verdict, b.verdict + b.count, Verdict::kForwarded, Verdict::kNoTables);
    return;
  }
  if (b.partial_checksums) {
    for (uint32_t i = 0; i < b.count; ++i) {
      if (b.verdict[i] == Verdict::kForwarded) complete_checksum(b.frame[i], b.length[i]);
    }
  }
  pipeline::classify(b, *snapshot, state);
  pipeline::choose(b);
  if (b.tracked_count > 0) track_flows(b, *snapshot, state.flows);
  pipeline::encapsulate(b);
  if (b.uncommon_count > 0) pipeline::put_tags_back(b);
  if (b.undeliverable) {
    for (uint32_t i = 0; i < b.count; ++i) {
      if (b.verdict[i] == Verdict::kTooBig || b.verdict[i] == Verdict::kTtlExpired) {
        deliver_otherwise(b, i, state);
      }
    }
  }
}

// After transmit. The counters' sequence is odd meanwhile, so readers see whole bursts.
inline void count_burst(const Burst& b, WorkerCounters& counters, PathState& state) {
  counters.sequence.add(1);
  pipeline::count_flows(b, counters);
  pipeline::counter_of_source(b.source, counters).add(b.count);
  if (b.undeliverable) {
    counters.errors_limited.add(std::exchange(state.errors_limited, 0));
    counters.errors_unbuffered.add(std::exchange(state.errors_unbuffered, 0));
  }
  counters.sequence.add(1);
}

}  // namespace maglev
