#include "control/controller.h"

#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>

#include <algorithm>
#include <sstream>

#include "tests/control/fixtures.h"

namespace maglev {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using Names = std::vector<std::string>;

Backend backend_at(std::string_view address) {
  return {boost::asio::ip::make_address_v4(address)};
}

// The root in place.
struct Root {
  std::vector<std::byte> file;
  RootView view;
};
Root read_root(const std::string& directory) {
  auto file = read_whole_file(directory + "/run/root", 1 << 20);
  EXPECT_TRUE(file) << file.error();
  const auto view = check_root_file(*file);
  EXPECT_TRUE(view) << view.error();
  return {std::move(*file), *view};
}

TEST_F(ControllerTest, ThePublishedTreeIsWholeAndFitsTheConfiguration) {
  start_healthy();
  const Root root = read_root(directory_.path());
  EXPECT_EQ(root.view.generation, 1u);
  EXPECT_EQ(root.view.hash_seed, 0x9e3779b97f4a7c15u);
  ASSERT_EQ(root.view.pools.size(), 2u);
  EXPECT_EQ(root.view.vip_names, (std::vector<std::string_view>{"dns", "web-http"}));
  for (const auto& [name, history] : root.view.pools) {
    const auto pool_file = read_whole_file(directory_.path("/run/pools/" + name.hex()), 1 << 20);
    ASSERT_TRUE(pool_file);
    const auto pool = check_pool_file(*pool_file);
    ASSERT_TRUE(pool) << pool.error();
    const auto table_file =
        read_whole_file(directory_.path("/run/tables/" + pool->table.hex()), 1 << 20);
    ASSERT_TRUE(table_file);
    const auto table = check_table_file(*table_file);
    ASSERT_TRUE(table) << table.error();
    EXPECT_TRUE(check_pool_fits_table(*pool, *table));
  }
}

TEST_F(ControllerTest, AtTheStartTheFirstPublicationWaitsForTheFirstChecks) {
  start();
  EXPECT_EQ(controller_->generation(), 0u);
  answer("web", "b1", HealthVerdict::kUp);
  pass(100ms);
  answer("web", "b2", HealthVerdict::kDown);
  pass(100ms);
  EXPECT_EQ(controller_->generation(), 0u);
  answer("web", "b3", HealthVerdict::kUp);
  pass(100ms);
  EXPECT_EQ(controller_->generation(), 1u);
  EXPECT_EQ(members("web"), (Names{"b1", "b3"}));
}

TEST_F(ControllerTest, TheWaitForTheFirstChecksIsBounded) {
  start();
  answer("web", "b1", HealthVerdict::kUp);
  pass(1000ms);
  EXPECT_EQ(controller_->generation(), 0u);
  pass(1000ms);
  EXPECT_EQ(controller_->generation(), 1u);
  EXPECT_EQ(members("web"), Names{"b1"}) << "what did not answer in time does not enter";
}

TEST_F(ControllerTest, TheFirstPublicationWaitsAMomentForNextHops) {
  const auto b2 = boost::asio::ip::make_address_v4("198.18.2.12");
  world_.unreachable.insert(b2);
  start_healthy();
  EXPECT_EQ(controller_->generation(), 0u);
  world_.unreachable.clear();
  controller_->next_hops_changed({b2});
  pass(100ms);
  EXPECT_EQ(controller_->generation(), 1u);
  EXPECT_EQ(controller_->planned("web")->unresolved, 0u);
}

// What the controller logs while it starts with this placement in place of web's own.
class PlacementLogTest : public ControllerTest {
 protected:
  std::string log_with(const std::string& placement) {
    const auto insert_before = [&](const std::string& place, const std::string& text) {
      text_.insert(text_.find(place), text);
    };
    insert_before("table_size: 251", "placement: " + placement + "\n    ");
    insert_before("address: 198.18.2.12", "weight: 1000000, ");
    std::ostringstream log;
    const auto usual = spdlog::default_logger();
    spdlog::set_default_logger(std::make_shared<spdlog::logger>(
        "", std::make_shared<spdlog::sinks::ostream_sink_st>(log)));
    start_healthy();
    const auto b1 = boost::asio::ip::make_address("198.18.2.11");
    world_.unreachable.insert(b1);
    controller_->next_hops_changed({b1});
    pass(100ms);
    spdlog::set_default_logger(usual);
    return log.str();
  }
};

TEST_F(PlacementLogTest, BackendsLeftWithoutASlotAreToldOnce) {
  const std::string log = log_with("ring");
  const size_t told = log.find("pool web: 2 of 3 backends own no slot");
  ASSERT_NE(told, std::string::npos) << log;
  EXPECT_EQ(log.find("own no slot", told + 40), std::string::npos) << log;
}

TEST_F(PlacementLogTest, MaglevLeavesNoneWithoutASlot) {
  EXPECT_EQ(log_with("maglev").find("own no slot"), std::string::npos);
}

TEST_F(ControllerTest, ABackendWithoutANextHopDoesNotHoldUpTheStartForLong) {
  world_.unreachable.insert(boost::asio::ip::make_address_v4("198.18.2.12"));
  start_healthy();
  pass(1000ms);
  EXPECT_EQ(controller_->generation(), 1u);
  EXPECT_EQ(controller_->planned("web")->unresolved, 1u);
}

TEST_F(ControllerTest, ARestartPublishesNothingNew) {
  start_healthy();
  answer("web", "b2", HealthVerdict::kDown);
  pass(100ms);
  ASSERT_EQ(controller_->generation(), 2u);
  restart();
  EXPECT_EQ(controller_->generation(), 2u);
  EXPECT_EQ(members("web"), (Names{"b1", "b3"})) << "what was down is down until it is checked";
  pass(10s);
  EXPECT_EQ(controller_->generation(), 2u);
}

TEST_F(ControllerTest, ARememberedVerdictSpeaksOnlyForWhatWasChecked) {
  start_healthy();
  stop();
  text_.replace(text_.find("198.18.2.12"), 11, "198.18.2.99");
  start();
  for (const HealthTarget& target : world_.targets) {
    EXPECT_EQ(target.initial, target.backend == "b2" ? HealthVerdict::kUnknown : HealthVerdict::kUp)
        << target.backend;
  }
}

TEST_F(ControllerTest, NothingIsRememberedOfAPoolThatLeftTheFile) {
  start_healthy();
  stop();
  const size_t pool = text_.find("  - name: plain");
  text_.erase(pool, text_.find("vips:") - pool);
  text_.erase(text_.find("  - {name: dns"));
  start();
  EXPECT_EQ(controller_->generation(), 2u);
  stop();
  const auto opened = State::open(directory_.path("/state"));
  ASSERT_TRUE(opened) << opened.error();
  EXPECT_TRUE(opened->remembered.numberings.contains("web"));
  EXPECT_FALSE(opened->remembered.numberings.contains("plain"));
}

TEST_F(ControllerTest, TheGenerationSurvivesTheLossOfAnyOneStore) {
  start_healthy();
  for (int change = 0; change < 5; ++change) {
    answer("web", "b2", change % 2 == 0 ? HealthVerdict::kDown : HealthVerdict::kUp);
    pass(100ms);
  }
  ASSERT_EQ(controller_->generation(), 6u);

  stop();
  fs::remove(directory_.path("/run/root"));
  start();
  pass(10s);
  EXPECT_EQ(controller_->generation(), 7u) << "the root was lost";

  stop();
  fs::remove_all(directory_.path("/state"));
  start_healthy();
  EXPECT_EQ(controller_->generation(), 8u) << "the durable state was lost";

  stop();
  fs::remove_all(directory_.path("/state"));
  fs::remove_all(directory_.path("/run"));
  reported_generation_ = 8;
  start_healthy();
  EXPECT_EQ(controller_->generation(), 9u) << "only the report was left";
}

TEST_F(ControllerTest, AnAbsurdGenerationInTheReportIsNotFollowed) {
  reported_generation_ = UINT64_MAX;
  start_healthy();
  EXPECT_EQ(controller_->generation(), 1u);
}

TEST_F(ControllerTest, GenerationsGoOnAfterTheLargestThatAReportMayTell) {
  reported_generation_ = uint64_t{1} << 62;
  start_healthy();
  ASSERT_EQ(controller_->generation(), (uint64_t{1} << 62) + 1);
  stop();
  reported_generation_ = 0;
  start();
  pass(10s);
  EXPECT_GE(controller_->generation(), (uint64_t{1} << 62) + 1);
}

TEST_F(ControllerTest, AChangeBySocketIsPublishedAtOnce) {
  start_healthy();
  const auto generation = controller_->commit(
      controller_->model().plan_patch_backend("web", "b1", {{}, BackendState::kDrain}));
  ASSERT_TRUE(generation) << generation.error().message;
  EXPECT_EQ(*generation, 2u);
  EXPECT_EQ(read_root(directory_.path()).view.generation, 2u);
  EXPECT_EQ(members("web"), (Names{"b2", "b3"}));
}

TEST_F(ControllerTest, AChangeThatChangesNothingNamesTheGenerationInForce) {
  start_healthy();
  const auto generation =
      controller_->commit(controller_->model().plan_patch_backend("web", "b1", {1, {}}));
  ASSERT_TRUE(generation);
  EXPECT_EQ(*generation, 1u);
}

TEST_F(ControllerTest, WhatWasSetBySocketSurvivesARestart) {
  start_healthy();
  const auto& model = controller_->model();
  ASSERT_TRUE(
      controller_->commit(model.plan_patch_backend("web", "b1", {5, BackendState::kDrain})));
  ASSERT_TRUE(controller_->commit(model.plan_remove_backend("web", "b2")));
  ASSERT_TRUE(controller_->commit(model.plan_add_pool({"api", {}})));
  ASSERT_TRUE(controller_->commit(model.plan_add_backend("api", {"a1", backend_at("10.0.0.1")})));
  ASSERT_TRUE(controller_->commit(model.plan_remove_vip("dns")));
  const auto pools = model.pools();
  const auto vips = model.vips();
  const uint64_t generation = controller_->generation();
  restart();
  EXPECT_EQ(controller_->model().pools(), pools);
  EXPECT_EQ(controller_->model().vips(), vips);
  EXPECT_EQ(controller_->generation(), generation);
}

TEST_F(ControllerTest, ANewBackendEntersAfterItsFirstSuccess) {
  start_healthy();
  ASSERT_TRUE(controller_->commit(
      controller_->model().plan_add_backend("web", {"b4", backend_at("198.18.2.14")})));
  EXPECT_EQ(members("web"), (Names{"b1", "b2", "b3"}));
  answer("web", "b4", HealthVerdict::kUp);
  pass(100ms);
  EXPECT_EQ(members("web"), (Names{"b1", "b2", "b3", "b4"}));
}

TEST_F(ControllerTest, ARemovedBackendLeavesNoVerdictToOneThatTakesItsName) {
  start_healthy();
  const auto& model = controller_->model();
  ASSERT_TRUE(controller_->commit(model.plan_remove_backend("web", "b1")));
  ASSERT_TRUE(
      controller_->commit(model.plan_add_backend("web", {"b1", backend_at("198.18.2.11")})));
  EXPECT_EQ(members("web"), (Names{"b2", "b3"}));
  restart();
  ASSERT_TRUE(controller_->commit(controller_->model().plan_remove_vip("dns")));
  EXPECT_EQ(members("web"), (Names{"b2", "b3"}));
}

TEST_F(ControllerTest, ANewPoolServesAtOnceAndItsDeadBackendsLeaveAsTheyAreFound) {
  start_healthy();
  Pool pool;
  pool.settings.health = {HealthType::kTcp, 80};
  pool.backends = {{"x1", backend_at("10.0.0.1")}, {"x2", backend_at("10.0.0.2")}};
  ASSERT_TRUE(controller_->commit(controller_->model().plan_add_pool({"api", pool})));
  EXPECT_EQ(members("api"), (Names{"x1", "x2"}));
  answer("api", "x1", HealthVerdict::kUp);
  pass(100ms);
  EXPECT_EQ(members("api"), (Names{"x1", "x2"})) << "the first to answer does not take it all";
  answer("api", "x2", HealthVerdict::kDown);
  pass(100ms);
  EXPECT_EQ(members("api"), Names{"x1"});
}

TEST_F(ControllerTest, ManyFlipsBetweenTicksAreOnePublication) {
  start_healthy();
  answer("web", "b1", HealthVerdict::kDown);
  answer("web", "b2", HealthVerdict::kDown);
  answer("web", "b1", HealthVerdict::kUp);
  EXPECT_EQ(controller_->generation(), 1u);
  pass(100ms);
  EXPECT_EQ(controller_->generation(), 2u);
  EXPECT_EQ(members("web"), (Names{"b1", "b3"}));
}

TEST_F(ControllerTest, AFlipThatIsTakenBackBeforeTheTickPublishesNothing) {
  start_healthy();
  answer("web", "b1", HealthVerdict::kDown);
  answer("web", "b1", HealthVerdict::kUp);
  pass(100ms);
  EXPECT_EQ(controller_->generation(), 1u);
}

TEST_F(ControllerTest, WhenAllAreDownAllReadyOnesServeUntilTheFirstRecovers) {
  start_healthy();
  for (const char* backend : {"b1", "b2", "b3"}) answer("web", backend, HealthVerdict::kDown);
  pass(100ms);
  EXPECT_EQ(members("web").size(), 3u);
  EXPECT_TRUE(controller_->planned("web")->membership.fail_open);
  answer("web", "b2", HealthVerdict::kUp);
  pass(100ms);
  EXPECT_EQ(members("web"), Names{"b2"});
}

TEST_F(ControllerTest, AChangedNextHopIsPublishedAndLeavesTheTableAlone) {
  start_healthy();
  const Checksum table = controller_->planned("web")->table;
  const auto b1 = boost::asio::ip::make_address_v4("198.18.2.11");
  world_.unreachable.insert(b1);
  controller_->next_hops_changed({b1});
  pass(100ms);
  EXPECT_EQ(controller_->generation(), 2u);
  EXPECT_EQ(controller_->planned("web")->table, table);
  EXPECT_EQ(controller_->planned("web")->unresolved, 1u);
}

TEST_F(ControllerTest, EveryBackendIsWatchedAndCheckedAndNoneThatIsGone) {
  start_healthy();
  EXPECT_EQ(world_.watched.size(), 4u);
  EXPECT_EQ(world_.targets.size(), 3u) << "plain has no checks";
  ASSERT_TRUE(controller_->commit(controller_->model().plan_remove_backend("web", "b1")));
  EXPECT_EQ(world_.watched.size(), 3u);
  EXPECT_EQ(world_.targets.size(), 2u);
}

TEST_F(ControllerTest, DamageToALiveFileIsMendedUnderANewGeneration) {
  start_healthy();
  const PlannedPool& plain = *controller_->planned("plain");
  uint64_t generation = 1;
  for (const std::string& path :
       {directory_.path("/run/root"), directory_.path("/run/tables/" + plain.table.hex()),
        directory_.path("/run/pools/" + plain.pool.hex())}) {
    const auto good = read_whole_file(path, 1 << 20);
    pass(1s);
    ASSERT_EQ(controller_->generation(), generation) << "nothing was damaged";
    fs::resize_file(path, 77);
    pass(1s);
    EXPECT_EQ(controller_->generation(), ++generation) << path;
    fs::remove(path);
    pass(1s);
    EXPECT_EQ(controller_->generation(), ++generation) << path;
    EXPECT_EQ(read_whole_file(path, 1 << 20)->size(), good->size());
    EXPECT_EQ(read_root(directory_.path()).view.generation, generation);
  }
  restart();
  EXPECT_EQ(controller_->generation(), generation);
}

TEST_F(ControllerTest, AFailedPublicationIsToldAndTriedAgain) {
  start_healthy();
  fs::remove_all(directory_.path("/run/pools"));
  std::ofstream(directory_.path("/run/pools")) << "in the way";
  const auto refused = controller_->commit(
      controller_->model().plan_patch_backend("web", "b1", {{}, BackendState::kDrain}));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, "not_published");
  EXPECT_EQ(controller_->generation(), 1u);
  fs::remove(directory_.path("/run/pools"));
  fs::create_directory(directory_.path("/run/pools"));
  pass(1000ms);
  EXPECT_GT(controller_->generation(), 1u);
  EXPECT_EQ(members("web"), (Names{"b2", "b3"}));
  read_root(directory_.path());
}

