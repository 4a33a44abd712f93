// Times that control and the dataplane must agree on so that flows survive a change of their slot's
// owner. All times are of CLOCK_BOOTTIME, in nanoseconds.
#pragma once

#include <cstdint>

namespace maglev {

// After a change new flows stay with the old owner for so long, but are remembered: the first
// retransmission of a SYN that came just before the change then finds its backend again.
inline constexpr uint64_t kSynGrace_ns = 3'000'000'000;

// Within this time after control planned a change every worker uses it. Deadlines leave so much
// room on the side where nothing is lost: old flows are waited for longer, new ones are remembered
// longer, and a sweep that settles a slot begins later.
inline constexpr uint64_t kAdoptionGrace_ns = 10'000'000'000;

}  // namespace maglev
