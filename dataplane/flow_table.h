// The flows that one worker remembers: which backend each has.
//
// Fixed memory, given by the owner: a power of two of 64-byte buckets, four entries each. A flow is
// in the bucket that its identity names or in the other one of the pair (128 bytes, which a
// processor fetches together). Nothing is allocated, nothing is locked, and no time passes by
// itself: an entry has expired when a comparison of times says so, and keeps its place until
// somebody needs it.
//
// Written by one thread, its worker's. Any other thread may read: peek() and read_shared() see an
// entry whole or not at all.
//
// Invariants:
// 1. Of one identity and pool there is at most one entry, for find() also finds expired ones and
//    those who store a flow put it where its old entry was.
// 2. `head` holds what must never be torn, tag, backend and incarnation, in one aligned word. While
//    `tail` changes together with it, head holds kMoving, which no entry has.
// 3. 48 bits beyond those that pick the bucket identify a flow: the upper half of the flow hash
//    whole, so that the slot can be told from an entry, and 16 bits of a second hash. With flows
//    that share a flow hash (source only) the bucket and those 16 bits tell them apart.
//
// Times are ticks of 2^30 ns (1.07 s) of CLOCK_BOOTTIME, modulo 2^27: 4.5 years.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "dataplane/counters.h"

namespace maglev {

enum class FlowState : uint8_t {
  kNone = 0,
  kHalfOpen = 1,  // a SYN alone
  kEstablished = 2,
  kClosing = 3,  // after a FIN or RST
  kUdp = 4,
  kOneTcp = 5,  // known by one packet that did not begin the flow
  kOneUdp = 6,
};
inline constexpr uint32_t kFlowStateCount = 7;

inline constexpr uint64_t kFlowTick_ns = 1ull << 30;
inline constexpr uint32_t kFlowTickMask = (1u << 27) - 1;
inline uint32_t flow_tick(uint64_t now_ns) {
  return static_cast<uint32_t>(now_ns / kFlowTick_ns) & kFlowTickMask;
}
// Clocks of two threads are read at two times, so `seen` may be somewhat later than `now`.
inline uint32_t flow_age_ticks(uint32_t now, uint32_t seen) {
  constexpr uint32_t kSkew = 16;
  const uint32_t age = (now - seen + kSkew) & kFlowTickMask;
  return age < kSkew ? 0 : age - kSkew;
}

// The flow hash, whose upper half gives the slot, and another hash of the whole five-tuple.
struct FlowIdentity {
  uint64_t hash = 0;
  uint64_t second = 0;
};

inline constexpr uint32_t kMaxTrackedPools = 1u << 14;
inline constexpr uint32_t kMaxTrackedBackends = (1u << 20) - 1;

struct FlowEntry {
  uint64_t tag = 0;      // 48 bits; the lower 32 are the upper half of the flow hash
  uint32_t backend = 0;  // index into the pool's backends
  uint8_t incarnation = 0;
  uint16_t pool = 0;    // a number that stands for one pool as long as entries may name it
  uint8_t opening = 0;  // 8 bits of the SYN's sequence number
  FlowState state = FlowState::kNone;
  uint32_t seen_tick = 0;
  bool operator==(const FlowEntry&) const = default;

  uint64_t head() const { return tag << 28 | uint64_t{backend} << 8 | incarnation; }
  uint64_t tail() const {
    return tag >> 36 << 52 | uint64_t{seen_tick} << 25 | uint64_t{pool} << 11 |
           uint64_t{opening} << 3 | static_cast<uint64_t>(state);
  }
  static FlowEntry from(uint64_t head, uint64_t tail) {
    return {.tag = head >> 28 | tail >> 52 << 36,
            .backend = static_cast<uint32_t>(head >> 8) & 0xfffff,
            .incarnation = static_cast<uint8_t>(head),
            .pool = static_cast<uint16_t>(tail >> 11 & 0x3fff),
            .opening = static_cast<uint8_t>(tail >> 3),
            .state = static_cast<FlowState>(tail & 7),
            .seen_tick = static_cast<uint32_t>(tail >> 25) & kFlowTickMask};
  }
  uint32_t hash_upper() const { return static_cast<uint32_t>(tag); }
};

// Why an entry may give way to another flow; the first go first. What is worth kNeeded never does.
enum class FlowWorth : uint8_t {
  kUseless,        // a packet of it would be sent the same way, now and later
  kOnePacket,      // nothing but one packet has been seen, and it began no flow
  kSpareHalfOpen,  // sent the same way until the slot changes hands
  kHalfOpen,       // a handshake that has come to nothing
  kSpare,          // sent the same way until the slot changes hands
  kNeeded,
};
inline constexpr uint32_t kFlowWorthCount = 6;

struct FlowTableCounters {
  Counter used;                                  // places that are not free; they may have expired
  Counter stored;                                // flows that came to be remembered
  std::array<Counter, kFlowWorthCount> evicted;  // that gave way before they expired, by worth
  Counter forgotten;
};

class FlowTable {
 public:
  static constexpr uint32_t kWays = 4;