// The published record of a backend of pool `web`.
BackendRecord published(const std::string& directory, std::string_view backend) {
  const Root root = read_root(directory);
  for (const auto& [name, history] : root.view.pools) {
    const auto file = read_whole_file(directory + "/run/pools/" + name.hex(), 1 << 20);
    const auto pool = check_pool_file(*file);
    if (!pool || pool->name != "web") continue;
    const auto found = std::ranges::find(pool->backend_names, backend);
    return pool->backends[static_cast<size_t>(found - pool->backend_names.begin())];
  }
  return {};
}

TEST_F(ControllerTest, WhatARouterSaysOfABackendsPathIsPublished) {
  start_healthy();
  EXPECT_EQ(published(directory_.path(), "b2").path_mtu_bytes, 1500);
  const auto b2 = boost::asio::ip::make_address("198.18.2.12");
  world_.path_mtus[b2] = {1400, boost::asio::ip::make_address("198.18.2.254"), world_.now + 600s};
  controller_->path_mtus_changed({b2});
  pass(100ms);
  EXPECT_EQ(controller_->generation(), 2u);
  EXPECT_EQ(published(directory_.path(), "b1").path_mtu_bytes, 1500);
  EXPECT_EQ(published(directory_.path(), "b2").path_mtu_bytes, 1400);
  EXPECT_EQ(controller_->way_out_of(b2).path_mtu.reason, "said by 198.18.2.254");
  world_.path_mtus[b2].mtu_bytes = 9000;  // no less than the interface has
  controller_->path_mtus_changed({b2});
  pass(100ms);
  EXPECT_EQ(published(directory_.path(), "b2").path_mtu_bytes, 1500);
}

