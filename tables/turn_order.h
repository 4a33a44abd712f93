// Whose turn it is: the order in which weighted contenders take slots when a Maglev table is
// populated (the rule is in tables/maglev.h). In round r, counted from 1, contender i has a turn
// when r * weight_i >= target_i; its k-th target is k * largest weight, so its k-th turn, counted
// from 0, falls in round max(its last round + 1, ceil(k * largest / weight_i)). Within a round
// turns go by index.
//
// With equal weights the order is 0, 1, ..., n - 1, over and over. Where a good part of the
// contenders has a turn in each round, all are asked round by round. Otherwise turns are worked out
// for a window of many rounds at once and sorted by counting, so that the cost is per turn and not
// per round: a contender of weight 1 beside one of a million costs nothing in the rounds between.
//
// One thread at a time; no I/O. The spans handed out live until the next call.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace maglev {

class TurnOrder {
 public:
  // At least one weight; all positive. `turns` tells about how many will be taken.
  TurnOrder(std::span<const uint32_t> weights, uint64_t turns);

  // The next turns, at least one and at most `most`.
  std::span<const uint32_t> take(size_t most);

 private:
  struct Schedule {
    uint64_t round;  // of the next turn
    uint64_t due;    // floor(k * largest / weight), k being the next turn's number
    uint32_t rest;   // k * largest - due * weight
    uint32_t weight;
  };
  struct Asker {
    int64_t weight;
    int64_t ahead;  // round * weight - target
  };
  struct Turn {
    uint32_t round;  // within the window
    uint32_t contender;
  };

  void ask_all();
  void fill_window();

  // Both are empty when all weights are equal; else one has an entry for each contender.
  std::vector<Asker> askers_;
  std::vector<Schedule> schedules_;
  uint32_t largest_ = 0;
  uint64_t window_start_ = 1;
  uint64_t window_rounds_ = 0;
  std::vector<Turn> unsorted_;
  std::vector<uint32_t> first_of_round_;
  std::vector<uint32_t> window_;
  size_t next_ = 0;
};

}  // namespace maglev
