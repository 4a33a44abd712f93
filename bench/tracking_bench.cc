// What tracking costs per packet, without pipeline and device: bursts of 32 packets of random
// flows, positions computed and prefetched first, then tracked one by one. Beside it the same loop
// without the table.
#include <benchmark/benchmark.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "dataplane/track.h"

namespace maglev {
namespace {

constexpr uint32_t kBurst = 32;

struct OnePool {
  uint64_t now_ns = 1000'000'000'000;
  uint32_t tick = flow_tick(now_ns);
  FlowIdle idle_times = flow_idle(900, 30, 60);
  std::array<uint8_t, 256> incarnations{};
  SlotView view{.owner = 1, .fallback = 0, .inherit_until_ns = now_ns * 2};

  const FlowIdle& idle(uint16_t) const { return idle_times; }
  bool serves(uint16_t, uint32_t backend, uint8_t incarnation) const {
    return incarnations[backend] == incarnation;
  }
  uint8_t incarnation(uint16_t, uint32_t backend) const { return incarnations[backend]; }
  SlotView slot(uint16_t, uint32_t) const { return view; }
  bool looks_elsewhere() const { return false; }
  std::optional<FlowEntry> known_elsewhere(const FlowIdentity&, uint16_t) const { return {}; }
};

struct Lab {
  Lab(uint64_t flow_count, uint64_t entries)
      : size(FlowTable::bytes_for(entries)),
        memory(
            static_cast<std::byte*>(std::aligned_alloc(1 << 21, (size + 0x1fffff) & ~0x1ffffful)),
            &std::free),
        flows(flow_count) {
    std::fill_n(memory.get(), size, std::byte{0});
    table.emplace(std::span(memory.get(), size));
    std::mt19937_64 random(1);
    for (FlowIdentity& flow : flows) flow = {random(), random()};
  }

  // The sum of the backends of 32 flows from the first on.
  uint64_t burst(uint64_t first, PacketKind kind) {
    std::array<TrackedPacket, kBurst> packets;
    for (uint32_t i = 0; i < kBurst; ++i) {
      const FlowIdentity& flow = flows[first + i];
      packets[i] = {flow, table->position_of(flow), 0, kind, 7};
      table->prefetch(packets[i].at);
    }
    uint64_t sum = 0;
    for (const TrackedPacket& packet : packets) {
      sum += track(*table, packet, pool.view, pool.idle_times, pool, counters);
    }
    return sum;
  }

  size_t size;
  std::unique_ptr<std::byte, decltype(&std::free)> memory;
  std::optional<FlowTable> table;
  std::vector<FlowIdentity> flows;
  OnePool pool;
  TrackingCounters counters;
};

void run(benchmark::State& state, Lab& lab, PacketKind kind) {
  uint64_t first = 0;
  uint64_t sum = 0;
  for (auto _ : state) {
    sum += lab.burst(first, kind);
    first += kBurst;
    if (first + kBurst > lab.flows.size()) {
      first = 0;
      lab.pool.now_ns += kFlowTick_ns;  // as time goes by, entries are seen again
      lab.pool.tick = flow_tick(lab.pool.now_ns);
    }
  }
  benchmark::DoNotOptimize(sum);
  state.SetItemsProcessed(state.iterations() * kBurst);
}

void PacketsOfKnownFlows(benchmark::State& state) {
  const auto count = static_cast<uint64_t>(state.range(0));
  Lab lab(count, 2 * count);
  for (uint64_t i = 0; i < 2; ++i) {
    for (uint64_t first = 0; first < count; first += kBurst) lab.burst(first, PacketKind::kData);
  }
  run(state, lab, PacketKind::kData);
}
BENCHMARK(PacketsOfKnownFlows)->Arg(1 << 16)->Arg(1 << 20);

void PacketsThatOpenFlows(benchmark::State& state) {
  Lab lab(1 << 22, 1 << 20);
  run(state, lab, PacketKind::kOpening);
}
BENCHMARK(PacketsThatOpenFlows);

void FloodOfOtherPackets(benchmark::State& state) {
  Lab lab(1 << 22, 1 << 20);
  run(state, lab, PacketKind::kData);
}
BENCHMARK(FloodOfOtherPackets);

void WithoutATable(benchmark::State& state) {
  Lab lab(static_cast<uint64_t>(state.range(0)), 8);
  uint64_t first = 0;
  uint64_t sum = 0;
  for (auto _ : state) {
    for (uint32_t i = 0; i < kBurst; ++i) sum += lab.flows[first + i].hash;
    first = first + 2 * kBurst > lab.flows.size() ? 0 : first + kBurst;
  }
  benchmark::DoNotOptimize(sum);
  state.SetItemsProcessed(state.iterations() * kBurst);
}
BENCHMARK(WithoutATable)->Arg(1 << 16)->Arg(1 << 20);

}  // namespace
}  // namespace maglev