TEST_F(ControllerTest, OnlyPacketsThatTheDataplaneMaySendAreOurs) {
  text_ +=
      "  - {name: gue, address: 198.51.100.11, protocol: tcp, port: 80, pool: web, "
      "encapsulation: gue, gue_port: 6081}\n";
  start_healthy();
  const auto is_ours = [&](const char* source, const char* destination, uint8_t protocol,
                           uint16_t port = 0) {
    return controller_->is_outer_packet({boost::asio::ip::make_address(source),
                                         boost::asio::ip::make_address(destination), protocol,
                                         port});
  };
  for (const uint8_t protocol : {uint8_t{4}, uint8_t{41}, uint8_t{47}}) {
    EXPECT_TRUE(is_ours("198.18.2.1", "198.18.2.11", protocol));
  }
  EXPECT_TRUE(is_ours("198.18.2.1", "198.18.2.11", 17, 6081));
  EXPECT_FALSE(is_ours("198.18.2.1", "198.18.2.11", 17, 6080)) << "a port of no VIP";
  EXPECT_FALSE(is_ours("198.18.2.1", "198.18.2.11", 6)) << "TCP";
  EXPECT_FALSE(is_ours("198.18.2.2", "198.18.2.11", 4)) << "another source";
  world_.unreachable.insert(boost::asio::ip::make_address("198.18.2.99"));
  EXPECT_FALSE(is_ours("198.18.2.1", "198.18.2.99", 4)) << "no next hop";
}

