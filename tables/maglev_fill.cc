#include "tables/maglev_fill.h"

#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <ranges>
#include <utility>
#include <vector>

#include "tables/maglev.h"
#include "tables/turn_order.h"

namespace maglev {
namespace {

// Not in ISO C++, but in every compiler that has the vectors used here.
__extension__ typedef unsigned __int128 Wide;

// By Euclid; size is prime and does not divide value.
uint64_t inverse_modulo(uint64_t value, uint64_t size) {
  int64_t factor = 1, last_factor = 0;
  int64_t rest = static_cast<int64_t>(value), last_rest = static_cast<int64_t>(size);
  while (rest != 1) {
    const int64_t quotient = last_rest / rest;
    last_factor = std::exchange(factor, last_factor - quotient * factor);
    last_rest = std::exchange(rest, last_rest - quotient * rest);
  }
  return static_cast<uint64_t>(factor < 0 ? factor + static_cast<int64_t>(size) : factor);
}

// How many positions a contender looks at in one go, a power of two from 16 to the 64 bits of a
// mask: so few that about an eighth of what it saw free is taken by others before its turn, but
// enough to see about eight that are free.
uint32_t look_ahead(size_t contenders, size_t size, size_t empty) {
  const size_t positions = std::max(size / (6 * contenders), 8 * size / empty);
  return positions >= 48 ? 64 : positions >= 24 ? 32 : 16;
}

// With fewer sharers one contender has most rounds for itself.
constexpr double kDominated = 1.1;

// Asking a contender whether it has a turn costs so much less than working out whose turn it is.
constexpr double kChecksPerTurn = 16;

uint32_t next_free(std::span<const uint32_t> slots, uint32_t slot, uint32_t skip) {
  const auto size = static_cast<uint32_t>(slots.size());
  while (slots[slot] != kNoOwner) {
    slot += skip;
    if (slot >= size) slot -= size;
  }
  return slot;
}

// One probe at a time: no setup to pay back. For tables that are small or that few contenders fill,
// where branches are easy to predict, and for contenders with only a few slots each.
void fill_plainly(std::span<const Contender> contenders, std::span<uint32_t> slots,
                  TurnOrder& order) {
  std::ranges::fill(slots, kNoOwner);
  std::vector<uint32_t> next;
  next.reserve(contenders.size());
  for (const Contender& c : contenders) next.push_back(c.offset);
  for (size_t filled = 0; filled < slots.size();) {
    const std::span<const uint32_t> turns = order.take(slots.size() - filled);
    for (const uint32_t i : turns) {
      next[i] = next_free(slots, next[i], contenders[i].skip);
      slots[next[i]] = i;
    }
    filled += turns.size();
  }
}

struct Cursor {
  uint32_t next;
  uint32_t skip;
  uint64_t target;
  uint64_t weight;

