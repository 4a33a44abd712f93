// What workers count. Each worker writes only its own counters; the main thread reads them.
//
// A counter is a word with one writer: an increment is a load and a store, never a locked
// instruction. Stores are releases and loads acquires (both plain moves on x86), which makes the
// sequence number of WorkerCounters work without fences: a reader that sees the same even sequence
// before and after has read the counters of one burst boundary.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "dataplane/quic.h"
#include "dataplane/verdict.h"

namespace maglev {

class Counter {
 public:
  void add(uint64_t n) {
    value_.store(value_.load(std::memory_order_relaxed) + n, std::memory_order_release);
  }
  void set(uint64_t value) { value_.store(value, std::memory_order_release); }
  uint64_t get() const { return value_.load(std::memory_order_acquire); }

 private:
  std::atomic<uint64_t> value_{0};
};

// Bytes of frames as received.
struct TrafficCounters {
  void add(uint64_t more_packets, uint64_t more_bytes) {
    packets.add(more_packets);
    bytes.add(more_bytes);
  }
  void clear() {
    packets.set(0);
    bytes.set(0);
  }
  Counter packets;
  Counter bytes;
};

// Of one VIP or one backend, on one worker.
struct FlowCounters {
  void clear() {
    forwarded.clear();
    dropped.clear();
  }
  TrafficCounters forwarded;
  TrafficCounters dropped;
};

// Packets whose slot is not settled, or whose VIP tracks every flow.
struct TrackingCounters {
  Counter known;              // packets of remembered flows
  Counter unknown;            // of others
  Counter inherited;          // of these, sent to the fallback as part of an older flow
  Counter moved;              // remembered, but their backend serves no more
  Counter reused_ports;       // SYNs that opened another flow of the same ports
  Counter found_elsewhere;    // remembered by another worker, or by one of before
  Counter openings_unstored;  // SYNs for which there was no room
  Counter others_unstored;    // packets of other flows, likewise
  // Packets of VIPs that look at connection IDs, by QuicRoute.
  std::array<Counter, kQuicRouteCount> quic;
  Counter quic_moved;  // of those that named a server, for one that serves no more
};

struct alignas(64) WorkerCounters {
  Counter sequence;    // odd while the worker is counting a burst
  Counter generation;  // of the snapshot used last
  Counter polls;
  Counter empty_polls;
  Counter received_packets;
  Counter received_bytes;
  std::array<Counter, kVerdictCount> verdicts;
  // Packets that live on: put into and taken from this worker's hold, given to and taken over from
  // other workers.
  Counter held;
  Counter released;
  Counter handed_over;
  Counter taken_over;
  std::array<Counter, kOriginCount> originated;  // frames of its own, handed to the wire
  Counter originated_lost;                       // that found no room in the transmit ring
  Counter errors_limited;                        // ICMP errors beyond the rate
  Counter errors_unbuffered;                     // for which there was no packet buffer
  TrackingCounters tracking;
  FlowCounters* vips = nullptr;      // indexed by VipEntry::counter
  FlowCounters* backends = nullptr;  // indexed by BackendEntry::counter
};

// The burst's part of WorkerCounters as plain numbers.
struct WorkerTotals {
  uint64_t received_packets = 0;
  uint64_t received_bytes = 0;
  std::array<uint64_t, kVerdictCount> verdicts{};
  uint64_t held = 0;         // waiting now
  uint64_t handed_over = 0;  // so far
  uint64_t taken_over = 0;   // so far
};

// Reads the totals of one burst boundary; waits out a burst that is being counted.
inline WorkerTotals read_totals(const WorkerCounters& counters) {
  WorkerTotals totals;
  uint64_t before = 0;
  do {
    before = counters.sequence.get();
    totals.received_packets = counters.received_packets.get();
    totals.received_bytes = counters.received_bytes.get();
    for (uint32_t v = 0; v < kVerdictCount; ++v) totals.verdicts[v] = counters.verdicts[v].get();
    totals.held = counters.held.get() - counters.released.get();
    totals.handed_over = counters.handed_over.get();
    totals.taken_over = counters.taken_over.get();
  } while (before % 2 != 0 || counters.sequence.get() != before);
  return totals;
}

}  // namespace maglev
