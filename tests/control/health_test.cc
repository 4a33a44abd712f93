#include "control/health.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <filesystem>
#include <iterator>

#include "tests/control/check_fixtures.h"

namespace maglev {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
constexpr auto kUnknown = HealthVerdict::kUnknown;

// Verdicts after each result; '+' is a success, '-' a failure.
std::vector<HealthVerdict> verdicts(RiseFall rule, std::string_view results) {
  std::vector<HealthVerdict> after;
  for (const char result : results) {
    const HealthVerdict before = rule.verdict();
    const bool changed = rule.add(result == '+');
    EXPECT_EQ(changed, rule.verdict() != before);
    after.push_back(rule.verdict());
  }
  return after;
}

using Verdicts = std::vector<HealthVerdict>;

TEST(RiseFall, TheFirstResultDecidesAnUnknownBackend) {
  EXPECT_EQ(verdicts(RiseFall(3, 3, kUnknown), "+"), Verdicts{kUp});
  EXPECT_EQ(verdicts(RiseFall(3, 3, kUnknown), "-"), Verdicts{kDown});
}

TEST(RiseFall, FailuresCountInARow) {
  EXPECT_EQ(verdicts(RiseFall(2, 3, kUp), "-++-+-"), Verdicts(6, kUp));
  EXPECT_EQ(verdicts(RiseFall(2, 3, kUp), "--+---"), (Verdicts{kUp, kUp, kUp, kUp, kUp, kDown}));
}

TEST(RiseFall, SuccessesCountInARow) {
  EXPECT_EQ(verdicts(RiseFall(3, 1, kDown), "++-++-"), Verdicts(6, kDown));
  EXPECT_EQ(verdicts(RiseFall(3, 1, kDown), "+++-"), (Verdicts{kDown, kDown, kUp, kDown}));
}

TEST(RiseFall, OneInARowFollowsEveryResult) {
  EXPECT_EQ(verdicts(RiseFall(1, 1, kUp), "-+-"), (Verdicts{kDown, kUp, kDown}));
}

// A listening socket on a loopback port of its own.
class Listener {
 public:
  explicit Listener(int backlog = 1024, uint16_t port = 0) {
    address_.sin_port = htons(port);
    const int on = 1;
    setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address_), sizeof(address_)), 0);
    socklen_t length = sizeof(address_);
    getsockname(fd_, reinterpret_cast<sockaddr*>(&address_), &length);
    if (backlog >= 0) {
      EXPECT_EQ(listen(fd_, backlog), 0);
    }
  }
  ~Listener() {
    for (const int fd : fillers_) close(fd);
    close(fd_);
  }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  uint16_t port() const { return ntohs(address_.sin_port); }
  void start() { ASSERT_EQ(listen(fd_, 1024), 0); }
  int accept() { return ::accept(fd_, nullptr, nullptr); }

  // Connects until the queue takes no more: the kernel then drops further SYNs.
  void fill_backlog() {
    for (int i = 0; i < 4; ++i) {
      fillers_.push_back(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
      connect(fillers_.back(), reinterpret_cast<sockaddr*>(&address_), sizeof(address_));
    }
  }

 private:
  int fd_ = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address_{.sin_family = AF_INET,
                       .sin_port = 0,
                       .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)},
                       .sin_zero = {}};
  std::vector<int> fillers_;
};

