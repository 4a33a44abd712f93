// What building a placement and looking a key up cost, for every kind.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <random>

#include "tables/placement.h"

namespace maglev {
namespace {

std::vector<Node> some_nodes(size_t count) {
  std::vector<Node> nodes;
  for (size_t i = 0; i < count; ++i) nodes.push_back({fmt::format("node-{:05}", i), 1, {}});
  return nodes;
}

// Many, in random order, so that no predictor or cache learns the keys.
std::vector<std::string> some_keys() {
  std::mt19937_64 random(1);
  std::vector<std::string> keys;
  for (int i = 0; i < 1 << 16; ++i)
    keys.push_back(fmt::format("order:{}", random() % 1'000'000'000));
  return keys;
}

PlacementSettings fast_hash() {
  PlacementSettings settings;
  settings.hash = KeyHash::kXxh64;
  return settings;
}

void build(benchmark::State& state, PlacementKind kind, size_t nodes) {
  const auto input = some_nodes(nodes);
  size_t bytes = 0;
  for (auto _ : state) {
    const auto placement = make_placement(kind, input, fast_hash());
    benchmark::DoNotOptimize(placement->get());
    bytes = (*placement)->memory_bytes();
  }
  state.counters["bytes"] = static_cast<double>(bytes);
}

void look_up(benchmark::State& state, PlacementKind kind, size_t nodes) {
  const auto placement = *make_placement(kind, some_nodes(nodes), fast_hash());
  const auto keys = some_keys();
  size_t next = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(placement->owner(keys[next]));
    next = (next + 1) % keys.size();
  }
}

void register_all() {
  for (const PlacementKind kind : all_placement_kinds()) {
    for (const size_t nodes : {10u, 100u, 1000u}) {
      benchmark::RegisterBenchmark(
          fmt::format("{} is built for {} nodes", to_text(kind), nodes).c_str(),
          [=](benchmark::State& state) { build(state, kind, nodes); })
          ->Unit(benchmark::kMicrosecond);
      benchmark::RegisterBenchmark(
          fmt::format("{} finds the owner of a key among {} nodes", to_text(kind), nodes).c_str(),
          [=](benchmark::State& state) { look_up(state, kind, nodes); });
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
