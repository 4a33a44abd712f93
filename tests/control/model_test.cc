#include "control/model.h"

#include <gtest/gtest.h>

#include "tests/control/fixtures.h"

namespace maglev {
namespace {

using boost::asio::ip::make_address_v4;

Configuration sample() {
  return *read_configuration(sample_configuration("/run/test"), "test.yaml");
}

class ModelTest : public testing::Test {
 protected:
  ModelTest() : configuration_(sample()), model_(configuration_.pools, configuration_.vips) {}

  void carry_out(const std::expected<Overrides, Refusal>& planned) {
    ASSERT_TRUE(planned) << planned.error().message;
    model_.apply(*planned);
  }

  // What the next process makes of the file and of what was remembered.
  std::pair<Model, std::vector<Model::Dropped>> next_process() const {
    Model next(configuration_.pools, configuration_.vips);
    auto dropped = next.restore(model_.overrides());
    return {std::move(next), std::move(dropped)};
  }

  void expect_next_process_agrees() const {
    const auto [next, dropped] = next_process();
    EXPECT_TRUE(dropped.empty());
    EXPECT_EQ(next.pools(), model_.pools());
    EXPECT_EQ(next.vips(), model_.vips());
  }

  static Backend backend(std::string_view address, uint32_t weight = 1) {
    return {make_address_v4(address), weight};
  }
  static Vip vip(std::string_view address, uint16_t port, std::string pool) {
    Vip vip;
    vip.prefix = *parse_prefix(address);
    vip.port = port;
    vip.pool = std::move(pool);
    return vip;
  }
  template <typename T>
  static std::string_view code(const std::expected<T, Refusal>& result) {
    return result ? "" : result.error().code;
  }

