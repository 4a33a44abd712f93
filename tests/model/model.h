// An executable model of what connections live through: it knows the true backend of every flow and
// counts each packet that reached another (a violation of per-connection consistency), by cause.
//
// One history is one seed: clients open, use, pause and close flows while backends are added,
// drained, fail and come back, queues and workers are reassigned, routers move flows to another
// load balancer, control and dataplane start again, and strangers flood. The three modes see the
// very same packets side by side; what a client does never depends on a mode. The true backend of a
// TCP flow is the one whose answer to a SYN its client took first; of a UDP flow the first one.
//
// A flow whose backend failed or was removed is excused from then on: that it moves is the rule.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "tests/model/host.h"

namespace maglev::model {

// The first that fits is taken.
enum class Cause : uint8_t {
  kReplaced,     // reached the backend that took the true one's index, by memory
  kEcmpOld,      // came to another load balancer; older than its slot's last change
  kEcmpYoung,    // came to another load balancer; younger
  kIdleTooLong,  // paused for longer than promised
  kCrowded,      // little room in the tables, or a flood
  kLateWorkers,  // met two workers, or answered twice, while some did not use a change for seconds
  kHandshake,    // several SYNs
  kQueues,       // came to another worker
  kPortReuse,    // of the ports of another flow
  kSlotChanged,  // nothing of all that
};
inline constexpr uint32_t kCauseCount = 10;
const char* name_of(Cause cause);

// Causes that full memory prevents, and so must less of it.
inline constexpr Cause kPreventable[] = {Cause::kReplaced, Cause::kHandshake, Cause::kQueues,
                                         Cause::kPortReuse, Cause::kSlotChanged};

enum class Flood : uint8_t { kNone, kSyn, kAck, kUdp, kReset };

// What a history holds. Times in seconds.
struct Scenario {
  uint64_t seed = 1;
  double duration_s = 400;
  double flows_per_s = 5;
  uint32_t backends = 12;
  double change_every_s = 40;  // mean
  double failures = 0.4;       // share of the changes
  double removals = 0.2;       // share of the changes, each followed by a new backend
  bool flap_back = false;      // changes are undone within two idle times
  bool lossy = false;          // answers to SYNs are lost or late
  bool port_reuse = false;
  bool long_pauses = false;  // some beyond the idle time
  bool udp = false;
  bool ecmp = false;
  bool queues = false;
  bool worker_count = false;
  bool control_restarts = false;
  bool dataplane_restarts = false;
  Flood flood = Flood::kNone;
  HostSettings host;
};

// A scenario of everything, by chance.
Scenario random_scenario(uint64_t seed);

struct ModeResult {
  std::array<uint64_t, kCauseCount> flows{};  // violated, by cause of the first violation
  std::array<uint64_t, kCauseCount> packets{};
  // Of these flows, those that mode kFull kept.
  std::array<uint64_t, kCauseCount> kept_by_full{};
  uint64_t excused = 0;

  uint64_t violated() const;
  ModeResult& operator+=(const ModeResult& other);
};

struct Result {
  uint64_t flows = 0;
  uint64_t packets = 0;  // of flows, once for all modes
  uint64_t flood_packets = 0;
  uint64_t changes = 0;
  std::array<ModeResult, kModeCount> modes;
  uint64_t settled_packets = 0;  // in mode kChanged
  uint64_t unsettled_packets = 0;
  uint64_t lookups_changed = 0;
  // Sums over looks at the tables, every few seconds.
  uint64_t live_flows = 0;
  uint64_t entries_full = 0;
  uint64_t entries_changed = 0;
  uint64_t looks = 0;

  const ModeResult& of(Mode mode) const { return modes[static_cast<uint32_t>(mode)]; }
  Result& operator+=(const Result& other);
};

Result run(const Scenario& scenario);

std::string report(const Result& result);

}  // namespace maglev::model
