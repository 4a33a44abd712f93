#include "dataplane/pool_numbers.h"

#include <gtest/gtest.h>

#include <vector>

#include "tables/tracking_times.h"

namespace maglev {
namespace {

constexpr uint64_t kPoolIdle_ns = 900'000'000'000;

TEST(PoolNumbers, APoolKeepsItsNumberWhileItIsPublishedAndAcrossARestart) {
  std::vector<PoolNumberRecord> records(8);
  uint16_t web = 0;
  {
    PoolNumbers numbers(records);
    web = *numbers.take("web", 0);
    const uint16_t dns = *numbers.take("dns", 0);
    EXPECT_NE(web, dns);
    EXPECT_EQ(numbers.take("web", 0), web);
    numbers.retain(std::vector<PoolNumbers::InUse>{{web, kPoolIdle_ns}, {dns, kPoolIdle_ns}}, 0);
  }
  PoolNumbers numbers(records);
  EXPECT_EQ(numbers.take("web", 0), web);
}

TEST(PoolNumbers, APoolThatComesAgainHasAnotherNumber) {
  std::vector<PoolNumberRecord> records(8);
  PoolNumbers numbers(records);
  const uint16_t first = *numbers.take("web", 0);
  numbers.retain(std::vector<PoolNumbers::InUse>{{first, kPoolIdle_ns}}, 0);
  numbers.retain({}, 1);
  EXPECT_NE(numbers.take("web", 2), first);
}

TEST(PoolNumbers, ANumberRestsUntilNoEntryCanNameIt) {
  std::vector<PoolNumberRecord> records(1);
  PoolNumbers numbers(records);
  ASSERT_TRUE(numbers.take("web", 0));
  numbers.retain(std::vector<PoolNumbers::InUse>{{0, kPoolIdle_ns}}, 0);
  EXPECT_FALSE(numbers.take("dns", 0)) << "all are in use";
  numbers.retain({}, 5);
  EXPECT_FALSE(numbers.take("dns", kPoolIdle_ns));
  {
    PoolNumbers restarted(records);
    EXPECT_FALSE(restarted.take("dns", kPoolIdle_ns));
  }
  EXPECT_EQ(numbers.take("dns", 5 + kPoolIdle_ns + 2 * kAdoptionGrace_ns), 0u);
}

}  // namespace
}  // namespace maglev
