// The report file: what the dataplane tells about itself. Written aside and renamed into place by
// the dataplane's main thread, read by control, which treats it as untrusted input.
//
// Counters only grow while one dataplane process lives; a new process starts at zero and has
// another started_ns. Builder and checker are pure functions, any thread.
#pragma once

#include <array>
#include <cstdint>
#include <expected>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tables/file_format.h"

namespace maglev {

struct PacketCount {
  uint64_t packets = 0;
  uint64_t bytes = 0;  // Ethernet frames as received, without frame check sequence
  bool operator==(const PacketCount&) const = default;
};

// At every burst boundary: received + taken_over = sum of the worker's verdicts + held +
// handed_over.
struct WorkerReport {
  uint32_t lcore = 0;
  uint32_t port = 0;   // index into Report::ports
  uint32_t queue = 0;  // RX queue of that port
  uint32_t zero = 0;
  uint64_t generation = 0;   // the one this worker uses; 0: none yet
  uint64_t polls = 0;        // grows while the worker makes progress, traffic or not
  uint64_t empty_polls = 0;  // polls that received nothing
  PacketCount received;      // from its queue
  uint64_t held = 0;         // fragments that wait for the first of their datagram
  uint64_t handed_over = 0;  // to other workers, so far
  uint64_t taken_over = 0;   // from other workers, so far
  uint64_t flow_room = 0;    // flows that it can remember; 0: it tracks none
  uint64_t flows = 0;        // that have a place in there, live or expired
  bool operator==(const WorkerReport&) const = default;
};

struct PortReport {
  std::string name;
  bool link_up = false;
  uint64_t receive_missed = 0;  // by the device: ring full, no buffer, error
  uint64_t receive_errors = 0;
  uint64_t no_buffer = 0;
  // Of the programs in front of an AF_XDP port, steering and guard, since they were attached: VIP
  // packets that came while no worker's socket was there to take them.
  uint64_t steering_dropped = 0;
  bool operator==(const PortReport&) const = default;
};

struct NamedCount {
  std::string pool;  // of a backend; empty for a VIP
  std::string name;
  PacketCount forwarded;  // packets handed to the wire for this VIP or backend
  PacketCount dropped;    // packets of this VIP or backend that ended in another verdict
  bool operator==(const NamedCount&) const = default;
};

// Events that tell of flows for which a worker had no room: control keeps the windows of unsettled
// slots open for longer.
inline constexpr std::array<std::string_view, 2> kLostFlowEvents = {"flow_other_unstored",
                                                                    "flow_evicted_one_packet"};

// Something workers count beside packets received: frames of their own, by kind, and such.
struct EventCount {
  std::string name;
  uint64_t count = 0;
  bool operator==(const EventCount&) const = default;
};

// Flows that workers remember of a backend.
struct BackendFlows {
  uint32_t backend = 0;  // index into the pool's backends
  uint32_t incarnation = 0;
  uint64_t flows = 0;  // live ones, at least 1
  bool operator==(const BackendFlows&) const = default;
};

struct PoolFlows {
  std::string pool;
  std::vector<uint32_t> disagreeing;   // slots with a live flow of another backend than the owner
  std::vector<BackendFlows> backends;  // by index and incarnation; no record: no live flow
  bool operator==(const PoolFlows&) const = default;
};

// One look at all that the workers remember. A pool that is not listed was not looked at.
struct SweepReport {
  uint64_t began_ns = 0;  // CLOCK_BOOTTIME; 0: there was none yet
  uint64_t ended_ns = 0;
  uint64_t generation = 0;  // the least that a worker used when it began
  std::vector<PoolFlows> pools;
  bool operator==(const SweepReport&) const = default;
};

struct Report {
  uint64_t started_ns = 0;            // CLOCK_BOOTTIME of the process's start: names the process
  uint64_t written_ns = 0;            // CLOCK_BOOTTIME
  uint64_t adopted_generation = 0;    // last published to the workers; 0: none
  uint64_t refused_roots = 0;         // roots, with what they name, that did not pass the checks
  std::string last_refusal;           // why the last of them was refused; empty: none
  std::vector<std::string> verdicts;  // names, in the order of the counts
  std::vector<WorkerReport> workers;
  std::vector<uint64_t> verdict_counts;  // workers.size() rows of verdicts.size() packets
  std::vector<PortReport> ports;
  std::vector<EventCount> events;  // sums over the workers
  std::vector<NamedCount> vips;
  std::vector<NamedCount> backends;
  SweepReport sweep{};  // the last whole one
  bool operator==(const Report&) const = default;
};

std::vector<std::byte> build_report_file(const Report& report);
std::expected<Report, std::string> check_report_file(std::span<const std::byte> file);

}  // namespace maglev
