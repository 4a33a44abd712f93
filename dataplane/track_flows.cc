#include "dataplane/track_flows.h"

#include <optional>

#include "dataplane/track.h"
#include "tables/flow_hash.h"

namespace maglev {
namespace {

// What track() and follow() ask, see track.h.
class View {
 public:
  View(const Burst& b, const Snapshot& snapshot, const FlowMemory& flows)
      : now_ns(b.now_ns), snapshot_(snapshot), flows_(flows) {
    if (flows.shared != nullptr) {
      now_ns += flows.shared->boot_offset_ns.load(std::memory_order_relaxed);
      looks_before_ = now_ns < flows.shared->elsewhere_until_ns.load(std::memory_order_acquire);
    }
    tick = flow_tick(now_ns);
  }

  uint64_t now_ns;
  uint32_t tick;

  // The pool of the next packet, which most questions will be about.
  void look_at(const TrackedPool& pool) { pool_ = &pool; }

  const FlowIdle& idle(uint16_t pool) const {
    static constexpr FlowIdle kGone{};
    const TrackedPool* const tracked = find(pool);
    return tracked == nullptr ? kGone : tracked->idle;
  }
  bool serves(uint16_t pool, uint32_t backend, uint8_t incarnation) const {
    const TrackedPool* const tracked = find(pool);
    return tracked != nullptr && tracked->serves(backend, incarnation);
  }
  uint8_t incarnation(uint16_t pool, uint32_t backend) const {
    return find(pool)->incarnation(backend);
  }
  SlotView slot(uint16_t pool, uint32_t hash_upper) const {
    const TrackedPool* const tracked = find(pool);
    return tracked == nullptr ? SlotView{} : tracked->slot_of_hash(uint64_t{hash_upper} << 32);
  }
  bool looks_elsewhere() const { return looks_before_; }

  // The one that was seen last.
  std::optional<FlowEntry> known_elsewhere(const FlowIdentity& flow, uint16_t pool) const {
    std::optional<FlowEntry> known;
    const auto look = [&](const FlowTable& table) {
      const std::optional<FlowEntry> entry = table.peek(flow, pool);
      if (entry && (!known || flow_age_ticks(tick, entry->seen_tick) <
                                  flow_age_ticks(tick, known->seen_tick))) {
        known = entry;
      }
    };
    for (const FlowTable* table : flows_.shared->tables) {
      if (table != flows_.own) look(*table);
    }
    if (!looks_before_) return known;
    for (const FlowTable* table : flows_.shared->tables_before) look(*table);
    return known;
  }

 private:
  const TrackedPool* find(uint16_t number) const {
    return number == pool_->number ? pool_ : snapshot_.tracked_pool(number);
  }

  const Snapshot& snapshot_;
  const FlowMemory& flows_;
  const TrackedPool* pool_ = nullptr;
  bool looks_before_ = false;
};

// The second hash of packets that fixed offsets can read.
class PlainSecondHash {
 public:
  explicit PlainSecondHash(uint64_t seed) : seed_(seed), hash4_(seed), hash6_(seed) {}

  uint64_t operator()(const uint8_t* ip, bool by_addresses) const {
    if (is_ipv6(ip)) return of_ipv6(ip, by_addresses);
    constexpr uint64_t kPorts = 0x00ffffffff000000;
    const uint64_t last =
        load<uint64_t>(ip + kIpv4DestinationOffset) >> 8 | uint64_t{ip[kIpv4ProtocolOffset]} << 56;
    return hash4_(load<uint64_t>(ip + kIpv4SourceOffset), by_addresses ? last & ~kPorts : last);
  }

 private:
  uint64_t of_ipv6(const uint8_t* ip, bool by_addresses) const {
    if (!by_addresses) return hash6_(ip + kIpv6SourceOffset, ip[kIpv6NextHeaderOffset]);
    FlowKey6 key{};
    std::memcpy(key.source, ip + kIpv6SourceOffset, 32);
    key.protocol = ip[kIpv6NextHeaderOffset];
    return hash_flow(key, seed_);
  }