  class Place {
   public:
    // For the table's writer.
    FlowEntry read() const {
      return FlowEntry::from(head_.load(std::memory_order_relaxed),
                             tail_.load(std::memory_order_relaxed));
    }

    // For any thread; nothing where there is no entry, or where it changes all the time.
    std::optional<FlowEntry> read_shared() const {
      for (uint32_t attempt = 0; attempt < 8; ++attempt) {
        const uint64_t head = head_.load(std::memory_order_acquire);
        if (head == kMoving) continue;
        const uint64_t tail = tail_.load(std::memory_order_acquire);
        if (head_.load(std::memory_order_relaxed) != head) continue;
        const FlowEntry entry = FlowEntry::from(head, tail);
        if (entry.state == FlowState::kNone) return std::nullopt;
        return entry;
      }
      return std::nullopt;
    }

   private:
    friend class FlowTable;
    static constexpr uint64_t kMoving = ~0ull;

    bool may_hold(uint64_t head_wanted) const {
      return (head_.load(std::memory_order_relaxed) ^ head_wanted) >> 28 == 0;
    }
    // Where it may.
    bool holds(uint64_t tail_wanted) const {
      constexpr uint64_t kTagAndPool = 0xfffull << 52 | 0x3fffull << 11;
      const uint64_t tail = tail_.load(std::memory_order_relaxed);
      return ((tail ^ tail_wanted) & kTagAndPool) == 0 && (tail & 7) != 0;
    }

    void see(FlowState state, uint32_t tick) {
      constexpr uint64_t kSeenAndState = uint64_t{kFlowTickMask} << 25 | 7;
      const uint64_t tail = tail_.load(std::memory_order_relaxed);
      tail_.store((tail & ~kSeenAndState) | uint64_t{tick} << 25 | static_cast<uint64_t>(state),
                  std::memory_order_release);
    }

    void write(const FlowEntry& entry) {
      const uint64_t head = entry.head();
      if (head_.load(std::memory_order_relaxed) != head) {
        head_.store(kMoving, std::memory_order_relaxed);
        // Whoever sees the new tail also sees that head is moving, or a head yet newer.
        tail_.store(entry.tail(), std::memory_order_release);
        head_.store(head, std::memory_order_release);
      } else {
        tail_.store(entry.tail(), std::memory_order_release);
      }
    }

    std::atomic<uint64_t> head_;
    std::atomic<uint64_t> tail_;
  };
  struct alignas(64) Bucket {
    Place places[kWays];
  };
  static_assert(sizeof(Bucket) == 64);

  // Of the identity of one flow, in this table.
  struct Position {
    uint32_t bucket;
    uint64_t tag;
  };

  static constexpr size_t bytes_for(uint64_t entries) {
    return std::max<uint64_t>(std::bit_ceil(entries) / kWays, 2) * sizeof(Bucket);
  }

  // memory: bytes_for() of some number, aligned to 128; all zero, or a table as it was left. It
  // must outlive this.
  explicit FlowTable(std::span<std::byte> memory)
      : buckets_(reinterpret_cast<Bucket*>(memory.data())),
        mask_(static_cast<uint32_t>(memory.size() / sizeof(Bucket) - 1)) {
    uint64_t used = 0;
    for (uint64_t i = 0; i < capacity(); ++i) {
      Place& place = buckets_[i / kWays].places[i % kWays];
      const FlowEntry entry = place.read();
      if (static_cast<uint32_t>(entry.state) >= kFlowStateCount) place.write({});
      used += place.read().state != FlowState::kNone;
    }
    counters_.used.set(used);
  }

  uint64_t capacity() const { return (uint64_t{mask_} + 1) * kWays; }
  const FlowTableCounters& counters() const { return counters_; }

  // --- finding ---

  Position position_of(const FlowIdentity& flow) const {
    return {static_cast<uint32_t>(flow.second >> 32) & mask_,
            flow.hash >> 32 | (flow.second & 0xffff) << 32};
  }

  void prefetch(const Position& at) const {
    __builtin_prefetch(&buckets_[at.bucket]);
    __builtin_prefetch(&buckets_[at.bucket ^ 1]);
  }

