#include "dataplane/sweep.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "tables/boot_time.h"

namespace maglev {
namespace {

uint32_t tick_now() {
  return flow_tick(boot_time_ns());
}

// 101 slots, of which 10 is unsettled and belongs to backend 1 with incarnation 4.
PoolToSweep pool_five() {
  return {.pool = 5,
          .slots = 101,
          .backends = 3,
          .idle = flow_idle(60, 10, 20),
          .unsettled = {{10, 1, 4}}};
}

struct Flows {
  // A flow of the slot; `nth` tells those of one slot apart.
  FlowTable::Place* add(uint32_t slot, uint64_t nth, uint32_t backend, uint8_t incarnation,
                        uint32_t tick, uint16_t pool = 5) {
    const uint64_t upper = (uint64_t{slot} << 32) / 101 + 1 + nth;
    const FlowTable::Position at = table.position_of({upper << 32, (nth * 7919 + slot) << 32});
    FlowTable::Place* place = table.make_room(
        at, tick, false, FlowWorth::kUseless, [](const FlowEntry&) { return false; },
        [](const FlowEntry&) { return FlowWorth::kNeeded; });
    table.store(*place, {.tag = at.tag,
                         .backend = backend,
                         .incarnation = incarnation,
                         .pool = pool,
                         .state = FlowState::kEstablished,
                         .seen_tick = tick});
    return place;
  }

  alignas(128) std::array<std::byte, FlowTable::bytes_for(65536)> memory{};
  FlowTable table{memory};
};

TEST(FlowSweep, FindsSlotsWithLiveFlowsOfOthersThanTheOwner) {
  const auto flows = std::make_unique<Flows>();
  flows->add(10, 0, 1, 4, 1000);
  FlowSweep agreeing({pool_five()});
  agreeing.look(flows->table, 0, flows->table.capacity(), 1000);
  EXPECT_TRUE(agreeing.finish()[0].disagreeing.empty());

  flows->add(10, 1, 2, 4, 1000);
  flows->add(10, 2, 1, 3, 1000);  // of an earlier incarnation
  flows->add(11, 0, 2, 4, 1000);  // in a settled slot
  flows->add(10, 3, 0, 4, 1000, 6);
  FlowSweep sweep({pool_five()});
  sweep.look(flows->table, 0, flows->table.capacity(), 1000);
  const std::vector<SweptPool> swept = sweep.finish();
  ASSERT_EQ(swept.size(), 1u);
  EXPECT_EQ(swept[0].pool, 5);
  EXPECT_EQ(swept[0].disagreeing, std::vector<uint32_t>{10});
  EXPECT_EQ(swept[0].live_flows, (std::vector<LiveFlows>{{1, 3, 1}, {1, 4, 1}, {2, 4, 2}}));
}

TEST(FlowSweep, DoesNotCountWhatHasExpired) {
  const auto flows = std::make_unique<Flows>();
  flows->add(10, 0, 2, 4, 1000);
  FlowSweep sweep({pool_five()});
  sweep.look(flows->table, 0, flows->table.capacity(), 1200);
  const std::vector<SweptPool> swept = sweep.finish();
  EXPECT_TRUE(swept[0].disagreeing.empty());
  EXPECT_TRUE(swept[0].live_flows.empty());
}

std::optional<Sweeper::Result> wait_for_result(Sweeper& sweeper) {
  for (int i = 0; i < 2000; ++i) {
    if (auto result = sweeper.take()) return result;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return std::nullopt;
}

TEST(Sweeper, LooksAtTablesWhileTheirWorkersWriteThem) {
  const auto flows = std::make_unique<Flows>();
  const auto others = std::make_unique<Flows>();
  const uint32_t tick = tick_now();
  flows->add(10, 0, 2, 4, tick);
  others->add(20, 0, 0, 1, tick);
  std::atomic<bool> stop{false};
  std::thread worker([&] {
    for (uint64_t n = 1; !stop.load(); ++n) {
      FlowTable::Place* place = flows->add(30, n % 100, 1, 1, tick);
      flows->table.forget(*place);
    }
  });
  Sweeper sweeper(10'000'000);
  EXPECT_FALSE(sweeper.take());
  EXPECT_TRUE(sweeper.start({{&flows->table, &others->table}, {pool_five()}, 17}));
  EXPECT_FALSE(sweeper.start({}));
  const auto result = wait_for_result(sweeper);
  stop = true;
  worker.join();
  ASSERT_TRUE(result);
  EXPECT_EQ(result->generation, 17u);
  EXPECT_GT(result->began_ns, 0u);
  EXPECT_EQ(result->pools[0].disagreeing, std::vector<uint32_t>{10});
  EXPECT_GE(result->ended_ns, result->began_ns);
  const std::vector<LiveFlows>& live = result->pools[0].live_flows;
  EXPECT_EQ(live.front(), (LiveFlows{0, 1, 1}));
  EXPECT_EQ(live.back(), (LiveFlows{2, 4, 1}));
  EXPECT_TRUE(sweeper.start({{&others->table}, {pool_five()}, 18})) << "and again";
  EXPECT_TRUE(wait_for_result(sweeper));
}

TEST(Sweeper, KeepsItsRateAndEndsAtOnceWhenAsked) {
  const auto flows = std::make_unique<Flows>();
  const auto began = std::chrono::steady_clock::now();
  {
    Sweeper sweeper(65536 * 10);  // a tenth of a second for the table
    ASSERT_TRUE(sweeper.start({{&flows->table}, {pool_five()}, 1}));
    ASSERT_TRUE(wait_for_result(sweeper));
    EXPECT_GT(std::chrono::steady_clock::now() - began, std::chrono::milliseconds(90));
  }
  {
    Sweeper slow(4096);  // 16 seconds
    ASSERT_TRUE(slow.start({{&flows->table}, {pool_five()}, 1}));
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_FALSE(slow.take());
  }
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(5));
}

}  // namespace
}  // namespace maglev
