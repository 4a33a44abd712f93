// The stage of a burst that goes by what is remembered of flows: packets whose slot is not settled,
// or whose VIP tracks every flow. The rules are in tracking.h, their use on one packet in track.h.
//
// A flow is identified by its hash, which gives the slot, and by a second one over all five fields;
// where a VIP's fragments go by address alone, over those and the protocol, so that every fragment
// finds it. All packets between two hosts are one flow then, and none of them opens or ends it.
//
// On the worker's thread; the same rules as for the pipeline.
#pragma once

#include "dataplane/burst.h"

namespace maglev {

// Of the second hash.
inline uint64_t second_seed(uint64_t hash_seed) {
  return hash_seed ^ 0x9e3779b97f4a7c15;
}

// What a whole TCP or UDP packet is to its flow. The transport header's fixed part can be read.
struct TransportKind {
  PacketKind kind;
  uint8_t opening;  // TrackedPacket::opening
};
inline TransportKind kind_of_packet(uint8_t protocol, const uint8_t* transport, bool by_addresses) {
  if (protocol != kProtocolTcp) return {PacketKind::kUdp, 0};
  if (by_addresses) return {PacketKind::kData, 0};
  const auto sequence = load<uint32_t>(transport + kTcpSequenceOffset);
  const uint32_t folded = sequence ^ sequence >> 16;
  return {kind_of_tcp(transport[kTcpFlagsOffset]), static_cast<uint8_t>(folded ^ folded >> 8)};
}

// The backend of each of the burst's tracked packets, or kNoBackend.
void track_flows(Burst& b, const Snapshot& snapshot, FlowMemory& flows);

}  // namespace maglev
