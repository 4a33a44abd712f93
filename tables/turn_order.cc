#include "tables/turn_order.h"

#include <algorithm>
#include <numeric>

namespace maglev {
namespace {

// Turns per window: enough to make the walk over all contenders cheap per turn, few enough for the
// first-level cache.
constexpr uint64_t kWindowTurns = 4096;

// With equal weights, rounds repeated so that few contenders too get their turns in long runs.
constexpr size_t kEqualTurns = 256;

}  // namespace

TurnOrder::TurnOrder(std::span<const uint32_t> weights) {
  largest_ = *std::ranges::max_element(weights);
  if (*std::ranges::min_element(weights) == largest_) {
    const size_t rounds = kEqualTurns / weights.size() + 1;
    window_.resize(rounds * weights.size());
    for (auto from = window_.begin(); from != window_.end();) {
      const auto to = from + static_cast<std::ptrdiff_t>(weights.size());
      std::iota(from, to, 0);
      from = to;
    }
    return;
  }
  uint64_t sum = 0;
  schedules_.reserve(weights.size());
  for (const uint32_t weight : weights) {
    sum += weight;
    schedules_.push_back({1, 0, 0, weight});
  }
  const uint64_t turns = std::max<uint64_t>(kWindowTurns, weights.size());
  // The sum is at least the largest, so a window has at most as many rounds as turns.
  window_rounds_ = std::max<uint64_t>(1, turns * largest_ / sum);
}

void TurnOrder::fill_window() {
  const uint64_t end = window_start_ + window_rounds_;
  unsorted_.clear();
  first_of_round_.assign(window_rounds_ + 1, 0);
  for (uint32_t i = 0; i < schedules_.size(); ++i) {
    Schedule& s = schedules_[i];
    if (s.round >= end) continue;
    const uint32_t whole = largest_ / s.weight;
    const uint32_t rest = largest_ % s.weight;
    do {
      const uint32_t round = static_cast<uint32_t>(s.round - window_start_);
      unsorted_.push_back({round, i});
      ++first_of_round_[round + 1];
      s.due += whole;
      // rest + rest may exceed 32 bits: compare before adding.
      const bool carry = s.rest >= s.weight - rest;
      s.rest = carry ? s.rest - (s.weight - rest) : s.rest + rest;
      s.due += carry;
      s.round = std::max(s.round + 1, s.due + (s.rest > 0));
    } while (s.round < end);
  }
  std::partial_sum(first_of_round_.begin(), first_of_round_.end(), first_of_round_.begin());
  window_.resize(unsorted_.size());
  for (const Turn& turn : unsorted_) window_[first_of_round_[turn.round]++] = turn.contender;
  window_start_ = end;
}

std::span<const uint32_t> TurnOrder::take(size_t most) {
  if (next_ == window_.size()) next_ = 0;
  if (next_ == 0 && !schedules_.empty()) {
    do fill_window();
    while (window_.empty());
  }
  const size_t count = std::min(most, window_.size() - next_);
  const std::span<const uint32_t> turns(window_.data() + next_, count);
  next_ += count;
  return turns;
}

}  // namespace maglev
