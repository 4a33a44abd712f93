// The rules by which connections survive a change of their slot's owner, for one packet.
//
// Pure functions: any thread, no clock, no memory. track.h applies them to a flow table, and the
// model in tests/ to flows whose true backend it knows. What control does (when a slot becomes
// unsettled and settled, and which backend its fallback is) is in control's slot history.
//
// In a settled slot no flow can belong to another backend than the owner: nothing here is asked.
// In an unsettled slot:
//   b. A remembered flow keeps its backend while that serves. Of a flow that is not remembered, a
//      packet that opens one (a SYN) takes the owner and is remembered; any other belongs to a flow
//      older than the change: it takes the fallback and is remembered, until inherit_until_ns. Then
//      every packet takes the owner: a flow older than the change has been remembered by now, or
//      was idle for too long.
//      UDP flows are idle for too long sooner, and have no packet that opens one: a new one takes
//      the fallback until all older ones are remembered, and the owner, remembered, from then on.
//   c. The same SYN again (8 bits of its sequence number tell) is a retransmission and keeps its
//      backend; another is a reused port and opens a flow. Until pending_until_ns SYNs still take
//      the fallback, remembered: a retransmission of one that came just before the change, when
//      nothing was remembered, follows it.
//   d. Nothing that opens a flow is answered by a choice that the next packet could not reproduce:
//      what cannot be remembered takes what any packet of an unknown flow would.
//   e. Where no place is free, an entry gives way in the order of FlowWorth. An entry that a later
//      packet needs never gives way; a handshake of the last seconds is one. Handshakes fill at
//      most half of a pair of buckets. So a flood of SYNs takes the fallback, unremembered, and one
//      of anything else its own places. An RST is never remembered.
//
// Invariants:
// 1. What a packet is sent to, and what is remembered of it, depends on the slot, the entry and the
//    time of the burst alone, so the phases end even if control is dead.
// 2. From a change on until kAdoptionGrace_ns after inherit_until_ns, whatever takes the owner is
//    remembered: a change that control planned before inherit_until_ns, which leaves the fallback
//    as it was, may reach the worker later.
// 3. An entry that is not asked for, or that agrees with every choice made without it from now on,
//    is useless; within the window none is, for the owner may change once more.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "dataplane/flow_table.h"
#include "tables/tracking_times.h"

namespace maglev {

// "No backend" and whatever else is not an index is greater than all of them.
inline constexpr uint32_t kNoBackendIndex = 0xffffffff;

// A slot as a worker sees it.
struct SlotView {
  uint32_t owner = kNoBackendIndex;
  uint32_t fallback = kNoBackendIndex;
  uint64_t pending_until_ns = 0;
  uint64_t inherit_until_ns = 0;  // 0: settled
  uint64_t udp_lead_ns = 0;       // by how much UDP's part of the window ends before
  bool full = false;              // every flow is remembered, and the owner serves unknown ones
};

// The view of a slot that is not settled. Where the old owner cannot serve (failed, removed, or
// another incarnation has its index) the owner stands for it at once, and all that it gets must be
// remembered: nothing is pending.
// udp_lead_ns: the idle time that the window was made for, less that of UDP.
inline SlotView unsettled_view(uint32_t owner, uint32_t fallback, bool fallback_serves,
                               uint64_t pending_until_ns, uint64_t inherit_until_ns,
                               uint64_t udp_lead_ns) {
  if (!fallback_serves) return {owner, owner, 0, inherit_until_ns, udp_lead_ns};
  return {owner, fallback, pending_until_ns, inherit_until_ns, udp_lead_ns};
}

enum class PacketKind : uint8_t { kOpening, kData, kFin, kReset, kUdp };

// Of a TCP header's flags. A SYN with FIN or RST opens nothing.
inline PacketKind kind_of_tcp(uint8_t flags) {
  constexpr uint8_t kFinFlag = 1, kSynFlag = 2, kRstFlag = 4, kAckFlag = 16;
  if (flags & kRstFlag) return PacketKind::kReset;
  if ((flags & (kSynFlag | kAckFlag | kFinFlag)) == kSynFlag) return PacketKind::kOpening;
  return flags & kFinFlag ? PacketKind::kFin : PacketKind::kData;
}

// Only the model's tests have other rules than these, to show what each is for.
struct AllRules {
  static constexpr bool kInherit = true;              // b
  static constexpr bool kWindowEnds = true;           // b
  static constexpr bool kRememberInherited = true;    // b
  static constexpr bool kKeepRetransmissions = true;  // c
  static constexpr bool kRescheduleReused = true;     // c
  static constexpr bool kPend = true;                 // c
  static constexpr bool kReproducible = true;         // d
  static constexpr bool kProtectNeeded = true;        // e
  static constexpr bool kProtectHandshakes = true;    // e
  static constexpr bool kLimitHandshakes = true;      // e
  static constexpr bool kDoubtOnePacket = true;       // e
  static constexpr bool kForgetResets = true;         // e
  static constexpr bool kRememberPastWindow = true;   // invariant 2
  static constexpr bool kCheckBackend = true;         // b
  static constexpr bool kSupersede = true;  // what reuses ports is known again, see track.h
};

// Idle times by state, in ticks.
struct FlowIdle {
  std::array<uint32_t, kFlowStateCount> ticks{};

