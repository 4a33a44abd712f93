#include "control/dataplane_report.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <cstring>

#include "control/files.h"
#include "tables/boot_time.h"
#include "tables/published.h"

namespace maglev {
namespace {

namespace asio = boost::asio;

constexpr size_t kMaxReportBytes = size_t{256} << 20;
// A dataplane reports ten times a second; a busy machine may hold one up for a moment.
constexpr uint64_t kStaleAfterMs = 2000;
// Tells a dataplane that died, which replaces no file, and makes up for news that inotify lost.
constexpr std::chrono::milliseconds kPollEvery{500};

// Asking for the lock without taking it: taking it, even for a moment, could make a dataplane that
// is just starting believe that another one runs.
bool is_lock_held(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return false;
  struct flock whole_file {};
  whole_file.l_type = F_WRLCK;
  whole_file.l_whence = SEEK_SET;
  const bool asked = ::fcntl(fd, F_OFD_GETLK, &whole_file) == 0;
  ::close(fd);
  return asked && whole_file.l_type != F_UNLCK;
}

std::vector<bool> find_progress(const Report& now, const DataplaneStatus& before) {
  const bool same_process = before.report && before.report->started_ns == now.started_ns &&
                            before.report->workers.size() == now.workers.size();
  std::vector<bool> progress;
  for (size_t i = 0; i < now.workers.size(); ++i) {
    const uint64_t polls_before = same_process ? before.report->workers[i].polls : 0;
    progress.push_back(now.workers[i].polls > polls_before);
  }
  return progress;
}

}  // namespace

uint64_t DataplaneStatus::adopted_generation() const {
  if (!running || !report || report->workers.empty()) return 0;
  return std::ranges::min_element(report->workers, {}, &WorkerReport::generation)->generation;
}

uint64_t DataplaneStatus::report_age_ms() const {
  const uint64_t now = boot_time_ns();
  if (!report || report->written_ns > now) return 0;
  return (now - report->written_ns) / 1000000;
}

bool DataplaneStatus::is_fresh() const {
  return running && report && report_age_ms() < kStaleAfterMs;
}

bool DataplaneStatus::makes_progress(size_t worker) const {
  return is_fresh() && progress[worker];
}

DataplaneStatus read_dataplane_status(const std::string& directory, const DataplaneStatus& before) {
  DataplaneStatus status;
  status.running = is_lock_held(fmt::format("{}/{}", directory, kDataplaneLockFileName));
  const std::string path = fmt::format("{}/{}", directory, kReportFileName);
  if (::access(path.c_str(), F_OK) != 0) return status;
  status.report = before.report;
  status.progress = before.progress;
  const auto file = read_whole_file(path, kMaxReportBytes);
  auto report = file ? check_report_file(*file) : std::unexpected(file.error());
  if (!report) {
    status.problem = report.error();
    return status;
  }
  if (before.report && before.report->started_ns == report->started_ns &&
      before.report->written_ns == report->written_ns) {
    return status;
  }
  status.progress = find_progress(*report, before);
  status.report = std::move(*report);
  return status;
}

struct DataplaneReport::Watch : std::enable_shared_from_this<Watch> {
  Watch(asio::io_context& io, std::string watched, std::function<void()> callback)
      : directory(std::move(watched)), on_news(std::move(callback)), inotify(io), timer(io) {}

  void start() {
    const int fd = ::inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (fd >= 0 && ::inotify_add_watch(fd, directory.c_str(), IN_MOVED_TO) >= 0) {
      inotify.assign(fd);
      wait_for_event();
    } else {
      spdlog::warn("cannot watch {}: {}; the report is read every {} ms", directory,
                   std::strerror(errno), kPollEvery.count());
      if (fd >= 0) ::close(fd);
    }
    status = read_dataplane_status(directory, status);
    wait_for_timer();
  }

  void wait_for_event() {
    inotify.async_read_some(asio::buffer(events), [self = shared_from_this()](auto error, size_t) {
      if (error || !self->on_news) return;
      self->look();
      self->wait_for_event();
    });
  }

  void wait_for_timer() {
    timer.expires_after(kPollEvery);
    timer.async_wait([self = shared_from_this()](auto error) {
      if (error || !self->on_news) return;
      self->look();
      self->wait_for_timer();
    });
  }

  void look() {
    DataplaneStatus now = read_dataplane_status(directory, status);
    const auto written = [](const DataplaneStatus& s) {
      return s.report ? s.report->written_ns : 0;
    };
    const bool is_news = now.running != status.running || written(now) != written(status);
    if (now.running != status.running) {
      spdlog::info("the dataplane is {}", now.running ? "running" : "gone");
    }
    if (!now.problem.empty() && now.problem != status.problem) {
      spdlog::warn("the dataplane's report is not usable: {}", now.problem);
    }
    status = std::move(now);
    if (is_news) on_news();
  }

  std::string directory;
  std::function<void()> on_news;  // empty once the owner is gone
  asio::posix::stream_descriptor inotify;
  asio::steady_timer timer;
  alignas(inotify_event) std::array<char, 4096> events{};
  DataplaneStatus status;
};

DataplaneReport::DataplaneReport(asio::io_context& io, std::string directory,
                                 std::function<void()> on_news)
    : watch_(std::make_shared<Watch>(io, std::move(directory), std::move(on_news))) {
  watch_->start();
}

DataplaneReport::~DataplaneReport() {
  watch_->on_news = nullptr;
  boost::system::error_code ignored;
  watch_->inotify.close(ignored);
  watch_->timer.cancel();
}

const DataplaneStatus& DataplaneReport::status() const {
  return watch_->status;
}

}  // namespace maglev
