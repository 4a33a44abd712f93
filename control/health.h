// Health checks: which backends answer.
//
// RiseFall is the rule that turns results into a verdict; HealthChecker opens TCP connections to
// the targets, each at its own pace, and applies the rule.
//
// Thread: everything on the one thread that runs the io_context; callbacks come from there, never
// from inside a call of the caller's. Ownership: the checker owns its sockets and timers and must
// be destroyed before the io_context; after its destructor no callback comes.
//
// Invariants:
// 1. A target that set_targets() names again keeps its verdict, its counts and its pace.
// 2. Results count in a row: fail, ok, ok, fail, ok, fail with fall = 3 stays up.
// 3. At most max_connections sockets are open at once. What is due beyond that waits in line: the
//    interval stretches, no check fails for it.
// 4. The first checks of new targets start apart from each other, so that many backends are not
//    checked in one instant; later intervals are jittered by a tenth either way.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace maglev {

enum class HealthType : uint8_t { kNone, kTcp };

struct HealthSettings {
  HealthType type = HealthType::kNone;
  uint16_t port = 0;
  uint32_t interval_ms = 1000;  // from start to start
  uint32_t timeout_ms = 500;
  uint32_t rise = 2;  // successes in a row that bring a backend up; at least 1
  uint32_t fall = 3;  // failures in a row that take it down; at least 1
  bool operator==(const HealthSettings&) const = default;
};

enum class HealthVerdict : uint8_t { kUnknown, kUp, kDown };

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

struct HealthTarget {
  std::string pool;
  std::string backend;
  boost::asio::ip::address address;
  HealthSettings settings;
  // What a new target starts from, such as a verdict remembered from before a restart. Not looked
  // at for a target that is already checked.
  HealthVerdict initial = HealthVerdict::kUnknown;
};

struct Health {
  HealthVerdict verdict = HealthVerdict::kUnknown;
  // Of the last result that agrees with the verdict: "connected", "connection refused",
  // "timed out after 500 ms", "no route to host". "not checked yet" before the first, and "not
  // checked: ..." while this host is short of what a check needs, such as file descriptors.
  std::string reason = "not checked yet";
  bool operator==(const Health&) const = default;
};

class HealthChecker {
 public:
  using OnChange =
      std::function<void(const std::string& pool, const std::string& backend, const Health&)>;

  static constexpr size_t kDefaultMaxConnections = 256;

  HealthChecker(boost::asio::io_context& io, OnChange on_change,
                size_t max_connections = kDefaultMaxConnections);
  ~HealthChecker();
  HealthChecker(const HealthChecker&) = delete;
  HealthChecker& operator=(const HealthChecker&) = delete;

  // Makes the targets checked exactly these. Targets of type kNone are not checked. One whose
  // address or port changed is a new target; one whose other settings changed keeps its verdict
  // and starts counting afresh. (pool, backend) must be distinct.
  void set_targets(const std::vector<HealthTarget>& targets);

  // The last word on a target; kUnknown for what is not one.
  Health of(std::string_view pool, std::string_view backend) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace maglev
