#include "control/health.h"

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cctype>
#include <chrono>
#include <deque>
#include <map>
#include <random>
#include <utility>

namespace maglev {

namespace {

using boost::asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;
namespace errc = boost::system::errc;

// Distance between the first checks of new targets: short enough that a handful has its verdicts
// at once, long enough that many do not become one burst of SYNs.
constexpr std::chrono::microseconds kFirstCheckSpacing{2000};

std::string describe(const error_code& error) {
  std::string text = error.message();
  if (!text.empty()) {
    text[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(text[0])));
  }
  return text;
}

// This host ran out of something. That says nothing about the backend, so it is no result.
bool is_local_shortage(const error_code& error) {
  return error == errc::too_many_files_open || error == errc::too_many_files_open_in_system ||
         error == errc::no_buffer_space || error == errc::not_enough_memory ||
         error == errc::address_not_available;
}

}  // namespace

bool RiseFall::add(bool success) {
  const HealthVerdict found = success ? HealthVerdict::kUp : HealthVerdict::kDown;
  if (found == verdict_) {
    against_in_a_row_ = 0;
    return false;
  }
  const uint32_t needed = success ? rise_ : fall_;
  if (verdict_ != HealthVerdict::kUnknown && ++against_in_a_row_ < needed) return false;
  verdict_ = found;
  against_in_a_row_ = 0;
  return true;
}

struct HealthChecker::State : std::enable_shared_from_this<State> {
  struct Target {
    Target(boost::asio::io_context& io, const HealthTarget& wanted_target, Health start)
        : wanted(wanted_target),
          rule(wanted.settings.rise, wanted.settings.fall, start.verdict),
          health(std::move(start)),
          socket(io),
          timer(io) {}

    HealthTarget wanted;
    RiseFall rule;
    Health health;
    tcp::socket socket;
    boost::asio::steady_timer timer;  // until the next check or, during one, its time-out
    Clock::time_point started;
    bool connecting = false;
    bool timed_out = false;
    bool removed = false;
  };
  using TargetPtr = std::shared_ptr<Target>;
  using Key = std::pair<std::string, std::string>;

  State(boost::asio::io_context& io_context, OnChange callback, size_t limit)
      : io(io_context), on_change(std::move(callback)), max_connections(limit) {}

  void set_targets(const std::vector<HealthTarget>& wanted);
  void remove(Target& target);
  void check_at(const TargetPtr& target, Clock::time_point when);
  void start(const TargetPtr& target);
  void finish(const TargetPtr& target, const error_code& error);
  void start_waiting();
  void take_result(Target& target, bool success, std::string reason);

  boost::asio::io_context& io;
  OnChange on_change;
  const size_t max_connections;
  size_t connections = 0;
  std::map<Key, TargetPtr> targets;
  std::deque<TargetPtr> waiting;  // due, but max_connections were open
  std::minstd_rand random{std::random_device{}()};
};

void HealthChecker::State::set_targets(const std::vector<HealthTarget>& wanted) {
  std::map<Key, TargetPtr> next;
  std::vector<TargetPtr> fresh;
  for (const HealthTarget& target : wanted) {
    if (target.settings.type == HealthType::kNone) continue;
    const Key key{target.pool, target.backend};
    Health start{.verdict = target.initial};
    if (const auto known = targets.find(key); known != targets.end()) {
      const HealthTarget& before = known->second->wanted;
      const bool same_endpoint =
          before.address == target.address && before.settings.port == target.settings.port;
      if (same_endpoint && before.settings == target.settings) {
        next.insert(targets.extract(known));
        continue;
      }
      if (same_endpoint) start = known->second->health;
    }
    fresh.push_back(std::make_shared<Target>(io, target, std::move(start)));
    next.insert_or_assign(key, fresh.back());
  }
  for (const auto& [key, target] : targets) remove(*target);
  targets = std::move(next);

  const Clock::time_point now = Clock::now();
  for (size_t i = 0; i < fresh.size(); ++i) {
    const std::chrono::microseconds whole_interval =
        std::chrono::milliseconds(fresh[i]->wanted.settings.interval_ms);
    const auto spacing =
        std::min(kFirstCheckSpacing, whole_interval / static_cast<int64_t>(fresh.size()));
    check_at(fresh[i], now + i * spacing);
  }
}

