#include "tables/ring.h"

#include <algorithm>
#include <bit>

namespace maglev {

Ring::Ring(std::vector<Token> tokens) : tokens_(std::move(tokens)) {
  std::ranges::sort(tokens_);
  // As many leading values as tokens, so that a search looks at about two tokens.
  const uint32_t used_bits = static_cast<uint32_t>(std::bit_width(tokens_.back().position));
  const uint32_t wanted_bits = static_cast<uint32_t>(std::bit_width(tokens_.size()));
  shift_ = used_bits > wanted_bits ? used_bits - wanted_bits : 0;
  first_.resize((tokens_.back().position >> shift_) + 2, 0);
  for (const Token& token : tokens_) ++first_[(token.position >> shift_) + 1];
  for (size_t i = 1; i < first_.size(); ++i) first_[i] += first_[i - 1];
}

size_t Ring::find(uint64_t position) const {
  if (position > tokens_.back().position) return 0;
  size_t token = first_[position >> shift_];
  while (tokens_[token].position < position) ++token;
  return token;
}

size_t Ring::memory_bytes() const {
  return tokens_.size() * sizeof(Token) + first_.size() * sizeof(uint32_t);
}

}  // namespace maglev