size_t open_descriptors() {
  return static_cast<size_t>(
      std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

HealthTarget target(std::string backend, uint16_t port, uint32_t interval_ms = 20) {
  return {.pool = "web",
          .backend = std::move(backend),
          .address = boost::asio::ip::address_v4::loopback(),
          .settings = {.type = HealthType::kTcp,
                       .port = port,
                       .interval_ms = interval_ms,
                       .timeout_ms = 300,
                       .rise = 2,
                       .fall = 3}};
}

using HealthCheckerTest = CheckerTest;

TEST_F(HealthCheckerTest, AListeningBackendComesUpAtOnce) {
  Listener listener;
  HealthChecker checker = make();
  checker.set_targets({target("b1", listener.port(), 60000)});
  EXPECT_EQ(said(checker.of("web", "b1")), (Said{kUnknown, "not checked yet"}));
  ASSERT_TRUE(run_until([&] { return !changes_.empty(); }));
  EXPECT_EQ(changes_[0].backend, "b1");
  EXPECT_EQ(said(changes_[0].health), (Said{kUp, "connected"}));
  EXPECT_EQ(checker.of("web", "b1"), changes_[0].health);
}

TEST_F(HealthCheckerTest, AnIpv6BackendIsChecked) {
  using boost::asio::ip::tcp;
  const auto loopback = boost::asio::ip::address_v6::loopback();
  const tcp::acceptor listener(io_, tcp::endpoint(loopback, 0));
  HealthTarget ipv6 = target("b6", listener.local_endpoint().port());
  ipv6.address = loopback;
  HealthChecker checker = make();
  checker.set_targets({ipv6});
  ASSERT_TRUE(run_until([&] { return !changes_.empty(); }));
  EXPECT_EQ(said(changes_[0].health), (Said{kUp, "connected"}));
}

TEST_F(HealthCheckerTest, ARefusedPortIsDown) {
  Listener bound_only(-1);
  HealthChecker checker = make();
  checker.set_targets({target("b1", bound_only.port())});
  ASSERT_TRUE(run_until([&] { return !changes_.empty(); }));
  EXPECT_EQ(said(changes_[0].health), (Said{kDown, "connection refused"}));
}

TEST_F(HealthCheckerTest, ASilentBackendTimesOut) {
  Listener full(0);
  full.fill_backlog();
  HealthChecker checker = make();
  const Clock::time_point start = Clock::now();
  checker.set_targets({target("b1", full.port())});
  ASSERT_TRUE(run_until([&] { return !changes_.empty(); }));
  EXPECT_EQ(said(changes_[0].health), (Said{kDown, "timed out after 300 ms"}));
  EXPECT_GE(Clock::now() - start, 300ms);
}

TEST_F(HealthCheckerTest, AnAddressWithoutARouteIsDownWithTheKernelsReason) {
  HealthTarget unroutable = target("b1", 80);
  // Reserved for the future; Linux refuses to send there whatever its routes are.
  unroutable.address = boost::asio::ip::make_address("255.255.255.255");
  HealthChecker checker = make();
  checker.set_targets({unroutable});
  ASSERT_TRUE(run_until([&] { return !changes_.empty(); }));
  EXPECT_EQ(changes_[0].health.verdict, kDown);
  EXPECT_EQ(changes_[0].health.reason, "network is unreachable");
}

TEST_F(HealthCheckerTest, ABackendGoesUpAndDownAndTellsEachChangeOnce) {
  auto listener = std::make_unique<Listener>(-1);
  const uint16_t port = listener->port();
  HealthChecker checker = make();
  checker.set_targets({target("b1", port)});
  ASSERT_TRUE(run_until([&] { return changes_.size() == 1; }));
  listener->start();
  ASSERT_TRUE(run_until([&] { return changes_.size() == 2; }));
  EXPECT_EQ(said(changes_[1].health), (Said{kUp, "connected"}));
  listener.reset();
  ASSERT_TRUE(run_until([&] { return changes_.size() == 3; }));
  EXPECT_EQ(said(changes_[2].health), (Said{kDown, "connection refused"}));
  run_for(200ms);
  EXPECT_EQ(changes_.size(), 3u);
}

TEST_F(HealthCheckerTest, ARememberedVerdictNeedsTheFullCountToChange) {
  Listener bound_only(-1);
  HealthTarget remembered = target("b1", bound_only.port(), 100);
  remembered.initial = kUp;
  HealthChecker checker = make();
  const Clock::time_point start = Clock::now();
  checker.set_targets({remembered});
  ASSERT_TRUE(run_until([&] { return !changes_.empty(); }));
  EXPECT_EQ(changes_[0].health.verdict, kDown);
  EXPECT_GE(Clock::now() - start, 180ms);  // three checks, two jittered pauses
}

TEST_F(HealthCheckerTest, AnUnchangedTargetKeepsItsVerdictItsCountsAndItsPace) {
  Listener bound_only(-1);
  HealthTarget slow = target("b1", bound_only.port(), 200);
  slow.initial = kUp;
  HealthChecker checker = make();
  checker.set_targets({slow});
  // Named again far more often than it is checked, beside others that come and go: if anything
  // started anew, the three failures would come early (a check at each call) or never.
  const Clock::time_point start = Clock::now();
  for (int i = 0; changes_.empty() && i < 1000; ++i) {
    checker.set_targets({slow, target("other" + std::to_string(i), 9, 60000)});
    run_for(10ms);
    std::erase_if(changes_, [](const Change& change) { return change.backend != "b1"; });
  }
  ASSERT_EQ(changes_.size(), 1u);
  EXPECT_EQ(said(changes_[0].health), (Said{kDown, "connection refused"}));
  EXPECT_GE(Clock::now() - start, 360ms);
}

TEST_F(HealthCheckerTest, NewTimingKeepsTheVerdictAndANewPortDoesNot) {
  Listener listener;
  HealthChecker checker = make();
  checker.set_targets({target("b1", listener.port(), 60000)});
  ASSERT_TRUE(run_until([&] { return changes_.size() == 1; }));
  checker.set_targets({target("b1", listener.port(), 30000)});
  EXPECT_EQ(said(checker.of("web", "b1")), (Said{kUp, "connected"}));

  Listener bound_only(-1);
  checker.set_targets({target("b1", bound_only.port(), 60000)});
  EXPECT_EQ(checker.of("web", "b1").verdict, kUnknown);
  ASSERT_TRUE(run_until([&] { return changes_.size() == 2; }));
  EXPECT_EQ(changes_[1].health.verdict, kDown);
}

TEST_F(HealthCheckerTest, ARemovedTargetIsSilentAndForgotten) {
  Listener full(0);
  full.fill_backlog();
  Listener listener;
  HealthChecker checker = make();
  checker.set_targets({target("silent", full.port()), target("b1", listener.port())});
  run_for(50ms);  // the check of "silent" is under way
  changes_.clear();
  checker.set_targets({});
  run_for(500ms);
  EXPECT_TRUE(changes_.empty());
  EXPECT_EQ(checker.of("web", "b1"), Health{});
}

TEST_F(HealthCheckerTest, TargetsOfTypeNoneAreNotChecked) {
  HealthTarget unchecked = target("b1", 9);
  unchecked.settings.type = HealthType::kNone;
  HealthChecker checker = make();
  checker.set_targets({unchecked});
  run_for(100ms);
  EXPECT_TRUE(changes_.empty());
}

TEST_F(HealthCheckerTest, TheCallbackMayChangeTheTargets) {
  Listener listener;
  std::unique_ptr<HealthChecker> checker;
  int calls = 0;
  checker = std::make_unique<HealthChecker>(
      io_, [&](const std::string&, const std::string&, const Health&) {
        ++calls;
        checker->set_targets({});
      });
  checker->set_targets({target("b1", listener.port()), target("b2", listener.port())});
  run_for(300ms);
  EXPECT_EQ(calls, 1);
}

TEST_F(HealthCheckerTest, FirstChecksOfManyBackendsAreSpreadOut) {
  Listener listener;
  HealthChecker checker = make();
  std::vector<HealthTarget> many;
  for (int i = 0; i < 500; ++i) {
    many.push_back(target("b" + std::to_string(i), listener.port(), 1000));
  }
  const Clock::time_point start = Clock::now();
  checker.set_targets(many);
  ASSERT_TRUE(run_until([&] { return changes_.size() >= 250; }));
  EXPECT_GE(Clock::now() - start, 490ms);
  ASSERT_TRUE(run_until([&] { return changes_.size() >= 500; }));
  EXPECT_GE(Clock::now() - start, 990ms);
  for (const Change& change : changes_) EXPECT_EQ(change.health.verdict, kUp);
}

TEST_F(HealthCheckerTest, SocketsAreBoundedAndNoneLeaks) {
  Listener full(0);
  full.fill_backlog();
  const boost::asio::ip::tcp::socket first(io_);  // makes the event loop open its own
  HealthChecker checker = make(4);
  const size_t before = open_descriptors();
  std::vector<HealthTarget> many;
  for (int i = 0; i < 12; ++i) many.push_back(target("b" + std::to_string(i), full.port()));
  checker.set_targets(many);
  size_t most = 0;
  ASSERT_TRUE(run_until([&] {
    most = std::max(most, open_descriptors());
    return changes_.size() >= 12;
  }));
  EXPECT_EQ(most, before + 4);
  checker.set_targets({});
  run_for(50ms);
  EXPECT_EQ(open_descriptors(), before);
}

TEST_F(HealthCheckerTest, ASuccessTellsHowLongItTook) {
  Listener listener;
  HealthChecker checker = make();
  checker.set_targets({target("b1", listener.port())});
  ASSERT_TRUE(run_until([&] { return !changes_.empty(); }));
  ASSERT_TRUE(changes_[0].health.latency);
  EXPECT_GT(changes_[0].health.latency->count(), 0);
  EXPECT_LT(*changes_[0].health.latency, 300ms);
}

TEST_F(HealthCheckerTest, ABackendThatFlapsIsHeldDownUntilItStaysUp) {
  auto listener = std::make_unique<Listener>(-1);
  HealthTarget damped = target("b1", listener->port());
  damped.settings.rise = damped.settings.fall = 1;
  damped.settings.damping = {.half_life_s = 1, .hold_at = 2, .release_at = 1};
  HealthChecker checker = make();
  checker.set_targets({damped});
  const auto flap = [&] {
    listener->start();
    ASSERT_TRUE(run_until([&] {
      return !checker.of("web", "b1").reason.starts_with("conn") ||
             checker.of("web", "b1").verdict == kUp;
    }));
    const uint16_t port = listener->port();
    listener.reset();
    ASSERT_TRUE(run_until([&] { return checker.of("web", "b1").reason == "connection refused"; }));
    listener = std::make_unique<Listener>(-1, port);
  };
  ASSERT_TRUE(run_until([&] { return changes_.size() == 1; }));
  for (int i = 0; i < 3; ++i) flap();
  listener->start();
  ASSERT_TRUE(run_until([&] { return checker.of("web", "b1").reason.starts_with("held down"); }));
  EXPECT_EQ(checker.of("web", "b1").verdict, kDown);
  EXPECT_GT(checker.of("web", "b1").penalty, 1.0);
  const Clock::time_point held = Clock::now();
  ASSERT_TRUE(run_until([&] { return checker.of("web", "b1").verdict == kUp; }));
  EXPECT_GT(Clock::now() - held, 500ms);
  EXPECT_EQ(said(checker.of("web", "b1")), (Said{kUp, "connected"}));
}

TEST(DampingRule, APenaltyHalvesAndHoldsBetweenItsTwoBounds) {
  Damping damping({.half_life_s = 60, .hold_at = 3, .release_at = 1});
  const Clock::time_point start{};
  damping.went_down(start);
  damping.went_down(start);
  EXPECT_FALSE(damping.holds(start));
  damping.went_down(start);
  EXPECT_TRUE(damping.holds(start));
  EXPECT_DOUBLE_EQ(damping.penalty(start + 60s), 1.5);
  EXPECT_TRUE(damping.holds(start + 60s));
  EXPECT_EQ(damping.until_release(start + 60s), 36s);
  EXPECT_FALSE(damping.holds(start + 96s));
  EXPECT_FALSE(damping.holds(start + 96s));
}

TEST(DampingRule, APenaltyIsBoundedSoThatStayingUpIsEnough) {
  Damping damping({.half_life_s = 60, .hold_at = 3, .release_at = 1});
  for (int i = 0; i < 1000; ++i) damping.went_down({});
  EXPECT_DOUBLE_EQ(damping.penalty({}), 6.0);
}

TEST(DampingRule, WithoutAHalfLifeNothingIsHeld) {
  Damping damping(DampingSettings{});
  for (int i = 0; i < 10; ++i) damping.went_down({});
  EXPECT_EQ(damping.penalty({}), 0.0);
  EXPECT_FALSE(damping.holds({}));
}

TEST_F(HealthCheckerTest, AShortageOfDescriptorsIsNotTheBackendsFault) {
  Listener listener;
  HealthChecker checker = make();
  checker.set_targets({target("b1", listener.port())});
  ASSERT_TRUE(run_until([&] { return changes_.size() == 1; }));
  run_for(50ms);
  std::vector<int> hoard;
  for (int fd = dup(0); fd >= 0; fd = dup(0)) hoard.push_back(fd);
  run_for(200ms);
  for (const int fd : hoard) close(fd);
  EXPECT_EQ(said(checker.of("web", "b1")), (Said{kUp, "not checked: too many open files"}));
  run_for(100ms);
  EXPECT_EQ(said(checker.of("web", "b1")), (Said{kUp, "connected"}));
  EXPECT_EQ(changes_.size(), 1u);
}

TEST_F(HealthCheckerTest, NothingIsCalledAfterTheCheckerIsGone) {
  Listener full(0);
  full.fill_backlog();
  {
    HealthChecker checker = make();
    checker.set_targets({target("b1", full.port())});
    run_for(50ms);  // in the middle of a check
  }
  run_for(500ms);
  EXPECT_TRUE(changes_.empty());
}

}  // namespace
}  // namespace maglev
