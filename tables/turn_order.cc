#include "tables/turn_order.h"

#include <algorithm>
#include <numeric>

namespace maglev {
namespace {

// Turns per window: enough to make the walk over all contenders cheap per turn, few enough for the
// first-level cache.
constexpr uint64_t kWindowTurns = 4096;

// The same for rounds that are walked through one by one: they need no more than a long run.
constexpr size_t kRoundTurns = 256;

// When so few of the contenders asked in a round have a turn, sorting is faster than asking.
constexpr uint64_t kChecksPerTurn = 8;

}  // namespace

TurnOrder::TurnOrder(std::span<const uint32_t> weights, uint64_t turns) {
  largest_ = *std::ranges::max_element(weights);
  if (*std::ranges::min_element(weights) == largest_) {
    const size_t rounds = kRoundTurns / weights.size() + 1;
    window_.resize(rounds * weights.size());
    for (auto from = window_.begin(); from != window_.end();) {
      const auto to = from + static_cast<std::ptrdiff_t>(weights.size());
      std::iota(from, to, 0);
      from = to;
    }
    return;
  }
  const uint64_t sum = std::accumulate(weights.begin(), weights.end(), uint64_t{0});
  if (weights.size() * uint64_t{largest_} <= kChecksPerTurn * sum) {
    for (const uint32_t weight : weights) askers_.push_back({weight, 0});
    return;
  }
  schedules_.reserve(weights.size());
  for (const uint32_t weight : weights) schedules_.push_back({1, 0, 0, weight});
  const uint64_t window = std::max<uint64_t>(std::min(kWindowTurns, turns), weights.size());
  // The sum is at least the largest, so a window has at most as many rounds as turns.
  window_rounds_ = std::max<uint64_t>(1, window * largest_ / sum);
}

void TurnOrder::ask_all() {
  window_.resize(kRoundTurns + askers_.size());
  size_t count = 0;
  while (count < kRoundTurns) {
    for (uint32_t i = 0; i < askers_.size(); ++i) {
      Asker& a = askers_[i];
      // Without a branch: whether it has a turn is hard to predict.
      window_[count] = i;
      a.ahead += a.weight;
      const bool has_turn = a.ahead >= 0;
      count += has_turn;
      a.ahead -= has_turn ? largest_ : 0;
    }
  }
  window_.resize(count);
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
  if (next_ == 0 && !askers_.empty()) ask_all();
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