TEST_F(ControllerTest, IPv6BackendsAndThoseBehindAGatewayArePublishedAsSuch) {
  text_.replace(text_.find("198.18.2.12"), 11, "\"2001:db8:2::12\"");
  world_.behind_gateway.insert(boost::asio::ip::make_address("198.18.2.13"));
  start_healthy();
  const BackendRecord b1 = published(directory_.path(), "b1");
  EXPECT_NE(b1.flags & kBackendOnLink, 0);
  EXPECT_EQ(b1.outer_source_prefix_length, 32);
  const BackendRecord b2 = published(directory_.path(), "b2");
  EXPECT_EQ(b2.family, AddressFamily::kIpv6);
  EXPECT_EQ(b2.address, to_record(boost::asio::ip::make_address("2001:db8:2::12")));
  EXPECT_EQ(b2.outer_source, to_record(boost::asio::ip::make_address("2001:db8:2::1")));
  EXPECT_EQ(b2.outer_source_prefix_length, 128);
  EXPECT_EQ(published(directory_.path(), "b3").flags & kBackendOnLink, 0);
}

class ReloadTest : public ControllerTest {
 protected:
  // The sample file with one text replaced.
  std::expected<void, std::vector<std::string>> reload_with(std::string_view what,
                                                            std::string_view by) {
    std::string text = text_;
    text.replace(text.find(what), what.size(), by);
    auto configuration = read_configuration(text, "test.yaml");
    EXPECT_TRUE(configuration) << configuration.error().front();
    const auto taken = controller_->reload(std::move(*configuration));
    controller_->tick();
    return taken;
  }
};

