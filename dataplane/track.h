// One packet through the rules of tracking.h and its worker's flow table.
//
// The View tells what the snapshot and the burst know:
//   uint64_t now_ns; uint32_t tick;                     of the burst
//   const FlowIdle& idle(uint16_t pool)                 the longest idle times of the pool's VIPs
//   bool serves(pool, backend, incarnation)             whether a remembered flow may stay with it
//   uint8_t incarnation(pool, backend)
//   SlotView slot(uint16_t pool, uint32_t hash_upper)   of any entry's slot
//   bool looks_elsewhere()                              whether other tables are asked at all:
//                                                       after flows have come to other workers
//   std::optional<FlowEntry> known_elsewhere(const FlowIdentity&, uint16_t pool)
//                                                       in tables that this worker does not write
//
// Called by the table's worker. Nothing is allocated.
#pragma once

#include <cstdint>
#include <optional>

#include "dataplane/counters.h"
#include "dataplane/flow_table.h"
#include "dataplane/tracking.h"

namespace maglev {

struct TrackedPacket {
  FlowIdentity flow;
  FlowTable::Position at{};  // of the flow, in the worker's table
  uint16_t pool = 0;
  PacketKind kind = PacketKind::kData;
  uint8_t opening = 0;  // of a SYN: 8 bits of its sequence number
};

namespace tracking {

// The flow's entry if it is live: in its own place or elsewhere.
template <typename View>
std::optional<FlowEntry> find_live(const FlowTable::Place* place, const TrackedPacket& packet,
                                   const FlowIdle& idle, const View& view,
                                   TrackingCounters& counters) {
  if (place != nullptr) {
    const FlowEntry entry = place->read();
    if (!idle.has_expired(entry, view.tick)) return entry;
  }
  if (!view.looks_elsewhere()) return std::nullopt;
  std::optional<FlowEntry> entry = view.known_elsewhere(packet.flow, packet.pool);
  if (!entry || idle.has_expired(*entry, view.tick)) return std::nullopt;
  counters.found_elsewhere.add(1);
  return entry;
}

template <typename Rules, typename View>
FlowTable::Place* make_room(FlowTable& table, const TrackedPacket& packet, const View& view) {
  return table.make_room(
      packet.at, view.tick, Rules::kLimitHandshakes && packet.kind == PacketKind::kOpening,
      greatest_worth_to_evict(packet.kind),
      [&](const FlowEntry& entry) { return view.idle(entry.pool).has_expired(entry, view.tick); },
      [&](const FlowEntry& entry) {
        return worth_of<Rules>(entry, flow_age_ticks(view.tick, entry.seen_tick),
                               view.serves(entry.pool, entry.backend, entry.incarnation),
                               view.slot(entry.pool, entry.hash_upper()), view.now_ns);
      });
}

// False: there was no room.
template <typename Rules, typename View>
bool remember(FlowTable& table, FlowTable::Place* place, const TrackedPacket& packet,
              const FlowEntry& entry, const View& view) {
  if (place != nullptr) {
    if (place->read() != entry) table.write(*place, entry);
    return true;
  }
  place = make_room<Rules>(table, packet, view);
  if (place == nullptr) return false;
  table.store(*place, entry);
  return true;
}

template <typename Rules, typename View>
uint32_t track_unknown(FlowTable& table, FlowTable::Place* place, const TrackedPacket& packet,
                       bool superseded, const SlotView& slot, const View& view,
                       TrackingCounters& counters) {
  FlowChoice choice = choose_unknown<Rules>(slot, packet.kind, view.now_ns);
  // Else another table would still tell what was known of the ports before.
  choice.remember |= Rules::kSupersede && superseded && view.looks_elsewhere();
  const bool opens = packet.kind == PacketKind::kOpening;
  counters.unknown.add(1);
  if (!opens && choice.backend != slot.owner) counters.inherited.add(1);
  if (!choice.remember || choice.backend == kNoBackendIndex) {
    if (place != nullptr) table.forget(*place);
    return choice.backend;
  }
  const FlowEntry entry{.tag = packet.at.tag,
                        .backend = choice.backend,
                        .incarnation = view.incarnation(packet.pool, choice.backend),
                        .pool = packet.pool,
                        .opening = packet.opening,
                        .state = state_of_new<Rules>(packet.kind),
                        .seen_tick = view.tick};
  if (remember<Rules>(table, place, packet, entry, view)) return choice.backend;
  (opens ? counters.openings_unstored : counters.others_unstored).add(1);
  if (!opens || !Rules::kReproducible) return choice.backend;
  return choose_unknown<Rules>(slot, PacketKind::kData, view.now_ns).backend;
}

// Whatever the packet and its flow are. Arguments by value: whoever has them in registers need not
// write them down for the packets that never come here.
template <typename Rules, typename View>
[[gnu::noinline]] uint32_t track_by_all_rules(FlowTable& table, FlowTable::Place* place,
                                              TrackedPacket packet, SlotView slot,
                                              const FlowIdle& idle, const View& view,
                                              TrackingCounters& counters) {
  std::optional<FlowEntry> entry = find_live(place, packet, idle, view, counters);
  const bool known = entry.has_value();
  if (entry && Rules::kCheckBackend &&
      !view.serves(packet.pool, entry->backend, entry->incarnation)) {
    counters.moved.add(1);
    entry.reset();
  }
  if (entry && !continues<Rules>(*entry, packet.kind, packet.opening)) {
    counters.reused_ports.add(1);
    entry.reset();
  }
  if (!entry) return track_unknown<Rules>(table, place, packet, known, slot, view, counters);
  counters.known.add(1);
  if (is_useless(*entry, slot, view.now_ns) && !view.looks_elsewhere()) {
    if (place != nullptr) table.forget(*place);
    return entry->backend;
  }
  entry->state = next_state(entry->state, packet.kind);
  entry->seen_tick = view.tick;
  if (!remember<Rules>(table, place, packet, *entry, view)) counters.others_unstored.add(1);
  return entry->backend;
}

}  // namespace tracking

// The backend of a packet in a slot that is not settled, or of a VIP that tracks every flow;
// kNoBackendIndex where there is none. idle: of the packet's VIP.
template <typename Rules = AllRules, typename View>
uint32_t track(FlowTable& table, const TrackedPacket& packet, const SlotView& slot,
               const FlowIdle& idle, const View& view, TrackingCounters& counters) {
  FlowTable::Place* const place = table.find(packet.at, packet.pool);
  if (place != nullptr) [[likely]] {
    // Most packets go on with a flow that is known here and stays where it is.
    const FlowEntry entry = place->read();
    if (!idle.has_expired(entry, view.tick) &&
        continues<Rules>(entry, packet.kind, packet.opening) &&
        view.serves(packet.pool, entry.backend, entry.incarnation) &&
        !is_useless(entry, slot, view.now_ns)) [[likely]] {
      counters.known.add(1);
      const FlowState state = next_state(entry.state, packet.kind);
      if (state != entry.state || view.tick != entry.seen_tick) table.see(*place, state, view.tick);
      return entry.backend;
    }
  }
  return tracking::track_by_all_rules<Rules>(table, place, packet, slot, idle, view, counters);
}

// The backend of what belongs to a flow without being a packet of it (an ICMP error, a later
// fragment): nothing is remembered.
template <typename View>
uint32_t follow(const FlowTable& table, const FlowIdentity& flow, uint16_t pool,
                const SlotView& slot, const FlowIdle& idle, const View& view) {
  std::optional<FlowEntry> entry = table.peek(flow, pool);
  if (!entry || idle.has_expired(*entry, view.tick)) entry = view.known_elsewhere(flow, pool);
  if (entry && !idle.has_expired(*entry, view.tick) &&
      view.serves(pool, entry->backend, entry->incarnation)) {
    return entry->backend;
  }
  return choose_unknown(slot, PacketKind::kData, view.now_ns).backend;
}

}  // namespace maglev
