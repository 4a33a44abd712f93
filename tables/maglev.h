// Weighted Maglev population: from a set of named, weighted backends to the owner of each slot.
//
// Source: "Maglev: A Fast and Reliable Software Network Load Balancer" (NSDI 2016), section 3.4,
// with the weights of Envoy's documented rule:
//   - backends enter sorted by name (bytes), so the order of input never matters;
//   - offset = XXH64(name, seed 0) mod size, skip = XXH64(name, seed 1) mod (size - 1) + 1; the
//     j-th slot a backend prefers is (offset + j * skip) mod size;
//   - in round r, counted from 1, backend i takes its next free slot when r * weight_i >= target_i,
//     and then target_i grows by the largest weight; targets start at 0.
//
// How far counts may be from the wanted shares, for n backends with weights w_i, their sum W, the
// largest w_max and size M: |count_i - M * w_i / W| <= 1 + n * w_i / W.
//   After round r backend i has had r * w_i / w_max turns and up to one more, for its target starts
//   at 0; in the last round, which may be cut short, one turn less than its r-th part at most:
//   count_i = r * w_i / w_max + d_i with -w_i / w_max <= d_i <= 1. The counts add up to M, hence
//   count_i = M * w_i / W + d_i - D * w_i / W, D being the sum of all d_i, from -W / w_max to n.
// With equal weights the difference is below 1: every backend has as many turns as any other, or
// one more. The bound is nearly met by one weight of 10^6 beside 999 ones at 65537: 933 slots.
//
// Pure functions of their arguments: any thread, no I/O, no global state.
#pragma once

#include <cstdint>
#include <expected>
#include <span>
#include <string>
#include <vector>

namespace maglev {

// A slot that no backend owns: the table had no backend of positive weight.
inline constexpr uint32_t kNoOwner = 0xffffffff;

struct WeightedName {
  std::string name;
  uint32_t weight = 1;
  bool operator==(const WeightedName&) const = default;
};

struct MaglevTable {
  std::vector<WeightedName> owners;  // sorted by name; positive weights only
  std::vector<uint32_t> slots;       // one index into owners per slot, or kNoOwner
};

// Fails with a sentence on: a size that is not an allowed prime, two backends of one name, an empty
// name, more backends of positive weight than slots. No backend of positive weight is not a
// failure: every slot is then kNoOwner.
std::expected<MaglevTable, std::string> build_maglev(std::span<const WeightedName> backends,
                                                     uint64_t size);

}  // namespace maglev
