// A packet's way, read top to bottom:
//
//   parse -> classify (which VIP) -> choose (which backend) -> encapsulate   in forward_burst()
//   transmit                                                                 by the worker
//   count                                                                    in count_burst()
//
// Each stage is a loop over the burst; a stage looks only at packets whose verdict is still
// kForwarded, and prefetches what the next one reads. No stage allocates, logs, locks, reads a
// clock or makes a system call. Nothing here knows DPDK: a frame is a pointer and a length.
//
// parse sorts the burst: plain packets (untagged; IPv4 without options or IPv6 without extension
// headers; TCP or UDP, whole, with a hop left) are read by fixed offsets here, all others by
// uncommon.h. Both meet again where a backend is chosen.
//
// Called by a worker thread with a burst, state and counters of its own; the snapshot is shared and
// immutable. Invariant: every packet of the burst ends in exactly one verdict, which is final once
// transmit has turned what found no room into kTransmitFull, or it lives on (kHeld, kHandedOver)
// and comes back in a later burst; count_burst() counts each exactly once. Over all workers, at
// every burst boundary: received = sum of verdicts + held + handed over - taken over.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "dataplane/burst.h"
#include "dataplane/counters.h"
#include "dataplane/packet.h"
#include "dataplane/uncommon.h"
#include "tables/flow_hash.h"

