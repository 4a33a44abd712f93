#include "dataplane/flow_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <random>
#include <thread>
#include <vector>

namespace maglev {
namespace {

// Memory as the daemon gives it: zeroed, aligned to a pair of buckets.
class Memory {
 public:
  explicit Memory(uint64_t entries)
      : size_(FlowTable::bytes_for(entries)),
        bytes_(static_cast<std::byte*>(std::aligned_alloc(128, size_)), &std::free) {
    std::fill_n(bytes_.get(), size_, std::byte{0});
  }
  std::span<std::byte> span() const { return {bytes_.get(), size_}; }

 private:
  size_t size_;
  std::unique_ptr<std::byte, decltype(&std::free)> bytes_;
};

// Two buckets: all flows meet.
struct SmallTable {
  FlowTable::Position position(uint64_t flow) const {
    return table.position_of({flow << 32, flow});
  }
  FlowEntry entry(uint64_t flow, FlowState state = FlowState::kEstablished) const {
    return {.tag = position(flow).tag, .backend = 7, .incarnation = 3, .state = state};
  }
  // Stores the flow where there is room, however little the others are worth.
  FlowTable::Place* store(const FlowEntry& entry, bool handshake = false,
                          FlowWorth limit = FlowWorth::kSpare) {
    FlowTable::Place* place = table.make_room(
        {0, entry.tag}, tick, handshake, limit,
        [&](const FlowEntry& other) { return flow_age_ticks(tick, other.seen_tick) > 100; },
        [&](const FlowEntry& other) { return worth[other.tag & 0xff]; });
    if (place != nullptr) table.store(*place, entry);
    return place;
  }
  void fill(FlowState state = FlowState::kEstablished) {
    for (uint64_t flow = 1; flow <= 8; ++flow) {
      FlowEntry full = entry(flow, state);
      full.seen_tick = tick;
      ASSERT_NE(store(full), nullptr);
    }
  }

  Memory memory{8};
  FlowTable table{memory.span()};
  uint32_t tick = 1000;
  std::array<FlowWorth, 256> worth{};
};

TEST(FlowEntry, KeepsEveryFieldInTwoWords) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 100'000; ++i) {
    const FlowEntry entry{.tag = random() >> 16,
                          .backend = static_cast<uint32_t>(random() % kMaxTrackedBackends),
                          .incarnation = static_cast<uint8_t>(random()),
                          .pool = static_cast<uint16_t>(random() % kMaxTrackedPools),
                          .opening = static_cast<uint8_t>(random()),
                          .state = static_cast<FlowState>(random() % kFlowStateCount),
                          .seen_tick = static_cast<uint32_t>(random()) & kFlowTickMask};
    ASSERT_EQ(FlowEntry::from(entry.head(), entry.tail()), entry);
  }
}

TEST(FlowEntry, TellsTheUpperHalfOfTheFlowHash) {
  const SmallTable small;
  const FlowTable::Position at = small.table.position_of({0x123456789abcdef0, 0xfedcba9876543210});
  EXPECT_EQ((FlowEntry{.tag = at.tag}.hash_upper()), 0x12345678u);
  EXPECT_EQ(at.tag >> 32, 0x3210u);
}

TEST(FlowAge, ComparesTimesAcrossTheWrapAndASkewOfClocks) {
  EXPECT_EQ(flow_age_ticks(100, 40), 60u);
  EXPECT_EQ(flow_age_ticks(5, kFlowTickMask - 4), 10u);
  EXPECT_EQ(flow_age_ticks(100, 110), 0u) << "seen by a thread whose clock was read later";
  EXPECT_GT(flow_age_ticks(100, 200), 1u << 26);
}

TEST(FlowTable, FindsWhatWasStoredByFlowAndPool) {
  Memory memory(4096);
  FlowTable table(memory.span());
  EXPECT_EQ(table.capacity(), 4096u);
  std::mt19937_64 random(2);
  std::vector<FlowIdentity> flows(2000);
  for (FlowIdentity& flow : flows) flow = {random(), random()};
  for (uint32_t i = 0; i < flows.size(); ++i) {
    const FlowTable::Position at = table.position_of(flows[i]);
    FlowTable::Place* place = table.make_room(
        at, 0, false, FlowWorth::kNeeded, [](const FlowEntry&) { return false; },
        [](const FlowEntry&) { return FlowWorth::kNeeded; });
    ASSERT_NE(place, nullptr);
    table.store(*place, {.tag = at.tag, .backend = i, .pool = 9, .state = FlowState::kUdp});
  }
  EXPECT_EQ(table.counters().used.get(), 2000u - table.counters().evicted[5].get());
  uint32_t found = 0;
  for (uint32_t i = 0; i < flows.size(); ++i) {
    const FlowTable::Position at = table.position_of(flows[i]);
    const FlowTable::Place* place = table.find(at, 9);
    if (place != nullptr) {
      EXPECT_EQ(place->read().backend, i);
    }
    found += place != nullptr;
    EXPECT_EQ(table.find(at, 8), nullptr);
    EXPECT_EQ(table.peek(flows[i], 9).has_value(), place != nullptr);
  }
  EXPECT_EQ(found, table.counters().used.get());
  EXPECT_EQ(table.peek({random(), random()}, 9), std::nullopt);
}