  // The flow's place, even if it has expired; null where it has none.
  Place* find(const Position& at, uint16_t pool) {
    return const_cast<Place*>(std::as_const(*this).find(at, pool));
  }
  const Place* find(const Position& at, uint16_t pool) const {
    const FlowEntry wanted{.tag = at.tag, .pool = pool};
    const uint64_t head = wanted.head();
    const uint64_t tail = wanted.tail();
    for (const Bucket* bucket : {&buckets_[at.bucket], &buckets_[at.bucket ^ 1]}) {
      // All four places, without a branch for each: which one it is no predictor knows.
      uint32_t candidates = 0;
#pragma GCC unroll 4
      for (uint32_t i = 0; i < kWays; ++i) {
        candidates |= uint32_t{bucket->places[i].may_hold(head)} << i;
      }
      for (; candidates != 0; candidates &= candidates - 1) {
        const Place& place = bucket->places[std::countr_zero(candidates)];
        if (place.holds(tail)) return &place;
      }
    }
    return nullptr;
  }

  // --- for any thread ---

  std::optional<FlowEntry> peek(const FlowIdentity& flow, uint16_t pool) const {
    const Position at = position_of(flow);
    const Place* const place = find(at, pool);
    if (place == nullptr) return std::nullopt;
    const std::optional<FlowEntry> entry = place->read_shared();
    // It may be another flow's by now.
    return entry && entry->tag == at.tag && entry->pool == pool ? entry : std::nullopt;
  }
  // All places, by number, for a sweep.
  const Place& place_at(uint64_t number) const {
    return buckets_[number / kWays].places[number % kWays];
  }

  // --- for the writer ---

  void write(Place& place, const FlowEntry& entry) {
    place.write(entry);
  }
  // Another packet of the flow that is there.
  void see(Place& place, FlowState state, uint32_t tick) {
    place.see(state, tick);
  }

  // A flow that had no place has found this one.
  void store(Place& place, const FlowEntry& entry) {
    if (place.read().state == FlowState::kNone) counters_.used.add(1);
    place.write(entry);
    counters_.stored.add(1);
  }

  void forget(Place& place) {
    place.write({});
    counters_.used.set(counters_.used.get() - 1);
    counters_.forgotten.add(1);
  }

  // Before any other thread looks.
  void forget_all() {
    for (uint64_t i = 0; i < capacity(); ++i) {
      buckets_[i / kWays].places[i % kWays].write({});
    }
    counters_.used.set(0);
  }

  // A place for a flow that has none: free, or expired, or that of the entry that is worth least,
  // if it is worth no more than the limit, and among equals has been idle for longest. Null: none.
  // Where half of the pair are handshakes already, another one finds room only among them, so that
  // a flood of them leaves room for other flows.
  //   has_expired(entry) -> bool; worth_of(entry) -> FlowWorth
  // The caller stores the flow there.
  template <typename HasExpired, typename WorthOf>
  Place* make_room(const Position& at, uint32_t tick, bool for_handshake, FlowWorth limit,
                   HasExpired has_expired, WorthOf worth_of) {
    std::array<Place*, 2 * kWays> pair;
    for (uint32_t i = 0; i < 2 * kWays; ++i) {
      pair[i] = &buckets_[at.bucket ^ (i / kWays)].places[i % kWays];
    }
    Place* free = nullptr;
    uint32_t handshakes = 0;
    for (Place* place : pair) {
      const FlowEntry entry = place->read();
      if (entry.state == FlowState::kNone || has_expired(entry)) {
        if (free == nullptr) free = place;
      } else {
        handshakes += entry.state == FlowState::kHalfOpen;
      }
    }
    const bool among_handshakes = for_handshake && handshakes >= kWays;
    if (free != nullptr && !among_handshakes) return free;
    Place* least = nullptr;
    FlowWorth least_worth = limit;
    uint32_t longest_age = 0;
    for (Place* place : pair) {
      const FlowEntry entry = place->read();
      if (among_handshakes && (entry.state != FlowState::kHalfOpen || has_expired(entry))) continue;
      const FlowWorth worth = worth_of(entry);
      const uint32_t age = flow_age_ticks(tick, entry.seen_tick);
      if (worth > least_worth) continue;
      if (least != nullptr && worth == least_worth && age <= longest_age) continue;
      least = place;
      least_worth = worth;
      longest_age = age;
    }
    if (least != nullptr) counters_.evicted[static_cast<uint32_t>(least_worth)].add(1);
    return least;
  }

 private:
  Bucket* buckets_;
  uint32_t mask_;
  FlowTableCounters counters_;
};

}  // namespace maglev
