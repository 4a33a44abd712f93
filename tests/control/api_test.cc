#include "control/api.h"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <map>
#include <random>
#include <tuple>

#include "tables/boot_time.h"
#include "tests/control/fixtures.h"

namespace maglev {
namespace {

using Json = nlohmann::ordered_json;

class ApiTest : public ControllerTest {
 protected:
  ApiTest() { start_healthy(); }

  ApiAnswer call(std::string method, std::string target, std::string body = {}) {
    return answer_api(*controller_, dataplane_,
                      {std::move(method), std::move(target), std::move(body), if_match_},
                      [this] { return reload(); });
  }
  std::expected<void, std::vector<std::string>> reload() {
    auto configuration = read_configuration(text_, "test.yaml");
    if (!configuration) return std::unexpected(configuration.error());
    return controller_->reload(std::move(*configuration));
  }
  Json get(std::string target) {
    const ApiAnswer answer = call("GET", std::move(target));
    EXPECT_EQ(answer.status, 200u) << answer.body;
    return answer.body;
  }
  void expect_refused(const ApiAnswer& answer, unsigned status, std::string_view code) {
    EXPECT_EQ(answer.status, status) << answer.body;
    ASSERT_TRUE(answer.body.contains("error")) << answer.body;
    EXPECT_EQ(answer.body["error"]["code"], code);
    EXPECT_GT(answer.body["error"]["message"].get<std::string>().size(), 10u);
  }

  // A dataplane of two workers.
  void report(uint64_t first, uint64_t second) {
    Report report;
    report.started_ns = 1;
    report.written_ns = maglev::boot_time_ns();
    report.verdicts = {"forwarded", "malformed"};
    report.ports = {{"uplink", true, 1, 2, 3, 4}};
    report.workers = {{1, 0, 0, 0, first, 100, 40, {10, 1000}},
                      {2, 0, 1, 0, second, 200, 50, {20, 2000}}};
    report.verdict_counts = {9, 1, 18, 2};
    report.vips = {{"", "web-http", {27, 2700}, {3, 300}}};
    report.backends = {{"web", "b1", {27, 2700}, {0, 0}}};
    dataplane_ = {true, report, {}, {true, false}};
  }