  void claim(std::span<uint32_t> slots, uint32_t index) {
    next = next_free(slots, next, skip);
    slots[next] = index;
  }
};

// The next round in which another than the heaviest has a turn.
uint64_t end_of_solo(std::span<const Cursor> cursors, uint32_t heaviest) {
  uint64_t end = ~uint64_t{0};
  for (uint32_t i = 0; i < cursors.size(); ++i) {
    const Cursor& c = cursors[i];
    if (i != heaviest) end = std::min(end, (c.target + c.weight - 1) / c.weight);
  }
  return end;
}

// The same without an order of turns: asks every contender in every round, but for the rounds that
// the heaviest has alone where it outweighs all others together many times. Inlined it would keep
// its registers in memory, where each claim waits for them.
[[gnu::noinline]] void fill_by_rounds(std::span<const Contender> contenders,
                                      std::span<uint32_t> slots, bool one_dominates) {
  std::ranges::fill(slots, kNoOwner);
  std::vector<Cursor> cursors;
  cursors.reserve(contenders.size());
  for (const Contender& c : contenders) cursors.push_back({c.offset, c.skip, 0, c.weight});
  const auto heaviest = static_cast<uint32_t>(
      std::ranges::max_element(cursors, {}, &Cursor::weight) - cursors.begin());
  const uint64_t largest = cursors[heaviest].weight;
  size_t filled = 0;
  for (uint64_t round = 1;; ++round) {
    for (uint32_t i = 0; i < cursors.size(); ++i) {
      Cursor& c = cursors[i];
      if (round * c.weight < c.target) continue;
      c.target += largest;
      c.claim(slots, i);
      if (++filled == slots.size()) return;
    }
    if (!one_dominates) continue;
    Cursor& c = cursors[heaviest];
    for (const uint64_t end = end_of_solo(cursors, heaviest); round + 1 < end; ++round) {
      c.target += largest;
      c.claim(slots, heaviest);
      if (++filled == slots.size()) return;
    }
  }
}

bool is_free(const uint32_t* free, uint32_t slot) {
  return (free[slot / 32] >> (slot % 32)) & 1;
}

// Each namespace gives its kernel the lanes of a vector register, and free_lanes: which of these
// slots are free, the first lane as the lowest bit.

namespace portable {
constexpr uint32_t kLanes = 4;
typedef uint32_t Lanes __attribute__((vector_size(4 * kLanes)));
uint32_t free_lanes(const uint32_t* free, Lanes slots) {
  uint32_t lanes = 0;
  for (uint32_t lane = kLanes; lane-- > 0;) lanes = 2 * lanes + is_free(free, slots[lane]);
  return lanes;
}
#include "tables/maglev_fill_kernel.inc"
void fill(std::span<const Contender> contenders, std::span<uint32_t> slots, TurnOrder& order) {
  Filler(contenders, slots).run(order);
}
}  // namespace portable

// Clang knows neither these pragmas nor all features asked for below; it gets the portable one.
#ifndef __clang__
#pragma GCC push_options
#pragma GCC target("avx2,bmi,bmi2,lzcnt")
namespace avx2 {
constexpr uint32_t kLanes = 8;
typedef uint32_t Lanes __attribute__((vector_size(4 * kLanes)));
uint32_t free_lanes(const uint32_t* free, Lanes slots) {
  const __m256i words = _mm256_i32gather_epi32(reinterpret_cast<const int*>(free),
                                               reinterpret_cast<__m256i>(slots >> 5), 4);
  // The slot's bit becomes the sign.
  const Lanes signs = reinterpret_cast<Lanes>(words) << (~slots & 31);
  return static_cast<uint32_t>(_mm256_movemask_ps(reinterpret_cast<__m256>(signs)));
}
#include "tables/maglev_fill_kernel.inc"
void fill(std::span<const Contender> contenders, std::span<uint32_t> slots, TurnOrder& order) {
  Filler(contenders, slots).run(order);
}
}  // namespace avx2
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,bmi,bmi2,lzcnt,avx512f,avx512bw,avx512dq,avx512vl")
namespace avx512 {
constexpr uint32_t kLanes = 16;
typedef uint32_t Lanes __attribute__((vector_size(4 * kLanes)));
uint32_t free_lanes(const uint32_t* free, Lanes slots) {
  const __m512i words = _mm512_i32gather_epi32(reinterpret_cast<__m512i>(slots >> 5), free, 4);
  const __m512i bits =
      _mm512_sllv_epi32(_mm512_set1_epi32(1), reinterpret_cast<__m512i>(slots & 31));
  return _mm512_test_epi32_mask(words, bits);
}
#include "tables/maglev_fill_kernel.inc"
void fill(std::span<const Contender> contenders, std::span<uint32_t> slots, TurnOrder& order) {
  Filler(contenders, slots).run(order);
}
}  // namespace avx512
#pragma GCC pop_options
#endif

std::vector<FillKernel> kernels_of_this_processor() {
  std::vector<FillKernel> kernels;
#ifndef __clang__
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") &&
                        __builtin_cpu_supports("lzcnt");
  if (has_avx2 && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    kernels.push_back({"avx512", avx512::fill});
  }
  if (has_avx2) kernels.push_back({"avx2", avx2::fill});
#endif
  kernels.push_back({"portable", portable::fill});
  return kernels;
}

}  // namespace

std::span<const FillKernel> fill_kernels() {
  static const std::vector<FillKernel> kernels = kernels_of_this_processor();
  return kernels;
}

void fill_slots(std::span<const Contender> contenders, std::span<uint32_t> slots) {
  fill_slots(contenders, slots, fill_kernels().front());
}

void fill_slots(std::span<const Contender> contenders, std::span<uint32_t> slots,
                const FillKernel& kernel) {
  if (contenders.size() == 1) {
    std::ranges::fill(slots, 0);
    return;
  }
  uint32_t largest = 0;
  uint64_t sum = 0;
  for (const Contender& c : contenders) {
    largest = std::max(largest, c.weight);
    sum += c.weight;
  }
  const double size = static_cast<double>(slots.size());
  const double count = static_cast<double>(contenders.size());
  // How many share the table, when only those count that have a share worth the name.
  const double sharers = static_cast<double>(sum) / largest;
  const bool worth_a_kernel = size >= 8192 && sharers >= 4 && count <= size / 32;
  // In the first round all have a turn; each later one has as many turns as sharers.
  const double rounds = 1 + (size - count) / sharers;
  if (!worth_a_kernel && rounds * count < kChecksPerTurn * size) {
    return fill_by_rounds(contenders, slots, sharers < kDominated);
  }
  std::vector<uint32_t> weights;
  weights.reserve(contenders.size());
  for (const Contender& c : contenders) weights.push_back(c.weight);
  TurnOrder order(weights, slots.size());
  if (worth_a_kernel) return kernel.fill(contenders, slots, order);
  fill_plainly(contenders, slots, order);
}

}  // namespace maglev