  uint64_t seed_;
  FlowHash4 hash4_;
  FlowHash6 hash6_;
};

void read_plain(Burst& b, uint32_t i, const PlainSecondHash& second_hash, bool by_addresses) {
  const uint8_t* const ip = b.ip[i];
  const bool ipv6 = is_ipv6(ip);
  const TransportKind read =
      kind_of_packet(ip[ipv6 ? kIpv6NextHeaderOffset : kIpv4ProtocolOffset],
                     ip + (ipv6 ? kIpv6HeaderLength : kIpv4HeaderLength), by_addresses);
  b.flow[i] = {second_hash(ip, by_addresses), read.kind, read.opening, false, kNoBackendIndex};
}

// The backend that the connection ID of a plain packet names, if it serves.
uint32_t named_backend(const Burst& b, uint32_t i, const VipTracking& tracking,
                       TrackingCounters& counters) {
  const uint8_t* const ip = b.ip[i];
  const uint32_t headers = (is_ipv6(ip) ? kIpv6HeaderLength : kIpv4HeaderLength) + kUdpHeaderLength;
  const QuicDecision decision = tracking.quic->route({ip + headers, b.packet_length[i] - headers});
  counters.quic[static_cast<uint32_t>(decision.route)].add(1);
  if (decision.route != QuicRoute::kServer) return kNoBackendIndex;
  const TrackedPool& pool = *tracking.pool;
  if (pool.serves(decision.backend, pool.incarnation(decision.backend))) return decision.backend;
  counters.quic_moved.add(1);
  return kNoBackendIndex;
}

SlotView view_of_slot(const VipTracking& tracking, uint32_t word) {
  SlotView view = tracking.pool->slot_of_word(word);
  view.full = tracking.mode == Tracking::kFull;
  view.udp_lead_ns = tracking.udp_lead_ns;
  return view;
}

// The backend of a packet whose flow may be remembered.
uint32_t backend_of(const Burst& b, uint32_t i, const SlotView& slot, const View& view,
                    FlowMemory& flows) {
  const VipTracking& tracking = *b.vip[i]->tracking;
  const FlowPacket& flow = b.flow[i];
  const uint16_t pool = tracking.pool->number;
  const FlowIdentity identity{b.hash[i], flow.second_hash};
  if (flow.only_follows) {
    return follow(*flows.own, identity, pool, slot, tracking.idle, view);
  }
  const TrackedPacket packet{identity, flows.own->position_of(identity), pool, flow.kind,
                             flow.opening};
  return track(*flows.own, packet, slot, tracking.idle, view, *flows.counters);
}

// Reads the tracked packets and prefetches what is known of their flows and slots.
void read_tracked(Burst& b, const PlainSecondHash& second_hash, const FlowMemory& flows) {
  uint32_t u = 0;
  for (uint32_t n = 0; n < b.tracked_count; ++n) {
    const uint32_t i = b.tracked[n];
    const VipEntry& vip = *b.vip[i];
    if (vip.tracking->mode == Tracking::kChanged) {
      vip.tracking->pool->prefetch(slot_word(vip.slot_bytes, b.slot[i]));
    }
    while (u < b.uncommon_count && b.uncommon[u] < i) ++u;
    const bool uncommon = u < b.uncommon_count && b.uncommon[u] == i;
    if (!uncommon) {
      read_plain(b, i, second_hash, vip.tracking->by_addresses);
      if (vip.tracking->quic != nullptr) {
        b.flow[i].named = named_backend(b, i, *vip.tracking, *flows.counters);
      }
    }
    flows.own->prefetch(flows.own->position_of({b.hash[i], b.flow[i].second_hash}));
  }
}

}  // namespace

void track_flows(Burst& b, const Snapshot& snapshot, FlowMemory& flows) {
  View view(b, snapshot, flows);
  if (flows.own != nullptr) {
    read_tracked(b, PlainSecondHash(second_seed(snapshot.hash_seed())), flows);
  }
  for (uint32_t n = 0; n < b.tracked_count; ++n) {
    const uint32_t i = b.tracked[n];
    const VipEntry& vip = *b.vip[i];
    const VipTracking& tracking = *vip.tracking;
    const SlotView slot = view_of_slot(tracking, slot_word(vip.slot_bytes, b.slot[i]));
    const bool settled = !slot.full && slot.inherit_until_ns == 0;
    uint32_t backend = slot.owner;
    if (flows.own != nullptr && tracking.quic != nullptr && b.flow[i].named != kNoBackendIndex) {
      backend = b.flow[i].named;
    } else if (tracking.mode != Tracking::kNone && !settled) {
      view.look_at(*tracking.pool);
      backend = flows.own == nullptr ? choose_unknown(slot, PacketKind::kData, view.now_ns).backend
                                     : backend_of(b, i, slot, view, flows);
    }
    if (backend == kNoBackendIndex) [[unlikely]] {
      b.verdict[i] = Verdict::kNoBackend;
    } else {
      b.backend[i] = vip.backends + backend;
      __builtin_prefetch(b.backend[i]);
    }
  }
}

}  // namespace maglev