  DataplaneStatus dataplane_;
  std::string if_match_;
};

TEST_F(ApiTest, StatusTellsGenerationsAndCounts) {
  Json status = get("/v1/status");
  EXPECT_EQ(status["generation"], 1);
  EXPECT_EQ(status["adopted_generation"], 0);
  EXPECT_EQ(status["dataplane"]["running"], false);
  EXPECT_EQ(status["pools"], 2);
  EXPECT_EQ(status["vips"], 2);
  EXPECT_EQ(status["backends"], 4);
  EXPECT_EQ(status["backends_in_tables"], 4);
  EXPECT_EQ(status["next_hops_unresolved"], 0);
  report(5, 3);
  status = get("/v1/status");
  EXPECT_EQ(status["adopted_generation"], 3) << "the least of the workers";
  EXPECT_EQ(status["workers"][0]["progress"], true);
  EXPECT_EQ(status["workers"][1]["progress"], false);
  EXPECT_EQ(status["workers"][1]["port"], "uplink");
  dataplane_.report->written_ns -= 10'000'000'000;
  EXPECT_EQ(get("/v1/status")["workers"][0]["progress"], false) << "it has stopped to report";
  dataplane_.report->written_ns = maglev::boot_time_ns();
  dataplane_.running = false;
  status = get("/v1/status");
  EXPECT_EQ(status["adopted_generation"], 0);
  EXPECT_EQ(status["workers"][0]["progress"], false);
}

TEST_F(ApiTest, APoolIsShownWithWhatIsWantedFoundAndUsed) {
  answer("web", "b2", HealthVerdict::kDown);
  controller_->tick();
  const Json pool = get("/v1/pools/web");
  EXPECT_EQ(pool["source"], "file");
  EXPECT_EQ(pool["table_size"], 251);
  EXPECT_EQ(pool["placement"], "maglev");
  EXPECT_EQ(pool["table"], controller_->planned("web")->table.hex());
  EXPECT_EQ(pool["backend_count"], 3);
  EXPECT_EQ(pool["in_table_count"], 2);
  EXPECT_EQ(pool["fail_open"], false);
  EXPECT_EQ(pool["health"]["interval_ms"], 1000);
  const Json& b1 = pool["backends"][0];
  EXPECT_EQ(b1["name"], "b1");
  EXPECT_EQ(b1["address"], "198.18.2.11");
  EXPECT_EQ(b1["health"], "up");
  EXPECT_EQ(b1["health_reason"], "connected");
  EXPECT_EQ(b1["in_table"], true);
  EXPECT_EQ(b1["wanted_share"], 0.5);
  EXPECT_EQ(b1["next_hop"]["mac"], "02:00:00:00:00:0b");
  const Json& b2 = pool["backends"][1];
  EXPECT_EQ(b2["state"], "ready");
  EXPECT_EQ(b2["health"], "down");
  EXPECT_EQ(b2["in_table"], false);
  EXPECT_EQ(b2["slots"], 0);
  EXPECT_EQ(pool["backends"][2]["slots"].get<int>() + b1["slots"].get<int>(), 251);
  const Json plain = get("/v1/pools/plain");
  EXPECT_EQ(plain["health"], nullptr);
  EXPECT_EQ(plain["backends"][0]["health"], "unchecked");
}

TEST_F(ApiTest, APoolIsShownWithWhatIsLeftOfBefore) {
  Json pool = get("/v1/pools/web");
  EXPECT_EQ(pool["unsettled_slots"], 0);
  EXPECT_EQ(pool["leaving"], Json::array());
  EXPECT_EQ(pool["flows_known"], "some");
  EXPECT_EQ(pool["sweep_age_ms"], nullptr);
  EXPECT_EQ(pool["backends"][0]["flows_remembered"], nullptr) << "nobody has looked";
  call("DELETE", "/v1/pools/web/backends/b1");
  report(2, 2);
  dataplane_.report->sweep = {5, world_.boot_time_ns() - 70'000'000, 2, {}};
  dataplane_.report->sweep.pools = {{"web", {}, {{0, 1, 4}, {1, 1, 12}, {1, 2, 99}}}};
  pool = get("/v1/pools/web");
  EXPECT_GT(pool["unsettled_slots"], 80);
  EXPECT_EQ(pool["unsettled_slots"], get("/v1/pools")["pools"][1]["unsettled_slots"]);
  EXPECT_EQ(pool["leaving"], (Json::array({{{"name", "b1"}, {"flows_remembered", 4}}})));
  EXPECT_EQ(pool["sweep_age_ms"], 70);
  EXPECT_EQ(pool["backends"][0]["name"], "b2");
  EXPECT_EQ(pool["backends"][0]["flows_remembered"], 12) << "not those of another incarnation";
  EXPECT_EQ(pool["backends"][1]["flows_remembered"], 0);
  const Json backends = get("/v1/pools/web/backends");
  for (const char* same : {"backends", "leaving", "flows_known", "sweep_age_ms"}) {
    EXPECT_EQ(backends[same], pool[same]);
  }
  EXPECT_EQ(get("/v1/pools/plain")["sweep_age_ms"], nullptr) << "it was not looked at";
}

TEST_F(ApiTest, HowManyFlowsAreKnownFollowsFromTheVipsOfThePool) {
  const auto known = [this] { return get("/v1/pools/web/backends")["flows_known"]; };
  const auto add = [this](const char* name, int port, const char* tracking) {
    const Json vip = {{"name", name},      {"address", "198.51.100.10"},
                      {"protocol", "tcp"}, {"port", port},
                      {"pool", "web"},     {"tracking", tracking}};
    EXPECT_EQ(call("POST", "/v1/vips", vip.dump()).status, 201u);
  };
  EXPECT_EQ(known(), "some");
  call("DELETE", "/v1/vips/web-http");
  EXPECT_EQ(known(), "none");
  add("a", 81, "full");
  EXPECT_EQ(known(), "all");
  add("b", 82, "none");
  EXPECT_EQ(known(), "some");
  call("DELETE", "/v1/vips/a");
  EXPECT_EQ(known(), "none");
}

TEST_F(ApiTest, ListsHoldEverything) {
  const Json pools = get("/v1/pools")["pools"];
  ASSERT_EQ(pools.size(), 2u);
  EXPECT_FALSE(pools[0].contains("backends"));
  EXPECT_FALSE(pools[0].contains("health"));
  EXPECT_EQ(get("/v1/pools/web/backends")["backends"].size(), 3u);
  const Json vips = get("/v1/vips")["vips"];
  ASSERT_EQ(vips.size(), 2u);
  Json dns = get("/v1/vips/dns");
  EXPECT_EQ(dns["unusable_backends"], Json::array());
  dns.erase("unusable_backends");
  EXPECT_EQ(vips[0], dns);
  EXPECT_EQ(vips[0]["hash"], "source");
  EXPECT_EQ(vips[0]["source"], "file");
}

TEST_F(ApiTest, TenThousandBackendsAreListedWhole) {
  Pool pool;
  for (uint32_t i = 0; i < 10000; ++i) {
    pool.backends[fmt::format("n{}", i)].address = boost::asio::ip::address_v4(0x0a000000 + i);
  }
  ASSERT_TRUE(controller_->commit(controller_->model().plan_add_pool({"large", pool})));
  EXPECT_EQ(get("/v1/pools/large")["backends"].size(), 10000u);
}

TEST_F(ApiTest, AVipOfEveryKindIsAddedAndShown) {
  const Json vip = {{"name", "six"},
                    {"address", "2001:db8::/64"},
                    {"protocol", "tcp_and_udp"},
                    {"port", 443},
                    {"pool", "web"},
                    {"encapsulation", "gue"},
                    {"hash", "source"},
                    {"fragments", "address"},
                    {"tracking", "changed"},
                    {"echo", "kernel"},
                    {"unserved_ports", "kernel"},
                    {"too_big", "fragment"},
                    {"idle", {{"tcp_s", 300}, {"tcp_closing_s", 10}, {"udp_s", 40}}},
                    {"gue_port", 6081},
                    {"outer_checksum", false}};
  EXPECT_EQ(call("POST", "/v1/vips", vip.dump()).status, 201u);
  Json shown = get("/v1/vips/six");
  EXPECT_EQ(shown["source"], "socket");
  for (const char* own : {"source", "unusable_backends"}) shown.erase(own);
  EXPECT_EQ(shown, vip);
  const ApiAnswer clash = call("POST", "/v1/vips",
                               R"({"name": "other", "address": "2001:db8::/64", "protocol": "udp",
                                   "port": 53, "pool": "web", "echo": "kernel",
                                   "unserved_ports": "kernel"})");
  expect_refused(clash, 409, "clash");
  EXPECT_NE(clash.body["error"]["message"].get<std::string>().find("VIP 'six'"), std::string::npos);
}

TEST_F(ApiTest, BackendsThatAVipOfLayer2CannotUseAreNamed) {
  world_.behind_gateway.insert(boost::asio::ip::make_address("198.18.2.12"));
  EXPECT_EQ(call("POST", "/v1/vips",
                 R"({"name": "l2", "address": "198.51.100.12", "protocol": "tcp", "port": 80,
                     "pool": "web", "encapsulation": "l2"})")
                .status,
            201u);
  const Json unusable = get("/v1/vips/l2")["unusable_backends"];
  ASSERT_EQ(unusable.size(), 1u);
  EXPECT_EQ(unusable[0]["name"], "b2");
  EXPECT_EQ(unusable[0]["reason"],
            "it is behind the gateway 198.18.2.254, but encapsulation l2 needs a backend on link");
  EXPECT_EQ(get("/v1/pools/web")["backends"][1]["next_hop"]["on_link"], false);
}

