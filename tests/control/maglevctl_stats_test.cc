#include "control/maglevctl_stats.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include <fmt/format.h>

#include "control/api_views.h"

namespace maglev {
namespace {

Report sample_report() {
  return {.started_ns = 1'000,
          .written_ns = 2'000'000'000,
          .adopted_generation = 12,
          .refused_roots = 0,
          .last_refusal = "",
          .verdicts = {"forwarded", "no_backend", "malformed"},
          .workers = {{.lcore = 1,
                       .port = 0,
                       .queue = 0,
                       .generation = 12,
                       .polls = 100,
                       .empty_polls = 40,
                       .received = {70, 7000}},
                      {.lcore = 3,
                       .port = 0,
                       .queue = 1,
                       .generation = 12,
                       .polls = 200,
                       .empty_polls = 200,
                       .received = {0, 0}}},
          .verdict_counts = {60, 7, 3, 0, 0, 0},
          .ports = {{.name = "uplink", .link_up = true, .receive_missed = 5}},
          .events = {{.name = "sent_echo_reply", .count = 2}},
          .vips = {{.pool = "", .name = "web-http", .forwarded = {60, 6000}, .dropped = {7, 700}}},
          .backends = {{.pool = "web", .name = "b1", .forwarded = {45, 4500}, .dropped = {}},
                       {.pool = "web", .name = "b2", .forwarded = {15, 1500}, .dropped = {}}}};
}

// The same process half a second later.
Report later_report() {
  Report report = sample_report();
  report.written_ns += 500'000'000;
  report.workers[0].received = {1070, 107000};
  report.workers[0].polls = 200;
  report.workers[0].empty_polls = 65;
  report.verdict_counts = {1058, 9, 3, 0, 0, 0};
  report.ports[0].receive_missed = 10;
  report.vips[0].forwarded = {1058, 105800};
  report.vips[0].dropped = {9, 900};
  report.backends[0].forwarded = {794, 79400};
  report.backends[1].forwarded = {264, 26400};
  return report;
}

const WantedShares kWanted{{{"web", "b1"}, 0.75}, {{"web", "b2"}, 0.25}};

nlohmann::ordered_json answer_of(const Report& report) {
  return view_stats(report, report.adopted_generation,
                    [](const std::string& pool, const std::string& backend) {
                      return kWanted.at({pool, backend});
                    });
}

TEST(ReadStats, ReadsWhatTheDaemonWrites) {
  const Report report = sample_report();
  const auto read = read_stats(answer_of(report));
  ASSERT_TRUE(read) << read.error();
  Report expected = report;
  expected.adopted_generation = 0;  // not looked at
  EXPECT_EQ(read->report, expected);
  EXPECT_EQ(read->wanted, kWanted);
}

TEST(ReadStats, RefusesAnAnswerOfAnotherShape) {
  auto stats = answer_of(sample_report());
  stats["workers"][0].erase("polls");
  EXPECT_FALSE(read_stats(stats));
  EXPECT_FALSE(read_stats(nlohmann::ordered_json::parse("[]")));
  stats = answer_of(sample_report());
  stats["workers"][0]["port"] = "nowhere";
  EXPECT_FALSE(read_stats(stats));
}

TEST(Totals, AreTheCountersThemselves) {
  const Figures figures = totals(sample_report());
  EXPECT_FALSE(figures.interval_s);
  EXPECT_EQ(figures.received.packets, 70);
  EXPECT_EQ(figures.received.volume, 7000);
  EXPECT_EQ(figures.verdicts[1], std::pair(std::string("no_backend"), 7.0));
  EXPECT_EQ(figures.backends[1].forwarded.packets, 15);
  EXPECT_DOUBLE_EQ(figures.workers[0].busy_share.value(), 0.6);
  EXPECT_DOUBLE_EQ(figures.workers[0].burst_fill.value(), 70.0 / 60);
  EXPECT_FALSE(figures.workers[1].burst_fill) << "no poll found a packet";
}

TEST(Rates, AreDifferencesOverTheReportsOwnClock) {
  const auto figures = rates(sample_report(), later_report());
  ASSERT_TRUE(figures);
  EXPECT_DOUBLE_EQ(figures->interval_s.value(), 0.5);
  EXPECT_DOUBLE_EQ(figures->received.packets, 2000);
  EXPECT_DOUBLE_EQ(figures->received.volume, 1'600'000);  // bits
  EXPECT_DOUBLE_EQ(figures->verdicts[0].second, 1996);
  EXPECT_DOUBLE_EQ(figures->verdicts[1].second, 4);
  EXPECT_DOUBLE_EQ(figures->vips[0].forwarded.packets, 1996);
  EXPECT_DOUBLE_EQ(figures->vips[0].dropped_packets, 4);
  EXPECT_DOUBLE_EQ(figures->backends[0].forwarded.packets, 1498);
  EXPECT_DOUBLE_EQ(figures->ports[0].missed, 10);
  EXPECT_DOUBLE_EQ(figures->workers[0].busy_share.value(), 0.75);
  EXPECT_DOUBLE_EQ(figures->workers[0].burst_fill.value(), 1000.0 / 75);
  EXPECT_FALSE(figures->workers[1].busy_share) << "it did not poll at all";
}

TEST(Rates, AnotherProcessOrNoNewerReportHasNone) {
  Report other = later_report();
  other.started_ns = 7;
  EXPECT_FALSE(rates(sample_report(), other));
  EXPECT_FALSE(rates(sample_report(), sample_report()));
  EXPECT_FALSE(rates(later_report(), sample_report()));
}

TEST(Rates, WhatIsNewOrWasMadeAgainCountsFromZero) {
  Report after = later_report();
  after.backends[0].forwarded = {20, 2000};  // less than before: removed and added again
  after.backends.push_back({.pool = "web", .name = "b3", .forwarded = {30, 3000}, .dropped = {}});
  const auto figures = rates(sample_report(), after);
  ASSERT_TRUE(figures);
  EXPECT_DOUBLE_EQ(figures->backends[0].forwarded.packets, 40);
  EXPECT_DOUBLE_EQ(figures->backends[2].forwarded.packets, 60);
}

TEST(FormatRate, HasThreeDigitsAndAUnit) {
  EXPECT_EQ(format_rate(0), "0");
  EXPECT_EQ(format_rate(1.234), "1.23");
  EXPECT_EQ(format_rate(12.34), "12.3");
  EXPECT_EQ(format_rate(999.4), "999");
  EXPECT_EQ(format_rate(999.6), "1.00 k");
  EXPECT_EQ(format_rate(14'880'952), "14.9 M");
  EXPECT_EQ(format_rate(1e10), "10.0 G");
}

TEST(FormatFigures, ShowsRatesByVipBackendAndWorkerWithShares) {
  EXPECT_EQ(format_figures(*rates(sample_report(), later_report()), kWanted),
            R"(TOTAL     PACKETS/S  BITS/S
received     2.00 k  1.60 M

VERDICT     PACKETS/S
forwarded      2.00 k
no_backend       4.00

PORT    QUEUE  LCORE  PACKETS/S  BITS/S    BUSY  BURST
uplink      0      1     2.00 k  1.60 M  75.00%   13.3
uplink      1      3          0       0       -      -

PORT    LINK  MISSED/S  NO BUFFER/S  ERRORS/S  STEERING DROPPED/S
uplink  up        10.0            0         0                   0

VIP       PACKETS/S  BITS/S  DROPPED/S
web-http     2.00 k  1.60 M       4.00

BACKEND  PACKETS/S  BITS/S  DROPPED/S  WANTED    SEEN
web/b1      1.50 k  1.20 M          0  75.00%  75.05%
web/b2         498   398 k          0  25.00%  24.95%
)");
}

TEST(FormatFigures, ShowsTheBusiestAndSumsUpTheOthersWhereThereIsNoRoom) {
  Report report = sample_report();
  report.backends.clear();
  for (uint64_t i = 0; i < 1000; ++i) {
    report.backends.push_back({.pool = "web",
                               .name = fmt::format("b{:03}", i),
                               .forwarded = {i % 500 == 7 ? 1000u : 1u, 100},
                               .dropped = {}});
  }
  const std::string text = format_figures(totals(report), {}, 22);
  EXPECT_EQ(std::ranges::count(text, '\n'), 22) << text;
  const size_t first = text.find("web/b007     1000");
  EXPECT_LT(first, text.find("web/b507     1000")) << text;
  EXPECT_NE(text.find("998 more      998"), std::string::npos) << text;
  EXPECT_NE(text.find("web-http"), std::string::npos) << "the VIP needs but one line\n" << text;

  report.vips.assign(1000, report.vips[0]);
  EXPECT_EQ(std::ranges::count(format_figures(totals(report), {}, 30), '\n'), 30);
}

TEST(RatesToJson, HoldsTheRatesOfTheTables) {
  const auto json = rates_to_json(*rates(sample_report(), later_report()), kWanted);
  EXPECT_EQ(json["interval_s"], 0.5);
  EXPECT_EQ(json["received"]["packets_per_s"], 2000.0);
  EXPECT_EQ(json["received"]["bits_per_s"], 1'600'000.0);
  EXPECT_EQ(json["verdicts"]["no_backend"]["packets_per_s"], 4.0);
  EXPECT_EQ(json["workers"][0]["busy_share"], 0.75);
  EXPECT_NEAR(json["workers"][0]["packets_per_burst"].get<double>(), 13.33, 0.01);
  EXPECT_TRUE(json["workers"][1]["busy_share"].is_null());
  EXPECT_EQ(json["ports"][0]["receive_missed_per_s"], 10.0);
  EXPECT_EQ(json["vips"][0]["dropped"]["packets_per_s"], 4.0);
  EXPECT_EQ(json["backends"][0]["wanted_share"], 0.75);
  EXPECT_NEAR(json["backends"][0]["seen_share"].get<double>(), 0.7505, 0.0001);
}

TEST(FormatFigures, FitsEightyColumnsWithLongNamesAndLargeCounters) {
  Report report = sample_report();
  report.vips[0].name = std::string(255, 'v');
  report.backends[0].name = std::string(255, 'b');
  report.backends[0].forwarded = {10'000'000'000'000, 15'000'000'000'000'000};
  report.workers[0].received = {10'000'000'000'000, 15'000'000'000'000'000};
  report.verdict_counts[0] = 10'000'000'000'000;
  std::istringstream text(format_figures(totals(report), {}));
  for (std::string line; std::getline(text, line);) EXPECT_LE(line.size(), 80u) << line;
}

}  // namespace
}  // namespace maglev
