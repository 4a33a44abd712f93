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
// Called by a worker thread with a burst and counters of its own; the snapshot is shared and
// immutable. Invariant: every packet of the burst has exactly one verdict, which is final once
// transmit has turned what found no room into kTransmitFull; count_burst() counts each exactly
// once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "dataplane/counters.h"
#include "dataplane/packet.h"
#include "dataplane/snapshot.h"
#include "dataplane/verdict.h"
#include "tables/flow_hash.h"

namespace maglev {

inline constexpr uint32_t kMaxBurst = 64;

// Bytes in front of each frame that the pipeline may overwrite, and moves the frame's start into.
inline constexpr uint32_t kRequiredHeadroom = kIpv4HeaderLength;

// Arrays run parallel: entry i of each belongs to packet i.
struct Burst {
  uint32_t count = 0;
  // In: the frame as received. Out, when forwarded: the frame to send.
  uint8_t* frame[kMaxBurst];
  uint32_t length[kMaxBurst];
  // In: kForwarded, or what the receiver already found. Out: the verdict.
  Verdict verdict[kMaxBurst];
  uint16_t out_port[kMaxBurst];  // out, when forwarded

  // Between the stages.
  uint32_t received_length[kMaxBurst];
  uint32_t packet_length[kMaxBurst];  // of the IP packet: padding is not forwarded
  FlowKey4 key[kMaxBurst];
  const VipEntry* vip[kMaxBurst];  // null while no VIP is known
  uint64_t hash[kMaxBurst];
  const BackendEntry* backend[kMaxBurst];  // null while no backend is known
};

namespace pipeline {

// What the fixed offsets may be read for, or why not. Sets key and packet_length.
inline Verdict parse_frame(const uint8_t* frame, uint32_t length, FlowKey4& key,
                           uint32_t& packet_length) {
  if (length < kEthernetHeaderLength) return Verdict::kMalformed;
  if (load_be16(frame + kEtherTypeOffset) != kEtherTypeIpv4) return Verdict::kNotIpv4;
  const uint8_t* ip = frame + kEthernetHeaderLength;
  const uint32_t available = length - kEthernetHeaderLength;
  if (available < kIpv4HeaderLength) return Verdict::kMalformed;
  uint32_t header_length = kIpv4HeaderLength;
  if (ip[0] != 0x45) [[unlikely]] {
    header_length = (ip[0] & 15u) * 4;
    if (ip[0] >> 4 != 4 || header_length < kIpv4HeaderLength) return Verdict::kMalformed;
  }
  packet_length = load_be16(ip + kIpv4TotalLengthOffset);
  if (packet_length < header_length || packet_length > available) return Verdict::kMalformed;
  if ((load_be16(ip + kIpv4FragmentOffset) & kIpv4MoreFragmentsAndOffset) != 0) {
    return Verdict::kFragment;
  }
  key.protocol = ip[kIpv4ProtocolOffset];
  if (key.protocol != kProtocolTcp && key.protocol != kProtocolUdp) {
    return Verdict::kUnsupportedProtocol;
  }
  const uint32_t transport_header =
      key.protocol == kProtocolTcp ? kTcpHeaderLength : kUdpHeaderLength;
  if (packet_length < header_length + transport_header) return Verdict::kMalformed;
  std::memcpy(&key.source_be, ip + kIpv4SourceOffset, 8);   // both addresses
  std::memcpy(&key.source_port_be, ip + header_length, 4);  // both ports
  return Verdict::kForwarded;
}

inline uint64_t vip_key_of(const FlowKey4& key) {
  return vip_key(key.destination_be, key.destination_port_be, key.protocol);
}

inline void parse(Burst& b, const Snapshot& snapshot) {
  for (uint32_t i = 0; i < b.count; ++i) {
    __builtin_prefetch(b.frame[i]);
    __builtin_prefetch(b.frame[i] - kRequiredHeadroom, 1);  // no device wrote there: out of cache
  }
  for (uint32_t i = 0; i < b.count; ++i) {
    if (b.verdict[i] != Verdict::kForwarded) continue;
    b.verdict[i] = parse_frame(b.frame[i], b.length[i], b.key[i], b.packet_length[i]);
    if (b.verdict[i] == Verdict::kForwarded) snapshot.prefetch_vip(vip_key_of(b.key[i]));
  }
}

// The address of a slot, for the prefetch and the read alike.
inline const void* slot_address(const VipEntry& vip, uint32_t slot) {
  return vip.slots16 != nullptr ? static_cast<const void*>(vip.slots16 + slot)
                                : static_cast<const void*>(vip.slots32 + slot);
}

inline void classify(Burst& b, const Snapshot& snapshot) {
  for (uint32_t i = 0; i < b.count; ++i) {
    if (b.verdict[i] != Verdict::kForwarded) continue;
    const VipEntry* vip = snapshot.find_vip(vip_key_of(b.key[i]));
    b.vip[i] = vip;
    if (vip == nullptr) {
      b.verdict[i] = Verdict::kNoVip;
      continue;
    }
    b.hash[i] = vip->hash_policy == HashPolicy::kSource
                    ? hash_source(b.key[i], snapshot.hash_seed())
                    : hash_flow(b.key[i], snapshot.hash_seed());
    __builtin_prefetch(slot_address(*vip, slot_of(b.hash[i], vip->size)));
  }
}

// The backend that owns the flow's slot, or null.
inline const BackendEntry* owner_of(const VipEntry& vip, uint64_t hash) {
  const uint32_t slot = slot_of(hash, vip.size);
  if (vip.slots16 != nullptr) {
    const uint16_t index = vip.slots16[slot];
    return index == kNoBackend16 ? nullptr : vip.backends + index;
  }
  const uint32_t index = vip.slots32[slot];
  return index == kNoBackend32 ? nullptr : vip.backends + index;
}

inline void choose(Burst& b) {
  for (uint32_t i = 0; i < b.count; ++i) {
    if (b.verdict[i] != Verdict::kForwarded) continue;
    if (b.frame[i][kEthernetHeaderLength + kIpv4TtlOffset] <= 1) {
      b.verdict[i] = Verdict::kTtlExpired;
      continue;
    }
    b.backend[i] = owner_of(*b.vip[i], b.hash[i]);
    if (b.backend[i] == nullptr) {
      b.verdict[i] = Verdict::kNoBackend;
    } else {
      __builtin_prefetch(b.backend[i]);
    }
  }
}

// Puts the backend's header in front of an IP packet; returns the new start of the frame. RFC 2003:
// the inner time to live goes down by one; RFC 6040, normal mode: the outer ECN field and DSCP are
// the inner ones.
inline uint8_t* encapsulate_ip_in_ip(uint8_t* frame, uint32_t packet_length,
                                     const BackendEntry& backend) {
  uint8_t* inner = frame + kEthernetHeaderLength;
  const uint8_t tos = inner[kIpv4TosOffset];
  decrement_ttl(inner);
  uint8_t* outer_frame = frame - kIpv4HeaderLength;
  std::memcpy(outer_frame, backend.header.data(), kOuterLength);
  uint8_t* outer = outer_frame + kEthernetHeaderLength;
  const uint32_t outer_length = packet_length + kIpv4HeaderLength;
  outer[kIpv4TosOffset] = tos;
  store_be16(outer + kIpv4TotalLengthOffset, static_cast<uint16_t>(outer_length));
  const uint16_t sum = fold_checksum(uint32_t{backend.checksum_base} + outer_length + tos);
  store_be16(outer + kIpv4ChecksumOffset, static_cast<uint16_t>(~sum));
  return outer_frame;
}

inline void encapsulate(Burst& b) {
  for (uint32_t i = 0; i < b.count; ++i) {
    if (b.verdict[i] != Verdict::kForwarded) continue;
    const BackendEntry& backend = *b.backend[i];
    if (!backend.resolved) {
      b.verdict[i] = Verdict::kUnresolved;
    } else if (b.packet_length[i] > backend.max_packet_length) {
      b.verdict[i] = Verdict::kTooBig;
    } else {
      b.frame[i] = encapsulate_ip_in_ip(b.frame[i], b.packet_length[i], backend);
      b.length[i] = b.packet_length[i] + kOuterLength;
      b.out_port[i] = backend.port;
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
    counters.verdicts[static_cast<uint32_t>(verdict)].add(i - first);
    counters.received_bytes.add(bytes);
    if (vip != nullptr) count_flow(counters.vips[vip->counter], forwarded, i - first, bytes);
  }
}

}  // namespace pipeline

// From frames as received to frames to send. snapshot is null before the first publication.
inline void forward_burst(Burst& b, const Snapshot* snapshot) {
  std::copy_n(b.length, b.count, b.received_length);
  std::fill_n(b.vip, b.count, nullptr);
  std::fill_n(b.backend, b.count, nullptr);
  if (snapshot == nullptr) {
    std::replace(b.verdict, b.verdict + b.count, Verdict::kForwarded, Verdict::kNoTables);
    return;
  }
  pipeline::parse(b, *snapshot);
  pipeline::classify(b, *snapshot);
  pipeline::choose(b);
  pipeline::encapsulate(b);
}

// After transmit. The counters' sequence is odd meanwhile, so readers see whole bursts.
inline void count_burst(const Burst& b, WorkerCounters& counters) {
  counters.sequence.add(1);
  pipeline::count_flows(b, counters);
  counters.received_packets.add(b.count);
  counters.sequence.add(1);
}

}  // namespace maglev