TEST_F(ApiTest, ABackendIsShownWithWhatFitsOnItsPathAndWhy) {
  Json b1 = get("/v1/pools/web")["backends"][0];
  EXPECT_EQ(b1["path_mtu"],
            (Json{{"bytes", 1500}, {"reason", "interface lb0"}, {"expires_in_s", nullptr}}));
  EXPECT_EQ(b1["outer_source"], "198.18.2.1");
  world_.path_mtus[boost::asio::ip::make_address("198.18.2.11")] = {
      1400, boost::asio::ip::make_address("198.18.2.254"), world_.now + std::chrono::seconds(90)};
  b1 = get("/v1/pools/web")["backends"][0];
  EXPECT_EQ(b1["path_mtu"],
            (Json{{"bytes", 1400}, {"reason", "said by 198.18.2.254"}, {"expires_in_s", 90}}));
  EXPECT_EQ(get("/v1/status")["path_mtu_messages"], (Json{{"taken", 3}, {"ignored", 4}}));
}

TEST_F(ApiTest, StatsAddUp) {
  expect_refused(call("GET", "/v1/stats"), 503, "no_report");
  report(1, 1);
  const Json stats = get("/v1/stats");
  EXPECT_EQ(stats["received"], (Json{{"packets", 30}, {"bytes", 3000}}));
  EXPECT_EQ(stats["verdicts"], (Json{{"forwarded", 27}, {"malformed", 3}}));
  EXPECT_EQ(stats["workers"][1]["verdicts"]["forwarded"], 18);
  EXPECT_EQ(stats["workers"][1]["empty_polls"], 50);
  EXPECT_EQ(stats["ports"][0]["steering_dropped"], 4);
  EXPECT_EQ(stats["vips"][0]["forwarded"]["bytes"], 2700);
  EXPECT_FALSE(stats["vips"][0].contains("pool"));
  EXPECT_EQ(stats["backends"][0]["pool"], "web");
}

TEST_F(ApiTest, ABackendIsAddedDrainedAndRemoved) {
  ApiAnswer answer = call("POST", "/v1/pools/plain/backends",
                          R"({"name": "p2", "address": "198.18.3.2", "weight": 3})");
  EXPECT_EQ(answer.status, 201u) << answer.body;
  EXPECT_EQ(answer.body, (Json{{"generation", 2}}));
  EXPECT_EQ(get("/v1/pools/plain")["backends"][1]["source"], "socket");
  EXPECT_EQ(members("plain").size(), 2u);

  answer = call("PATCH", "/v1/pools/plain/backends/p2", R"({"state": "drain"})");
  EXPECT_EQ(answer.status, 200u) << answer.body;
  EXPECT_EQ(members("plain").size(), 1u);
  answer = call("PATCH", "/v1/pools/plain/backends/p2", R"({"state": "ready", "weight": 0})");
  EXPECT_EQ(answer.status, 200u);
  EXPECT_EQ(members("plain").size(), 1u) << "weight 0 owns no slot";

  answer = call("DELETE", "/v1/pools/plain/backends/p2");
  EXPECT_EQ(answer.status, 200u) << answer.body;
  expect_refused(call("DELETE", "/v1/pools/plain/backends/p2"), 404, "unknown_backend");
}

TEST_F(ApiTest, APoolAndAVipAreAddedAndRemoved) {
  EXPECT_EQ(call("POST", "/v1/pools", R"({"name": "api", "table_size": 251,
      "backends": [{"name": "a1", "address": "10.0.0.1"}, {"name": "a2", "address": "10.0.0.2"}]})")
                .status,
            201u);
  EXPECT_EQ(call("POST", "/v1/vips", R"({"name": "api-vip", "address": "198.51.100.11",
      "protocol": "tcp", "port": "any", "pool": "api"})")
                .status,
            201u);
  EXPECT_EQ(get("/v1/vips/api-vip")["port"], 0);
  expect_refused(call("DELETE", "/v1/pools/api"), 409, "in_use");
  EXPECT_EQ(call("DELETE", "/v1/vips/api-vip").status, 200u);
  EXPECT_EQ(call("DELETE", "/v1/pools/api").status, 200u);
  expect_refused(call("GET", "/v1/pools/api"), 404, "unknown_pool");
  expect_refused(call("GET", "/v1/vips/api-vip"), 404, "unknown_vip");
}

