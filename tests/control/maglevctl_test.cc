// The maglevctl program against the daemon's own server and controller, on a real socket.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <boost/asio/post.hpp>
#include <future>
#include <nlohmann/json.hpp>
#include <thread>

#include "control/api_server.h"
#include "tests/control/fixtures.h"

namespace maglev {
namespace {

using Json = nlohmann::ordered_json;

struct Outcome {
  int exit_code = -1;
  std::string out;
  std::string err;
};

std::string read_and_remove(const std::string& path) {
  std::ifstream file(path);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  std::filesystem::remove(path);
  return text;
}

class MaglevctlTest : public ControllerTest {
 protected:
  void SetUp() override {
    start_healthy();
    auto opened = ApiServer::open(io_, UnixSocket{socket_},
                                  {[this](const ApiRequest& request) {
                                     ++requests_;
                                     return answer_api(*controller_, dataplane_, request,
                                                       [this] { return reload(); });
                                   },
                                   [this]() -> const DataplaneStatus& { return dataplane_; }},
                                  {});
    ASSERT_TRUE(opened) << opened.error();
    server_ = std::move(*opened);
    thread_ = std::thread([this] { io_.run(); });
  }
  void TearDown() override {
    if (!thread_.joinable()) return;
    io_.stop();
    thread_.join();
    server_.reset();
  }

  std::expected<void, std::vector<std::string>> reload() {
    auto configuration = read_configuration(text_, "test.yaml");
    if (!configuration) return std::unexpected(configuration.error());
    return controller_->reload(std::move(*configuration));
  }

  Outcome run_on(const std::string& socket, const std::string& arguments) {
    const std::string out = directory_.path("/out");
    const std::string err = directory_.path("/err");
    const int status = std::system(fmt::format("timeout 20 {} --socket '{}' {} >{} 2>{}",
                                               MAGLEVCTL_PATH, socket, arguments, out, err)
                                       .c_str());
    return {WEXITSTATUS(status), read_and_remove(out), read_and_remove(err)};
  }
  Outcome run(const std::string& arguments) { return run_on(socket_, arguments); }
  std::string shown(const std::string& arguments) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(outcome.err, "");
    return outcome.out;
  }
  Json json(const std::string& arguments) { return Json::parse(shown(arguments + " --json")); }

  // Runs something on the server's thread.
  template <typename F>
  void on_server(F f) {
    std::promise<void> done;
    boost::asio::post(io_, [&] {
      f();
      done.set_value();
    });
    done.get_future().wait();
  }
  uint64_t generation() {
    uint64_t value = 0;
    on_server([&] { value = controller_->generation(); });
    return value;
  }

  // A dataplane that has adopted everything and received `packets` until `written_ns`.
  void report(uint64_t written_ns, uint64_t packets, uint64_t started_ns = 1) {
    on_server([&] {
      dataplane_.running = true;
      dataplane_.progress = {true};
      dataplane_.report = Report{};
      dataplane_.report->started_ns = started_ns;
      dataplane_.report->written_ns = written_ns;
      dataplane_.report->adopted_generation = UINT64_MAX;
      dataplane_.report->verdicts = {"forwarded"};
      dataplane_.report->verdict_counts = {packets};
      dataplane_.report->workers = {{.lcore = 1,
                                     .generation = UINT64_MAX,
                                     .polls = packets,
                                     .received = {packets, 100 * packets}}};
      dataplane_.report->ports = {{.name = "uplink", .link_up = true}};
      dataplane_.report->vips = {
          {.pool = "", .name = "web-http", .forwarded = {packets, 100 * packets}, .dropped = {}}};
      dataplane_.report->backends = {
          {.pool = "web", .name = "b1", .forwarded = {packets, 100 * packets}, .dropped = {}}};
      server_->dataplane_reported();
    });
  }