TEST(FlowTable, ForgetsAndCountsWhatItHolds) {
  SmallTable small;
  FlowTable::Place* place = small.store(small.entry(1));
  EXPECT_EQ(small.table.counters().used.get(), 1u);
  EXPECT_EQ(small.table.find(small.position(1), 0), place);
  small.table.forget(*place);
  EXPECT_EQ(small.table.counters().used.get(), 0u);
  EXPECT_EQ(small.table.find(small.position(1), 0), nullptr);
}

TEST(FlowTable, ATableAsItWasLeftGoesOn) {
  SmallTable small;
  small.store(small.entry(1));
  FlowTable again(small.memory.span());
  EXPECT_EQ(again.counters().used.get(), 1u);
  ASSERT_NE(again.find(small.position(1), 0), nullptr);
  EXPECT_EQ(again.find(small.position(1), 0)->read(), small.entry(1));
}

TEST(FlowTable, TheEntryWorthLeastGivesWay) {
  SmallTable small;
  small.worth.fill(FlowWorth::kNeeded);
  small.fill();
  EXPECT_EQ(small.store(small.entry(9)), nullptr);
  small.worth[5] = FlowWorth::kHalfOpen;
  small.worth[3] = FlowWorth::kOnePacket;
  EXPECT_NE(small.store(small.entry(9)), nullptr);
  EXPECT_EQ(small.table.find(small.position(3), 0), nullptr);
  EXPECT_NE(small.table.find(small.position(5), 0), nullptr);
  EXPECT_EQ(small.table.counters().evicted[static_cast<int>(FlowWorth::kOnePacket)].get(), 1u);
  EXPECT_EQ(small.table.counters().used.get(), 8u);
}

TEST(FlowTable, AmongEqualsTheLongestIdleGivesWay) {
  SmallTable small;
  small.fill();
  FlowEntry older = small.entry(6);
  older.seen_tick = small.tick - 10;
  small.table.write(*small.table.find(small.position(6), 0), older);
  ASSERT_NE(small.store(small.entry(9)), nullptr);
  EXPECT_EQ(small.table.find(small.position(6), 0), nullptr);
}

TEST(FlowTable, AnExpiredEntryGivesWayBeforeAnyOther) {
  SmallTable small;
  small.worth.fill(FlowWorth::kUseless);
  small.worth[4] = FlowWorth::kNeeded;
  small.fill();
  FlowEntry expired = small.entry(4);
  expired.seen_tick = small.tick - 101;
  small.table.write(*small.table.find(small.position(4), 0), expired);
  ASSERT_NE(small.store(small.entry(9)), nullptr);
  EXPECT_EQ(small.table.find(small.position(4), 0), nullptr);
}

TEST(FlowTable, HandshakesFillHalfOfAPairAtMost) {
  SmallTable small;
  small.worth.fill(FlowWorth::kNeeded);
  for (uint64_t flow = 1; flow <= 6; ++flow) {
    FlowEntry handshake = small.entry(flow, FlowState::kHalfOpen);
    handshake.seen_tick = small.tick;
    EXPECT_EQ(small.store(handshake, true) != nullptr, flow <= 4) << flow;
  }
  FlowEntry other = small.entry(7);
  other.seen_tick = small.tick;
  EXPECT_NE(small.store(other), nullptr) << "there is room for other flows";
  small.worth[2] = FlowWorth::kHalfOpen;
  EXPECT_NE(small.store(small.entry(8, FlowState::kHalfOpen), true), nullptr);
  EXPECT_EQ(small.table.find(small.position(2), 0), nullptr) << "a handshake makes room for one";
}

// Fields that a torn entry could not all have.
FlowEntry woven(uint64_t n) {
  return {.tag = (n * 0x9e3779b97f4a7c15) >> 16,
          .backend = static_cast<uint32_t>(n % 1000),
          .incarnation = static_cast<uint8_t>(n * 7),
          .pool = 0,
          .opening = static_cast<uint8_t>(n * 13),
          .state = FlowState::kEstablished,
          .seen_tick = static_cast<uint32_t>(n) & kFlowTickMask};
}

TEST(FlowTable, OtherThreadsSeeAnEntryWholeOrNotAtAll) {
  SmallTable small;
  FlowTable::Place* place = small.store(woven(1));
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> seen{0}, torn{0};
  std::thread reader([&] {
    while (!stop.load()) {
      for (uint64_t number = 0; number < small.table.capacity(); ++number) {
        const auto entry = small.table.place_at(number).read_shared();
        if (!entry) continue;
        seen.fetch_add(1);
        // What is written in place has the same fields but time and state.
        const bool whole = *entry == woven(entry->seen_tick);
        if (!whole) torn.fetch_add(1);
      }
    }
  });
  for (uint64_t n = 2; n < 300'000 || seen.load() < 1000; ++n) {
    small.table.write(*place, woven(n));
    if (n % 64 == 0) small.table.forget(*place);
    if (n % 64 == 0) place = small.store(woven(n));
    if (n % 4096 == 0) std::this_thread::yield();
  }
  stop = true;
  reader.join();
  EXPECT_EQ(torn.load(), 0u);
  EXPECT_GE(seen.load(), 1000u);
}

}  // namespace
}  // namespace maglev
