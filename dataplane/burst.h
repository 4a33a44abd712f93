// What the pipeline works on: the packets of one burst, and what a worker keeps between bursts.
// Both belong to one worker.
#pragma once

#include <cstdint>

#include "dataplane/flow_memory.h"
#include "dataplane/fragments.h"
#include "dataplane/outbox.h"
#include "dataplane/snapshot.h"
#include "dataplane/tracking.h"
#include "dataplane/verdict.h"

namespace maglev {

inline constexpr uint32_t kMaxBurst = 64;

// Bytes in front of each frame that the pipeline may overwrite and move the frame's start into.
inline constexpr uint32_t kRequiredHeadroom = kIpv6Block - kEthernetHeaderLength;

// Where a burst comes from, and with it where its packets have been counted before.
enum class BurstSource : uint8_t { kDevice, kHold, kWorker };

inline constexpr int32_t kNoTag = -1;

// What tracking needs to know of a packet.
struct FlowPacket {
  uint64_t second_hash = 0;  // FlowIdentity::second
  PacketKind kind = PacketKind::kData;
  uint8_t opening = 0;  // TrackedPacket::opening
  // An ICMP error or a later fragment: it follows its flow, wherever that is remembered.
  bool only_follows = false;
  uint32_t named = kNoBackendIndex;  // the backend that a connection ID names
};

// Arrays run parallel: entry i of each belongs to packet i.
struct Burst {
  // In:
  uint32_t count = 0;
  BurstSource source = BurstSource::kDevice;
  uint16_t in_port = 0;  // index of the port that all came by, and answers leave by
  uint64_t now_ns = 0;   // of a clock that never goes back
  // The receiver may hand over packets whose TCP or UDP checksum the sender's kernel left undone.
  bool partial_checksums = false;

  void* buffer[kMaxBurst];  // in: the owner's handle
  // In: the frame as received. Out, when forwarded: the frame to send.
  uint8_t* frame[kMaxBurst];
  uint32_t length[kMaxBurst];
  // In: kForwarded, or what is already known. Out: the verdict.
  Verdict verdict[kMaxBurst];
  // Out: the port to send on; of a packet handed over, the worker that goes on with it.
  uint16_t out_port[kMaxBurst];

  // Between the stages.
  uint32_t received_length[kMaxBurst];
  uint8_t* ip[kMaxBurst];             // IP header
  uint32_t packet_length[kMaxBurst];  // of the IP packet: padding is not forwarded
  int32_t tag[kMaxBurst];             // TCI of the tag to send it with, or kNoTag
  const VipEntry* vip[kMaxBurst];     // null while no VIP is known
  const uint8_t* slot[kMaxBurst];     // of the VIP's pool
  uint64_t hash[kMaxBurst];
  const BackendEntry* backend[kMaxBurst];  // null while no backend is known

  uint32_t uncommon_count = 0;
  uint16_t uncommon[kMaxBurst];  // numbers of the packets that fixed offsets cannot read
  bool undeliverable = false;    // some packet cannot go on as it is: too big, no hop left
  uint32_t tracked_count = 0;
  uint16_t tracked[kMaxBurst];  // numbers of the packets whose slot alone does not decide
  FlowPacket flow[kMaxBurst];   // of the uncommon packets, and of those that are tracked
};

// What a worker keeps between bursts.
struct PathState {
  PathState(uint32_t worker_number, uint32_t worker_count, uint64_t answers_per_second,
            Outbox::Allocate allocate, void* context, std::pmr::memory_resource* memory)
      : worker(worker_number),
        workers(worker_count),
        error_limit(answers_per_second),
        echo_limit(answers_per_second),
        outbox(allocate, context),
        fragments(memory),
        next_identification(static_cast<uint16_t>(worker_number << 9)) {}

  uint32_t worker;   // of all
  uint32_t workers;  // that fragments are spread over
  RateLimit error_limit;
  RateLimit echo_limit;
  Outbox outbox;
  FragmentTable fragments;
  FlowMemory flows;              // set by the owner; without it nothing is remembered
  uint16_t next_identification;  // of the parts of a packet that had none of its own
  // Since the last count: ICMP errors that were owed and not sent.
  uint32_t errors_limited = 0;
  uint32_t errors_unbuffered = 0;
};

}  // namespace maglev