struct BadCall {
  std::string_view method;
  std::string_view target;
  std::string_view body;
  unsigned status;
  std::string_view code;
};

TEST_F(ApiTest, BadCallsAreRefusedAndChangeNothing) {
  const std::string_view backends = "/v1/pools/web/backends";
  const std::string_view b1 = "/v1/pools/web/backends/b1";
  const auto pools = controller_->model().pools();
  const auto vips = controller_->model().vips();
  for (const BadCall& bad : std::vector<BadCall>{
           {"POST", "/v1/pools", "", 400, "bad_json"},
           {"POST", "/v1/pools", "{", 400, "bad_json"},
           {"POST", "/v1/pools", "{'name': 'x'}", 400, "bad_json"},
           {"POST", "/v1/pools", "name: x", 400, "bad_json"},
           {"POST", "/v1/pools", "{\"name\": \"\xff\"}", 400, "bad_json"},
           {"POST", "/v1/pools", "{} {}", 400, "bad_json"},
           {"POST", "/v1/pools", "{}", 400, "bad_request"},
           {"POST", "/v1/pools", "[]", 400, "bad_request"},
           {"POST", "/v1/pools", "null", 400, "bad_request"},
           {"POST", "/v1/pools", "7", 400, "bad_request"},
           {"POST", "/v1/pools", R"({"name": "x", "table_size": 250})", 400, "bad_request"},
           {"POST", "/v1/pools", R"({"name": "x", "table_size": 4294967296})", 400, "bad_request"},
           {"POST", "/v1/pools", R"({"name": "x", "table_size": "251"})", 400, "bad_request"},
           {"POST", "/v1/pools", R"({"name": "x", "colour": 1})", 400, "bad_request"},
           {"POST", "/v1/pools", R"({"name": "x", "name": "y"})", 400, "bad_request"},
           {"POST", "/v1/pools", R"({"name": "x", "placement": "dice"})", 400, "bad_request"},
           {"POST", "/v1/pools", R"({"name": "a/b"})", 400, "bad_request"},
           {"POST", "/v1/pools", R"({"name": "web"})", 409, "exists"},
           {"POST", backends, R"({"name": "x"})", 400, "bad_request"},
           {"POST", backends, R"({"name": "x", "address": "ff02::1"})", 400, "bad_request"},
           {"POST", backends, R"({"name": "b1", "address": "10.0.0.1"})", 409, "exists"},
           {"POST", "/v1/pools/no/backends", R"({"name": "x", "address": "10.0.0.1"})", 404,
            "unknown_pool"},
           {"PATCH", b1, R"({"weight": -1})", 400, "bad_request"},
           {"PATCH", b1, R"({"weight": 1.5})", 400, "bad_request"},
           {"PATCH", b1, R"({"weight": 1e3})", 400, "bad_request"},
           {"PATCH", b1, R"({"weight": 1000001})", 400, "bad_request"},
           {"PATCH", b1, R"({"weight": true})", 400, "bad_request"},
           {"PATCH", b1, R"({"weight": [1]})", 400, "bad_request"},
           {"PATCH", b1, R"({"state": "up"})", 400, "bad_request"},
           {"PATCH", b1, "{}", 400, "bad_request"},
           {"PATCH", b1, R"({"address": "10.0.0.1"})", 409, "fixed"},
           {"PATCH", "/v1/pools/web/backends/no", R"({"weight": 1})", 404, "unknown_backend"},
           {"DELETE", "/v1/pools/web", "", 409, "in_use"},
           {"DELETE", "/v1/pools/no", "", 404, "unknown_pool"},
           {"DELETE", "/v1/vips/no", "", 404, "unknown_vip"},
           {"POST", "/v1/vips",
            R"({"name": "x", "address": "198.51.100.10", "protocol": "tcp", "port": 80,
                "pool": "web"})",
            409, "exists"},
           {"POST", "/v1/vips",
            R"({"name": "x", "address": "198.51.100.11", "protocol": "tcp", "port": 80,
                "pool": "no"})",
            404, "unknown_pool"},
           {"POST", "/v1/vips",
            R"({"name": "x", "address": "198.51.100.11", "protocol": "icmp", "port": 80,
                "pool": "web"})",
            400, "bad_request"},
           {"GET", "/", "", 404, "unknown_path"},
           {"GET", "/v1/pools/", "", 404, "unknown_pool"},
           {"GET", "/v1/pools/web/", "", 404, "unknown_path"},
           {"GET", "/v2/pools", "", 404, "unknown_path"},
           {"GET", "v1/pools", "", 404, "unknown_path"},
           {"GET", "/v1/pools/%ff%00", "", 404, "unknown_pool"},
           {"PUT", "/v1/pools", "{}", 405, "bad_method"},
           {"DELETE", "/v1/status", "", 405, "bad_method"},
           {"DELETE", "/v1/vips/dns?wait=forever", "", 400, "bad_request"},
           {"DELETE", "/v1/vips/dns?timeout_ms=60001", "", 400, "bad_request"},
           {"DELETE", "/v1/vips/dns?timeout_ms=-1", "", 400, "bad_request"},
           {"DELETE", "/v1/vips/dns?timeout_ms=", "", 400, "bad_request"},
       }) {
    SCOPED_TRACE(fmt::format("{} {} {}", bad.method, bad.target, bad.body));
    expect_refused(call(std::string(bad.method), std::string(bad.target), std::string(bad.body)),
                   bad.status, bad.code);
  }
  EXPECT_EQ(controller_->generation(), 1u);
  EXPECT_EQ(controller_->model().pools(), pools);
  EXPECT_EQ(controller_->model().vips(), vips);
}

