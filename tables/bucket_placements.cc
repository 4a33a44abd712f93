// jump, modulo and slots: placements by numbered buckets.
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include <fmt/format.h>
#include <boost/crc.hpp>

#include "tables/buckets.h"
#include "tables/placement_kinds.h"

namespace maglev {
namespace {

class Jump final : public Placement {
 public:
  Jump(std::vector<Node> nodes, KeyHash hash) : Placement(std::move(nodes)), hash_(hash) {}

  uint32_t owner(std::string_view key) const override {
    return jump_bucket(hash_key(hash_, key), static_cast<uint32_t>(nodes().size()));
  }
  void visit(std::string_view key, const std::function<bool(uint32_t)>& wanted) const override {
    visit_places(
        nodes().size(), owner(key), nodes().size(),
        [](size_t bucket) { return static_cast<uint32_t>(bucket); }, wanted);
  }
  KeyPlace locate(std::string_view key) const override {
    return {hash_key(hash_, key), "bucket", owner(key)};
  }
  size_t memory_bytes() const override { return 0; }

 private:
  KeyHash hash_;
};

class Modulo final : public Placement {
 public:
  Modulo(std::vector<Node> nodes, KeyHash hash) : Placement(std::move(nodes)), hash_(hash) {
    uint32_t divisor = 0;
    for (const Node& node : this->nodes()) divisor = std::gcd(divisor, node.weight);
    uint64_t end = 0;
    for (const Node& node : this->nodes()) ends_.push_back(end += node.weight / divisor);
  }

  uint32_t owner(std::string_view key) const override { return node_at(bucket(key)); }
  void visit(std::string_view key, const std::function<bool(uint32_t)>& wanted) const override {
    visit_places(
        nodes().size(), owner(key), nodes().size(),
        [](size_t node) { return static_cast<uint32_t>(node); }, wanted);
  }
  KeyPlace locate(std::string_view key) const override {
    return {hash_key(hash_, key), "bucket", bucket(key)};
  }
  size_t memory_bytes() const override { return ends_.size() * sizeof ends_[0]; }

 private:
  uint64_t bucket(std::string_view key) const { return hash_key(hash_, key) % ends_.back(); }
  uint32_t node_at(uint64_t bucket) const {
    return static_cast<uint32_t>(std::ranges::upper_bound(ends_, bucket) - ends_.begin());
  }

  KeyHash hash_;
  std::vector<uint64_t> ends_;  // the first bucket beyond each node's
};

class Slots final : public Placement {
 public:
  Slots(std::vector<Node> nodes, std::vector<uint32_t> map)
      : Placement(std::move(nodes)), map_(std::move(map)) {}

  uint32_t owner(std::string_view key) const override { return map_[hash_slot(key)]; }
  void visit(std::string_view key, const std::function<bool(uint32_t)>& wanted) const override {
    visit_places(
        nodes().size(), hash_slot(key), map_.size(), [&](size_t slot) { return map_[slot]; },
        wanted);
  }
  KeyPlace locate(std::string_view key) const override {
    return {hash_slot(key), "slot", hash_slot(key)};
  }
  std::vector<uint32_t> fill_table(uint64_t) const override { return map_; }
  size_t memory_bytes() const override { return map_.size() * sizeof map_[0]; }