  boost::asio::io_context io_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{
      io_.get_executor()};
  std::string socket_ = directory_.path("/ctl.sock");
  DataplaneStatus dataplane_;
  std::atomic<int> requests_ = 0;
  std::unique_ptr<ApiServer> server_;
  std::thread thread_;
};

TEST_F(MaglevctlTest, ListsAndShowsPools) {
  EXPECT_NE(shown("pool list").find("web    file     251         3         3  no"),
            std::string::npos)
      << shown("pool list");
  const std::string pool = shown("pool show web");
  EXPECT_NE(pool.find("tcp to port 80 every 1000 ms"), std::string::npos) << pool;
  EXPECT_NE(pool.find("b1       198.18.2.11       1  ready  up"), std::string::npos) << pool;
  EXPECT_EQ(json("pool list")["pools"].size(), 2u);
  EXPECT_EQ(json("pool show web")["backends"][0]["name"], "b1");
}

TEST_F(MaglevctlTest, AddsAndRemovesAPool) {
  shown(
      "pool add mail --table-size 1009 --placement ring --min-healthy 2 --health-port 25 "
      "--health-interval-ms 250 --health-timeout-ms 200 --health-rise 4 --health-fall 5");
  const Json pool = json("pool show mail");
  EXPECT_EQ(pool["table_size"], 1009);
  EXPECT_EQ(pool["placement"], "ring");
  EXPECT_EQ(pool["min_healthy"], 2);
  EXPECT_EQ(pool["health"], Json::parse(R"({"type": "tcp", "port": 25, "interval_ms": 250,
                                            "timeout_ms": 200, "rise": 4, "fall": 5})"));
  const std::string removed = shown("pool remove mail");
  EXPECT_EQ(removed, fmt::format("generation {}\n", generation()));
  EXPECT_EQ(run("pool show mail").exit_code, 1);
}

TEST_F(MaglevctlTest, ShowsACheckThatHasNoPort) {
  const std::string_view tcp = "type: tcp, port: 80";
  text_.replace(text_.find(tcp), tcp.size(), "type: icmp");
  shown("reload");
  const std::string pool = shown("pool show web");
  EXPECT_NE(pool.find("health      icmp every 1000 ms, 500 ms at most"), std::string::npos) << pool;
}

TEST_F(MaglevctlTest, AddsShowsAndRemovesAVip) {
  shown(
      "vip add any-udp --address 198.51.100.20 --protocol udp --port any --pool plain "
      "--hash source");
  const Json vip = json("vip show any-udp");
  EXPECT_EQ(vip["port"], 0);
  EXPECT_EQ(vip["hash"], "source");
  EXPECT_EQ(vip["source"], "socket");
  shown("vip add tls --address 198.51.100.20 --protocol tcp --port 443 --pool web");
  EXPECT_EQ(json("vip show tls")["port"], 443);
  EXPECT_NE(shown("vip list").find("any-udp   socket  198.51.100.20  udp        any  plain"),
            std::string::npos)
      << shown("vip list");
  EXPECT_NE(shown("vip show any-udp").find("port           any"), std::string::npos);
  shown(
      "vip add six --address 2001:db8::/64 --protocol tcp_and_udp --port 443 --pool web "
      "--encapsulation gue --gue-port 6081 --outer-checksum false --fragments address "
      "--tracking full --tcp-idle-s 300 --tcp-closing-idle-s 10 --udp-idle-s 40 "
      "--echo kernel --unserved-ports kernel --too-big fragment");
  const std::string six = shown("vip show six");
  for (const char* line :
       {"address        2001:db8::/64\n", "protocol       tcp_and_udp\n", "port           443\n",
        "encapsulation  gue\n", "gue_port       6081\n", "outer_checksum false\n",
        "fragments      address\n", "echo           kernel\n", "unserved_ports kernel\n",
        "too_big        fragment\n", "tracking       full\n",
        "idle           {\"tcp_s\":300,\"tcp_closing_s\":10,\"udp_s\":40}\n"}) {
    EXPECT_NE(six.find(line), std::string::npos) << line << six;
  }
  shown("vip remove six");
  shown("vip remove any-udp");
  EXPECT_EQ(json("vip list")["vips"].size(), 3u);
}

TEST_F(MaglevctlTest, AddsSetsDrainsAndRemovesABackend) {
  shown("backend add web b4 --address 198.18.2.14 --weight 2");
  shown("backend set web b1 --weight 3");
  shown("backend drain web b2");
  shown("backend set web b3 --weight 5 --state maintenance");
  const Json backends = json("backend list web")["backends"];
  EXPECT_EQ(backends[0]["weight"], 3);
  EXPECT_EQ(backends[1]["state"], "drain");
  EXPECT_EQ(backends[1]["in_table"], false);
  EXPECT_EQ(backends[2]["weight"], 5);
  EXPECT_EQ(backends[2]["state"], "maintenance");
  EXPECT_EQ(backends[3]["weight"], 2);
  EXPECT_NE(shown("backend list web").find("b2       198.18.2.12       1  drain"),
            std::string::npos);
  shown("backend remove web b4");
  EXPECT_EQ(json("backend list web")["backends"].size(), 3u);
}

TEST_F(MaglevctlTest, AppliesSeveralChangesAtOnce) {
  const std::string file = directory_.path("/changes.json");
  std::ofstream(file) << R"([
    {"method": "PATCH", "path": "/v1/pools/web/backends/b1", "body": {"weight": 7}},
    {"method": "DELETE", "path": "/v1/pools/web/backends/b2"}])";
  EXPECT_EQ(shown("apply " + file), "generation 2\n");
  const Json backends = json("backend list web")["backends"];
  ASSERT_EQ(backends.size(), 2u);
  EXPECT_EQ(backends[0]["weight"], 7);
  std::ofstream(file) << "[]";
  EXPECT_EQ(shown("apply - --json <" + file), "{\"generation\":2}\n") << "nothing to do";
  std::ofstream(file) << R"([{"method": "DELETE", "path": "/v1/pools/web/backends/b2"}])";
  const Outcome refused = run("apply " + file);
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_NE(refused.err.find("change 1"), std::string::npos) << refused.err;
  EXPECT_EQ(run("apply /no/such/file").exit_code, 2);
}

