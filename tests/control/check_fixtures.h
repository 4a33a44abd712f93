// What the tests of health checks share: a checker on an event loop, and servers on loopback that
// behave as they are told.
#pragma once

#include <gtest/gtest.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "control/health.h"

namespace maglev {

inline constexpr auto kUp = HealthVerdict::kUp;
inline constexpr auto kDown = HealthVerdict::kDown;

class CheckerTest : public ::testing::Test {
 protected:
  using Clock = std::chrono::steady_clock;
  struct Change {
    std::string backend;
    Health health;
  };
  struct Said {  // what of a Health is the same at each run
    HealthVerdict verdict;
    std::string reason;
    bool operator==(const Said&) const = default;
    friend std::ostream& operator<<(std::ostream& out, const Said& words) {
      return out << (words.verdict == kUp ? "up: " : "not up: ") << words.reason;
    }
  };
  static Said said(const Health& health) { return {health.verdict, health.reason}; }

  HealthChecker make(size_t max_running = HealthChecker::kDefaultMaxRunning) {
    return HealthChecker(
        io_,
        [this](const std::string&, const std::string& backend, const Health& health) {
          changes_.push_back({backend, health});
        },
        max_running);
  }

  static HealthTarget target_of(HealthType type, uint16_t port, uint32_t interval_ms = 20) {
    HealthTarget target{.pool = "web",
                        .backend = "b1",
                        .address = boost::asio::ip::address_v4::loopback(),
                        .settings = {}};
    target.settings.type = type;
    target.settings.port = port;
    target.settings.interval_ms = interval_ms;
    target.settings.timeout_ms = 300;
    return target;
  }

  // Runs the event loop until a condition holds; false when it does not within ten seconds.
  template <typename Condition>
  bool run_until(Condition condition) {
    const Clock::time_point end = Clock::now() + std::chrono::seconds(10);
    io_.restart();
    while (!condition()) {
      if (Clock::now() > end) return false;
      io_.run_one_for(std::chrono::milliseconds(10));
    }
    return true;
  }
  void run_for(Clock::duration time) {
    io_.restart();
    io_.run_for(time);
  }

  // What the first check of a target finds.
  Said first_word(const HealthTarget& target) {
    changes_.clear();
    HealthChecker checker = make();
    checker.set_targets({target});
    EXPECT_TRUE(run_until([&] { return !changes_.empty(); }));
    return changes_.empty() ? Said{} : said(changes_[0].health);
  }

  boost::asio::io_context io_;
  std::vector<Change> changes_;
};

// Accepts TCP connections and hands each to `serve`, which keeps the socket for as long as it
// lives.
class TcpServer {
 public:
  using tcp = boost::asio::ip::tcp;
  using SocketPtr = std::shared_ptr<tcp::socket>;
  using Serve = std::function<void(SocketPtr)>;

  TcpServer(boost::asio::io_context& io, Serve serve)
      : acceptor_(io, tcp::endpoint(boost::asio::ip::address_v4::loopback(), 0)),
        serve_(std::move(serve)) {
    accept();
  }
  uint16_t port() const { return acceptor_.local_endpoint().port(); }

 private:
  void accept() {
    acceptor_.async_accept([this](const auto& error, tcp::socket socket) {
      if (error) return;
      serve_(std::make_shared<tcp::socket>(std::move(socket)));
      accept();
    });
  }

  tcp::acceptor acceptor_;
  Serve serve_;
};

}  // namespace maglev
