// Consistent placement: from named, weighted nodes to the owner of each key, with an ordered list
// of the next distinct nodes. One interface for every function; docs/placement.md compares them.
//
//   maglev      a lookup table (tables/maglev.h); a key's slot is its hash scaled to the size
//   ring        tokens hash('NODE#i'), i below vnodes * weight; a key belongs to the first token at
//               or after its hash, wrapping; equal tokens go by node name
//   ketama      the ring of nginx's `hash ... consistent`: CRC-32, 160 * weight points a node
//   rendezvous  the node with the highest -weight / ln(h), h being hash('NODE|KEY') as a fraction
//   jump        numbered buckets (Lamping and Veach); nodes are buckets in the order given
//   bounded     the ring, a node that is full being passed over clockwise; full is
//               ceil((1 + epsilon) * keys * weight / total weight)
//   slots       Redis Cluster: CRC-16 of the key, or of its {hash tag}, modulo 16384, and an
//               explicit map from slot to node that a resize changes as little as it must
//   modulo      hash modulo total weight, as the baseline
//
// Nodes are sorted by name, so that the order of input never matters; only for jump and slots is
// their order part of the function, and kept. A weight is a number of shares: for maglev,
// rendezvous, bounded's limits, slots and modulo only ratios matter; for ring and ketama it is also
// a number of tokens.
//
// Placements never change once made: any thread may use one. A change of membership makes another.
#pragma once

#include <cstdint>
#include <expected>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tables/key_hash.h"
#include "tables/maglev.h"
#include "tables/prime.h"

namespace maglev {

enum class PlacementKind : uint8_t {
  kMaglev,
  kRing,
  kKetama,
  kRendezvous,
  kJump,
  kBounded,
  kSlots,
  kModulo,
};

std::span<const PlacementKind> all_placement_kinds();
std::string_view to_text(PlacementKind kind);
// Fails with a sentence that lists the choices.
std::expected<PlacementKind, std::string> parse_placement_kind(std::string_view text);

// The name of the hash that a kind brings along; nullopt where PlacementSettings choose it.
std::optional<std::string_view> own_hash(PlacementKind kind);

inline constexpr uint32_t kMaxNodeWeight = 1'000'000;

struct Node {
  std::string name;
  uint32_t weight = 1;
  std::string zone;  // empty: none
  bool operator==(const Node&) const = default;
};

struct PlacementSettings {
  KeyHash hash = KeyHash::kMd5;  // ketama and slots bring their own
  uint32_t vnodes = 160;         // ring and bounded: tokens per unit of weight
  uint64_t size = kDefaultTableSize;
  double epsilon = 0.25;
};

// How a key was placed, for people to follow.
struct KeyPlace {
  uint64_t hash;
  std::string_view unit;  // what the number below is: "slot", "position", "bucket" or "score"
  uint64_t value;
};

class Placement {
 public:
  explicit Placement(std::vector<Node> nodes) : nodes_(std::move(nodes)) {}
  virtual ~Placement() = default;

  // Owners are indices into these.
  std::span<const Node> nodes() const { return nodes_; }

  // The key's first choice: its owner for all but `bounded`, where it depends on the other keys.
  virtual uint32_t owner(std::string_view key) const = 0;

  // Places keys in order. keys and owners are of one length.
  virtual void place(std::span<const std::string> keys, std::span<uint32_t> owners) const;

  // Tells the nodes of a key in order of preference, the owner first, each at most once, until
  // `wanted` answers false or all have been told.
  virtual void visit(std::string_view key, const std::function<bool(uint32_t)>& wanted) const = 0;

  virtual KeyPlace locate(std::string_view key) const = 0;

  // The owner of each slot of a lookup table. For maglev and slots the placement's own; size is
  // then not looked at. The others own slot i as they would own the key "slot#i".
  virtual std::vector<uint32_t> fill_table(uint64_t size) const;

  virtual size_t memory_bytes() const = 0;

 private:
  std::vector<Node> nodes_;
};

// Fails with a sentence on: no node, an empty or a repeated name, a weight outside
// 1..kMaxNodeWeight, settings out of range, and what a kind cannot do. `before`, when given, is the
// placement of the same kind and settings that this one follows: slots changes its map as little as
// it must, and jump refuses any change but adding or removing buckets at the end.
std::expected<std::unique_ptr<Placement>, std::string> make_placement(
    PlacementKind kind, std::vector<Node> nodes, const PlacementSettings& settings,
    const Placement* before = nullptr);

// The first `count` nodes of the key's order, one per zone where nodes have zones. An error when
// there are fewer nodes or zones than asked: never a shorter list.
std::expected<std::vector<uint32_t>, std::string> preference_list(const Placement& placement,
                                                                  std::string_view key,
                                                                  uint32_t count);

// A lookup table for the dataplane, filled by maglev, ring, rendezvous or bounded; other kinds are
// refused. Like build_maglev, for any of them: members of weight 0 own nothing, no members are no
// error, and scaling all weights changes nothing. Hashes are xxh64, epsilon is 0.25, and a ring has
// about kTableTokens tokens: weights whose sum, in lowest terms, is more are rounded to whole
// tokens, one at least. Rendezvous takes size * members hashes.
inline constexpr uint64_t kTableTokens = 1u << 20;
std::expected<MaglevTable, std::string> build_lookup_table(PlacementKind kind,
                                                           std::span<const WeightedName> members,
                                                           uint64_t size);

}  // namespace maglev
