#include "tables/movement.h"

#include <algorithm>
#include <cmath>

namespace maglev {
namespace {

uint64_t weight_of(ItemWeights weights, size_t item) {
  return weights.empty() ? 1 : weights[item];
}

double total_weight(std::span<const Node> nodes) {
  double total = 0;
  for (const Node& node : nodes) total += node.weight;
  return total;
}

// Where a node of one assignment is in the other.
struct Counterpart {
  uint32_t index = kNoOwner;
  bool unchanged = false;  // there, and with the same weight
};

std::vector<Counterpart> find_counterparts(std::span<const Node> from, std::span<const Node> to) {
  std::map<std::string_view, uint32_t> index_of;
  for (uint32_t i = 0; i < to.size(); ++i) index_of.emplace(to[i].name, i);
  std::vector<Counterpart> counterparts(from.size());
  for (size_t i = 0; i < from.size(); ++i) {
    const auto found = index_of.find(from[i].name);
    if (found == index_of.end()) continue;
    counterparts[i] = {found->second, to[found->second].weight == from[i].weight};
  }
  return counterparts;
}

bool holds(std::span<const uint32_t> owners, uint32_t owner) {
  return owner != kNoOwner && std::ranges::find(owners, owner) != owners.end();
}

double ideal_share_moved(const Assignment& before, const Assignment& after,
                         std::span<const Counterpart> of_after) {
  const double before_total = total_weight(before.nodes);
  const double after_total = total_weight(after.nodes);
  double moved = 0;
  for (size_t i = 0; i < after.nodes.size(); ++i) {
    const uint32_t old = of_after[i].index;
    const double had = old == kNoOwner ? 0 : before.nodes[old].weight / before_total;
    moved += std::max(0.0, after.nodes[i].weight / after_total - had);
  }
  return moved;
}

}  // namespace

Balance measure_balance(const Assignment& assignment, ItemWeights weights) {
  Balance balance;
  const double all_weights = total_weight(assignment.nodes);
  for (const Node& node : assignment.nodes) {
    balance.nodes.push_back({node.name, 0, 0, node.weight / all_weights});
  }
  uint64_t total = 0;
  for (size_t i = 0; i < assignment.owners.size(); ++i) {
    if (assignment.owners[i] == kNoOwner) continue;
    const uint64_t weight = weight_of(weights, i / assignment.copies);
    balance.nodes[assignment.owners[i]].load += weight;
    total += weight;
  }
  if (total == 0) return balance;
  const double count = static_cast<double>(balance.nodes.size());
  double sum = 0, squares = 0, peak = 0;
  for (NodeLoad& node : balance.nodes) {
    node.share = static_cast<double>(node.load) / static_cast<double>(total);
    const double relative = node.share / node.wanted;
    sum += relative;
    squares += relative * relative;
    peak = std::max(peak, relative);
  }
  const double mean = sum / count;
  balance.peak_over_mean = peak / mean;
  balance.spread = std::sqrt(std::max(0.0, squares / count - mean * mean)) / mean;
  return balance;
}

Movement compare_assignments(const Assignment& before, const Assignment& after,
                             ItemWeights weights) {
  const std::vector<Counterpart> of_before = find_counterparts(before.nodes, after.nodes);
  const std::vector<Counterpart> of_after = find_counterparts(after.nodes, before.nodes);
  // By indices first: there are many items and few pairs of nodes.
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> flows;
  Movement movement;
  std::vector<uint32_t> left;
  for (size_t first = 0; first < after.owners.size(); first += after.copies) {
    const uint64_t weight = weight_of(weights, first / after.copies);
    const auto was = before.owners.subspan(first, before.copies);
    const auto is = after.owners.subspan(first, after.copies);
    movement.total += weight * after.copies;
    left.clear();
    for (const uint32_t old : was) {
      if (old == kNoOwner || !holds(is, of_before[old].index)) left.push_back(old);
    }
    size_t next = 0;
    for (const uint32_t now : is) {
      if (now != kNoOwner && holds(was, of_after[now].index)) continue;
      const uint32_t old = left[next++];
      if (old != kNoOwner || now != kNoOwner) flows[{old, now}] += weight;
    }
  }
  const auto name = [](std::span<const Node> nodes, uint32_t index) {
    return index == kNoOwner ? std::string() : nodes[index].name;
  };
  for (const auto& [pair, weight] : flows) {
    const auto [from, to] = pair;
    movement.moved += weight;
    if (from != kNoOwner && to != kNoOwner && of_before[from].unchanged && of_after[to].unchanged) {
      movement.moved_between_unchanged += weight;
    }
    movement.flows[{name(before.nodes, from), name(after.nodes, to)}] += weight;
  }
  movement.ideal_moved =
      ideal_share_moved(before, after, of_after) * static_cast<double>(movement.total);
  return movement;
}

Change plan_change(const Assignment& before, const Assignment& after, ItemWeights weights) {
  return {measure_balance(before, weights), measure_balance(after, weights),
          compare_assignments(before, after, weights)};
}

}  // namespace maglev
