// The slow twin of tables/maglev_fill.h: the population as the paper writes it, one probe at a
// time, each position computed afresh. Only for comparison in tests.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "tables/maglev.h"
#include "tables/maglev_fill.h"

namespace maglev {

inline std::vector<uint32_t> fill_by_the_book(std::span<const Contender> contenders,
                                              uint64_t size) {
  std::vector<uint32_t> slots(size, kNoOwner);
  std::vector<uint64_t> next(contenders.size(), 0);
  std::vector<uint64_t> target(contenders.size(), 0);
  const uint64_t largest = std::ranges::max_element(contenders, {}, &Contender::weight)->weight;
  uint64_t filled = 0;
  for (uint64_t round = 1;; ++round) {
    for (uint32_t i = 0; i < contenders.size(); ++i) {
      const Contender& c = contenders[i];
      if (round * c.weight < target[i]) continue;
      target[i] += largest;
      uint64_t slot;
      do slot = (c.offset + next[i]++ * c.skip) % size;
      while (slots[slot] != kNoOwner);
      slots[slot] = i;
      if (++filled == size) return slots;
    }
  }
}

}  // namespace maglev