TEST_F(ReloadTest, AnUnchangedFileChangesNothing) {
  start_healthy();
  answer("web", "b2", HealthVerdict::kDown);
  pass(100ms);
  ASSERT_TRUE(reload_with("name: web", "name: web"));
  EXPECT_EQ(controller_->generation(), 2u);
  EXPECT_EQ(members("web"), (Names{"b1", "b3"})) << "what is down stays down";
}

TEST_F(ReloadTest, WhatIsNewInTheFileCountsAndTheSocketStaysLaidOverIt) {
  start_healthy();
  ASSERT_TRUE(controller_->commit(
      controller_->model().plan_patch_backend("web", "b1", {{}, BackendState::kDrain})));
  ASSERT_TRUE(reload_with("- {name: b3, address: 198.18.2.13}",
                          "- {name: b3, address: 198.18.2.13, weight: 4}"));
  EXPECT_EQ(controller_->model().pools().at("web").backends.at("b3").weight, 4u);
  EXPECT_EQ(members("web"), (Names{"b2", "b3"}));
}

TEST_F(ReloadTest, WhatIsFixedIsRefusedWithWhatToDoAndNothingChanges) {
  start_healthy();
  const auto pools = controller_->model().pools();
  for (const auto& [what, by] : std::vector<std::pair<std::string, std::string>>{
           {"table_size: 251", "table_size: 257"},
           {"table_size: 251", "table_size: 251\n    placement: ring"},
           {"hash: source", "hash: five_tuple"},
           {"hash: source", "hash: source, fragments: address"},
           {"9e3779b97f4a7c15", "0000000000000001"},
           {"state: ", "state: /elsewhere"},
           {"interface: lb0", "interface: lb1"}}) {
    const auto taken = reload_with(what, by);
    ASSERT_FALSE(taken) << what;
    EXPECT_EQ(taken.error().size(), 1u) << what;
  }
  EXPECT_EQ(controller_->model().pools(), pools);
  EXPECT_EQ(controller_->generation(), 1u);
}

