#include "tables/maglev_fill.h"

#include <algorithm>
#include <random>
#include <ranges>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tables/prime.h"
#include "tables/turn_order.h"
#include "tests/tables/textbook_maglev.h"

namespace maglev {
namespace {

using Random = std::mt19937_64;

uint64_t pick(Random& random, uint64_t low, uint64_t high) {
  return std::uniform_int_distribution<uint64_t>(low, high)(random);
}

uint32_t random_prime(Random& random, uint64_t low, uint64_t high) {
  uint64_t size = pick(random, low, high);
  while (!is_prime(size)) size = size == high ? low : size + 1;
  return static_cast<uint32_t>(size);
}

enum class Weights { kEqual, kUpToHundred, kOneHeavy, kAnything };

std::vector<Contender> random_contenders(Random& random, uint32_t size, size_t count,
                                         Weights weights) {
  std::vector<Contender> contenders(count);
  for (Contender& c : contenders) {
    c.offset = static_cast<uint32_t>(pick(random, 0, size - 1));
    c.skip = static_cast<uint32_t>(pick(random, 1, size - 1));
    c.weight = weights == Weights::kUpToHundred ? static_cast<uint32_t>(pick(random, 1, 100))
               : weights == Weights::kAnything
                   ? static_cast<uint32_t>(pick(random, 1, uint64_t{1} << pick(random, 0, 31)))
                   : 1;
  }
  if (weights == Weights::kOneHeavy) contenders[pick(random, 0, count - 1)].weight = 1'000'000;
  return contenders;
}

void expect_every_kernel_agrees(const std::vector<Contender>& contenders, uint32_t size) {
  const std::vector<uint32_t> expected = fill_by_the_book(contenders, size);
  for (const FillKernel& kernel : fill_kernels()) {
    std::vector<uint32_t> slots(size, kNoOwner);
    fill_slots(contenders, slots, kernel);
    ASSERT_TRUE(slots == expected) << kernel.name;
  }
}

TEST(MaglevFill, EveryKernelGivesTheBytesOfTheTextbookLoopOnRandomInput) {
  const uint64_t seed = std::random_device{}();
  Random random(seed);
  for (int trial = 0; trial < 400; ++trial) {
    const uint32_t size = random_prime(random, 3, trial % 4 == 0 ? 70'000 : 3'000);
    const size_t most = trial % 3 == 0 ? size : std::max<uint32_t>(1, size / 20);
    const size_t count = pick(random, 1, most);
    const auto weights = static_cast<Weights>(pick(random, 0, 3));
    // The textbook loop takes a round for each turn of the heaviest.
    if (weights >= Weights::kOneHeavy && size * count > 30'000'000) continue;
    SCOPED_TRACE(fmt::format("seed {} trial {}: size {}, {} contenders, weights {}", seed, trial,
                             size, count, static_cast<int>(weights)));
    ASSERT_NO_FATAL_FAILURE(
        expect_every_kernel_agrees(random_contenders(random, size, count, weights), size));
  }
}

TEST(MaglevFill, EveryKernelGivesTheBytesOfTheTextbookLoopOnEverySizeOfStep) {
  const uint64_t seed = std::random_device{}();
  Random random(seed);
  // Sizes on both sides of each change of method, and the largest for the last slots.
  for (const uint32_t size : {3u, 5u, 7u, 251u, 4093u, 65521u, 65537u, 91997u, 92003u, 131071u,
                              655373u, 5000011u, 8388617u}) {
    for (const size_t count : {1u, 2u, 3u, 10u, 100u, 1000u}) {
      if (count > size || (size > 1'000'000 && count < 1000)) continue;
      SCOPED_TRACE(fmt::format("seed {}: size {}, {} contenders", seed, size, count));
      ASSERT_NO_FATAL_FAILURE(expect_every_kernel_agrees(
          random_contenders(random, size, count, Weights::kEqual), size));
    }
  }
}

TEST(MaglevFill, OneThatDominatesLeavesTheOthersTheirTurns) {
  const uint64_t seed = std::random_device{}();
  Random random(seed);
  for (const std::vector<uint32_t>& weights :
       std::vector<std::vector<uint32_t>>{{1000, 1},
                                          {3, 1000, 7},
                                          {1, 1, 5000},
                                          {1'000'000, 999, 1, 1},
                                          {20, 1},
                                          {400, 9, 9, 9}}) {
    SCOPED_TRACE(fmt::format("seed {}, {} weights from {}", seed, weights.size(), weights[0]));
    std::vector<Contender> contenders =
        random_contenders(random, 4093, weights.size(), Weights::kEqual);
    for (size_t i = 0; i < weights.size(); ++i) contenders[i].weight = weights[i];
    ASSERT_NO_FATAL_FAILURE(expect_every_kernel_agrees(contenders, 4093));
  }
}

TEST(MaglevFill, ContendersThatAllPreferTheSameSlotsShareThemByTurn) {
  for (const uint32_t skip : {1u, 2u, 4092u}) {
    const std::vector<Contender> contenders(500, {17, skip, 3});
    ASSERT_NO_FATAL_FAILURE(expect_every_kernel_agrees(contenders, 4093));
  }
}

std::vector<uint32_t> turns_by_rounds(const std::vector<uint32_t>& weights, size_t count) {
  const uint64_t largest = std::ranges::max(weights);
  std::vector<uint64_t> targets(weights.size(), 0);
  std::vector<uint32_t> turns;
  for (uint64_t round = 1; turns.size() < count; ++round) {
    for (uint32_t i = 0; i < weights.size(); ++i) {
      if (round * weights[i] < targets[i]) continue;
      targets[i] += largest;
      turns.push_back(i);
    }
  }
  turns.resize(count);
  return turns;
}

TEST(TurnOrder, IsThatOfTheRoundsWhateverTheWeights) {
  const uint64_t seed = std::random_device{}();
  Random random(seed);
  const uint32_t top = 0xffffffff;
  std::vector<std::vector<uint32_t>> cases{
      {1}, {5, 5, 5}, {1, 2}, {3, 1, 2}, {top, top - 1}, {top, 1, top / 2}, {9, 10}, {10, 9, 8}};
  for (int i = 0; i < 40; ++i) {
    std::vector<uint32_t> weights(pick(random, 1, 50));
    for (uint32_t& w : weights) {
      w = static_cast<uint32_t>(pick(random, 1, uint64_t{1} << pick(random, 0, 31)));
    }
    cases.push_back(weights);
  }
  for (const auto& weights : cases) {
    SCOPED_TRACE(fmt::format("seed {}, {} weights from {}", seed, weights.size(), weights[0]));
    const size_t count = 20'000;
    TurnOrder order(weights, count);
    std::vector<uint32_t> turns;
    while (turns.size() < count) {
      const auto more = order.take(std::min<size_t>(pick(random, 1, 700), count - turns.size()));
      ASSERT_FALSE(more.empty());
      turns.insert(turns.end(), more.begin(), more.end());
    }
    EXPECT_TRUE(turns == turns_by_rounds(weights, count));
  }
}

}  // namespace
}  // namespace maglev
