// rendezvous: highest random weight, weighted by the logarithm method.
#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "tables/placement_kinds.h"

namespace maglev {
namespace {

class Rendezvous final : public Placement {
 public:
  Rendezvous(std::vector<Node> nodes, KeyHash hash)
      : Placement(std::move(nodes)),
        hash_(hash),
        equal_(std::ranges::all_of(this->nodes(), [this](const Node& node) {
          return node.weight == this->nodes().front().weight;
        })) {}

  uint32_t owner(std::string_view key) const override {
    std::string text;
    uint32_t best = 0;
    Score best_score = score(0, key, text);
    for (uint32_t i = 1; i < nodes().size(); ++i) {
      const Score challenger = score(i, key, text);
      if (best_score < challenger) {
        best = i;
        best_score = challenger;
      }
    }
    return best;
  }

  void visit(std::string_view key, const std::function<bool(uint32_t)>& wanted) const override {
    std::string text;
    std::vector<Score> scores;
    for (uint32_t i = 0; i < nodes().size(); ++i) scores.push_back(score(i, key, text));
    std::vector<uint32_t> order(nodes().size());
    std::iota(order.begin(), order.end(), 0);
    // Stable: equal scores go by name.
    std::ranges::stable_sort(order, [&](uint32_t a, uint32_t b) { return scores[b] < scores[a]; });
    for (const uint32_t node : order) {
      if (!wanted(node)) return;
    }
  }

  KeyPlace locate(std::string_view key) const override {
    std::string text;
    const Score winner = score(owner(key), key, text);
    return {hash_key(hash_, key), "score", winner.hash};
  }

  size_t memory_bytes() const override {
    size_t bytes = 0;
    for (const Node& node : nodes()) bytes += sizeof(Node) + node.name.size();
    return bytes;
  }

 private:
  struct Score {
    double weighted;
    uint64_t hash;  // decides between scores that rounding made equal
    auto operator<=>(const Score&) const = default;
  };

  // `text` is room to write in.
  Score score(uint32_t node, std::string_view key, std::string& text) const {
    text.assign(nodes()[node].name).append(1, '|').append(key);
    const uint64_t hash = hash_key(hash_, text);
    if (equal_) return {0, hash};
    // Above 0; rounding may bring it to 1, whose logarithm is 0.
    const double fraction =
        std::min(std::ldexp(static_cast<double>(hash) + 0.5, -static_cast<int>(bits_of(hash_))),
                 std::nextafter(1.0, 0.0));
    return {-static_cast<double>(nodes()[node].weight) / std::log(fraction), hash};
  }

  KeyHash hash_;
  bool equal_;
};

}  // namespace

MadePlacement make_rendezvous(std::vector<Node> nodes, const PlacementSettings& settings) {
  return std::make_unique<Rendezvous>(std::move(nodes), settings.hash);
}

}  // namespace maglev