void HealthChecker::State::remove(Target& target) {
  target.removed = true;
  target.timer.cancel();
  error_code ignored;
  target.socket.close(ignored);
}

void HealthChecker::State::check_at(const TargetPtr& target, Clock::time_point when) {
  target->timer.expires_at(when);
  target->timer.async_wait([self = shared_from_this(), target](const error_code& error) {
    if (error || target->removed) return;
    self->waiting.push_back(target);
    self->start_waiting();
  });
}

void HealthChecker::State::start_waiting() {
  while (!waiting.empty() && connections < max_connections) {
    const TargetPtr target = std::move(waiting.front());
    waiting.pop_front();
    if (!target->removed) start(target);
  }
}

void HealthChecker::State::start(const TargetPtr& target) {
  const HealthSettings& settings = target->wanted.settings;
  const tcp::endpoint endpoint(target->wanted.address, settings.port);
  target->started = Clock::now();
  target->connecting = true;
  target->timed_out = false;
  ++connections;

  error_code error;
  target->socket.open(endpoint.protocol(), error);
  // Closing then sends a reset: nothing of a check stays behind, neither a socket in TIME_WAIT
  // here, one per check and backend, nor a half-closed connection in a backend that hangs.
  if (!error) target->socket.set_option(boost::asio::socket_base::linger(true, 0), error);
  if (error) {
    // Posted, because finish() may start the next one in line.
    boost::asio::post(io,
                      [self = shared_from_this(), target, error] { self->finish(target, error); });
    return;
  }
  target->socket.async_connect(endpoint,
                               [self = shared_from_this(), target](const error_code& result) {
                                 self->finish(target, result);
                               });
  target->timer.expires_at(target->started + std::chrono::milliseconds(settings.timeout_ms));
  target->timer.async_wait([target, started = target->started](const error_code& wait_error) {
    // Without an error the wait may still be one that the end of its check came too late to
    // cancel.
    if (wait_error || !target->connecting || target->started != started) return;
    target->timed_out = true;
    error_code ignored;
    target->socket.close(ignored);
  });
}

void HealthChecker::State::finish(const TargetPtr& target, const error_code& error) {
  error_code ignored;
  target->socket.close(ignored);
  target->connecting = false;
  --connections;
  if (!target->removed) {
    const HealthSettings& settings = target->wanted.settings;
    const double jitter = std::uniform_real_distribution<double>(0.9, 1.1)(random);
    const auto pause = std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double, std::milli>(settings.interval_ms * jitter));
    check_at(target, target->started + pause);
    if (target->timed_out) {
      take_result(*target, false, "timed out after " + std::to_string(settings.timeout_ms) + " ms");
    } else if (error) {
      if (is_local_shortage(error)) {
        target->health.reason = "not checked: " + describe(error);
      } else {
        take_result(*target, false, describe(error));
      }
    } else {
      take_result(*target, true, "connected");
    }
  }
  start_waiting();
}

void HealthChecker::State::take_result(Target& target, bool success, std::string reason) {
  const bool changed = target.rule.add(success);
  const bool agrees = success == (target.rule.verdict() == HealthVerdict::kUp);
  if (agrees) target.health = {target.rule.verdict(), std::move(reason)};
  if (changed) on_change(target.wanted.pool, target.wanted.backend, target.health);
}

HealthChecker::HealthChecker(boost::asio::io_context& io, OnChange on_change,
                             size_t max_connections)
    : state_(std::make_shared<State>(io, std::move(on_change), max_connections)) {}

HealthChecker::~HealthChecker() {
  state_->set_targets({});
}

void HealthChecker::set_targets(const std::vector<HealthTarget>& targets) {
  state_->set_targets(targets);
}

Health HealthChecker::of(std::string_view pool, std::string_view backend) const {
  const auto found = state_->targets.find({std::string(pool), std::string(backend)});
  return found == state_->targets.end() ? Health{} : found->second->health;
}

}  // namespace maglev
