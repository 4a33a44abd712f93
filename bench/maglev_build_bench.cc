// How much faster the Maglev build is than the textbook loop. Both run in turn on the same input,
// which is new for each iteration, so that no branch predictor can learn it. A benchmark's time is
// that of the kernel; its counters are medians over iterations:
//   textbook_us, kernel_us   time of one population
//   ratio                    textbook over kernel, pair by pair
//   capped                   1 when the textbook loop was stopped after 60 s: the ratio is a bound
#include <algorithm>
#include <chrono>
#include <random>
#include <vector>

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include "tables/maglev.h"
#include "tables/maglev_fill.h"

namespace maglev {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;
constexpr Seconds kTextbookLimit{60};

struct Cursor {
  uint32_t next;
  uint32_t skip;
  uint64_t target;
  uint64_t weight;
};

// The plain loop with a conditional subtraction in place of a division. False when stopped.
bool textbook(const std::vector<Contender>& contenders, std::vector<uint32_t>& slots) {
  const uint32_t size = static_cast<uint32_t>(slots.size());
  std::ranges::fill(slots, kNoOwner);
  std::vector<Cursor> cursors;
  uint64_t largest = 0;
  for (const Contender& c : contenders) {
    cursors.push_back({c.offset, c.skip, 0, c.weight});
    largest = std::max<uint64_t>(largest, c.weight);
  }
  const auto deadline = Clock::now() + kTextbookLimit;
  uint32_t filled = 0;
  for (uint64_t round = 1;; ++round) {
    if (round % 1024 == 0 && Clock::now() > deadline) return false;
    for (uint32_t i = 0; i < cursors.size(); ++i) {
      Cursor& c = cursors[i];
      if (round * c.weight < c.target) continue;
      c.target += largest;
      uint32_t slot = c.next;
      while (slots[slot] != kNoOwner) {
        slot += c.skip;
        if (slot >= size) slot -= size;
      }
      slots[slot] = i;
      c.next = slot;
      if (++filled == size) return true;
    }
  }
}

enum class Weights { kEqual, kUpToHundred, kOneOfAMillion };

std::vector<Contender> random_contenders(std::mt19937_64& random, uint32_t size, uint32_t count,
                                         Weights weights) {
  std::vector<Contender> contenders(count);
  for (Contender& c : contenders) {
    c.offset = static_cast<uint32_t>(random() % size);
    c.skip = static_cast<uint32_t>(random() % (size - 1)) + 1;
    c.weight = weights == Weights::kUpToHundred ? static_cast<uint32_t>(random() % 100) + 1 : 1;
  }
  if (weights == Weights::kOneOfAMillion) contenders[random() % count].weight = 1'000'000;
  return contenders;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

void compare(benchmark::State& state, const FillKernel& kernel, uint32_t size, uint32_t count,
             Weights weights) {
  std::mt19937_64 random(std::random_device{}());
  std::vector<uint32_t> expected(size), slots(size);
  std::vector<double> textbook_us, kernel_us, ratios;
  bool capped = false;
  for (auto _ : state) {
    const std::vector<Contender> contenders = random_contenders(random, size, count, weights);
    const auto start = Clock::now();
    const bool whole = textbook(contenders, slots);
    const Seconds textbook_time = Clock::now() - start;
    // Both in the same memory: one with smaller pages would be the slower whatever the loop.
    expected = slots;
    const auto again = Clock::now();
    fill_slots(contenders, slots, kernel);
    const Seconds kernel_time = Clock::now() - again;
    if (whole && slots != expected) return state.SkipWithError("the bytes differ");
    capped |= !whole;
    state.SetIterationTime(kernel_time.count());
    textbook_us.push_back(textbook_time.count() * 1e6);
    kernel_us.push_back(kernel_time.count() * 1e6);
    ratios.push_back(textbook_time / kernel_time);
  }
  state.counters["textbook_us"] = median(textbook_us);
  state.counters["kernel_us"] = median(kernel_us);
  state.counters["ratio"] = median(ratios);
  state.counters["capped"] = capped;
}

// Enough pairs for a median, within a few seconds of textbook time.
int iterations(uint64_t size, uint64_t count, Weights weights) {
  const uint64_t checks = weights == Weights::kOneOfAMillion ? size * count : size;
  return static_cast<int>(std::clamp<uint64_t>(1'000'000'000 / (size * 20 + checks), 1, 301));
}

void register_all() {
  constexpr const char* kWeightNames[] = {"equal weights", "weights from 1 to 100",
                                          "one weight of a million among ones"};
  for (const FillKernel& kernel : fill_kernels()) {
    for (const uint32_t size : {251u, 4093u, 65537u, 655373u, 5000011u}) {
      std::vector<uint32_t> counts{1, 2, 3, 10, 100, 1000, std::min(size, 60000u)};
      for (const uint32_t count : counts) {
        if (count > size) continue;
        for (int w = 0; w < 3; ++w) {
          const auto weights = static_cast<Weights>(w);
          benchmark::RegisterBenchmark(
              fmt::format("the {} kernel fills {} slots for {} backends of {}", kernel.name, size,
                          count, kWeightNames[w])
                  .c_str(),
              [=](benchmark::State& state) { compare(state, kernel, size, count, weights); })
              ->UseManualTime()
              ->Iterations(iterations(size, count, weights))
              ->Unit(benchmark::kMicrosecond);
        }
      }
    }
  }
}

}  // namespace
}  // namespace maglev

int main(int argc, char** argv) {
  maglev::register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
}
