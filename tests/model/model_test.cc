// The model's short form: the assertions of the long one, over fewer histories.
#include "tests/model/model.h"

#include <gtest/gtest.h>

namespace maglev::model {
namespace {

Result run_many(Scenario scenario, uint64_t histories) {
  Result sum;
  for (uint64_t i = 0; i < histories; ++i) {
    sum += run(scenario);
    ++scenario.seed;
  }
  return sum;
}

uint64_t broken(const Result& result, Cause cause, Mode mode = Mode::kChanged) {
  return result.of(mode).flows[static_cast<uint32_t>(cause)];
}
uint64_t only_changed(const Result& result, Cause cause) {
  return result.of(Mode::kChanged).kept_by_full[static_cast<uint32_t>(cause)];
}

TEST(Model, RandomHistoriesBreakNoFlowThatFullMemoryKeeps) {
  Result sum;
  for (uint64_t seed = 1; seed <= 40; ++seed) sum += run(random_scenario(seed));
  SCOPED_TRACE(report(sum));
  EXPECT_GT(sum.packets, 1'000'000u);
  for (const Cause cause : kPreventable) EXPECT_EQ(only_changed(sum, cause), 0u) << name_of(cause);
  EXPECT_EQ(broken(sum, Cause::kSlotChanged), 0u);
  EXPECT_LT(sum.of(Mode::kChanged).violated(), sum.of(Mode::kFull).violated());
  EXPECT_GT(broken(sum, Cause::kSlotChanged, Mode::kNone), sum.flows / 100)
      << "the histories change nothing that matters";
}

TEST(Model, SettledSlotsCostNoLookup) {
  const Result sum = run_many({}, 3);
  EXPECT_GT(sum.settled_packets, sum.packets / 10);
  EXPECT_EQ(sum.lookups_changed, sum.unsettled_packets);
}

TEST(Model, OneChangingBackendOfAHundredLeavesFewEntries) {
  Scenario scenario;
  scenario.host.slots = 10007;
  scenario.host.entries_per_worker = 8192;
  scenario.backends = 100;
  scenario.change_every_s = 150;
  scenario.failures = scenario.removals = 0;
  scenario.flows_per_s = 20;
  scenario.duration_s = 1500;
  const Result result = run(scenario);
  SCOPED_TRACE(report(result));
  EXPECT_GT(result.changes, 5u);
  EXPECT_GT(broken(result, Cause::kSlotChanged, Mode::kNone), 0u);
  EXPECT_EQ(result.of(Mode::kChanged).violated(), 0u);
  EXPECT_LT(result.entries_changed, result.entries_full / 20);
}

}  // namespace
}  // namespace maglev::model