 private:
  std::vector<uint32_t> map_;
};

// Contiguous runs, cut where redis-cli cuts them.
std::vector<uint32_t> first_map(std::span<const Node> nodes, double total_weight) {
  std::vector<uint32_t> map;
  double weight = 0;
  for (uint32_t i = 0; i < nodes.size(); ++i) {
    weight += nodes[i].weight;
    map.resize(static_cast<size_t>(std::lround(kHashSlots * weight / total_weight)), i);
  }
  return map;
}

// How many slots each node is to have: its share rounded down or up, and up first for those that
// have more already, so that the fewest slots move.
std::vector<uint32_t> slot_targets(std::span<const Node> nodes, uint64_t total_weight,
                                   const std::vector<uint32_t>& owned) {
  std::vector<uint32_t> targets;
  std::vector<uint32_t> rounded;  // nodes whose share is no whole number
  uint32_t left = kHashSlots;
  const auto rest = [&](uint32_t node) {
    return uint64_t{kHashSlots} * nodes[node].weight % total_weight;
  };
  for (uint32_t i = 0; i < nodes.size(); ++i) {
    targets.push_back(static_cast<uint32_t>(uint64_t{kHashSlots} * nodes[i].weight / total_weight));
    left -= targets.back();
    if (rest(i) != 0) rounded.push_back(i);
  }
  std::ranges::stable_sort(rounded, [&](uint32_t a, uint32_t b) {
    const bool a_more = owned[a] > targets[a], b_more = owned[b] > targets[b];
    return a_more != b_more ? a_more : rest(a) > rest(b);
  });
  for (uint32_t i = 0; i < left; ++i) ++targets[rounded[i]];
  return targets;
}

// The map of `before` with only the slots moved that must: those of nodes that are gone, and the
// highest ones of nodes that have more than their target.
std::vector<uint32_t> resize_map(const Placement& before, std::span<const Node> nodes,
                                 uint64_t total_weight) {
  std::map<std::string_view, uint32_t> index_of;
  for (uint32_t i = 0; i < nodes.size(); ++i) index_of.emplace(nodes[i].name, i);
  std::vector<uint32_t> map = before.fill_table(kHashSlots);
  std::vector<uint32_t> owned(nodes.size(), 0);
  for (uint32_t& owner : map) {
    const auto same = index_of.find(before.nodes()[owner].name);
    owner = same == index_of.end() ? kNoOwner : same->second;
    if (owner != kNoOwner) ++owned[owner];
  }
  const std::vector<uint32_t> targets = slot_targets(nodes, total_weight, owned);
  for (size_t slot = map.size(); slot-- > 0;) {
    uint32_t& owner = map[slot];
    if (owner == kNoOwner || owned[owner] <= targets[owner]) continue;
    --owned[owner];
    owner = kNoOwner;
  }
  uint32_t taker = 0;
  for (uint32_t& owner : map) {
    if (owner != kNoOwner) continue;
    while (owned[taker] == targets[taker]) ++taker;
    owner = taker;
    ++owned[taker];
  }
  return map;
}

}  // namespace

uint32_t jump_bucket(uint64_t key, uint32_t buckets) {
  int64_t bucket = -1;
  int64_t next = 0;
  while (next < buckets) {
    bucket = next;
    key = key * 2862933555777941757u + 1;
    const double stretch =
        static_cast<double>(int64_t{1} << 31) / static_cast<double>((key >> 33) + 1);
    next = static_cast<int64_t>(static_cast<double>(bucket + 1) * stretch);
  }
  return static_cast<uint32_t>(bucket);
}

uint32_t hash_slot(std::string_view key) {
  const size_t open = key.find('{');
  if (open != key.npos) {
    const size_t close = key.find('}', open + 1);
    if (close != key.npos && close > open + 1) key = key.substr(open + 1, close - open - 1);
  }
  boost::crc_optimal<16, 0x1021, 0, 0, false, false> crc;
  crc.process_bytes(key.data(), key.size());
  return crc.checksum() % kHashSlots;
}

MadePlacement make_jump(std::vector<Node> nodes, const PlacementSettings& settings,
                        const Placement* before) {
  for (const Node& node : nodes) {
    if (node.weight == nodes.front().weight) continue;
    return std::unexpected(
        fmt::format("jump gives every bucket the same share, but '{}' has weight {} and '{}' {}: "
                    "give all the same weight, or take another placement",
                    nodes.front().name, nodes.front().weight, node.name, node.weight));
  }
  if (before != nullptr) {
    const size_t kept = std::min(nodes.size(), before->nodes().size());
    for (size_t i = 0; i < kept; ++i) {
      const std::string& name = before->nodes()[i].name;
      if (nodes[i].name == name) continue;
      return std::unexpected(fmt::format(
          "jump numbers its buckets, so nodes can be added and removed only at the end, "
          "the last one first: bucket {} was '{}' and would become '{}'",
          i, name, nodes[i].name));
    }
  }
  return std::make_unique<Jump>(std::move(nodes), settings.hash);
}

MadePlacement make_modulo(std::vector<Node> nodes, const PlacementSettings& settings) {
  return std::make_unique<Modulo>(std::move(nodes), settings.hash);
}

MadePlacement make_slots(std::vector<Node> nodes, const Placement* before) {
  if (nodes.size() > kHashSlots) {
    return std::unexpected(
        fmt::format("{} nodes cannot each own one of {} hash slots", nodes.size(), kHashSlots));
  }
  uint64_t total_weight = 0;
  for (const Node& node : nodes) total_weight += node.weight;
  std::vector<uint32_t> map = before == nullptr
                                  ? first_map(nodes, static_cast<double>(total_weight))
                                  : resize_map(*before, nodes, total_weight);
  return std::make_unique<Slots>(std::move(nodes), std::move(map));
}

}  // namespace maglev