  uint64_t longest_ns() const { return *std::ranges::max_element(ticks) * kFlowTick_ns; }
  bool has_expired(const FlowEntry& entry, uint32_t tick) const {
    return flow_age_ticks(tick, entry.seen_tick) > ticks[static_cast<uint32_t>(entry.state)];
  }
};

// A server gives up its half of a handshake after about so long (Linux: 63 s).
inline constexpr uint32_t kHalfOpenIdle_s = 64;

// Entries live kAdoptionGrace_ns longer than asked for: a flow that began within a window and has
// been idle for too long is then the owner's again, never the fallback's.
inline FlowIdle flow_idle(uint32_t tcp_s, uint32_t tcp_closing_s, uint32_t udp_s) {
  // Rounded up, and one more for the part of a tick in which the flow was seen.
  const auto ticks = [](uint64_t seconds) {
    return static_cast<uint32_t>((seconds * 1'000'000'000 + kAdoptionGrace_ns) / kFlowTick_ns + 2);
  };
  FlowIdle idle;
  const auto set = [&](FlowState state, uint32_t seconds) {
    idle.ticks[static_cast<uint32_t>(state)] = ticks(seconds);
  };
  set(FlowState::kHalfOpen, std::min(kHalfOpenIdle_s, tcp_s));
  set(FlowState::kEstablished, tcp_s);
  set(FlowState::kClosing, tcp_closing_s);
  set(FlowState::kUdp, udp_s);
  set(FlowState::kOneTcp, tcp_s);
  set(FlowState::kOneUdp, udp_s);
  return idle;
}

struct FlowChoice {
  uint32_t backend = kNoBackendIndex;
  bool remember = false;
};

// Rules b and c for a flow that is not remembered.
template <typename Rules = AllRules>
FlowChoice choose_unknown(const SlotView& slot, PacketKind kind, uint64_t now_ns) {
  const bool may_remember = kind != PacketKind::kReset || !Rules::kForgetResets;
  if (slot.full) return {slot.owner, may_remember};
  const bool opens = kind == PacketKind::kOpening;
  if (Rules::kPend && now_ns < slot.pending_until_ns) return {slot.fallback, opens};
  const uint64_t lead_ns = kind == PacketKind::kUdp ? slot.udp_lead_ns : 0;
  if (now_ns + lead_ns < slot.inherit_until_ns) {
    if (opens) return {slot.owner, true};
    return {Rules::kInherit ? slot.fallback : slot.owner,
            may_remember && Rules::kRememberInherited};
  }
  if (!Rules::kWindowEnds && !opens) return {slot.fallback, may_remember};
  const bool may_change_late = Rules::kRememberPastWindow && slot.inherit_until_ns != 0 &&
                               now_ns < slot.inherit_until_ns + kAdoptionGrace_ns;
  return {slot.owner, may_remember && may_change_late};
}

// Rule c: whether a packet goes the way of the flow that its entry is of.
template <typename Rules = AllRules>
bool continues(const FlowEntry& entry, PacketKind kind, uint8_t opening) {
  if (kind != PacketKind::kOpening) return true;
  return entry.opening == opening ? Rules::kKeepRetransmissions : !Rules::kRescheduleReused;
}

template <typename Rules = AllRules>
FlowState state_of_new(PacketKind kind) {
  if (kind == PacketKind::kOpening) return FlowState::kHalfOpen;
  if (!Rules::kDoubtOnePacket) return FlowState::kEstablished;
  return kind == PacketKind::kUdp ? FlowState::kOneUdp : FlowState::kOneTcp;
}

inline FlowState next_state(FlowState state, PacketKind kind) {
  switch (kind) {
    case PacketKind::kOpening:
      return state == FlowState::kEstablished ? state : FlowState::kHalfOpen;
    case PacketKind::kData:
      return state == FlowState::kClosing ? state : FlowState::kEstablished;
    case PacketKind::kFin:
    case PacketKind::kReset:
      return FlowState::kClosing;
    case PacketKind::kUdp:
      break;
  }
  return FlowState::kUdp;
}

// Invariant 3: every choice made without the entry is the same from now on.
inline bool is_useless(const FlowEntry& entry, const SlotView& slot, uint64_t now_ns) {
  if (slot.full) return false;
  if (slot.inherit_until_ns == 0) return true;
  return entry.backend == slot.owner && now_ns >= slot.inherit_until_ns + kAdoptionGrace_ns;
}

// Handshakes younger than this do not give way.
inline constexpr uint32_t kYoungHandshake_ticks = 5;

// Rule e, for an entry that has not expired and the slot that it is in.
template <typename Rules = AllRules>
FlowWorth worth_of(const FlowEntry& entry, uint32_t age_ticks, bool backend_serves,
                   const SlotView& slot, uint64_t now_ns) {
  if (!backend_serves || is_useless(entry, slot, now_ns)) return FlowWorth::kUseless;
  if (entry.state == FlowState::kOneTcp || entry.state == FlowState::kOneUdp) {
    return FlowWorth::kOnePacket;
  }
  const bool half_open = entry.state == FlowState::kHalfOpen;
  if (slot.full && entry.backend == slot.owner) {
    return half_open ? FlowWorth::kSpareHalfOpen : FlowWorth::kSpare;
  }
  if (half_open && (age_ticks > kYoungHandshake_ticks || !Rules::kProtectHandshakes)) {
    return FlowWorth::kHalfOpen;
  }
  return Rules::kProtectNeeded || half_open ? FlowWorth::kNeeded : FlowWorth::kSpare;
}

// What a new flow may push out: one known by a packet that opened nothing, no flow that was open.
inline FlowWorth greatest_worth_to_evict(PacketKind kind) {
  return kind == PacketKind::kOpening ? FlowWorth::kSpare : FlowWorth::kHalfOpen;
}

}  // namespace maglev
