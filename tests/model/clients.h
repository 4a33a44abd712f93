// The clients of the model: flows, what they send and when. No client depends on a mode.
#pragma once

#include <array>
#include <cstdint>

#include "tests/model/host.h"
#include "tests/model/random.h"

namespace maglev::model {

enum class Habit : uint8_t { kShort, kMedium, kPausing, kUdp };

// What becomes of a flow in one mode.
enum class Fate : uint8_t { kOpening, kAlive, kExcused, kViolated };

struct FlowFate {
  Fate fate = Fate::kOpening;
  uint32_t backend = kNobody;  // the true one
  uint32_t index = kNoBackendIndex;
  std::array<Chosen, 4> syns;
  uint8_t cause = 0;
};

inline constexpr std::array<double, 4> kSynTimes_s{0, 1, 3, 7};

struct Flow {
  Flow(FlowIdentity of, uint64_t seed) : identity(of), random(seed) {}

  FlowIdentity identity;
  Random random;
  Habit habit = Habit::kShort;
  uint8_t opening = 0;
  uint32_t slot = 0;
  uint64_t started_ns = 0;
  // The handshake: which SYN's answer comes first, and how many SYNs were sent by then.
  uint32_t syns = 1;
  uint32_t answered_syn = 0;
  uint64_t answered_ns = 0;
  uint32_t packets_left = 0;
  bool closing = false;
  uint64_t last_packet_ns = 0;
  // Where it came last, and what it has lived through.
  uint32_t host = 0;
  uint64_t queue_epoch = 0;
  bool moved_host = false;
  bool moved_worker = false;
  bool paused_too_long = false;
  bool reused = false;
  std::array<FlowFate, kModeCount> fates;
};

struct ClientHabits {
  Idle idle;
  bool lossy = false;
  bool long_pauses = false;
  bool udp = false;
};

// Chooses what the flow will do. False: none of its SYNs is answered.
inline bool plan_flow(Flow& flow, const ClientHabits& habits) {
  Random& random = flow.random;
  const double kind = random.uniform(0, 1);
  flow.habit = kind < 0.4 ? Habit::kShort : kind < 0.65 ? Habit::kMedium : Habit::kPausing;
  if (habits.udp && random.chance(0.3)) flow.habit = Habit::kUdp;
  flow.opening = static_cast<uint8_t>(random.next());
  const uint64_t lengths[] = {8, 30, 30, 40};
  flow.packets_left =
      static_cast<uint32_t>(2 + random.below(lengths[static_cast<uint32_t>(flow.habit)]));
  double first_s = 1e9;
  for (uint32_t i = 0; i < kSynTimes_s.size() && kSynTimes_s[i] < first_s; ++i) {
    flow.syns = i + 1;
    const bool lost = habits.lossy && random.chance(0.3);
    const bool late = habits.lossy && random.chance(0.2);
    const double answer_s = kSynTimes_s[i] + (late ? random.uniform(0.5, 2.5) : 0.05);
    if (lost || answer_s >= first_s) continue;
    first_s = answer_s;
    flow.answered_syn = i;
  }
  if (flow.habit == Habit::kUdp) {
    flow.syns = 1;
    flow.answered_syn = 0;
    first_s = 0;
  }
  flow.answered_ns = flow.started_ns + to_ns(first_s);
  return first_s < 1e9;
}

// Until the flow's next packet.
inline double next_pause_s(Flow& flow, const ClientHabits& habits) {
  Random& random = flow.random;
  if (flow.closing) return random.uniform(0.05, 0.9 * habits.idle.tcp_closing_s);
  const bool udp = flow.habit == Habit::kUdp;
  const double idle_s = udp ? habits.idle.udp_s : habits.idle.tcp_s;
  if (habits.long_pauses && random.chance(0.02)) return random.uniform(1.05, 3) * idle_s;
  const bool pauses = flow.habit == Habit::kPausing || udp;
  if (pauses && random.chance(0.3)) return random.uniform(0.3, 0.98) * idle_s;
  const double means_s[] = {0.3, 3, 5, 2};
  return std::min(random.exponential(means_s[static_cast<uint32_t>(flow.habit)]), 0.98 * idle_s);
}

}  // namespace maglev::model
