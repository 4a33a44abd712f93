// What the dataplane tells about itself, kept up to date: reads its report file whenever it is
// replaced, and asks the kernel whether a dataplane process holds its lock.
//
// Thread: everything on the one thread that runs the io_context; the callback comes from there.
// The report is untrusted input: one that does not pass its check is told once and not looked at.
#pragma once

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tables/report.h"

namespace maglev {

struct DataplaneStatus {
  bool running = false;          // a process holds the dataplane's lock
  std::optional<Report> report;  // the last good one, whoever wrote it
  std::string problem;           // why the report now in place is not usable; empty: it is
  std::vector<bool> progress;    // one per worker of the report: it polled since the report before

  // The generation that all workers use at least; 0 while no dataplane is running.
  uint64_t adopted_generation() const;
  uint64_t report_age_ms() const;  // 0 without a report
  // Whether the report is of a dataplane that lives and goes on reporting.
  bool is_fresh() const;
  // Whether a worker of the report polls still. A dataplane that has stopped to report, as one that
  // was sent SIGSTOP, shows nothing of the kind.
  bool makes_progress(size_t worker) const;
};

class DataplaneReport {
 public:
  // Watches `directory`. Calls on_news after each new report and when the dataplane comes or goes.
  DataplaneReport(boost::asio::io_context& io, std::string directory,
                  std::function<void()> on_news);
  ~DataplaneReport();
  DataplaneReport(const DataplaneReport&) = delete;
  DataplaneReport& operator=(const DataplaneReport&) = delete;

  const DataplaneStatus& status() const;

 private:
  struct Watch;
  std::shared_ptr<Watch> watch_;
};

// The status as the files of `directory` show it now. `before` is the status of a moment ago, from
// which progress is told.
DataplaneStatus read_dataplane_status(const std::string& directory, const DataplaneStatus& before);

}  // namespace maglev