TEST_F(ApiTest, TheMessageSaysWhereAndWhat) {
  const ApiAnswer answer = call("PATCH", "/v1/pools/web/backends/b1", "{\n  \"weight\": -1\n}");
  EXPECT_EQ(answer.body["error"]["message"],
            "body:2:13: weight: expected a whole number from 0 to 1000000, found '-1'");
}

TEST_F(ApiTest, AMethodThatAPathDoesNotTakeIsToldThoseItTakes) {
  EXPECT_EQ(call("PUT", "/v1/pools/web").allow, "GET, DELETE");
}

TEST_F(ApiTest, ANameInThePathMayBePercentEncoded) {
  ASSERT_EQ(call("POST", "/v1/pools", R"({"name": "a:b"})").status, 201u);
  EXPECT_EQ(get("/v1/pools/a%3Ab")["name"], "a:b");
  EXPECT_EQ(get("/v1/pools/a:b")["name"], "a:b");
}

TEST_F(ApiTest, ADryRunTellsWhatTheChangeThenMoves) {
  const auto slots = [&] {
    std::map<std::string, int> owned;
    const Json pool = get("/v1/pools/web");
    for (const Json& backend : pool["backends"]) {
      if (backend["in_table"]) owned[backend["name"]] = backend["slots"];
    }
    return owned;
  };
  const auto listed = [](const Json& backends) {
    std::map<std::string, int> owned;
    for (const Json& backend : backends) owned[backend["name"]] = backend["slots"];
    return owned;
  };
  const std::string added = R"({"name": "b9", "address": "198.18.2.19", "weight": 3})";
  const std::tuple<const char*, const char*, std::string> changes[] = {
      {"POST", "/v1/pools/web/backends", added},
      {"PATCH", "/v1/pools/web/backends/b1", R"({"weight": 5})"},
      {"PATCH", "/v1/pools/web/backends/b2", R"({"state": "drain"})"},
      {"DELETE", "/v1/pools/web/backends/b3", ""}};
  for (const auto& [method, path, body] : changes) {
    SCOPED_TRACE(path);
    const auto before = slots();
    const Json status = get("/v1/status");
    const ApiAnswer foreseen = call(method, std::string(path) + "?dry_run=true", body);
    ASSERT_EQ(foreseen.status, 200u) << foreseen.body;
    ASSERT_EQ(foreseen.body["pools"].size(), 1u);
    const Json& web = foreseen.body["pools"][0];
    EXPECT_EQ(web["pool"], "web");
    EXPECT_EQ(web["slots"], 251);
    EXPECT_EQ(listed(web["before"]), before);
    EXPECT_EQ(get("/v1/status"), status);
    EXPECT_EQ(slots(), before);

    EXPECT_LT(call(method, path, body).status, 300u);
    if (body == added) answer("web", "b9", HealthVerdict::kUp);
    controller_->tick();
    const auto after = slots();
    EXPECT_EQ(listed(web["after"]), after);
    int gained = 0;
    for (const auto& [name, count] : after) {
      gained += std::max(0, count - (before.contains(name) ? before.at(name) : 0));
    }
    EXPECT_GE(web["moved"], gained);
    EXPECT_LE(web["moved"], gained + 60);
    EXPECT_NEAR(web["ideal_moved"].get<double>(), gained, 3);
  }
  const ApiAnswer of_vip = call("DELETE", "/v1/vips/dns?dry_run=true");
  EXPECT_EQ(of_vip.status, 200u);
  EXPECT_EQ(of_vip.body, Json::parse(R"({"dry_run": true, "pools": []})")) << "no table changes";
  EXPECT_EQ(call("GET", "/v1/vips/dns").status, 200u) << "it is there still";
  expect_refused(call("DELETE", "/v1/pools/web/backends/b8?dry_run=true"), 404, "unknown_backend");
}

TEST_F(ApiTest, AChangeMayWaitForItsAdoption) {
  ApiAnswer answer = call("DELETE", "/v1/vips/dns?wait=adopted&timeout_ms=250");
  ASSERT_TRUE(answer.wait);
  EXPECT_EQ(answer.wait->generation, 2u);
  EXPECT_EQ(answer.wait->timeout_ms, 250u);
  expect_refused(not_adopted_answer(answer, dataplane_), 504, "not_adopted");
  answer = adopted_answer(std::move(answer));
  EXPECT_FALSE(answer.wait);
  EXPECT_EQ(answer.body, (Json{{"generation", 2}, {"adopted", true}}));
}

