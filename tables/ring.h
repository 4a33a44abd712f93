// A ring of tokens, apart from how keys and tokens get their positions.
//
// Immutable; any thread. Invariant: tokens are sorted by position, then node.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace maglev {

struct Token {
  uint64_t position;
  uint32_t node;
  auto operator<=>(const Token&) const = default;
};

class Ring {
 public:
  // At least one token. Of tokens at one position the lowest node's comes first.
  explicit Ring(std::vector<Token> tokens);

  // The token that owns this position: the first at or after it, or else the very first.
  size_t find(uint64_t position) const;

  uint32_t node_at(size_t token) const { return tokens_[token].node; }
  size_t size() const { return tokens_.size(); }
  size_t memory_bytes() const;

 private:
  std::vector<Token> tokens_;
  // first_[p] is the first token whose position's leading bits are p or more: where to begin.
  std::vector<uint32_t> first_;
  uint32_t shift_;
};

}  // namespace maglev