TEST_F(MaglevctlTest, APlanTellsWhatMovesBetweenWhomAndChangesNothing) {
  const Json plan = json("plan backend drain web b1")["pools"][0];
  std::map<std::string, int64_t> gained;
  int64_t moved = 0;
  for (const Json& move : plan["moves"]) {
    gained[move["from"]] -= move["slots"].get<int64_t>();
    gained[move["to"]] += move["slots"].get<int64_t>();
    moved += move["slots"].get<int64_t>();
  }
  EXPECT_EQ(plan["moved"], moved);
  EXPECT_EQ(plan["moves_left_out"], 0);
  std::map<std::string, int64_t> expected;
  for (const Json& backend : plan["before"])
    expected[backend["name"]] -= backend["slots"].get<int64_t>();
  for (const Json& backend : plan["after"])
    expected[backend["name"]] += backend["slots"].get<int64_t>();
  EXPECT_EQ(gained, expected) << "what moves explains every gain and loss";
  EXPECT_EQ(plan["table_bytes"]["after"], 2 * 251);
  EXPECT_NEAR(plan["peak_over_mean"]["after"].get<double>(), 126 / 125.5, 1e-9);

  const std::string text = shown("plan backend drain web b1");
  EXPECT_NE(text.find(fmt::format("{} of 251 slots", moved)), std::string::npos) << text;
  EXPECT_NE(text.find("nothing was changed"), std::string::npos);
  EXPECT_EQ(json("backend list web")["backends"][0]["state"], "ready");
  EXPECT_EQ(generation(), 1u);
}

TEST_F(MaglevctlTest, EveryChangeCanBePlanned) {
  const std::string file = directory_.path("/changes.json");
  std::ofstream(file) << R"([{"method": "DELETE", "path": "/v1/pools/web/backends/b1"},
                             {"method": "DELETE", "path": "/v1/pools/plain/backends/p1"}])";
  const Json both = json("plan apply " + file)["pools"];
  ASSERT_EQ(both.size(), 2u);
  EXPECT_EQ(both[0]["moves"], Json::parse(R"([{"from": "p1", "to": null, "slots": 251}])"));
  EXPECT_NE(shown("plan apply " + file).find("(none)"), std::string::npos);
  for (const std::string change :
       {"pool add new", "vip add new --address 198.51.100.99 --protocol tcp --port 80 --pool web",
        "vip remove dns"}) {
    EXPECT_EQ(json("plan " + change), Json::parse(R"({"dry_run": true, "pools": []})")) << change;
  }
  EXPECT_NE(shown("plan vip remove dns").find("no slot"), std::string::npos);
  for (const std::string change : {"backend add web b9 --address 198.18.2.19",
                                   "backend set web b1 --weight 3", "backend remove web b1"}) {
    EXPECT_GT(json("plan " + change)["pools"][0]["moved"], 0) << change;
  }
  EXPECT_NE(run("plan pool remove web").err.find("in_use"), std::string::npos);
  EXPECT_EQ(run("plan backend drain web b1 --if-generation 9").exit_code, 1);
  EXPECT_EQ(run("plan backend drain web b1 --wait").exit_code, 2) << "there is nothing to wait for";
  EXPECT_EQ(generation(), 1u);
}