TEST_F(ApiTest, AnyBytesInABodyAreAnsweredAndNeverThrow) {
  const auto seed = std::random_device()();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937 random(seed);
  const std::string good = R"({"name": "x\u00e9\ud83d\ude00", "address": "10.0.0.1", "weight": 3,
                              "state": "ready"})";
  for (int i = 0; i < 3000; ++i) {
    std::string body = good.substr(0, random() % (good.size() + 1));
    for (uint32_t changes = random() % 4; changes > 0 && !body.empty(); --changes) {
      body[random() % body.size()] = static_cast<char>(random());
    }
    const ApiAnswer answer = call("POST", "/v1/pools/plain/backends", body);
    ASSERT_TRUE(answer.status == 400 || answer.status == 201 || answer.status == 409)
        << answer.status << " for " << body;
    EXPECT_NO_THROW(answer.body.dump(-1, ' ', false, Json::error_handler_t::replace));
  }
}

TEST_F(ApiTest, ADeeplyNestedBodyIsRefused) {
  const std::string deep = std::string(300000, '[') + std::string(300000, ']');
  expect_refused(call("POST", "/v1/pools", deep), 400, "bad_request");
  expect_refused(call("POST", "/v1/pools", R"({"name": )" + deep + "}"), 400, "bad_request");
}

TEST_F(ApiTest, MetricsTellWhatIsWantedFoundAndCounted) {
  answer("web", "b2", HealthVerdict::kDown);
  const auto has = [this](const std::string& line) {
    const ApiAnswer answer = call("GET", "/metrics");
    EXPECT_EQ(answer.status, 200u);
    return answer.metrics.contains("\n" + line + "\n");
  };
  EXPECT_TRUE(has("# TYPE maglev_generation gauge"));
  EXPECT_TRUE(has("maglev_generation 1"));
  EXPECT_TRUE(has("maglev_dataplane_running 0"));
  EXPECT_TRUE(has(R"(maglev_backend_up{pool="web",backend="b1"} 1)"));
  EXPECT_TRUE(has(R"(maglev_backend_up{pool="web",backend="b2"} 0)"));
  EXPECT_FALSE(has(R"(maglev_backend_up{pool="plain",backend="p1"} 0)")) << "it is not checked";
  EXPECT_TRUE(has(R"(maglev_backend_slots{pool="plain",backend="p1"} 251)"));
  EXPECT_TRUE(has(R"(maglev_backend_state{pool="web",backend="b1",state="ready"} 1)"));
  EXPECT_FALSE(has("# TYPE maglev_packets_total counter")) << "there is no report to tell it from";
  report(5, 3);
  EXPECT_TRUE(has("# TYPE maglev_packets_total counter"));
  EXPECT_TRUE(has("maglev_adopted_generation 3"));
  EXPECT_TRUE(has(R"(maglev_packets_total{verdict="forwarded"} 27)"));
  EXPECT_TRUE(has(R"(maglev_vip_bytes_total{vip="web-http",result="dropped"} 300)"));
  EXPECT_TRUE(
      has(R"(maglev_backend_packets_total{pool="web",backend="b1",result="forwarded"} 27)"));
  EXPECT_TRUE(has(R"(maglev_worker_progress{worker="1",port="uplink",queue="1"} 0)"));
  EXPECT_TRUE(has(R"(maglev_port_missed_packets_total{port="uplink"} 1)"));
  EXPECT_TRUE(has(R"(maglev_pool_unsettled_slots{pool="web"} 0)"));
  EXPECT_FALSE(has("# TYPE maglev_sweep_age_seconds gauge"));
  call("DELETE", "/v1/pools/web/backends/b1");
  const Json unsettled = get("/v1/pools/web")["unsettled_slots"];
  EXPECT_TRUE(
      has(fmt::format(R"(maglev_pool_unsettled_slots{{pool="web"}} {})", unsettled.dump())));
  EXPECT_TRUE(has(R"(maglev_pool_leaving_backends{pool="web"} 1)"));
  dataplane_.report->workers[0].flow_room = 1024;
  dataplane_.report->workers[0].flows = 17;
  dataplane_.report->sweep = {5, world_.boot_time_ns() - 2'000'000'000, 2, {}};
  dataplane_.report->sweep.pools = {{"web", {}, {{0, 1, 4}, {1, 1, 12}}},
                                    {"gone", {}, {{0, 1, 4}}}};
  EXPECT_TRUE(has("maglev_sweep_age_seconds 2"));
  EXPECT_TRUE(has(R"(maglev_backend_flows_remembered{pool="web",backend="b2"} 12)"));
  EXPECT_TRUE(has(R"(maglev_backend_flows_remembered{pool="web",backend="b3"} 0)"));
  EXPECT_FALSE(has(R"(maglev_backend_flows_remembered{pool="web",backend="b1"} 4)"));
  EXPECT_TRUE(has(R"(maglev_worker_flow_room{worker="0",port="uplink",queue="0"} 1024)"));
  EXPECT_TRUE(has(R"(maglev_worker_flows{worker="0",port="uplink",queue="0"} 17)"));
}

TEST_F(ApiTest, WhatIsReadOnlyShowsAllAndChangesNothing) {
  const auto ask = [this](std::string method, std::string target, std::string body = {}) {
    return answer_read_only(*controller_, dataplane_,
                            {std::move(method), std::move(target), std::move(body)});
  };
  EXPECT_EQ(ask("GET", "/v1/pools/web").status, 200u);
  EXPECT_EQ(ask("GET", "/metrics").status, 200u);
  expect_refused(ask("DELETE", "/v1/pools/web/backends/b1"), 403, "read_only");
  expect_refused(ask("PATCH", "/v1/pools/web/backends/b1", R"({"weight": 3})"), 403, "read_only");
  EXPECT_EQ(controller_->generation(), 1u);
}

TEST_F(ApiTest, ChangesOfOneRequestAreMadeTogetherInOneGeneration) {
  const std::string changes = R"([
    {"method": "POST", "path": "/v1/pools", "body": {"name": "new", "table_size": 251}},
    {"method": "POST", "path": "/v1/pools/new/backends", "body": {"name": "n1", "address": "198.18.4.1"}},
    {"method": "POST", "path": "/v1/vips", "body": {"name": "new", "address": "198.51.100.20",
     "protocol": "tcp", "port": 80, "pool": "new"}},
    {"method": "PATCH", "path": "/v1/pools/web/backends/b1", "body": {"weight": 2}},
    {"method": "PATCH", "path": "/v1/pools/web/backends/b1", "body": {"state": "drain"}},
    {"method": "DELETE", "path": "/v1/pools/web/backends/b3"}])";
  const Json before = get("/v1/pools");
  const ApiAnswer foreseen = call("POST", "/v1/changes?dry_run=true", changes);
  ASSERT_EQ(foreseen.status, 200u) << foreseen.body;
  EXPECT_EQ(foreseen.body["pools"].size(), 1u) << "there is no table of the new pool before";
  EXPECT_EQ(foreseen.body["pools"][0]["after"].size(), 1u) << "b2 is left";
  EXPECT_EQ(get("/v1/pools"), before);

  const ApiAnswer answer = call("POST", "/v1/changes?wait=adopted", changes);
  ASSERT_EQ(answer.status, 200u) << answer.body;
  EXPECT_EQ(answer.body["generation"], 2);
  EXPECT_EQ(answer.wait->generation, 2u);
  EXPECT_EQ(get("/v1/vips/new")["pool"], "new");
  const Json web = get("/v1/pools/web");
  ASSERT_EQ(web["backends"].size(), 2u);
  EXPECT_EQ(web["backends"][0]["weight"], 2);
  EXPECT_EQ(web["backends"][0]["state"], "drain");
}

