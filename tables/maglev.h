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
