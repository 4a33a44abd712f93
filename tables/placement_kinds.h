// What make_placement calls, one function a kind. Nodes have been checked and, where the kind does
// not keep their order, sorted. Private to the placement library.
#pragma once

#include <expected>
#include <memory>
#include <string>
#include <vector>

#include "tables/placement.h"

namespace maglev {

using MadePlacement = std::expected<std::unique_ptr<Placement>, std::string>;

MadePlacement make_maglev_placement(std::vector<Node> nodes, const PlacementSettings& settings);
MadePlacement make_ring(std::vector<Node> nodes, const PlacementSettings& settings);
MadePlacement make_bounded(std::vector<Node> nodes, const PlacementSettings& settings);
MadePlacement make_ketama(std::vector<Node> nodes);
MadePlacement make_rendezvous(std::vector<Node> nodes, const PlacementSettings& settings);
MadePlacement make_jump(std::vector<Node> nodes, const PlacementSettings& settings,
                        const Placement* before);
MadePlacement make_modulo(std::vector<Node> nodes, const PlacementSettings& settings);
MadePlacement make_slots(std::vector<Node> nodes, const Placement* before);

// For kinds whose order of preference goes through numbered places that each name a node: tells
// node_at(first), node_at(first + 1), ..., wrapping at count, each node once.
template <typename NodeAt>
void visit_places(size_t nodes, size_t first, size_t count, const NodeAt& node_at,
                  const std::function<bool(uint32_t)>& wanted) {
  std::vector<bool> told(nodes);
  size_t untold = nodes;
  for (size_t step = 0; step < count && untold > 0; ++step) {
    const uint32_t node = node_at((first + step) % count);
    if (told[node]) continue;
    told[node] = true;
    --untold;
    if (!wanted(node)) return;
  }
}

}  // namespace maglev
