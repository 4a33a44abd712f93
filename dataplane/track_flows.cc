#include "dataplane/track_flows.h"

#include <optional>

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

  const FlowIdle& idle(uint16_t pool) const {
    static constexpr FlowIdle kGone{};
    const TrackedPool* const tracked = snapshot_.tracked_pool(pool);
    return tracked == nullptr ? kGone : tracked->idle;
  }
  bool serves(uint16_t pool, uint32_t backend, uint8_t incarnation) const {
    const TrackedPool* const tracked = snapshot_.tracked_pool(pool);
    return tracked != nullptr && tracked->serves(backend, incarnation);
  }
  uint8_t incarnation(uint16_t pool, uint32_t backend) const {
    return snapshot_.tracked_pool(pool)->incarnation(backend);
  }
  SlotView slot(uint16_t pool, uint32_t hash_upper) const {
    const TrackedPool* const tracked = snapshot_.tracked_pool(pool);
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
  const Snapshot& snapshot_;
  const FlowMemory& flows_;
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

void read_plain(const Burst& b, uint32_t i, const PlainSecondHash& second_hash, bool by_addresses,
                TrackedPacket& packet) {
  const uint8_t* const ip = b.ip[i];
  const bool ipv6 = is_ipv6(ip);
  const TransportKind read =
      kind_of_packet(ip[ipv6 ? kIpv6NextHeaderOffset : kIpv4ProtocolOffset],
                     ip + (ipv6 ? kIpv6HeaderLength : kIpv4HeaderLength), by_addresses);
  packet.flow.second = second_hash(ip, by_addresses);
  packet.kind = read.kind;
  packet.opening = read.opening;
}

SlotView view_of_slot(const VipEntry& vip, const uint8_t* slot) {
  SlotView view = vip.tracking->pool->slot_of_word(slot_word(vip.slot_bytes, slot));
  view.full = vip.tracking->mode == Tracking::kFull;
  view.udp_lead_ns = vip.tracking->udp_lead_ns;
  return view;
}

// Whether it matters what is remembered of the packet's flow.
bool is_remembered(const VipEntry& vip, const SlotView& slot) {
  return slot.full || (vip.tracking->mode == Tracking::kChanged && slot.inherit_until_ns != 0);
}

}  // namespace

void track_flows(Burst& b, const Snapshot& snapshot, FlowMemory& flows) {
  const View view(b, snapshot, flows);
  const PlainSecondHash second_hash(second_seed(snapshot.hash_seed()));
  uint32_t u = 0;
  for (uint32_t n = 0; n < b.tracked_count; ++n) {
    const uint32_t i = b.tracked[n];
    const VipEntry& vip = *b.vip[i];
    TrackedFlow& flow = b.tracked_flow[n];
    flow.slot = view_of_slot(vip, b.slot[i]);
    flow.only_follows = false;
    if (flows.own == nullptr || !is_remembered(vip, flow.slot)) continue;
    flow.packet.pool = vip.tracking->pool->number;
    flow.packet.flow.hash = b.hash[i];
    while (u < b.uncommon_count && b.uncommon[u] < i) ++u;
    if (u < b.uncommon_count && b.uncommon[u] == i) {
      const UncommonFlow& read = b.uncommon_flow[i];
      flow.packet.flow.second = read.second_hash;
      flow.packet.kind = read.kind;
      flow.packet.opening = read.opening;
      flow.only_follows = read.only_follows;
    } else {
      read_plain(b, i, second_hash, vip.tracking->by_addresses, flow.packet);
    }
    flow.packet.at = flows.own->position_of(flow.packet.flow);
    flows.own->prefetch(flow.packet.at);
  }
  for (uint32_t n = 0; n < b.tracked_count; ++n) {
    const uint32_t i = b.tracked[n];
    const VipEntry& vip = *b.vip[i];
    const TrackedFlow& flow = b.tracked_flow[n];
    uint32_t backend = flow.slot.owner;
    if (!is_remembered(vip, flow.slot)) {
      // The owner's.
    } else if (flows.own == nullptr) {
      backend = choose_unknown(flow.slot, PacketKind::kData, view.now_ns).backend;
    } else if (flow.only_follows) {
      backend = follow(*flows.own, flow.packet.flow, flow.packet.pool, flow.slot,
                       vip.tracking->idle, view);
    } else {
      backend =
          track(*flows.own, flow.packet, flow.slot, vip.tracking->idle, view, *flows.counters);
    }
    if (backend == kNoBackendIndex) {
      b.verdict[i] = Verdict::kNoBackend;
    } else {
      b.backend[i] = vip.backends + backend;
      __builtin_prefetch(b.backend[i]);
    }
  }
}

}  // namespace maglev
