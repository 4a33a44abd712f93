// What a change of membership moves: one assignment of items (keys or table slots) to named nodes
// against another. The simulator and a dry run of control both ask here.
//
// Pure functions, any thread.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tables/placement.h"

namespace maglev {

// What an item weighs in one measure: 1 when counting keys, or its bytes, or its requests. Empty: 1
// for each.
using ItemWeights = std::span<const uint64_t>;

struct NodeLoad {
  std::string name;
  uint64_t load = 0;
  double share = 0;   // of the whole load
  double wanted = 0;  // its weight's share
};

struct Balance {
  std::vector<NodeLoad> nodes;  // in the order of the nodes given
  // Loads per unit of weight: their largest and their standard deviation, over their mean. With
  // equal weights, that of the loads themselves. 0 without any load.
  double peak_over_mean = 0;
  double spread = 0;
};

// owners has `copies` entries an item, one after the other.
struct Assignment {
  std::span<const Node> nodes;
  std::span<const uint32_t> owners;  // indices into nodes, or kNoOwner
  size_t copies = 1;
};

Balance measure_balance(const Assignment& assignment, ItemWeights weights = {});

struct Movement {
  uint64_t total = 0;
  uint64_t moved = 0;
  // From one node to another that both stayed, with the same weight: what an ideal placement
  // avoids.
  uint64_t moved_between_unchanged = 0;
  // What has to move for each node to have the share it wants, if it had the share it wanted.
  double ideal_moved = 0;
  std::map<std::pair<std::string, std::string>, uint64_t> flows;  // (from, to): moved
};

// Both have the same items in the same order, and the same number of copies. A copy moved when its
// node was not among the item's nodes before.
Movement compare_assignments(const Assignment& before, const Assignment& after,
                             ItemWeights weights = {});

// The whole of it: the one function that the simulator and a dry run of control call.
struct Change {
  Balance before;
  Balance after;
  Movement movement;
};
Change plan_change(const Assignment& before, const Assignment& after, ItemWeights weights = {});

}  // namespace maglev