namespace maglev {

namespace pipeline {

// Bytes that a plain frame has at least: Ethernet, IP, and UDP.
inline constexpr uint32_t kPlain4Length = kEthernetHeaderLength + kIpv4HeaderLength + 8;
inline constexpr uint32_t kPlain6Length = kEthernetHeaderLength + kIpv6HeaderLength + 8;

inline bool is_transport_whole(uint32_t protocol, uint32_t ip_header_length, uint32_t total) {
  return (protocol == kProtocolUdp && total >= ip_header_length + kUdpHeaderLength) ||
         (protocol == kProtocolTcp && total >= ip_header_length + kTcpHeaderLength);
}

// Words of the header as they stand in memory: little endian.
inline bool parse_plain4(Burst& b, uint32_t i) {
  uint8_t* frame = b.frame[i];
  if (b.length[i] < kPlain4Length) return false;
  const auto head = load<uint64_t>(frame + kEtherTypeOffset);  // to the identification
  const auto middle = load<uint32_t>(frame + kEthernetHeaderLength + kIpv4FragmentOffset);
  constexpr uint64_t kTypeVersionAndLength = 0x450008;
  constexpr uint32_t kFragmented = 0xff3f;  // offset and "more fragments"
  const uint32_t total = __builtin_bswap16(static_cast<uint16_t>(head >> 32));
  const uint32_t protocol = middle >> 24;
  const uint32_t ttl = middle >> 16 & 0xff;
  if ((head & 0xffffff) != kTypeVersionAndLength || (middle & kFragmented) != 0 || ttl <= 1 ||
      total > b.length[i] - kEthernetHeaderLength ||
      !is_transport_whole(protocol, kIpv4HeaderLength, total)) {
    return false;
  }
  b.ip[i] = frame + kEthernetHeaderLength;
  b.packet_length[i] = total;
  const uint8_t* key = b.ip[i] + kIpv4SourceOffset;
  b.key_first[i] = load<uint64_t>(key);
  b.key_last[i] = load<uint64_t>(key + 5) << 8 >> 8 | uint64_t{protocol} << 56;
  return true;
}

inline bool parse_plain6(Burst& b, uint32_t i) {
  uint8_t* frame = b.frame[i];
  if (b.length[i] < kPlain6Length) return false;
  const auto head = load<uint32_t>(frame + kEtherTypeOffset);
  const auto middle = load<uint32_t>(frame + kEthernetHeaderLength + kIpv6PayloadLengthOffset);
  constexpr uint32_t kTypeAndVersion = 0x60dd86;
  const uint32_t payload = __builtin_bswap16(static_cast<uint16_t>(middle));
  const uint32_t protocol = middle >> 16 & 0xff;
  const uint32_t limit = middle >> 24;
  if ((head & 0xf0ffff) != kTypeAndVersion || limit <= 1 ||
      payload + kIpv6HeaderLength > b.length[i] - kEthernetHeaderLength ||
      !is_transport_whole(protocol, 0, payload)) {
    return false;
  }
  b.ip[i] = frame + kEthernetHeaderLength;
  b.packet_length[i] = payload + kIpv6HeaderLength;
  return true;
}

inline uint64_t key4_of(const Burst& b, uint32_t i) {
  return b.key_first[i] >> 32 | b.key_last[i] >> 40 << 32;
}

// The destination port and protocol of a plain IPv6 packet.
inline uint64_t key6_of(const uint8_t* ip) {
  return VipTable::key6(load<uint16_t>(ip + kIpv6HeaderLength + 2), ip[kIpv6NextHeaderOffset]);
}

inline void parse(Burst& b, const Snapshot& snapshot) {
  for (uint32_t i = 0; i < b.count; ++i) {
    __builtin_prefetch(b.frame[i]);
    __builtin_prefetch(b.frame[i] - kEthernetHeaderLength, 1);  // no device wrote there
  }
  for (uint32_t i = 0; i < b.count; ++i) {
    if (b.verdict[i] != Verdict::kForwarded) continue;
    const auto number = static_cast<uint8_t>(i);
    if (parse_plain4(b, i)) {
      b.plain4[b.plain4_count++] = number;
      snapshot.vip_table().prefetch4(key4_of(b, i));
    } else if (parse_plain6(b, i)) {
      b.plain6[b.plain6_count++] = number;
      const uint8_t* destination = b.ip[i] + kIpv6DestinationOffset;
      snapshot.vip_table().prefetch6(load<uint64_t>(destination), load<uint64_t>(destination + 8),
                                     key6_of(b.ip[i]));
    } else {
      b.uncommon[b.uncommon_count++] = number;
    }
  }
}

// The address of a slot, for the prefetch.
inline const void* slot_address(const VipEntry& vip, uint32_t slot) {
  return vip.slots16 != nullptr ? static_cast<const void*>(vip.slots16 + slot)
                                : static_cast<const void*>(vip.slots32 + slot);
}

// A plain packet to no exact service may be for a prefix or for a VIP of any port, or for none.
inline const VipEntry* find_by_rule(Burst& b, uint32_t i, const Snapshot& snapshot) {
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

inline void classify_plain4(Burst& b, const Snapshot& snapshot) {
  const uint64_t seed = snapshot.hash_seed();
  for (uint32_t n = 0; n < b.plain4_count; ++n) {
    const uint32_t i = b.plain4[n];
    const VipEntry* vip = snapshot.vip_table().find4(key4_of(b, i));
    if (vip == nullptr) [[unlikely]] {
      vip = find_by_rule(b, i, snapshot);
      if (vip == nullptr) continue;
    }
    uint64_t last = b.key_last[i];
    uint64_t hash = 0;
    if (vip->flow_hash == FlowHash::kSource) [[unlikely]] {
      hash = hash_source(FlowKey4{static_cast<uint32_t>(b.key_first[i]), 0, 0, 0, 0}, seed);
    } else {
      constexpr uint64_t kPorts = 0x00ffffffff000000;
      if (vip->flow_hash == FlowHash::kAddresses) last &= ~kPorts;
      hash = hash_flow4(b.key_first[i], last, seed);
    }
    b.vip[i] = vip;
    b.hash[i] = hash;
    __builtin_prefetch(slot_address(*vip, slot_of(hash, vip->size)));
  }
}

inline uint64_t hash_plain6(const uint8_t* ip, FlowHash kind, uint64_t seed) {
  if (kind == FlowHash::kFiveTuple) {
    return hash_flow6(ip + kIpv6SourceOffset, ip[kIpv6NextHeaderOffset], seed);
  }
  FlowKey6 key{};
  std::memcpy(key.source, ip + kIpv6SourceOffset, 32);
  key.protocol = ip[kIpv6NextHeaderOffset];
  return kind == FlowHash::kSource ? hash_source(key, seed) : hash_flow(key, seed);
}

inline void classify_plain6(Burst& b, const Snapshot& snapshot) {
  for (uint32_t n = 0; n < b.plain6_count; ++n) {
    const uint32_t i = b.plain6[n];
    const uint8_t* destination = b.ip[i] + kIpv6DestinationOffset;
    const VipEntry* vip = snapshot.vip_table().find6(
        load<uint64_t>(destination), load<uint64_t>(destination + 8), key6_of(b.ip[i]));
    if (vip == nullptr) [[unlikely]] {
      vip = find_by_rule(b, i, snapshot);
      if (vip == nullptr) continue;
    }
    b.vip[i] = vip;
    b.hash[i] = hash_plain6(b.ip[i], vip->flow_hash, snapshot.hash_seed());
    __builtin_prefetch(slot_address(*vip, slot_of(b.hash[i], vip->size)));
  }
}

inline void classify(Burst& b, const Snapshot& snapshot, PathState& state) {
  classify_plain4(b, snapshot);
  classify_plain6(b, snapshot);
  for (uint32_t n = 0; n < b.uncommon_count; ++n) {
    classify_uncommon(b, b.uncommon[n], snapshot, state);
  }
}

inline void choose(Burst& b) {
  for (uint32_t i = 0; i < b.count; ++i) {
    if (b.verdict[i] != Verdict::kForwarded) continue;
    b.backend[i] = owner_of(*b.vip[i], b.hash[i]);
    if (b.backend[i] == nullptr) {
      b.verdict[i] = Verdict::kNoBackend;
    } else {
      __builtin_prefetch(b.backend[i]);
    }
  }
}

inline void encapsulate(Burst& b) {
  for (uint32_t i = 0; i < b.count; ++i) {
    if (b.verdict[i] != Verdict::kForwarded) continue;
    const BackendEntry& backend = *b.backend[i];
    if (b.packet_length[i] > backend.max_packet_length) [[unlikely]] {
      b.verdict[i] = backend.resolved ? Verdict::kTooBig : Verdict::kUnresolved;
      b.undeliverable = true;
      continue;
    }
    b.frame[i] = wrap(b.ip[i], b.packet_length[i], backend, b.hash[i]);
    b.length[i] = b.packet_length[i] + backend.header_length;
    b.out_port[i] = backend.port;
    if (b.tag[i] != kNoTag) [[unlikely]] {
      b.frame[i] = insert_tag(b.frame[i], static_cast<uint16_t>(b.tag[i]));
      b.length[i] += kVlanTagLength;
    }
  }
}

inline void count_flow(FlowCounters& flow, bool forwarded, uint32_t packets, uint64_t bytes) {
  (forwarded ? flow.forwarded_packets : flow.dropped_packets).add(packets);
  (forwarded ? flow.forwarded_bytes : flow.dropped_bytes).add(bytes);
}

// Runs of neighbours of one VIP and one verdict are added at once; backends differ from packet to
// packet.
inline void count_flows(const Burst& b, WorkerCounters& counters) {
  for (uint32_t i = 0; i < b.count;) {
    const VipEntry* const vip = b.vip[i];
    const Verdict verdict = b.verdict[i];
    const bool forwarded = verdict == Verdict::kForwarded;
    const uint32_t first = i;
    uint64_t bytes = 0;
    for (; i < b.count && b.vip[i] == vip && b.verdict[i] == verdict; ++i) {
      bytes += b.received_length[i];
      if (b.backend[i] == nullptr) continue;
      count_flow(counters.backends[b.backend[i]->counter], forwarded, 1, b.received_length[i]);
    }
    if (b.source == BurstSource::kDevice) counters.received_bytes.add(bytes);
    if (verdict == Verdict::kHeld) {
      counters.held.add(i - first);
    } else if (verdict == Verdict::kHandedOver) {
      counters.handed_over.add(i - first);
    } else {
      counters.verdicts[static_cast<uint32_t>(verdict)].add(i - first);
      if (vip != nullptr) count_flow(counters.vips[vip->counter], forwarded, i - first, bytes);
    }
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

}  // namespace pipeline

// From frames as received to frames to send. snapshot is null before the first publication. The
// outbox of the state holds frames to send besides.
inline void forward_burst(Burst& b, const Snapshot* snapshot, PathState& state) {
  std::copy_n(b.length, b.count, b.received_length);
  std::fill_n(b.vip, b.count, nullptr);
  std::fill_n(b.backend, b.count, nullptr);
  std::fill_n(b.tag, b.count, kNoTag);
  b.plain4_count = b.plain6_count = b.uncommon_count = 0;
  b.undeliverable = false;
  if (snapshot == nullptr) {
    std::replace(b.verdict, b.verdict + b.count, Verdict::kForwarded, Verdict::kNoTables);
    return;
  }
  if (b.partial_checksums) {
    for (uint32_t i = 0; i < b.count; ++i) {
      if (b.verdict[i] == Verdict::kForwarded) complete_checksum(b.frame[i], b.length[i]);
    }
  }
  pipeline::parse(b, *snapshot);
  pipeline::classify(b, *snapshot, state);
  pipeline::choose(b);
  pipeline::encapsulate(b);
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
