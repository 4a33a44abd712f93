#include "control/slot_history.h"

#include <algorithm>

namespace maglev {

void PoolHistory::change(std::span<const SlotOwner> before, std::span<const SlotOwner> after,
                         uint64_t now_ns, uint64_t longest_idle_ns, uint64_t generation) {
  std::vector<PastOwner> merged;
  merged.reserve(entries_.size());
  auto known = entries_.begin();
  for (uint32_t slot = 0; slot < before.size(); ++slot) {
    const bool unsettled = known != entries_.end() && known->slot == slot;
    const bool changes = before[slot] != after[slot];
    if (unsettled) {
      PastOwner& entry = merged.emplace_back(*known++);
      if (!changes) continue;
      entry.changed_in = generation;
      if (now_ns < entry.inherit_until_ns) continue;
      merged.pop_back();
    }
    if (changes && (unsettled || before[slot].backend != kNoOwner)) {
      merged.push_back({slot, before[slot], now_ns + kSynGrace_ns,
                        now_ns + longest_idle_ns + kAdoptionGrace_ns, generation});
    }
  }
  entries_ = std::move(merged);
}

bool PoolHistory::extend(uint64_t now_ns, uint64_t longest_idle_ns) {
  const uint64_t window_ns = longest_idle_ns + kAdoptionGrace_ns;
  bool any = false;
  for (PastOwner& entry : entries_) {
    if (entry.inherit_until_ns < now_ns + kAdoptionGrace_ns) continue;
    const uint64_t changed_ns = entry.pending_until_ns - kSynGrace_ns;
    const uint64_t until_ns = std::min(now_ns + window_ns, changed_ns + kMostWindows * window_ns);
    if (until_ns <= entry.inherit_until_ns) continue;
    entry.inherit_until_ns = until_ns;
    any = true;
  }
  return any;
}

std::optional<uint64_t> PoolHistory::first_end_ns(uint64_t now_ns) const {
  std::optional<uint64_t> first_ns;
  for (const PastOwner& entry : entries_) {
    if (entry.inherit_until_ns < now_ns + kAdoptionGrace_ns) continue;
    first_ns = std::min(first_ns.value_or(entry.inherit_until_ns), entry.inherit_until_ns);
  }
  return first_ns;
}

uint32_t PoolHistory::settle(const PoolSweep& sweep) {
  const auto settles = [&](const PastOwner& entry) {
    return sweep.began_ns >= entry.inherit_until_ns + kAdoptionGrace_ns &&
           sweep.generation >= entry.changed_in &&
           !std::ranges::binary_search(sweep.disagreeing, entry.slot);
  };
  return static_cast<uint32_t>(std::erase_if(entries_, settles));
}

bool PoolHistory::names(uint32_t backend) const {
  return std::ranges::any_of(
      entries_, [&](const PastOwner& entry) { return entry.fallback.backend == backend; });
}

}  // namespace maglev