TEST_F(MaglevctlTest, APlanOfManyBackendsFitsTheTerminal) {
  for (int i = 0; i < 30; ++i) {
    shown(fmt::format("backend add plain {}{} --address 198.18.9.{}", std::string(40, 'n'), i,
                      i + 1));
  }
  const std::string text = shown("plan backend add plain new --address 198.18.8.1 --weight 100");
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
  EXPECT_EQ(std::ranges::count(text.substr(text.find("FROM")), '\n'), 1 + 20 + 1 + 2) << text;
  EXPECT_NE(text.find("more slots"), std::string::npos) << text;
}

TEST_F(MaglevctlTest, AChangeCanDependOnTheGeneration) {
  EXPECT_EQ(shown("backend drain web b1 --if-generation 1"), "generation 2\n");
  const Outcome late = run("backend drain web b2 --if-generation 1");
  EXPECT_EQ(late.exit_code, 1);
  EXPECT_NE(late.err.find("generation 2 is in force"), std::string::npos) << late.err;
}

TEST_F(MaglevctlTest, ReloadsTheFile) {
  EXPECT_EQ(shown("reload"), "generation 1\n");
  text_.replace(text_.find("port: 53"), 8, "port: xx");
  const Outcome refused = run("reload");
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_NE(refused.err.find("test.yaml:"), std::string::npos) << refused.err;
}

TEST_F(MaglevctlTest, TellsWhyABackendIsNotUsed) {
  on_server([&] {
    world_.unreachable.insert(boost::asio::ip::make_address_v4("198.18.2.11"));
    for (int i = 0; i < 3; ++i) answer("web", "b2", HealthVerdict::kDown);
    controller_->next_hops_changed({boost::asio::ip::make_address_v4("198.18.2.11")});
    pass(std::chrono::seconds(10));
  });
  const std::string pool = shown("pool show web");
  EXPECT_NE(pool.find("b1 has no next hop: no neighbour"), std::string::npos) << pool;
  EXPECT_NE(pool.find("b2 is down: timed out"), std::string::npos) << pool;
}

