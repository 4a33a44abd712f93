#include "dataplane/reporter.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tables/published.h"

namespace maglev {
namespace {

namespace fs = std::filesystem;

class ReportFile : public ::testing::Test {
 protected:
  ReportFile() {
    std::string pattern = (fs::temp_directory_path() / "maglev-report-XXXXXX").string();
    directory_ = mkdtemp(pattern.data());
  }
  ~ReportFile() override { fs::remove_all(directory_); }

  void expect_written() {
    const auto written = write_report(directory_, {});
    EXPECT_TRUE(written) << written.error();
    const fs::path file = fs::path(directory_) / kReportFileName;
    EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(file)));
    EXPECT_FALSE(fs::exists(aside()));
  }
  fs::path aside() const { return fs::path(directory_) / (std::string(kReportFileName) + ".new"); }

  std::string directory_;
};

TEST_F(ReportFile, IsWrittenOverWhatAKilledProcessLeft) {
  std::ofstream(aside()) << "half";
  expect_written();
  expect_written();
}

TEST_F(ReportFile, IsNeverWrittenThroughALink) {
  const fs::path victim = fs::path(directory_) / "victim";
  std::ofstream(victim) << "precious";
  fs::create_symlink(victim, aside());
  expect_written();
  EXPECT_EQ(fs::file_size(victim), 8u);
}

TEST_F(ReportFile, IsWrittenThoughAFifoLiesInItsWay) {
  ASSERT_EQ(mkfifo(aside().c_str(), 0600), 0);
  expect_written();
}

TEST_F(ReportFile, ThatCannotBeMadeIsToldWithTheReason) {
  const auto written = write_report(directory_ + "/gone", {});
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error(),
            "cannot make " + directory_ + "/gone/report.new: No such file or directory");
}

TEST(ReportCounters, HoldTheEventsOfLostFlowsThatControlLooksFor) {
  Report report;
  report_counters({}, nullptr, report);
  for (const std::string_view name : kLostFlowEvents) {
    EXPECT_EQ(std::ranges::count(report.events, name, &EventCount::name), 1) << name;
  }
}

}  // namespace
}  // namespace maglev