TEST_F(ApiTest, WhereOneChangeIsRefusedNoneIsMadeAndItIsNamed) {
  const auto refused = [this](const std::string& changes, unsigned status, std::string_view code) {
    const ApiAnswer answer = call("POST", "/v1/changes", changes);
    expect_refused(answer, status, code);
    return answer.body["error"]["message"].get<std::string>();
  };
  const std::string drain =
      R"({"method": "PATCH", "path": "/v1/pools/web/backends/b1", "body": {"state": "drain"}})";
  EXPECT_EQ(refused("[" + drain + R"(, {"method": "DELETE", "path": "/v1/pools/web/backends/b8"}])",
                    404, "unknown_backend")
                .substr(0, 51),
            "change 2 (DELETE /v1/pools/web/backends/b8): pool '");
  refused("[" + drain + R"(, {"method": "POST", "path": "/v1/changes", "body": []}])", 404,
          "unknown_path");
  refused("[" + drain + R"(, {"method": "POST", "path": "/v1/reload"}])", 404, "unknown_path");
  refused("[" + drain + R"(, {"path": "/v1/pools"}])", 400, "bad_request");
  refused(R"([{"method": "DELETE", "path": "/v1/pools/web/backends/b1"},
              {"method": "POST", "path": "/v1/pools/web/backends",
               "body": {"name": "b1", "address": "198.18.9.9"}}])",
          409, "clash");
  refused(R"([{"method": "DELETE", "path": "/v1/vips/dns"},
              {"method": "DELETE", "path": "/v1/pools/plain"},
              {"method": "POST", "path": "/v1/pools", "body": {"name": "plain"}}])",
          409, "clash");
  refused("[" + drain + R"(, 7])", 400, "bad_request");
  refused("{}", 400, "bad_json");
  refused(R"([{"method": "POST", "path": "/v1/pools", "body": )" + std::string(300000, '[') +
              std::string(300000, ']') + "}]",
          400, "bad_json");
  refused("[" + drain, 400, "bad_json");
  EXPECT_EQ(controller_->generation(), 1u);
  EXPECT_EQ(get("/v1/pools/web")["backends"][0]["state"], "ready");
  EXPECT_EQ(call("POST", "/v1/changes", "[]").body["generation"], 1) << "nothing to do";
}

TEST_F(ApiTest, AChangeThatHasLostARaceIsRefused) {
  EXPECT_EQ(call("GET", "/v1/pools/web").generation, 1u);
  if_match_ = "\"1\"";
  EXPECT_EQ(call("PATCH", "/v1/pools/web/backends/b1", R"({"weight": 2})").generation, 2u);
  const ApiAnswer late = call("PATCH", "/v1/pools/web/backends/b1", R"({"weight": 3})");
  expect_refused(late, 412, "stale");
  EXPECT_EQ(get("/v1/pools/web")["backends"][0]["weight"], 2);
  for (const char* good : {"2", "7, \"2\"", "*"}) {
    if_match_ = good;
    EXPECT_EQ(call("PATCH", "/v1/pools/web/backends/b1", R"({"weight": 2})").status, 200u) << good;
  }
  if_match_ = "soon";
  expect_refused(call("DELETE", "/v1/vips/dns"), 400, "bad_request");
}