TEST_F(MaglevctlTest, ShowsHowManyFlowsABackendHasLeft) {
  EXPECT_NE(shown("backend list web").find("FLOWS\n"), std::string::npos);
  shown("backend drain web b2");
  shown("backend remove web b1");
  report(5, 3);
  on_server([&] {
    dataplane_.report->sweep = {5, world_.boot_time_ns() - 812'000'000, 2, {}};
    dataplane_.report->sweep.pools = {{"web", {}, {{0, 1, 4}, {1, 1, 120}}}};
  });
  const std::string pool = shown("pool show web");
  EXPECT_NE(pool.find("slots have changed hands and may have flows of before\n"), std::string::npos)
      << pool;
  for (const std::string& text : {pool, shown("backend list web")}) {
    EXPECT_NE(text.find("b2       198.18.2.12       1  drain  up            -        -    120\n"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("FLOWS are those remembered, of slots that changed hands (812 ms ago)\n"
                        "b1 is removed and has 4 flows that send nothing\n"),
              std::string::npos)
        << text;
  }
}

TEST_F(MaglevctlTest, WaitsUntilAllWorkersUseAChange) {
  report(1, 0);
  const std::string drained = shown("backend drain web b1 --wait");
  EXPECT_EQ(drained, fmt::format("generation {}, used by all workers\n", generation()));
  EXPECT_EQ(json("backend set web b1 --state ready --wait")["adopted"], true);
}

TEST_F(MaglevctlTest, SaysWhenTheWorkersHaveNotConfirmedAChange) {
  const Outcome outcome = run("backend drain web b1 --wait --timeout-ms 50");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(outcome.out, "");
  EXPECT_NE(outcome.err.find("not_adopted"), std::string::npos) << outcome.err;
}

TEST_F(MaglevctlTest, ShowsTheStatus) {
  const std::string without = shown("status");
  EXPECT_NE(without.find("dataplane   not running"), std::string::npos) << without;
  report(1, 0);
  const std::string with = shown("status");
  EXPECT_NE(with.find("dataplane   running"), std::string::npos) << with;
  EXPECT_NE(with.find("backends    4, in tables: 4"), std::string::npos) << with;
  EXPECT_EQ(json("status")["vips"], 2);
}

TEST_F(MaglevctlTest, ShowsTotals) {
  report(1, 12345);
  const std::string stats = shown("stats");
  EXPECT_NE(stats.find("received    12345  1234500"), std::string::npos) << stats;
  EXPECT_NE(stats.find("web/b1     12345  1234500        0  33.33%  100.00%"), std::string::npos)
      << stats;
  EXPECT_EQ(json("stats")["received"]["packets"], 12345);
}

TEST_F(MaglevctlTest, WatchesRates) {
  report(1'000'000'000, 1000);
  auto watching =
      std::async(std::launch::async, [&] { return run("stats --watch --interval 2 --count 1"); });
  std::this_thread::sleep_for(std::chrono::milliseconds(800));
  report(3'000'000'000, 5000);
  const Outcome outcome = watching.get();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("received     2.00 k  1.60 M"), std::string::npos) << outcome.out;
}

TEST_F(MaglevctlTest, AWatchAsksOnceAnIntervalWhateverTheNumberOfPools) {
  report(1, 7);
  requests_ = 0;
  shown("stats --watch --interval 0.05 --count 3");
  EXPECT_EQ(requests_, 4) << "one beforehand and one an interval";
}

TEST_F(MaglevctlTest, AWatchSaysWhenTheDataplaneIsSilentOrWasStartedAgain) {
  report(1'000'000'000, 1000);
  EXPECT_NE(shown("stats --watch --interval 0.05 --count 1").find("no new report"),
            std::string::npos);
  auto watching =
      std::async(std::launch::async, [&] { return run("stats --watch --interval 2 --count 1"); });
  std::this_thread::sleep_for(std::chrono::milliseconds(800));
  report(3'000'000'000, 5, 2'000'000'000);
  EXPECT_NE(watching.get().out.find("started again"), std::string::npos);
}

TEST_F(MaglevctlTest, AWatchInJsonIsOneLineAnInterval) {
  report(1, 7);
  std::istringstream lines(shown("stats --watch --json --interval 0.05 --count 3"));
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    EXPECT_EQ(Json::parse(line)["received"]["packets"], 7);
    EXPECT_TRUE(Json::parse(line)["rates"].is_null()) << "there was no newer report";
  }
  EXPECT_EQ(count, 3);
}

TEST_F(MaglevctlTest, AWatchInJsonHoldsTheRatesOfEachInterval) {
  report(1'000'000'000, 1000);
  auto watching =
      std::async(std::launch::async, [&] { return json("stats --watch --interval 2 --count 1"); });
  std::this_thread::sleep_for(std::chrono::milliseconds(800));
  report(3'000'000'000, 5000);
  const Json line = watching.get();
  EXPECT_EQ(line["received"]["packets"], 5000);
  EXPECT_EQ(line["rates"]["received"]["packets_per_s"], 2000.0);
  EXPECT_NEAR(line["rates"]["backends"][0]["wanted_share"].get<double>(), 1.0 / 3, 1e-9);
}

TEST_F(MaglevctlTest, WhatTheDaemonRefusesChangesNothingAndExitsWithOne) {
  const uint64_t before = generation();
  const std::vector<std::pair<std::string, std::string>> refused = {
      {"backend set web b1 --weight -1", "bad_request"},
      {"backend set web b1 --weight=-1", "bad_request"},
      {"backend set web b1 --state sleeping", "bad_request"},
      {"backend set web b9 --weight 1", "unknown_backend"},
      {"backend set nowhere b1 --weight 1", "unknown_pool"},
      {"backend add web b1 --address 198.18.2.99", "exists"},
      {"backend add web b5 --address nonsense", "bad_request"},
      {"backend list nowhere", "unknown_pool"},
      {"pool remove web", "in_use"},
      {"pool remove 'web/backends/b1'", "unknown_pool"},
      {"pool add odd --table-size 32", "bad_request"},
      {"pool add odd --placement jump", "bad_request"},
      {"vip add again --address 198.51.100.10 --protocol tcp --port 80 --pool web", "exists"},
      {"vip add bad --address 198.51.100.11 --protocol tcp --port eighty --pool web",
       "bad_request"},
      {"vip show nothing", "unknown_vip"},
      {"stats", "no_report"},
      {"stats --watch --count 1", "no_report"},
  };
  for (const auto& [arguments, code] : refused) {
    for (const char* json : {"", " --json"}) {
      const Outcome outcome = run(arguments + json);
      EXPECT_EQ(outcome.exit_code, 1) << arguments;
      EXPECT_EQ(outcome.out, "") << arguments;
      EXPECT_NE(outcome.err.find("(" + code + ")"), std::string::npos)
          << arguments << ": " << outcome.err;
    }
  }
  EXPECT_EQ(generation(), before);
}

TEST_F(MaglevctlTest, WhatCannotBeSentAsItIsIsRefusedInTheWordsOfTheDaemon) {
  const std::string add = "vip add x --address 198.51.100.99 --protocol tcp --pool web --port ";
  EXPECT_NE(run(add + "''").err.find("whole number from 0 to 65535, found ''"), std::string::npos);
  EXPECT_NE(run(add + "99999999999999999999").err.find("found '99999999999999999999'"),
            std::string::npos);
  EXPECT_NE(run("pool add x --table-size -1").err.find("found '-1'"), std::string::npos);
  EXPECT_NE(run("backend add web x --address $(printf '\\377')").err.find("such as 198.51.100.10"),
            std::string::npos);
}

TEST_F(MaglevctlTest, AnAnswerThatCannotBeWrittenIsAFailure) {
  const int status = std::system(
      fmt::format("{} --socket '{}' status 2>/dev/null >/dev/full", MAGLEVCTL_PATH, socket_)
          .c_str());
  EXPECT_EQ(WEXITSTATUS(status), 1);
}

TEST_F(MaglevctlTest, WrongUsageExitsWithTwo) {
  const uint64_t before = generation();
  for (const std::string arguments :
       {"", "frobnicate", "pool", "pool frobnicate", "pool show", "pool show ''", "backend set web",
        "backend set web b1", "backend set web b1 --weight many", "backend add web b5",
        "backend drain web b1 b2", "vip add x --port 80", "pool add x --health-rise 2",
        "stats --interval 1", "stats --watch --interval -1", "status --frobnicate"}) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << arguments;
    EXPECT_EQ(outcome.out, "") << arguments;
    EXPECT_NE(outcome.err, "") << arguments;
  }
  EXPECT_NE(run("pool frobnicate").err.find("frobnicate"), std::string::npos);
  EXPECT_EQ(generation(), before);
}

TEST_F(MaglevctlTest, HelpIsNoError) {
  EXPECT_NE(shown("--help").find("Exit codes"), std::string::npos);
  EXPECT_NE(shown("backend set --help").find("--weight"), std::string::npos);
}

TEST_F(MaglevctlTest, AMissingDaemonIsToldWithItsPathAndWhatToDo) {
  const std::string nowhere = directory_.path("/nowhere.sock");
  for (const std::string arguments : {"status", "status --json", "backend drain web b1"}) {
    const Outcome outcome = run_on(nowhere, arguments);
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_EQ(outcome.out, "");
    EXPECT_NE(outcome.err.find(nowhere), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find("Is maglev-control running?"), std::string::npos) << outcome.err;
  }
  EXPECT_EQ(run_on(std::string(200, 's'), "status").exit_code, 1);
}

TEST_F(MaglevctlTest, TheSocketCanBeNamedInTheEnvironment) {
  const std::string command = fmt::format(
      "MAGLEV_SOCKET={} timeout 20 {} pool list >/dev/null 2>&1", socket_, MAGLEVCTL_PATH);
  EXPECT_EQ(std::system(command.c_str()), 0);
}

TEST(MaglevctlAlone, AServerThatClosesWithoutAnAnswerIsAnError) {
  const TemporaryDirectory directory;
  const std::string path = directory.path("/closing.sock");
  const int listener = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(listener, 1), 0);
  std::thread closing([&] { close(accept(listener, nullptr, nullptr)); });
  const int status = std::system(
      fmt::format("timeout 20 {} --socket {} status >/dev/null 2>&1", MAGLEVCTL_PATH, path)
          .c_str());
  closing.join();
  close(listener);
  EXPECT_EQ(WEXITSTATUS(status), 1);
}

}  // namespace
}  // namespace maglev
