#include "control/slot_history.h"

#include <gtest/gtest.h>

namespace maglev {
namespace {

constexpr uint64_t kSecond_ns = 1'000'000'000;
constexpr uint64_t kIdle_ns = 60 * kSecond_ns;
constexpr uint64_t kWindow_ns = kIdle_ns + kAdoptionGrace_ns;

constexpr SlotOwner kA{0, 1}, kB{1, 1}, kC{2, 1}, kNobody{};

// A pool of one slot, whose owner changes step by step.
struct OneSlot {
  explicit OneSlot(SlotOwner first) : owner(first) {}

  void change_to(SlotOwner next, uint64_t now_ns) {
    history.change({&owner, 1}, {&next, 1}, now_ns, kIdle_ns, ++generation);
    owner = next;
  }
  bool settled() const { return history.entries().empty(); }
  PastOwner past() const { return history.entries()[0]; }

  PoolHistory history;
  SlotOwner owner;
  uint64_t generation = 0;
};

TEST(PoolHistory, AChangeInASettledSlotMakesTheOldOwnerItsFallback) {
  OneSlot slot(kA);
  slot.change_to(kB, 100 * kSecond_ns);
  EXPECT_EQ(slot.past(), (PastOwner{0, kA, 103 * kSecond_ns, 100 * kSecond_ns + kWindow_ns, 1}));
}

TEST(PoolHistory, AChangeWithinTheWindowLeavesTheFallbackAndTheWindow) {
  OneSlot slot(kA);
  slot.change_to(kB, 0);
  const PastOwner first = slot.past();
  slot.change_to(kC, kWindow_ns - 1);
  EXPECT_EQ(slot.past().fallback, kA);
  EXPECT_EQ(slot.past().inherit_until_ns, first.inherit_until_ns);
  EXPECT_EQ(slot.past().pending_until_ns, first.pending_until_ns);
  EXPECT_EQ(slot.past().changed_in, 2u);
}

TEST(PoolHistory, ALaterChangeStartsAgainFromTheOwnerOfThatTime) {
  OneSlot slot(kA);
  slot.change_to(kB, 0);
  slot.change_to(kC, kWindow_ns);
  EXPECT_EQ(slot.past(), (PastOwner{0, kB, kWindow_ns + kSynGrace_ns, 2 * kWindow_ns, 2}));
}

TEST(PoolHistory, ASlotWhoseOwnerReturnsStaysUnsettled) {
  OneSlot slot(kA);
  slot.change_to(kB, 0);
  slot.change_to(kA, kSecond_ns);
  ASSERT_FALSE(slot.settled());
  EXPECT_EQ(slot.past().fallback, kA);
}

TEST(PoolHistory, ASlotWithoutAnOwnerHasNoFlowsToRemember) {
  OneSlot slot(kNobody);
  slot.change_to(kA, 0);
  EXPECT_TRUE(slot.settled());
  slot.change_to(kNobody, kSecond_ns);
  slot.change_to(kB, 2 * kSecond_ns);
  EXPECT_EQ(slot.past().fallback, kA);
}

TEST(PoolHistory, ABackendThatTakesAnIndexIsAnotherOwner) {
  OneSlot slot(kA);
  slot.change_to({kA.backend, 2}, 0);
  EXPECT_EQ(slot.past().fallback, kA);
}

TEST(PoolHistory, OnlyASweepAfterTheWindowSettlesASlot) {
  OneSlot slot(kA);
  slot.change_to(kB, 0);
  constexpr uint64_t kFirst_ns = kWindow_ns + kAdoptionGrace_ns;
  EXPECT_EQ(slot.history.settle({kFirst_ns - 1, 1, {}}), 0u);
  EXPECT_EQ(slot.history.settle({kFirst_ns, 1, {}}), 1u);
  EXPECT_TRUE(slot.settled());
}

TEST(PoolHistory, ASweepBeforeEveryWorkerKnewTheLastChangeSettlesNothing) {
  OneSlot slot(kA);
  slot.change_to(kB, 0);
  slot.change_to(kC, kSecond_ns);
  EXPECT_EQ(slot.history.settle({10 * kWindow_ns, 1, {}}), 0u);
  EXPECT_EQ(slot.history.settle({10 * kWindow_ns, 2, {}}), 1u);
}

TEST(PoolHistory, ASlotWithALiveFlowOfAnotherBackendStaysUnsettled) {
  const std::vector<SlotOwner> before{kA, kB, kC}, after{kB, kC, kA};
  PoolHistory history;
  history.change(before, after, 0, kIdle_ns, 1);
  const std::vector<uint32_t> disagreeing{1};
  EXPECT_EQ(history.settle({10 * kWindow_ns, 1, disagreeing}), 2u);
  ASSERT_EQ(history.entries().size(), 1u);
  EXPECT_EQ(history.entries()[0].slot, 1u);
  EXPECT_TRUE(history.names(kB.backend));
  EXPECT_FALSE(history.names(kA.backend));
}

TEST(PoolHistory, AWindowIsExtendedWhileThereIsTimeToTellEveryWorker) {
  OneSlot slot(kA);
  slot.change_to(kB, 0);
  slot.history.extend(kWindow_ns - kAdoptionGrace_ns + 1, kIdle_ns);
  EXPECT_EQ(slot.past().inherit_until_ns, kWindow_ns);
  slot.history.extend(kWindow_ns - kAdoptionGrace_ns, kIdle_ns);
  EXPECT_EQ(slot.past().inherit_until_ns, 2 * kWindow_ns - kAdoptionGrace_ns);
  slot.history.extend(kSecond_ns, kIdle_ns);
  EXPECT_EQ(slot.past().inherit_until_ns, 2 * kWindow_ns - kAdoptionGrace_ns) << "never shortened";
}

TEST(PoolHistory, AWindowIsExtendedOnlySoFar) {
  OneSlot slot(kA);
  slot.change_to(kB, 0);
  uint64_t now_ns = 0;
  while (slot.history.extend(now_ns += kIdle_ns / 2, kIdle_ns)) {
    ASSERT_EQ(slot.history.first_end_ns(now_ns), slot.past().inherit_until_ns);
  }
  EXPECT_EQ(slot.past().inherit_until_ns, kMostWindows * kWindow_ns);
  EXPECT_GE(now_ns + kWindow_ns, kMostWindows * kWindow_ns);
  EXPECT_FALSE(slot.history.first_end_ns(kMostWindows * kWindow_ns - 1));
}

TEST(PoolHistory, EntriesStaySortedWhateverChanges) {
  const std::vector<SlotOwner> first{kA, kA, kA, kA}, second{kA, kB, kA, kB}, third{kC, kB, kC, kC};
  PoolHistory history;
  history.change(first, second, 0, kIdle_ns, 1);
  history.change(second, third, kSecond_ns, kIdle_ns, 2);
  ASSERT_EQ(history.entries().size(), 4u);
  for (uint32_t slot = 0; slot < 4; ++slot) {
    EXPECT_EQ(history.entries()[slot].slot, slot);
    EXPECT_EQ(history.entries()[slot].fallback, kA);
  }
  EXPECT_EQ(history.entries()[1].changed_in, 1u);
  EXPECT_EQ(PoolHistory({history.entries().begin(), history.entries().end()}).entries()[3],
            history.entries()[3]);
}

}  // namespace
}  // namespace maglev