TEST_F(ApiTest, AReloadTakesTheFileOrTellsAllThatIsWrongWithIt) {
  EXPECT_EQ(call("POST", "/v1/reload").body["generation"], 1) << "the same file changes nothing";
  const std::string good = text_;
  text_.replace(text_.find("port: 53"), 8, "port: 54");
  EXPECT_EQ(call("POST", "/v1/reload").body["generation"], 2);
  EXPECT_EQ(get("/v1/vips/dns")["port"], 54);
  text_.replace(text_.find("port: 54"), 8, "port: xx");
  const ApiAnswer refused = call("POST", "/v1/reload");
  expect_refused(refused, 422, "bad_file");
  EXPECT_NE(refused.body["error"]["message"].get<std::string>().find("test.yaml:"),
            std::string::npos);
  expect_refused(call("POST", "/v1/reload?dry_run=true"), 400, "bad_request");
  EXPECT_EQ(get("/v1/vips/dns")["port"], 54);
}

TEST_F(ApiTest, AFlowIsExplained) {
  const Json flow = get("/v1/flows/tcp/203.0.113.7:40000/198.51.100.10:80");
  EXPECT_EQ(flow["vip"], "web-http");
  EXPECT_EQ(flow["slots"], 251);
  EXPECT_EQ(flow["hash"].get<std::string>().size(), 8u);
  EXPECT_EQ(flow["slot"], std::stoull(flow["hash"].get<std::string>(), nullptr, 16) * 251 >> 32);
  EXPECT_EQ(flow["verdict"], "forwarded to the backend that owns the slot");
  world_.unreachable.insert(boost::asio::ip::make_address(flow["address"].get<std::string>()));
  const std::string again = "/v1/flows/tcp/203.0.113.7:40000/198.51.100.10:80";
  EXPECT_EQ(get(again)["verdict"], "dropped: the way to the backend is not known");

  EXPECT_EQ(get("/v1/flows/udp/203.0.113.7:1/198.51.100.10:53")["vip"], "dns");
  const auto verdict = [this](const std::string& path) {
    const Json view = get(path);
    EXPECT_FALSE(view.contains("vip"));
    return view["verdict"].get<std::string>();
  };
  EXPECT_TRUE(verdict("/v1/flows/tcp/203.0.113.7:1/198.51.100.11:80").starts_with("no VIP has"));
  EXPECT_TRUE(verdict("/v1/flows/tcp/203.0.113.7:1/198.51.100.10:81").ends_with("it is dropped"));
  EXPECT_TRUE(
      verdict("/v1/flows/tcp/%5B2001:db8::1%5D:1/%5B2001:db8::2%5D:81").starts_with("no VIP"));
  for (const char* path :
       {"/v1/flows/sctp/203.0.113.7:1/198.51.100.10:80",
        "/v1/flows/tcp/203.0.113.7/198.51.100.10:80", "/v1/flows/tcp/203.0.113.7:1/198.51.100.10:0",
        "/v1/flows/tcp/203.0.113.7:1/%5B2001:db8::2%5D:80"}) {
    expect_refused(call("GET", path), 400, "bad_request");
  }
}

TEST_F(ApiTest, OfASlotThatChangedHandsAFlowsPastIsExplained) {
  const std::string path = "/v1/flows/tcp/203.0.113.7:40000/198.51.100.10:80";
  const Json before = get(path);
  EXPECT_EQ(before["tracking"], "changed");
  EXPECT_FALSE(before.contains("fallback"));
  const std::string owner = before["backend"];
  call("PATCH", "/v1/pools/web/backends/" + owner, R"({"state": "drain"})");
  const Json pending = get(path);
  EXPECT_NE(pending["backend"], owner);
  EXPECT_EQ(pending["fallback"], owner);
  EXPECT_EQ(pending["pending_s"], 3);
  EXPECT_EQ(pending["inherit_s"], 910);
  EXPECT_EQ(pending["verdict"],
            fmt::format("the slot has changed hands: a flow that is remembered keeps its backend, "
                        "one that began before goes to '{}', while that serves, for 910 s more (a "
                        "new one too, for 3 s); any other is forwarded to the backend that owns "
                        "the slot",
                        owner));
  pass(std::chrono::milliseconds(100'500));
  EXPECT_EQ(get(path)["inherit_s"], 810);
  EXPECT_EQ(get(path)["pending_s"], 0);
  call("DELETE", "/v1/pools/web/backends/" + owner);
  EXPECT_EQ(get(path)["fallback"], owner) << "its name is known as long as the past is";
  pass(std::chrono::seconds(1000));
  EXPECT_EQ(get(path)["verdict"],
            "the slot has changed hands: a flow that is remembered keeps its backend; any other is "
            "forwarded to the backend that owns the slot");
}

TEST_F(ApiTest, WhereEveryFlowIsTrackedThatIsExplained) {
  call("DELETE", "/v1/vips/web-http");
  call("POST", "/v1/vips",
       R"({"name": "full", "address": "198.51.100.10", "protocol": "tcp", "port": 80,
           "pool": "web", "tracking": "full"})");
  const Json flow = get("/v1/flows/tcp/203.0.113.7:40000/198.51.100.10:80");
  EXPECT_EQ(flow["verdict"],
            "a flow that is remembered keeps its backend; any other is forwarded to the backend "
            "that owns the slot");
  EXPECT_FALSE(flow.contains("fallback"));
}

}  // namespace
}  // namespace maglev