TEST_F(ReloadTest, WhatWaitsForTheDataplanesNextStartIsNamed) {
  start_healthy();
  std::ostringstream log;
  const auto usual = spdlog::default_logger();
  spdlog::set_default_logger(std::make_shared<spdlog::logger>(
      "test", std::make_shared<spdlog::sinks::ostream_sink_st>(log)));
  EXPECT_TRUE(reload_with("name: web", "name: web"));
  EXPECT_EQ(log.str().find("maglev-dataplane"), std::string::npos) << log.str();
  EXPECT_TRUE(reload_with("cores: [1]", "cores: [2]\n  memory_mib: 512"));
  spdlog::set_default_logger(usual);
  EXPECT_NE(
      log.str().find("dataplane: cores, memory_mib: in force once maglev-dataplane is started"),
      std::string::npos)
      << log.str();
  EXPECT_EQ(controller_->generation(), 1u);
}

TEST_F(ReloadTest, ANewPrefixOfOuterSourcesIsPublished) {
  start_healthy();
  ASSERT_TRUE(reload_with("dataplane:", "outer_source_prefixes: [198.18.64.0/24]\ndataplane:"));
  EXPECT_EQ(controller_->generation(), 2u);
  const BackendRecord b1 = published(directory_.path(), "b1");
  EXPECT_EQ(b1.outer_source, to_record(boost::asio::ip::make_address("198.18.64.0")));
  EXPECT_EQ(b1.outer_source_prefix_length, 24);
}

TEST_F(ReloadTest, AFileThatTakesThePoolFromAVipOfTheSocketIsRefused) {
  start_healthy();
  Vip vip;
  vip.prefix = *parse_prefix("198.51.100.77");
  vip.pool = "plain";
  ASSERT_TRUE(controller_->commit(controller_->model().plan_remove_vip("dns")));
  ASSERT_TRUE(controller_->commit(controller_->model().plan_add_vip({"extra", vip})));
  const size_t pools = text_.find("  - name: plain");
  const size_t vips = text_.find("vips:");
  const size_t dns = text_.find("  - {name: dns");
  const std::string text = text_.substr(0, pools) + text_.substr(vips, dns - vips);
  auto configuration = read_configuration(text, "test.yaml");
  ASSERT_TRUE(configuration) << configuration.error().front();
  const auto taken = controller_->reload(std::move(*configuration));
  ASSERT_FALSE(taken);
  EXPECT_NE(taken.error()[0].find("VIP 'extra'"), std::string::npos) << taken.error()[0];
}

TEST_F(ReloadTest, AFileThatLeavesNoSlotToABackendOfTheSocketIsRefused) {
  start_healthy();
  for (int i = 0; i < 251 - 3; ++i) {
    const auto added = controller_->model().plan_add_backend(
        "web", {fmt::format("s{}", i), {boost::asio::ip::make_address_v4("198.18.2.99")}});
    ASSERT_TRUE(controller_->commit(added));
  }
  const auto taken = reload_with("- {name: b3, address: 198.18.2.13}",
                                 "- {name: b3, address: 198.18.2.13}\n"
                                 "      - {name: b4, address: 198.18.2.14}");
  ASSERT_FALSE(taken);
  EXPECT_NE(taken.error()[0].find("backend 's99'"), std::string::npos) << taken.error()[0];
  EXPECT_FALSE(controller_->model().pools().at("web").backends.contains("b4"));
}

}  // namespace
}  // namespace maglev
