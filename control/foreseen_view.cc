#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "control/api_views.h"

namespace maglev {
namespace {

// A change of many weights moves slots between nearly all pairs of backends. An answer holds the
// largest of them.
constexpr size_t kMostMoves = 1000;

Json view_side(const Balance& balance) {
  Json backends = Json::array();
  for (const NodeLoad& node : balance.nodes) {
    backends.push_back({{"name", node.name},
                        {"slots", node.load},
                        {"share", node.share},
                        {"wanted_share", node.wanted}});
  }
  return backends;
}

Json view_end(const std::string& backend) {
  return backend.empty() ? Json() : Json(backend);
}

uint64_t table_bytes(const Balance& balance, uint64_t slots) {
  return slots * (balance.nodes.size() <= kMaxOwners16 ? sizeof(uint16_t) : sizeof(uint32_t));
}

Json view_change(const std::string& pool, const Change& change) {
  const Movement& movement = change.movement;
  using Move = std::pair<std::pair<std::string, std::string>, uint64_t>;
  std::vector<Move> moves(movement.flows.begin(), movement.flows.end());
  std::ranges::stable_sort(moves, std::greater<>(), &Move::second);
  uint64_t left_out = 0;
  Json shown = Json::array();
  for (const auto& [ends, slots] : moves) {
    if (shown.size() == kMostMoves) {
      left_out += slots;
    } else {
      shown.push_back(
          {{"from", view_end(ends.first)}, {"to", view_end(ends.second)}, {"slots", slots}});
    }
  }
  return {{"pool", pool},
          {"slots", movement.total},
          {"moved", movement.moved},
          {"moved_between_unchanged", movement.moved_between_unchanged},
          {"ideal_moved", std::llround(movement.ideal_moved)},
          {"before", view_side(change.before)},
          {"after", view_side(change.after)},
          {"moves", std::move(shown)},
          {"moves_left_out", left_out},
          {"peak_over_mean",
           {{"before", change.before.peak_over_mean}, {"after", change.after.peak_over_mean}}},
          {"table_bytes",
           {{"before", table_bytes(change.before, movement.total)},
            {"after", table_bytes(change.after, movement.total)}}}};
}

}  // namespace

Json view_foreseen(const std::vector<Controller::Foreseen>& foreseen) {
  Json pools = Json::array();
  for (const auto& [pool, change] : foreseen) pools.push_back(view_change(pool, change));
  return {{"dry_run", true}, {"pools", std::move(pools)}};
}

}  // namespace maglev
