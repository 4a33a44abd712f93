// What the tests of control share: a directory of their own, a configuration, and an outside world
// made of plain maps in place of the network and the clock.
#pragma once

#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "control/controller.h"
#include "control/files.h"

namespace maglev {

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern = std::filesystem::temp_directory_path() / "maglev-test-XXXXXX";
    path_ = ::mkdtemp(pattern.data());
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  std::string path(std::string_view below = {}) const { return path_ + std::string(below); }

 private:
  std::string path_;
};

// Two pools: web (b1 to b3, checked) and plain (p1, not checked); a VIP each.
inline std::string sample_configuration(const std::string& directory) {
  return "directory: " + directory + "/run\nstate: " + directory + R"(/state
hash_seed: "9e3779b97f4a7c15"
dataplane:
  main_core: 0
  cores: [1]
  ports: [{name: uplink, device: net_null0, interface: lb0}]
pools:
  - name: web
    table_size: 251
    health: {type: tcp, port: 80, interval_ms: 1000, timeout_ms: 500, rise: 2, fall: 3}
    backends:
      - {name: b1, address: 198.18.2.11}
      - {name: b2, address: 198.18.2.12}
      - {name: b3, address: 198.18.2.13}
  - name: plain
    table_size: 251
    backends: [{name: p1, address: 198.18.3.1}]
vips:
  - {name: web-http, address: 198.51.100.10, protocol: tcp, port: 80, pool: web}
  - {name: dns, address: 198.51.100.10, protocol: udp, port: 53, pool: plain, hash: source}
)";
}

// The network and the clock, as a test sets them.
struct World {
  std::map<std::pair<std::string, std::string>, Health, std::less<>> health;
  std::vector<HealthTarget> targets;
  std::set<boost::asio::ip::address> watched;
  std::set<boost::asio::ip::address> unreachable;
  std::map<boost::asio::ip::address, PathMtuMemory::Entry> path_mtus;
  std::set<boost::asio::ip::address> behind_gateway;
  Controller::Clock::time_point now{};
  BootId boot{1};

  Controller::Senses senses() {
    return {[this](const std::vector<HealthTarget>& wanted) { check(wanted); },
            [this](std::string_view pool, std::string_view backend) {
              const auto known = health.find(std::pair(std::string(pool), std::string(backend)));
              return known == health.end() ? Health{} : known->second;
            },
            [this](const auto& addresses) { watched = addresses; },
            [this](const boost::asio::ip::address& address) { return next_hop(address); },
            [this](const auto& address) { return path_mtu(address); },
            [] {
              return PathMtus::Counts{3, 4};
            },
            [this] { return now; },
            [this] { return boot_time_ns(); },
            boot};
  }

  uint64_t boot_time_ns() const {
    constexpr std::chrono::nanoseconds kUp = std::chrono::hours(1);
    return static_cast<uint64_t>((kUp + now.time_since_epoch()).count());
  }

 private:
  void check(const std::vector<HealthTarget>& wanted) {
    targets = wanted;
    decltype(health) kept;
    for (const HealthTarget& target : wanted) {
      const std::pair key(target.pool, target.backend);
      const auto before = health.find(key);
      kept[key] = before != health.end() ? before->second : Health{target.initial, "remembered"};
    }
    health = std::move(kept);
  }

  std::optional<PathMtuMemory::Entry> path_mtu(const boost::asio::ip::address& address) const {
    const auto learnt = path_mtus.find(address);
    return learnt == path_mtus.end() ? std::nullopt : std::optional(learnt->second);
  }

  NextHop next_hop(const boost::asio::ip::address& address) const {
    NextHop hop;
    if (unreachable.contains(address)) {
      hop.reason = "no neighbour";
      return hop;
    }
    hop.resolved = true;
    hop.mac = {2, 0, 0, 0, 0, to_record(address).bytes[address.is_v4() ? 3 : 15]};
    hop.on_link = !behind_gateway.contains(address);
    hop.via = hop.on_link ? address : boost::asio::ip::make_address("198.18.2.254");
    hop.mtu_bytes = 1500;
    hop.outer_source =
        boost::asio::ip::make_address(address.is_v4() ? "198.18.2.1" : "2001:db8:2::1");
    hop.interface = "lb0";
    hop.reason.clear();
    return hop;
  }
};

// A controller on files of its own, which can be stopped and started again.
class ControllerTest : public testing::Test {
 protected:
  ControllerTest() { spdlog::set_level(spdlog::level::off); }

  void start() {
    auto configuration = read_configuration(text_, "test.yaml");
    ASSERT_TRUE(configuration) << configuration.error().front();
    auto publisher = Publisher::open(configuration->dataplane.directory);
    ASSERT_TRUE(publisher) << publisher.error();
    auto state = State::open(configuration->state_directory);
    ASSERT_TRUE(state) << state.error();
    controller_ =
        std::make_unique<Controller>(std::move(*configuration), std::move(*state),
                                     std::move(*publisher), reported_generation_, world_.senses());
  }
  void stop() {
    controller_.reset();
    world_.health.clear();
  }
  void restart() {
    stop();
    start();
  }

  // All backends of `web` have answered their first check.
  void start_healthy() {
    start();
    for (const char* backend : {"b1", "b2", "b3"}) answer("web", backend, HealthVerdict::kUp);
    controller_->tick();
  }

  void answer(const std::string& pool, const std::string& backend, HealthVerdict verdict) {
    const Health health{verdict, verdict == HealthVerdict::kUp ? "connected" : "timed out"};
    world_.health[{pool, backend}] = health;
    controller_->health_changed(pool, backend, health);
  }

  void pass(std::chrono::milliseconds time) {
    world_.now += time;
    controller_->tick();
  }

  std::vector<std::string> members(std::string_view pool) const {
    std::vector<std::string> names;
    if (const PlannedPool* plan = controller_->planned(pool)) {
      for (const WeightedName& member : plan->membership.members) names.push_back(member.name);
    }
    return names;
  }

  TemporaryDirectory directory_;
  std::string text_ = sample_configuration(directory_.path());
  World world_;
  uint64_t reported_generation_ = 0;
  std::unique_ptr<Controller> controller_;
};

}  // namespace maglev
