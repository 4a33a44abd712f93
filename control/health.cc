#include "control/health.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/steady_timer.hpp>
#include <cmath>
#include <deque>
#include <map>
#include <random>
#include <utility>

#include "control/check.h"
#include "control/tls_contexts.h"

namespace maglev {

namespace {

using boost::system::error_code;
using Clock = std::chrono::steady_clock;

// Distance between the first checks of new targets: short enough that a handful has its verdicts
// at once, long enough that many do not become one burst of SYNs.
constexpr std::chrono::microseconds kFirstCheckSpacing{2000};

CheckPtr make_check(boost::asio::io_context& io, const HealthTarget& target,
                    TlsContexts& contexts) {
  switch (target.settings.type) {
    case HealthType::kHttp:
      return make_http_check(io, target);
    case HealthType::kHttps:
      return make_https_check(io, target, contexts);
    case HealthType::kUdp:
      return make_udp_check(io, target);
    case HealthType::kIcmp:
      return make_icmp_check(io, target);
    case HealthType::kCommand:
      return make_command_check(io, target);
    case HealthType::kTcp:
    case HealthType::kNone:
      break;
  }
  return make_tcp_check(io, target);
}

bool same_endpoint(const HealthTarget& one, const HealthTarget& other) {
  return one.address == other.address && one.settings.port == other.settings.port &&
         one.settings.type == other.settings.type;
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

double Damping::penalty(Clock::time_point now) const {
  if (settings_.half_life_s == 0) return 0;
  const std::chrono::duration<double> age = now - since_;
  return penalty_ * std::exp2(-age.count() / settings_.half_life_s);
}

void Damping::went_down(Clock::time_point now) {
  penalty_ = std::min(penalty(now) + 1, 2.0 * settings_.hold_at);
  since_ = now;
}

bool Damping::holds(Clock::time_point now) {
  const double current = penalty(now);
  is_held_ = current >= (is_held_ ? settings_.release_at : settings_.hold_at);
  return is_held_ && settings_.half_life_s > 0;
}

std::chrono::seconds Damping::until_release(Clock::time_point now) const {
  const double halvings = std::log2(penalty(now) / settings_.release_at);
  const double wait_s = std::max(0.0, halvings * settings_.half_life_s);
  return std::chrono::seconds(static_cast<int64_t>(std::ceil(wait_s)));
}

struct HealthChecker::State : std::enable_shared_from_this<State> {
  struct Target {
    Target(boost::asio::io_context& io, const HealthTarget& wanted_target, Health start)
        : wanted(wanted_target),
          rule(wanted.settings.rise, wanted.settings.fall, start.verdict),
          damping(wanted.settings.damping),
          health(std::move(start)),
          timer(io) {}

    HealthTarget wanted;
    RiseFall rule;
    Damping damping;
    Health health;
    CheckPtr running;                 // null between checks
    boost::asio::steady_timer timer;  // until the next check or, during one, its time-out
    Clock::time_point started;
    bool timed_out = false;
    bool removed = false;
  };
  using TargetPtr = std::shared_ptr<Target>;
  using Key = std::pair<std::string, std::string>;

  State(boost::asio::io_context& io_context, OnChange callback, size_t limit)
      : io(io_context), on_change(std::move(callback)), max_running(limit) {}

  void set_targets(const std::vector<HealthTarget>& wanted);
  void remove(Target& target);
  void check_at(const TargetPtr& target, Clock::time_point when);
  void start(const TargetPtr& target);
  void finish(const TargetPtr& target, CheckResult result);
  void start_waiting();
  void take_result(Target& target, CheckResult result);

  boost::asio::io_context& io;
  OnChange on_change;
  const size_t max_running;
  size_t running = 0;
  std::map<Key, TargetPtr> targets;
  std::deque<TargetPtr> waiting;  // due, but max_running were open
  TlsContexts tls_contexts;
  std::minstd_rand random{std::random_device{}()};
};

void HealthChecker::State::set_targets(const std::vector<HealthTarget>& wanted) {
  std::map<Key, TargetPtr> next;
  std::vector<TargetPtr> fresh;
  for (const HealthTarget& target : wanted) {
    if (target.settings.type == HealthType::kNone) continue;
    const Key key{target.pool, target.backend};
    Health start;
    start.verdict = target.initial;
    std::optional<Damping> damping;
    if (const auto known = targets.find(key); known != targets.end()) {
      const HealthTarget& before = known->second->wanted;
      const bool is_same = same_endpoint(before, target);
      if (is_same && before.settings == target.settings) {
        next.insert(targets.extract(known));
        continue;
      }
      if (is_same) start = known->second->health;
      if (is_same) damping = known->second->damping;
    }
    fresh.push_back(std::make_shared<Target>(io, target, std::move(start)));
    if (damping) {
      damping->change(target.settings.damping);
      fresh.back()->damping = *damping;
    }
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
  if (target.running) target.running->abort();
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
  while (!waiting.empty() && running < max_running) {
    const TargetPtr target = std::move(waiting.front());
    waiting.pop_front();
    if (!target->removed) start(target);
  }
}

void HealthChecker::State::start(const TargetPtr& target) {
  target->started = Clock::now();
  target->timed_out = false;
  target->running = make_check(io, target->wanted, tls_contexts);
  ++running;
  target->running->start([self = shared_from_this(), target](CheckResult result) {
    self->finish(target, std::move(result));
  });
  target->timer.expires_at(target->started +
                           std::chrono::milliseconds(target->wanted.settings.timeout_ms));
  target->timer.async_wait([target, check = target->running](const error_code& wait_error) {
    // Without an error the wait may still be one that the end of its check came too late to
    // cancel.
    if (wait_error || target->running != check) return;
    target->timed_out = true;
    check->abort();
  });
}

void HealthChecker::State::finish(const TargetPtr& target, CheckResult result) {
  target->running.reset();
  --running;
  if (!target->removed) {
    const HealthSettings& settings = target->wanted.settings;
    const double jitter = std::uniform_real_distribution<double>(0.9, 1.1)(random);
    const auto pause = std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double, std::milli>(settings.interval_ms * jitter));
    check_at(target, target->started + pause);
    if (target->timed_out)
      result = failed(fmt::format("timed out after {} ms", settings.timeout_ms));
    take_result(*target, std::move(result));
  }
  start_waiting();
}

void HealthChecker::State::take_result(Target& target, CheckResult result) {
  if (result.outcome == CheckResult::Outcome::kNotMade) {
    target.health.reason = "not checked: " + result.reason;
    return;
  }
  const Clock::time_point now = Clock::now();
  const bool success = result.outcome == CheckResult::Outcome::kPassed;
  if (success) {
    target.health.latency =
        std::chrono::duration_cast<std::chrono::microseconds>(now - target.started);
  }
  const HealthVerdict before = target.health.verdict;
  const bool was_up = target.rule.verdict() == HealthVerdict::kUp;
  target.rule.add(success);
  HealthVerdict verdict = target.rule.verdict();
  // While it is held down too: it must prove itself anew.
  if (was_up && verdict == HealthVerdict::kDown) target.damping.went_down(now);
  target.health.penalty = target.damping.penalty(now);
  const bool agrees = success == (verdict == HealthVerdict::kUp);
  if (agrees) target.health.reason = std::move(result.reason);
  if (verdict == HealthVerdict::kUp && target.damping.holds(now)) {
    verdict = HealthVerdict::kDown;
    target.health.reason =
        fmt::format("held down: it went down too often (penalty {:.1f}); {} s to go",
                    target.health.penalty, target.damping.until_release(now).count());
  }
  target.health.verdict = verdict;
  if (verdict != before) on_change(target.wanted.pool, target.wanted.backend, target.health);
}

HealthChecker::HealthChecker(boost::asio::io_context& io, OnChange on_change, size_t max_running)
    : state_(std::make_shared<State>(io, std::move(on_change), max_running)) {}

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
