// What a pool remembers of its slots' past, so that flows outlive a change of their slot's owner.
//
// A slot is settled when no flow in it can belong to another backend than its owner; nothing is
// remembered of it. A change of owner unsettles it. Until `inherit_until_ns` a packet of a flow
// that the dataplane does not know, and that does not begin one, belongs to the `fallback`: every
// flow older than the change has sent something by then, and is remembered there, or has been idle
// for too long. Afterwards only flows that the dataplane remembers may differ from the owner.
//
// Not for concurrent use; pure, no clock of its own. Owned by the planner of a pool.
//
// Invariants:
// 1. (rule a) A change in a settled slot makes the old owner its fallback. One before
//    inherit_until_ns alters nothing here but `changed_in`: flows that no worker remembers are
//    still the fallback's. One after it makes the owner of that time the fallback and starts again,
//    for by then all flows that no worker remembers are that owner's.
// 2. A slot whose owner returns to its fallback stays unsettled: flows of the owner between live.
// 3. (rule f) A slot is settled only by a sweep that began kAdoptionGrace_ns after
// inherit_until_ns,
//    when no worker remembers anything new of the slot, and with every worker on the generation of
//    the slot's last change or a later one, and that saw no live flow of another backend than the
//    owner.
// 4. Where workers could not remember every older flow (a flood, a table too small), extend() makes
//    the window longer before it ends: within it such a flow needs no memory. A bound of that is
//    needed: within the window new flows that find no room stay with the fallback too.
// 5. entries() is sorted by slot, each slot once. Slots that had no owner before have no entry: no
//    flow is older than the change.
//
// How long the old owner serves on for new flows (kSynGrace_ns) is left to the dataplane where the
// old owner cannot serve: a failure needs no flag of its own here.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tables/maglev.h"
#include "tables/tracking_times.h"

namespace maglev {

// A backend by its place in the pool's description. Of two backends that have had one index, the
// incarnation tells which.
struct SlotOwner {
  uint32_t backend = kNoOwner;  // index into the pool's backends
  uint8_t incarnation = 0;
  bool operator==(const SlotOwner&) const = default;
};

struct PastOwner {
  uint32_t slot = 0;
  SlotOwner fallback;
  uint64_t pending_until_ns = 0;
  uint64_t inherit_until_ns = 0;
  uint64_t changed_in = 0;  // the generation that published the slot's last change
  bool operator==(const PastOwner&) const = default;
};

// A look at the flows of all workers.
struct PoolSweep {
  uint64_t began_ns = 0;
  uint64_t generation = 0;                // the least that a worker used when it began
  std::span<const uint32_t> disagreeing;  // slots with a live flow of another backend; sorted
};

inline constexpr uint64_t kMostWindows = 4;

class PoolHistory {
 public:
  PoolHistory() = default;
  // From entries() of earlier, of the same boot of the machine.
  explicit PoolHistory(std::vector<PastOwner> entries) : entries_(std::move(entries)) {}

  // The owners of the pool's slots become others; both have the pool's table size. longest_idle_ns
  // is that of all flows that may be in the slots; generation is the one that publishes the change.
  void change(std::span<const SlotOwner> before, std::span<const SlotOwner> after, uint64_t now_ns,
              uint64_t longest_idle_ns, uint64_t generation);

  // Workers had no room for flows that they saw; all of it must be published. Windows that end
  // before every worker would know stay as they are, and none becomes longer than kMostWindows of
  // those that a change begins. Returns whether any did.
  bool extend(uint64_t now_ns, uint64_t longest_idle_ns);

  // When the first of the windows ends that can still be extended; nullopt: none can.
  std::optional<uint64_t> first_end_ns(uint64_t now_ns) const;

  // How many slots the sweep settled.
  uint32_t settle(const PoolSweep& sweep);

  std::span<const PastOwner> entries() const { return entries_; }

  // Whether an index may not go to another backend yet.
  bool names(uint32_t backend) const;

 private:
  std::vector<PastOwner> entries_;
};

}  // namespace maglev
