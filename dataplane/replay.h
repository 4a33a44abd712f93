// Runs packets through the pipeline as the workers of a host do, without devices, cores or root:
// for trying packets against a configuration, for tests on bytes, and for fuzzing.
//
// It does what dataplane/worker.cc does around forward_burst() and count_burst(), on plain memory:
// hands fragments over, goes on with those that wait, sends the workers' own frames, counts. What
// differs is time, which stands still but for advance_to(), and that the workers take turns on the
// caller's thread: after each burst all of them go on until nothing is left to do, so the same
// calls always give the same result.
//
// One thread. Each frame received lies in a buffer of exactly its length, headroom in front, so
// that a sanitizer sees every byte read beyond it. Invariant, whenever no call runs: over all
// workers, received = sum of verdicts + held.
#pragma once

#include <cstdint>
#include <deque>
#include <expected>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dataplane/adoption.h"
#include "dataplane/counter_registry.h"
#include "dataplane/counters.h"
#include "dataplane/pipeline.h"
#include "tables/report.h"

namespace maglev {

struct ReplaySettings {
  std::vector<PortFacts> ports;  // what the published tree's port numbers mean; at least one
  uint32_t workers = 1;
  uint64_t answers_per_second = 1000;  // ICMP errors, and likewise echo replies, of each worker
  // Receivers may leave TCP and UDP checksums undone, as the kernel does on AF_XDP over veth.
  bool partial_checksums = false;
  // What a device or pool would run out of: frames that the transmit ring takes of each burst, and
  // as many of the workers' own; buffers for these during a burst.
  uint32_t transmit_room = std::numeric_limits<uint32_t>::max();
  uint32_t own_buffers = std::numeric_limits<uint32_t>::max();
  // Places for counters. Small ones make many short runs cheap.
  uint32_t counted_vips = kMaxCountedVips;
  uint32_t counted_backends = kMaxCountedBackends;
};

struct ReceivedFrame {
  std::span<const uint8_t> bytes;
  bool segmented = false;  // delivered in several buffers
};

// What became of a packet, or a frame of a worker's own. Pointers are valid during the call that
// tells it.
struct Outcome {
  uint64_t packet = 0;  // numbered from 1 as received; 0: a frame of the worker's own
  uint32_t worker = 0;
  Verdict verdict = Verdict::kForwarded;  // of a packet; kHeld and kHandedOver are told too
  Origin origin = Origin::kEchoReply;     // of a frame of its own
  std::string_view vip;                   // empty: none known
  std::string_view pool;                  // of the backend
  std::string_view backend;               // empty: none known
  uint16_t port = 0;                      // that it was sent on
  uint32_t next_worker = 0;               // of a packet handed over
  std::span<const uint8_t> frame;         // sent; empty where nothing was
};

// Every counter of a report by one name: `received_packets`, the verdicts', the events', `vip NAME
// forwarded_packets`, `backend POOL/NAME forwarded_packets` and so on; those of single workers,
// where there are several, behind `worker N `.
std::map<std::string, uint64_t> named_counters(const Report& report);

class Replay {
 public:
  using Sink = std::function<void(const Outcome&)>;

  // The sink is called for each outcome, in the order in which frames meet the wire.
  Replay(ReplaySettings settings, Sink sink);
  ~Replay();
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  // The snapshot that all workers use from now on, made with the two registries below; null: none.
  void publish(std::shared_ptr<const Snapshot> snapshot);
  CounterRegistry& vip_counters() { return vip_counters_; }
  CounterRegistry& backend_counters() { return backend_counters_; }
  // Publishes what is in a directory, read and checked as the daemon does.
  std::expected<void, std::string> adopt(const std::string& directory);

  // Moves the clock, which never goes back: an earlier time changes nothing. Fragments that have
  // waited too long are let go.
  void advance_to(uint64_t now_ns);
  uint64_t now_ns() const { return now_ns_; }

  // One worker receives frames on a port, in bursts of up to kMaxBurst.
  void receive(uint32_t worker, uint16_t port, std::span<const ReceivedFrame> frames);

  // All counters, as the daemon reports them. VIPs and backends are those of the snapshot.
  Report report() const;

 private:
  // A packet and the buffer it lies in, headroom in front.
  struct Packet {
    uint64_t number;
    uint16_t port;  // that it came by
    std::vector<uint8_t> room;
  };
  using Packets = std::vector<std::unique_ptr<Packet>>;
  struct Worker;

  static OutFrame allocate(void* self, uint32_t room);

  void forward(Worker& worker, BurstSource source, Packets packets);
  void transmit(Burst& burst) const;
  void tell(const Worker& worker, const Packet& packet, uint32_t i);
  void send_own_frames(Worker& worker);
  std::unique_ptr<Packet> take_waiting(const void* packet);
  bool go_on_with_waiting(Worker& worker);
  void settle();

  ReplaySettings settings_;
  Sink sink_;
  CounterRegistry vip_counters_;
  CounterRegistry backend_counters_;
  SharedFlows flows_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::shared_ptr<const Snapshot> snapshot_;  // gives counters back, so it goes before the workers
  std::map<const void*, std::unique_ptr<Packet>> waiting_;  // held, or in an inbox
  std::deque<std::vector<uint8_t>> own_buffers_;            // of the current burst
  uint64_t now_ns_ = 0;
  uint64_t received_ = 0;
};

}  // namespace maglev
