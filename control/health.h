// Health checks: which backends answer.
//
// RiseFall is the rule that turns results into a verdict, Damping the one that keeps down what goes
// up and down too often; HealthChecker runs the checks (control/check.h) of the targets, each at
// its own pace, and applies the rules.
//
// Thread: everything on the one thread that runs the io_context; callbacks come from there, never
// from inside a call of the caller's. Ownership: the checker owns its checks and timers and must
// be destroyed before the io_context; after its destructor no callback comes.
//
// Invariants:
// 1. A target that set_targets() names again keeps its verdict, its counts and its pace.
// 2. Results count in a row: fail, ok, ok, fail, ok, fail with fall = 3 stays up.
// 3. At most max_running checks run at once. What is due beyond that waits in line: the
//    interval stretches, no check fails for it.
// 4. The first checks of new targets start apart from each other, so that many backends are not
//    checked in one instant; later intervals are jittered by a tenth either way.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "control/health_settings.h"

namespace maglev {

// The rise/fall rule. From kUnknown the first result decides at once.
class RiseFall {
 public:
  RiseFall(uint32_t rise, uint32_t fall, HealthVerdict initial)
      : rise_(rise), fall_(fall), verdict_(initial) {}

  // Returns whether the verdict changed.
  bool add(bool success);
  HealthVerdict verdict() const { return verdict_; }

 private:
  uint32_t rise_;
  uint32_t fall_;
  HealthVerdict verdict_;
  uint32_t against_in_a_row_ = 0;  // results in a row that disagree with verdict_
};

// The penalty of a backend that went down again and again (compare RFC 2439). It stays below twice
// hold_at, so that whoever stays up is released in a bounded time. The caller's clock never goes
// back.
class Damping {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Damping(const DampingSettings& settings) : settings_(settings) {}

  void went_down(Clock::time_point now);
  // Whether the penalty keeps the backend down now.
  bool holds(Clock::time_point now);
  double penalty(Clock::time_point now) const;
  // From now, should it not go down again.
  std::chrono::seconds until_release(Clock::time_point now) const;
  // Under other settings, with the penalty it has.
  void change(const DampingSettings& settings) { settings_ = settings; }

 private:
  DampingSettings settings_;
  double penalty_ = 0;  // at since_
  Clock::time_point since_;
  bool is_held_ = false;
};

struct Health {
  HealthVerdict verdict = HealthVerdict::kUnknown;
  // Of the last result that agrees with the verdict: "connected", "connection refused",
  // "timed out after 500 ms", "status 503". "not checked yet" before the first, "not checked: ..."
  // while this host is short of what a check needs, such as file descriptors, and "held down: ..."
  // while checks succeed and the penalty is too high.
  std::string reason = "not checked yet";
  double penalty = 0;  // at the last result
  // Of the last success, from start to verdict.
  std::optional<std::chrono::microseconds> latency = std::nullopt;
  bool operator==(const Health&) const = default;
};

class HealthChecker {
 public:
  using OnChange =
      std::function<void(const std::string& pool, const std::string& backend, const Health&)>;

  static constexpr size_t kDefaultMaxRunning = 256;

  HealthChecker(boost::asio::io_context& io, OnChange on_change,
                size_t max_running = kDefaultMaxRunning);
  ~HealthChecker();
  HealthChecker(const HealthChecker&) = delete;
  HealthChecker& operator=(const HealthChecker&) = delete;

  // Makes the targets checked exactly these. Targets of type kNone are not checked. One whose
  // address, port or kind of check changed is a new target; one whose other settings changed keeps
  // its verdict and its penalty and starts counting afresh. (pool, backend) must be distinct.
  void set_targets(const std::vector<HealthTarget>& targets);

  // The last word on a target; kUnknown for what is not one.
  Health of(std::string_view pool, std::string_view backend) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace maglev