  Configuration configuration_;
  Model model_;
};

TEST_F(ModelTest, TheFileAloneIsTheIntent) {
  EXPECT_EQ(model_.pools(), configuration_.pools);
  EXPECT_EQ(model_.vips(), configuration_.vips);
  EXPECT_TRUE(model_.overrides().empty());
}

TEST_F(ModelTest, PlanningChangesNothing) {
  ASSERT_TRUE(model_.plan_remove_backend("web", "b1"));
  EXPECT_EQ(model_.pools(), configuration_.pools);
}

TEST_F(ModelTest, WhatIsNotThereIsRefusedByName) {
  EXPECT_EQ(code(model_.find_pool("nope")), "unknown_pool");
  EXPECT_EQ(code(model_.find_vip("nope")), "unknown_vip");
  EXPECT_EQ(code(model_.plan_remove_pool("nope")), "unknown_pool");
  EXPECT_EQ(code(model_.plan_remove_vip("nope")), "unknown_vip");
  EXPECT_EQ(code(model_.plan_add_backend("nope", {"x", backend("10.0.0.1")})), "unknown_pool");
  EXPECT_EQ(code(model_.plan_patch_backend("web", "nope", {1, {}})), "unknown_backend");
  EXPECT_EQ(code(model_.plan_patch_backend("nope", "b1", {1, {}})), "unknown_pool");
  EXPECT_EQ(code(model_.plan_remove_backend("web", "nope")), "unknown_backend");
  EXPECT_EQ(code(model_.plan_add_vip({"v", vip("10.0.0.1", 1, "nope")})), "unknown_pool");
}

TEST_F(ModelTest, WhatIsTakenIsRefused) {
  EXPECT_EQ(code(model_.plan_add_pool({"web", {}})), "exists");
  EXPECT_EQ(code(model_.plan_add_backend("web", {"b1", backend("10.0.0.1")})), "exists");
  EXPECT_EQ(code(model_.plan_add_vip({"dns", vip("10.0.0.1", 1, "web")})), "exists");
  EXPECT_EQ(code(model_.plan_add_vip({"other", vip("198.51.100.10", 80, "web")})), "exists");
  EXPECT_EQ(code(model_.plan_remove_pool("web")), "in_use");
}

TEST_F(ModelTest, AChangeOfAFileBackendIsLaidOverIt) {
  carry_out(model_.plan_patch_backend("web", "b1", {{}, BackendState::kDrain}));
  carry_out(model_.plan_patch_backend("web", "b1", {7, {}}));
  const Backend& b1 = model_.pools().at("web").backends.at("b1");
  EXPECT_EQ(b1.state, BackendState::kDrain);
  EXPECT_EQ(b1.weight, 7u);
  EXPECT_EQ(b1.source, Source::kFile);
  EXPECT_EQ(model_.overrides().size(), 1u);
  expect_next_process_agrees();
}

TEST_F(ModelTest, WhatTheSocketDidNotSetFollowsTheFile) {
  carry_out(model_.plan_patch_backend("web", "b1", {{}, BackendState::kDrain}));
  configuration_.pools.at("web").backends.at("b1").weight = 9;
  const auto [next, dropped] = next_process();
  EXPECT_EQ(next.pools().at("web").backends.at("b1").weight, 9u);
  EXPECT_EQ(next.pools().at("web").backends.at("b1").state, BackendState::kDrain);
}

TEST_F(ModelTest, ABackendOfTheSocketLivesAndLeavesNothingBehind) {
  carry_out(model_.plan_add_backend("web", {"b4", backend("10.0.0.4", 3)}));
  carry_out(model_.plan_patch_backend("web", "b4", {5, {}}));
  EXPECT_EQ(model_.pools().at("web").backends.at("b4").source, Source::kSocket);
  EXPECT_EQ(model_.pools().at("web").backends.at("b4").weight, 5u);
  expect_next_process_agrees();
  carry_out(model_.plan_remove_backend("web", "b4"));
  EXPECT_TRUE(model_.overrides().empty());
  EXPECT_EQ(model_.pools(), configuration_.pools);
}

TEST_F(ModelTest, ARemovedFileBackendStaysRemovedAndMayComeBackAsAnother) {
  carry_out(model_.plan_remove_backend("web", "b1"));
  EXPECT_FALSE(model_.pools().at("web").backends.contains("b1"));
  expect_next_process_agrees();
  carry_out(model_.plan_add_backend("web", {"b1", backend("10.0.0.9")}));
  expect_next_process_agrees();
  carry_out(model_.plan_remove_backend("web", "b1"));
  expect_next_process_agrees();
}

TEST_F(ModelTest, AFilePoolMayBeReplacedByOneOfTheSocket) {
  carry_out(model_.plan_patch_backend("web", "b1", {7, {}}));
  carry_out(model_.plan_remove_vip("web-http"));
  carry_out(model_.plan_remove_pool("web"));
  EXPECT_EQ(model_.overrides().size(), 2u) << "the backend's change went with its pool";
  expect_next_process_agrees();
  Pool pool;
  pool.backends.emplace("only", backend("10.0.0.1"));
  carry_out(model_.plan_add_pool({"web", pool}));
  EXPECT_EQ(model_.pools().at("web").backends.size(), 1u);
  expect_next_process_agrees();
  carry_out(model_.plan_remove_backend("web", "only"));
  expect_next_process_agrees();
}

TEST_F(ModelTest, AVipMayTakeTheAddressOfARemovedOne) {
  carry_out(model_.plan_remove_vip("web-http"));
  carry_out(model_.plan_add_vip({"another", vip("198.51.100.10", 80, "web")}));
  expect_next_process_agrees();
}

TEST_F(ModelTest, APoolOfTheSocketAndItsVipAreRestoredTogether) {
  Pool pool;
  pool.settings.table_size = 251;
  carry_out(model_.plan_add_pool({"api", pool}));
  carry_out(model_.plan_add_backend("api", {"a1", backend("10.0.0.1")}));
  carry_out(model_.plan_add_vip({"api-vip", vip("198.51.100.11", 443, "api")}));
  EXPECT_EQ(code(model_.plan_remove_pool("api")), "in_use");
  expect_next_process_agrees();
}

TEST_F(ModelTest, WhatTheFileNoLongerNamesIsForgotten) {
  carry_out(model_.plan_patch_backend("web", "b1", {7, {}}));
  carry_out(model_.plan_remove_backend("web", "b2"));
  carry_out(model_.plan_remove_vip("dns"));
  configuration_.pools.at("web").backends.erase("b1");
  configuration_.pools.at("web").backends.erase("b2");
  configuration_.vips.erase("dns");
  const auto [next, dropped] = next_process();
  EXPECT_EQ(dropped.size(), 3u);
  EXPECT_TRUE(next.overrides().empty());
  EXPECT_EQ(next.pools(), configuration_.pools);
}

TEST_F(ModelTest, AVipOfTheSocketWhosePoolLeftTheFileIsTold) {
  carry_out(model_.plan_add_vip({"extra", vip("198.51.100.11", 80, "web")}));
  configuration_.vips.erase("web-http");
  configuration_.pools.erase("web");
  const auto [next, dropped] = next_process();
  ASSERT_EQ(dropped.size(), 1u);
  EXPECT_TRUE(dropped[0].is_conflict);
  EXPECT_EQ(dropped[0].why, "no pool is named 'web'");
}

TEST_F(ModelTest, BackendsOfTheSocketForWhichTheFileLeavesNoSlotAreTold) {
  Pool& pool = configuration_.pools["tiny"];
  pool.settings.table_size = 3;
  pool.backends = {{"a", backend("10.0.0.1")}, {"b", backend("10.0.0.2", 0)}};
  model_ = Model(configuration_.pools, configuration_.vips);
  carry_out(model_.plan_add_backend("tiny", {"s", backend("10.0.0.4")}));
  carry_out(model_.plan_patch_backend("tiny", "b", {2, {}}));
  expect_next_process_agrees();
  pool.backends["c"] = backend("10.0.0.3");
  const auto [next, dropped] = next_process();
  ASSERT_EQ(dropped.size(), 1u);
  EXPECT_EQ(dropped[0].change.key.name, "s");
  EXPECT_TRUE(dropped[0].is_conflict);
  EXPECT_TRUE(check_pool_fits(next.pools().at("tiny")));
}

TEST_F(ModelTest, ASlotThatTheSocketFreedIsThereForABackendOfAnEarlierName) {
  Pool& pool = configuration_.pools["tiny"];
  pool.settings.table_size = 3;
  for (const char* name : {"x", "y", "z"}) pool.backends[name] = backend("10.0.0.1");
  model_ = Model(configuration_.pools, configuration_.vips);
  carry_out(model_.plan_remove_backend("tiny", "y"));
  carry_out(model_.plan_patch_backend("tiny", "z", {0, {}}));
  carry_out(model_.plan_add_backend("tiny", {"a", backend("10.0.0.2")}));
  carry_out(model_.plan_add_backend("tiny", {"b", backend("10.0.0.3")}));
  expect_next_process_agrees();
}

TEST_F(ModelTest, APoolRemovedByTheSocketComesBackWhenTheFileNeedsIt) {
  carry_out(model_.plan_remove_vip("web-http"));
  carry_out(model_.plan_remove_pool("web"));
  configuration_.vips.emplace("new", vip("198.51.100.12", 80, "web"));
  const auto [next, dropped] = next_process();
  ASSERT_EQ(dropped.size(), 1u);
  EXPECT_TRUE(next.pools().contains("web"));
}

TEST_F(ModelTest, WhatTheFileHasTakenOverIsTheFilesFromThenOn) {
  Pool pool;
  pool.settings.table_size = 251;
  pool.backends.emplace("a1", backend("10.0.0.1"));
  carry_out(model_.plan_add_pool({"api", pool}));
  carry_out(model_.plan_add_vip({"api-vip", vip("198.51.100.11", 443, "api")}));
  carry_out(model_.plan_add_backend("web", {"b4", backend("10.0.0.4")}));
  configuration_.pools.emplace("api", pool);
  configuration_.vips.emplace("api-vip", vip("198.51.100.11", 443, "api"));
  configuration_.pools.at("web").backends.emplace("b4", backend("10.0.0.4"));
  const auto [next, dropped] = next_process();
  EXPECT_EQ(dropped.size(), 3u);
  EXPECT_TRUE(next.overrides().empty());
  EXPECT_EQ(next.pools(), configuration_.pools);
  EXPECT_EQ(next.vips(), configuration_.vips);
}

TEST_F(ModelTest, ABackendThatDoesNotFitTheTableIsRefused) {
  Pool pool;
  pool.settings.table_size = 3;
  carry_out(model_.plan_add_pool({"tiny", pool}));
  for (const char* name : {"a", "b", "c"}) {
    carry_out(model_.plan_add_backend("tiny", {name, backend("10.0.0.1")}));
  }
  EXPECT_EQ(code(model_.plan_add_backend("tiny", {"d", backend("10.0.0.1")})), "bad_request");
  carry_out(model_.plan_add_backend("tiny", {"d", backend("10.0.0.1", 0)}));
  EXPECT_EQ(code(model_.plan_patch_backend("tiny", "d", {1, {}})), "bad_request");
  carry_out(model_.plan_patch_backend("tiny", "a", {0, {}}));
  carry_out(model_.plan_patch_backend("tiny", "d", {1, {}}));
}

TEST_F(ModelTest, VipsOfOneAddressMustAgree) {
  Vip other = vip("198.51.100.10", 443, "web");
  other.flags = kVipEchoToKernel;
  EXPECT_EQ(code(model_.plan_add_vip({"other", other})), "clash");
  other.flags = 0;
  EXPECT_EQ(code(model_.plan_add_vip({"other", other})), "");
}

TEST_F(ModelTest, VipsOfLayer2AndTheirBackendsAreOfOneFamily) {
  Vip layer2 = vip("2001:db8::10", 80, "web");
  layer2.encapsulation = Encapsulation::kLayer2;
  EXPECT_EQ(code(model_.plan_add_vip({"l2", layer2})), "bad_request");
  layer2.prefix = *parse_prefix("198.51.100.77");
  carry_out(model_.plan_add_vip({"l2", layer2}));
  const Named<Backend> ipv6{"six", {boost::asio::ip::make_address("2001:db8::1")}};
  const auto refused = model_.plan_add_backend("web", ipv6);
  ASSERT_EQ(code(refused), "bad_request");
  EXPECT_NE(refused.error().message.find("VIP 'l2' of encapsulation l2"), std::string::npos);
  EXPECT_EQ(code(model_.plan_add_backend("plain", ipv6)), "");
  carry_out(model_.plan_remove_vip("l2"));
  carry_out(model_.plan_add_backend("web", ipv6));
  expect_next_process_agrees();
}

TEST_F(ModelTest, ABackendThatAVipOfTheFileCannotServeIsDroppedAsAConflict) {
  const auto six = boost::asio::ip::make_address("2001:db8::1");
  carry_out(model_.plan_remove_backend("web", "b1"));
  carry_out(model_.plan_add_backend("web", {"b1", {six}}));
  Vip& of_file = configuration_.vips.at("web-http");
  of_file.encapsulation = Encapsulation::kLayer2;
  const auto [next, dropped] = next_process();
  ASSERT_EQ(dropped.size(), 1u);
  EXPECT_TRUE(dropped[0].is_conflict);
  EXPECT_EQ(next.pools(), configuration_.pools) << "the file's own backend is back";

  // Nor is it one where the socket removed that VIP.
  carry_out(model_.plan_remove_vip("web-http"));
  EXPECT_TRUE(next_process().second.empty());
}

TEST_F(ModelTest, MoreThanADataplaneCountsIsRefused) {
  ByName<Vip> vips;
  for (uint32_t i = 0; i < kMaxCountedVips; ++i) {
    Vip one = vip("198.51.100.1", 80, "web");
    one.prefix = only(boost::asio::ip::address_v4(0xc6336401 + i));
    vips.emplace(fmt::format("vip-{}", i), one);
  }
  ByName<Pool> pools = configuration_.pools;
  Pool& web = pools.at("web");
  web.settings.table_size = 655373;
  const size_t others = pools.at("plain").backends.size() + web.backends.size();
  for (size_t i = 0; i + others < kMaxCountedBackends; ++i) {
    web.backends.emplace(fmt::format("more-{}", i), backend("198.18.2.20"));
  }
  const Model full(pools, vips);
  const auto a_vip = full.plan_add_vip({"one-more", vip("203.0.113.1", 80, "web")});
  EXPECT_EQ(code(a_vip), "bad_request");
  const auto a_backend = full.plan_add_backend("plain", {"one-more", backend("198.18.2.20")});
  ASSERT_EQ(code(a_backend), "bad_request");
  EXPECT_NE(a_backend.error().message.find("131072 backends"), std::string::npos);
  EXPECT_TRUE(full.plan_patch_backend("plain", pools.at("plain").backends.begin()->first, {2, {}}));
}

}  // namespace
}  // namespace maglev
