#include "tables/report.h"

#include <gtest/gtest.h>

namespace maglev {
namespace {

Report sample() {
  Report report;
  report.started_ns = 1;
  report.written_ns = 2;
  report.adopted_generation = 3;
  report.refused_roots = 4;
  report.last_refusal = "the checksum does not match the content";
  report.verdicts = {"forwarded", "no_backend", "malformed"};
  report.workers = {{5, 0, 0, 0, 3, 100, 40, {70, 7000}, 1, 2, 3, 65536, 12},
                    {9, 0, 1, 0, 2, 90, 90, {0, 0}, 0, 3, 2, 65536, 0}};
  report.verdict_counts = {60, 7, 3, 0, 0, 0};
  report.ports = {{"uplink", true, 1, 2, 3, 4}};
  report.events = {{"sent_echo_reply", 5}, {"icmp_limited", 0}};
  report.vips = {{"", "web", {60, 6000}, {7, 700}}};
  report.backends = {{"web", "b1", {30, 3000}, {0, 0}}, {"web", "b2", {30, 3000}, {0, 0}}};
  report.sweep = {
      10, 20, 3, {{"web", {4, 7, 250}, {{0, 1, 9}, {2, 1, 3}, {2, 2, 1}}}, {"dns", {}, {}}}};
  return report;
}

TEST(Report, WhatIsWrittenIsRead) {
  const auto read = check_report_file(build_report_file(sample()));
  ASSERT_TRUE(read) << read.error();
  EXPECT_EQ(*read, sample());
}

TEST(Report, AnEmptyOneIsRead) {
  const auto read = check_report_file(build_report_file(Report{}));
  ASSERT_TRUE(read) << read.error();
  EXPECT_EQ(*read, Report{});
}

TEST(Report, NoByteMayChangeUnlessTheChecksumFollows) {
  auto file = build_report_file(sample());
  for (size_t i = 0; i < file.size(); ++i) {
    file[i] ^= std::byte{1};
    EXPECT_FALSE(check_report_file(file)) << "byte " << i;
    file[i] ^= std::byte{1};
  }
}

TEST(Report, AnyByteMayChangeWithTheChecksumAndNothingBreaks) {
  const auto original = build_report_file(sample());
  for (size_t i = 0; i < original.size(); ++i) {
    for (uint8_t mask : {uint8_t{0x01}, uint8_t{0x80}, uint8_t{0xff}}) {
      auto file = original;
      file[i] ^= std::byte{mask};
      seal(file);
      (void)check_report_file(file);
    }
  }
}

TEST(Report, EveryTruncationIsRefused) {
  const auto file = build_report_file(sample());
  for (size_t length = 0; length < file.size(); ++length) {
    EXPECT_FALSE(check_report_file(
        std::vector<std::byte>(file.begin(), file.begin() + static_cast<ptrdiff_t>(length))));
  }
}

TEST(Report, ASweepOutOfOrderIsRefused) {
  const auto refused = [](auto change) {
    Report report = sample();
    change(report.sweep.pools[0]);
    return !check_report_file(build_report_file(report));
  };
  EXPECT_FALSE(refused([](PoolFlows&) {}));
  EXPECT_TRUE(refused([](PoolFlows& pool) { pool.disagreeing[1] = 4; })) << "a slot twice";
  EXPECT_TRUE(
      refused([](PoolFlows& pool) { std::swap(pool.disagreeing[0], pool.disagreeing[2]); }));
  EXPECT_TRUE(refused([](PoolFlows& pool) { pool.backends[2].incarnation = 1; })) << "twice";
  EXPECT_TRUE(refused([](PoolFlows& pool) { std::swap(pool.backends[0], pool.backends[1]); }));
  EXPECT_TRUE(refused([](PoolFlows& pool) { pool.backends[0].flows = 0; }));
}

TEST(Report, AWorkerOnAnUnlistedPortIsRefused) {
  Report report = sample();
  report.workers[1].port = 1;
  EXPECT_FALSE(check_report_file(build_report_file(report)));
}

}  // namespace
}  // namespace maglev
