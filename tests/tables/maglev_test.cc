#include "tables/maglev.h"

#include <algorithm>
#include <fstream>

#include <gtest/gtest.h>
#include <openssl/sha.h>
#include <nlohmann/json.hpp>

#include <fmt/format.h>

namespace maglev {
namespace {

nlohmann::json load_golden(const std::string& name) {
  std::ifstream file(std::string(MAGLEV_GOLDEN_DIRECTORY) + "/" + name);
  return nlohmann::json::parse(file);
}

std::string sha256_u16le(const std::vector<uint32_t>& slots) {
  std::vector<uint8_t> bytes;
  for (uint32_t slot : slots) {
    bytes.push_back(static_cast<uint8_t>(slot));
    bytes.push_back(static_cast<uint8_t>(slot >> 8));
  }
  uint8_t digest[SHA256_DIGEST_LENGTH];
  SHA256(bytes.data(), bytes.size(), digest);
  std::string hex;
  for (uint8_t b : digest) hex += fmt::format("{:02x}", b);
  return hex;
}

std::vector<WeightedName> named(uint32_t count, uint32_t weight = 1) {
  std::vector<WeightedName> backends;
  for (uint32_t i = 0; i < count; ++i) backends.push_back({fmt::format("b{:05}", i), weight});
  return backends;
}

TEST(Maglev, EveryGoldenTableIsReproduced) {
  const auto golden = load_golden("maglev_tables.json");
  ASSERT_EQ(golden["tables"].size(), 11u);
  for (const auto& expected : golden["tables"]) {
    SCOPED_TRACE(expected["name"].get<std::string>());
    std::vector<WeightedName> backends;
    for (const auto& b : expected["backends"]) backends.push_back({b["name"], b["weight"]});
    const auto table = build_maglev(backends, expected["size"]);
    ASSERT_TRUE(table) << table.error();
    EXPECT_EQ(sha256_u16le(table->slots), expected["sha256_u16le"]);
    if (expected.contains("table")) {
      EXPECT_EQ(table->slots, expected["table"].get<std::vector<uint32_t>>());
    }
    std::vector<uint32_t> counts(table->owners.size());
    for (uint32_t slot : table->slots) ++counts[slot];
    EXPECT_EQ(*std::ranges::min_element(counts), expected["slots_min"]);
    EXPECT_EQ(*std::ranges::max_element(counts), expected["slots_max"]);
  }
}

TEST(Maglev, OrderOfInputNeverMatters) {
  auto backends = named(50);
  const auto forward = build_maglev(backends, 4093);
  std::ranges::reverse(backends);
  const auto backward = build_maglev(backends, 4093);
  EXPECT_EQ(forward->slots, backward->slots);
  EXPECT_EQ(forward->owners, backward->owners);
}

TEST(Maglev, AWeightOfZeroIsLikeAbsence) {
  auto backends = named(10);
  backends[3].weight = 0;
  const auto with_zero = build_maglev(backends, 251);
  backends.erase(backends.begin() + 3);
  const auto without = build_maglev(backends, 251);
  EXPECT_EQ(with_zero->slots, without->slots);
  EXPECT_EQ(with_zero->owners, without->owners);
}

TEST(Maglev, ScalingAllWeightsChangesNothing) {
  auto backends = named(10);
  for (uint32_t i = 0; i < backends.size(); ++i) backends[i].weight = i + 1;
  const auto small = build_maglev(backends, 4093);
  for (WeightedName& b : backends) b.weight *= 1000;
  EXPECT_EQ(small->slots, build_maglev(backends, 4093)->slots);
}

TEST(Maglev, NoBackendLeavesEverySlotWithoutOwner) {
  const auto table = build_maglev({}, 251);
  ASSERT_TRUE(table);
  EXPECT_TRUE(std::ranges::all_of(table->slots, [](uint32_t s) { return s == kNoOwner; }));
}

TEST(Maglev, AsManyBackendsAsSlotsEachOwnOneAndOneMoreIsRefused) {
  const auto full = build_maglev(named(251), 251);
  ASSERT_TRUE(full);
  std::vector<uint32_t> sorted = full->slots;
  std::ranges::sort(sorted);
  for (uint32_t i = 0; i < 251; ++i) EXPECT_EQ(sorted[i], i);
  EXPECT_FALSE(build_maglev(named(252), 251));
}

TEST(Maglev, SizesThatAreNoPrimeInRangeAreRefusedWithTheNearestNamed) {
  for (uint64_t size : {uint64_t{0}, uint64_t{1}, uint64_t{2}, uint64_t{33}, uint64_t{16348},
                        uint64_t{65536}, uint64_t{1} << 31, uint64_t{1} << 32, ~uint64_t{0}}) {
    const auto table = build_maglev(named(2), size);
    ASSERT_FALSE(table) << size;
    EXPECT_NE(table.error().find("nearest allowed"), std::string::npos) << table.error();
  }
  EXPECT_NE(build_maglev(named(2), 65536).error().find("65521 or 65537"), std::string::npos);
  EXPECT_TRUE(build_maglev(named(2), 5000011));
}

TEST(Maglev, NamesMustBeDistinctAndNotEmpty) {
  EXPECT_NE(build_maglev(std::vector<WeightedName>{{"a", 1}, {"a", 2}}, 7).error().find("'a'"),
            std::string::npos);
  EXPECT_FALSE(build_maglev(std::vector<WeightedName>{{"", 1}}, 7));
}

}  // namespace
}  // namespace maglev
