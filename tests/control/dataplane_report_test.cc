#include "control/dataplane_report.h"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <unistd.h>

#include <boost/asio/steady_timer.hpp>

#include "tables/published.h"
#include "tests/control/fixtures.h"

namespace maglev {
namespace {

using namespace std::chrono_literals;

Report report_of(uint64_t written_ns, std::vector<uint64_t> generations, uint64_t polls) {
  Report report;
  report.started_ns = 1;
  report.written_ns = written_ns;
  report.ports = {{"uplink", true}};
  for (const uint64_t generation : generations) {
    report.workers.push_back({1, 0, 0, 0, generation, polls, 0, {}});
  }
  return report;
}

class DataplaneReportTest : public testing::Test {
 protected:
  ~DataplaneReportTest() override { release_lock(); }

  void hold_lock() {
    lock_ = ::open(directory_.path("/dataplane.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    struct flock whole_file {};
    whole_file.l_type = F_WRLCK;
    ASSERT_EQ(::fcntl(lock_, F_OFD_SETLK, &whole_file), 0);
  }
  void release_lock() {
    if (lock_ >= 0) ::close(lock_);
    lock_ = -1;
  }
  void write(const Report& report) {
    ASSERT_TRUE(replace_file(directory_.path("/report"), build_report_file(report)));
  }
  void look() { status_ = read_dataplane_status(directory_.path(), status_); }

  TemporaryDirectory directory_;
  int lock_ = -1;
  DataplaneStatus status_;
};

TEST_F(DataplaneReportTest, WithoutADataplaneNothingIsAdopted) {
  look();
  EXPECT_FALSE(status_.running);
  EXPECT_FALSE(status_.report);
  EXPECT_EQ(status_.adopted_generation(), 0u);
  EXPECT_EQ(status_.report_age_ms(), 0u);
}

TEST_F(DataplaneReportTest, AdoptedIsWhatEveryWorkerUses) {
  hold_lock();
  write(report_of(1, {7, 5, 6}, 1));
  look();
  EXPECT_TRUE(status_.running);
  EXPECT_EQ(status_.adopted_generation(), 5u);
  EXPECT_GT(status_.report_age_ms(), 0u);
}

TEST_F(DataplaneReportTest, AReportOutlivesItsProcessButAdoptsNothing) {
  hold_lock();
  write(report_of(1, {7}, 1));
  release_lock();
  look();
  EXPECT_FALSE(status_.running);
  EXPECT_TRUE(status_.report);
  EXPECT_EQ(status_.adopted_generation(), 0u);
}

TEST_F(DataplaneReportTest, AskingForTheLockDoesNotTakeIt) {
  { std::ofstream(directory_.path("/dataplane.lock")); }
  look();
  EXPECT_FALSE(status_.running);
  hold_lock();
}

TEST_F(DataplaneReportTest, AWorkerWhosePollsDoNotGrowMakesNoProgress) {
  hold_lock();
  write(report_of(1, {1, 1}, 10));
  look();
  Report next = report_of(2, {1, 1}, 11);
  next.workers[1].polls = 10;
  write(next);
  look();
  EXPECT_EQ(status_.progress, (std::vector<bool>{true, false}));
  look();
  EXPECT_EQ(status_.progress, (std::vector<bool>{true, false})) << "the same report again";
}

TEST_F(DataplaneReportTest, EveryDamagedReportIsRefusedAndTheLastGoodOneStays) {
  hold_lock();
  const Report good = report_of(1, {4, 4}, 10);
  write(good);
  look();
  std::vector<std::byte> image = build_report_file(report_of(2, {9, 9}, 10));
  for (size_t i = 0; i < image.size(); ++i) {
    std::vector<std::byte> damaged = image;
    damaged[i] ^= std::byte{0x11};
    ASSERT_TRUE(replace_file(directory_.path("/report"), damaged));
    look();
    ASSERT_EQ(status_.report, good) << "byte " << i;
    ASSERT_FALSE(status_.problem.empty());
    damaged.resize(i);
    ASSERT_TRUE(replace_file(directory_.path("/report"), damaged));
    look();
    ASSERT_EQ(status_.report, good) << i << " bytes";
  }
  write(report_of(2, {9, 9}, 10));
  look();
  EXPECT_EQ(status_.adopted_generation(), 9u);
  EXPECT_TRUE(status_.problem.empty());
}

TEST_F(DataplaneReportTest, ANewReportIsSeenAtOnceAndADeathSoon) {
  boost::asio::io_context io;
  int news = 0;
  DataplaneReport watched(io, directory_.path(), [&] {
    ++news;
    io.stop();
  });
  const auto run_until_news = [&](std::chrono::milliseconds at_most) {
    const int before = news;
    io.restart();
    io.run_for(at_most);
    return news > before;
  };
  EXPECT_FALSE(run_until_news(50ms));
  hold_lock();
  EXPECT_TRUE(run_until_news(5s)) << "the dataplane came";
  EXPECT_TRUE(watched.status().running);
  write(report_of(1, {3}, 1));
  const auto written = std::chrono::steady_clock::now();
  EXPECT_TRUE(run_until_news(5s));
  EXPECT_LT(std::chrono::steady_clock::now() - written, 400ms) << "sooner than the slow timer";
  EXPECT_EQ(watched.status().adopted_generation(), 3u);
  release_lock();
  EXPECT_TRUE(run_until_news(5s)) << "the dataplane died";
  EXPECT_EQ(watched.status().adopted_generation(), 0u);
}

}  // namespace
}  // namespace maglev
