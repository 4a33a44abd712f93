#include "control/plan.h"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

namespace maglev {
namespace {

using boost::asio::ip::address;
using boost::asio::ip::make_address_v4;

Configuration with_two_ports() {
  Configuration configuration;
  configuration.dataplane.ports = {{"a", "net_null0", "lb0"}, {"b", "net_null1", "lb1"}};
  return configuration;
}

NextHop hop_by(std::string interface) {
  NextHop hop;
  hop.resolved = true;
  hop.mac = {2, 0, 0, 0, 0, 9};
  hop.outer_source = make_address_v4("198.18.0.1");
  hop.interface = std::move(interface);
  hop.reason.clear();
  return hop;
}

class PlanTest : public testing::Test {
 protected:
  PlanTest() {
    pool_.settings.table_size = 251;
    pool_.settings.health.type = HealthType::kTcp;
    for (const char* name : {"b1", "b2", "b3", "b4"}) {
      pool_.backends[name].address = make_address_v4("198.18.0.10");
      verdicts_[name] = HealthVerdict::kUp;
    }
  }

  PoolSenses senses() {
    return {[this](const std::string& name) { return verdicts_[name]; },
            [this](const address&) { return find_way_out(hop_, std::nullopt, configuration_); },
            [this](const std::string&) { return settling_; }};
  }

  std::vector<std::string> members() {
    std::vector<std::string> names;
    for (const auto& member : choose_members(pool_, senses()).members) names.push_back(member.name);
    return names;
  }
  bool fails_open() { return choose_members(pool_, senses()).fail_open; }

  PlannedPool plan(const PlannedPool* previous = nullptr) {
    numbering_.update(pool_.backends, 1);
    return *plan_pool("web", pool_, numbering_, senses(), previous);
  }

  using Names = std::vector<std::string>;
  Pool pool_;
  std::map<std::string, HealthVerdict> verdicts_;
  Configuration configuration_ = with_two_ports();
  NextHop hop_ = hop_by("lb1");
  bool settling_ = false;
  Numbering numbering_;
};

TEST_F(PlanTest, ThePlacementFillsTheTable) {
  pool_.backends["b2"].weight = 2;
  pool_.backends["b4"].weight = 0;
  const std::vector<WeightedName> wanted{{"b1", 1}, {"b2", 2}, {"b3", 1}};
  std::set<Checksum> tables;
  for (const PlacementKind kind : {PlacementKind::kMaglev, PlacementKind::kRing,
                                   PlacementKind::kRendezvous, PlacementKind::kBounded}) {
    pool_.settings.placement = kind;
    const PlannedPool planned = plan();
    tables.insert(planned.table);
    // What is published is what the library says, byte for byte.
    EXPECT_EQ(planned.table_file, build_table_file(*build_lookup_table(kind, wanted, 251)));
    EXPECT_EQ(std::accumulate(planned.owned_slots.begin(), planned.owned_slots.end(), 0u), 251u);
    EXPECT_EQ(plan(&planned).table, planned.table);
  }
  // Bounded is the ring's where no node is full.
  EXPECT_GE(tables.size(), 3u);
  // The plan of another placement has another table.
  const PlannedPool bounded = plan();
  pool_.settings.placement = PlacementKind::kMaglev;
  EXPECT_NE(plan(&bounded).table, bounded.table);
}

TEST_F(PlanTest, ReadyBackendsThatAreUpEnter) {
  pool_.backends["b1"].state = BackendState::kDrain;
  pool_.backends["b2"].state = BackendState::kMaintenance;
  pool_.backends["b3"].weight = 0;
  EXPECT_EQ(members(), Names{"b4"});
}

TEST_F(PlanTest, DownAndUncheckedOnesStayOut) {
  verdicts_["b1"] = HealthVerdict::kDown;
  verdicts_["b2"] = HealthVerdict::kUnknown;
  EXPECT_EQ(members(), (Names{"b3", "b4"}));
  EXPECT_FALSE(fails_open());
}

TEST_F(PlanTest, InAPoolWithoutChecksEveryReadyOneEnters) {
  pool_.settings.health.type = HealthType::kNone;
  for (auto& [name, verdict] : verdicts_) verdict = HealthVerdict::kUnknown;
  EXPECT_EQ(members(), (Names{"b1", "b2", "b3", "b4"}));
  EXPECT_FALSE(fails_open());
}

TEST_F(PlanTest, WhileAPoolSettlesOnlyTheOnesFoundDownStayOut) {
  settling_ = true;
  verdicts_["b1"] = HealthVerdict::kDown;
  verdicts_["b2"] = HealthVerdict::kUnknown;
  EXPECT_EQ(members(), (Names{"b2", "b3", "b4"}));
}

TEST_F(PlanTest, WithFewerHealthyThanTheFloorAllReadyOnesEnter) {
  pool_.settings.min_healthy = 2;
  pool_.backends["b4"].state = BackendState::kDrain;
  verdicts_["b1"] = HealthVerdict::kDown;
  EXPECT_EQ(members(), (Names{"b2", "b3"}));
  verdicts_["b2"] = HealthVerdict::kDown;
  EXPECT_EQ(members(), (Names{"b1", "b2", "b3"}));
  EXPECT_TRUE(fails_open());
  verdicts_["b1"] = HealthVerdict::kUp;
  EXPECT_EQ(members(), (Names{"b1", "b3"}));
  EXPECT_FALSE(fails_open()) << "the recovery ends it";
}

TEST_F(PlanTest, AFloorAboveTheReadyOnesIsNoFailureWhileAllAreHealthy) {
  pool_.settings.min_healthy = 9;
  EXPECT_EQ(members().size(), 4u);
  EXPECT_FALSE(fails_open());
}

TEST_F(PlanTest, AFloorOfZeroLetsATableRunEmpty) {
  pool_.settings.min_healthy = 0;
  for (auto& [name, verdict] : verdicts_) verdict = HealthVerdict::kDown;
  EXPECT_TRUE(members().empty());
  EXPECT_EQ(plan().owned_slots.size(), 0u);
}

TEST_F(PlanTest, ThePlannedFilesPassTheirChecksAndFitEachOther) {
  pool_.backends["b2"].weight = 3;
  pool_.backends["b3"].state = BackendState::kDrain;
  const PlannedPool planned = plan();
  const auto table = check_table_file(planned.table_file);
  const auto pool = check_pool_file(planned.pool_file);
  ASSERT_TRUE(table) << table.error();
  ASSERT_TRUE(pool) << pool.error();
  EXPECT_TRUE(check_pool_fits_table(*pool, *table));
  EXPECT_EQ(table->checksum, planned.table);
  EXPECT_EQ(pool->checksum, planned.pool);
  EXPECT_EQ(pool->name, "web");
  EXPECT_EQ(pool->backends.size(), 4u) << "the drained one keeps its place";
  EXPECT_EQ(pool->backends[0].port, 1) << "the port whose interface the next hop names";
  EXPECT_EQ(pool->backends[0].resolved, 1);
  std::vector<uint32_t> owned(table->owners.size());
  for (uint32_t slot = 0; slot < table->size(); ++slot) ++owned[table->owner_of(slot)];
  EXPECT_EQ(owned, planned.owned_slots);
  for (size_t i = 0; i < pool->owner_backends.size(); ++i) {
    const uint32_t index = pool->owner_backends[i];
    EXPECT_EQ(planned.owners[i], (SlotOwner{index, pool->backends[index].incarnation}));
  }
}

TEST_F(PlanTest, FlowsMayStayWithABackendThatIsDrainedButNotWithOneThatFailed) {
  const auto serves = [&](const char* name) {
    const PlannedPool planned = plan();
    const auto pool = check_pool_file(planned.pool_file);
    return (pool->backends[numbering_.index_of(name)].flags & kBackendServes) != 0;
  };
  pool_.backends["b1"].state = BackendState::kDrain;
  pool_.backends["b2"].state = BackendState::kMaintenance;
  pool_.backends["b3"].weight = 0;
  verdicts_["b4"] = HealthVerdict::kDown;
  pool_.backends["b5"].address = make_address_v4("198.18.0.15");
  verdicts_["b5"] = HealthVerdict::kUp;
  EXPECT_TRUE(serves("b1"));
  EXPECT_FALSE(serves("b2"));
  EXPECT_TRUE(serves("b3"));
  EXPECT_FALSE(serves("b4"));
  EXPECT_TRUE(serves("b5"));
  pool_.settings.min_healthy = 2;
  EXPECT_TRUE(serves("b4")) << "the floor is in force";
  EXPECT_FALSE(serves("b2"));
}

TEST_F(PlanTest, TheIndexOfABackendGoneIsAnEmptyPlace) {
  plan();
  pool_.backends.erase("b2");
  const PlannedPool planned = plan();
  const auto pool = check_pool_file(planned.pool_file);
  ASSERT_EQ(pool->backends.size(), 4u);
  EXPECT_EQ(pool->backends[1].family, AddressFamily::kNone);
  EXPECT_EQ(numbering_.leaving(), 1u);
}

TEST_F(PlanTest, AnUnchangedMembershipTakesOverTheTable) {
  const PlannedPool first = plan();
  hop_.mac[5] = 7;
  const PlannedPool second = plan(&first);
  EXPECT_TRUE(second.table_file.empty());
  EXPECT_EQ(second.table, first.table);
  EXPECT_EQ(second.owned_slots, first.owned_slots);
  EXPECT_NE(second.pool, first.pool);
  pool_.backends["b1"].weight = 2;
  const PlannedPool third = plan(&second);
  EXPECT_FALSE(third.table_file.empty());
  EXPECT_NE(third.table, first.table);
}

TEST_F(PlanTest, TheTableDependsOnTheMembershipAndNotOnHistory) {
  const Checksum fresh = plan().table;
  pool_.backends.erase("b2");
  plan();
  pool_.backends["b9"].address = make_address_v4("198.18.0.19");
  plan();
  pool_.backends.erase("b9");
  pool_.backends["b2"].address = make_address_v4("198.18.0.10");
  EXPECT_EQ(plan().table, fresh);
}

TEST_F(PlanTest, AWayOutOfNoPortIsUnresolvedAndSaysWhy) {
  hop_ = hop_by("eth7");
  const WayOut way_out = find_way_out(hop_, std::nullopt, configuration_);
  EXPECT_FALSE(way_out.next_hop.resolved);
  EXPECT_NE(way_out.next_hop.reason.find("'eth7'"), std::string::npos);
  const PlannedPool planned = plan();
  EXPECT_EQ(planned.unresolved, 4u);
  const auto pool = check_pool_file(planned.pool_file);
  ASSERT_TRUE(pool) << pool.error();
  EXPECT_EQ(pool->backends[0].resolved, 0);
}

TEST_F(PlanTest, WhatTheDataplaneWouldRefuseIsNoPlan) {
  hop_.mac = {1, 0, 0x5e, 0, 0, 9};
  numbering_.update(pool_.backends, 1);
  const auto planned = plan_pool("web", pool_, numbering_, senses(), nullptr);
  ASSERT_FALSE(planned);
  EXPECT_EQ(planned.error(), "pool 'web': the next hop's MAC is not unicast");
}

TEST_F(PlanTest, TheRootNamesPoolsAndVips) {
  ByName<PlannedPool> pools;
  pools.emplace("web", plan());
  pools.at("web").history = {7, 7};
  Vip vip;
  vip.prefix = *parse_prefix("198.51.100.10");
  vip.port = 80;
  vip.pool = "web";
  vip.idle = {50, 6, 7};
  Vip untracked = vip;
  untracked.port = 81;
  untracked.tracking = Tracking::kNone;
  const auto file = plan_root(5, 42, pools, {{"web-http", vip}, {"web-other", untracked}});
  const auto root = check_root_file(file);
  ASSERT_TRUE(root) << root.error();
  EXPECT_EQ(root->generation, 5u);
  EXPECT_EQ(root->hash_seed, 42u);
  EXPECT_EQ(root->pools[0].pool, pools.at("web").pool);
  EXPECT_EQ(root->pools[0].history, pools.at("web").history);
  EXPECT_EQ(root->vips[0].port, 80);
  EXPECT_EQ(root->vips[0].pool, 0u);
  EXPECT_EQ(root->vips[0].tracking, Tracking::kChanged);
  EXPECT_EQ(root->vips[0].tcp_idle_s, 50u);
  EXPECT_EQ(root->vips[0].tcp_closing_idle_s, 6u);
  EXPECT_EQ(root->vips[0].udp_idle_s, 7u);
  EXPECT_EQ(root->vips[1].tracking, Tracking::kNone);
  EXPECT_EQ(root->vips[1].tcp_idle_s, 0u);
}

const auto kNothingNamed = [](uint32_t) { return false; };

TEST(Numbering, ABackendKeepsItsIndexAndANewOneTakesTheLowestFree) {
  Numbering numbering;
  EXPECT_TRUE(numbering.update({{"a", {}}, {"b", {}}, {"c", {}}}, 1));
  EXPECT_FALSE(numbering.update({{"a", {}}, {"b", {}}, {"c", {}}}, 2));
  EXPECT_TRUE(numbering.update({{"b", {}}, {"c", {}}}, 3));
  EXPECT_FALSE(numbering.places()[0].lives());
  EXPECT_TRUE(numbering.free_swept(3, kNothingNamed));
  EXPECT_TRUE(numbering.update({{"b", {}}, {"c", {}}, {"z", {}}, {"y", {}}}, 4));
  EXPECT_EQ(numbering.index_of("b"), 1u);
  EXPECT_EQ(numbering.index_of("c"), 2u);
  EXPECT_EQ(numbering.index_of("y"), 0u);
  EXPECT_EQ(numbering.index_of("z"), 3u);
}

TEST(Numbering, AnIndexIsNotUsedAgainBeforeALookAtAllFlowsFoundNone) {
  Numbering numbering;
  numbering.update({{"a", {}}, {"b", {}}}, 1);
  numbering.update({{"b", {}}}, 5);
  EXPECT_EQ(numbering.leaving(), 1u);
  EXPECT_FALSE(numbering.free_swept(4, kNothingNamed)) << "some worker may use it still";
  EXPECT_FALSE(numbering.free_swept(5, [](uint32_t place) { return place == 0; }));
  numbering.update({{"b", {}}, {"c", {}}}, 6);
  EXPECT_EQ(numbering.index_of("c"), 2u);
  EXPECT_TRUE(numbering.free_swept(5, [](uint32_t place) { return place == 1; }));
  EXPECT_EQ(numbering.leaving(), 0u);
  numbering.update({{"b", {}}, {"c", {}}, {"d", {}}}, 7);
  EXPECT_EQ(numbering.index_of("d"), 0u);
  EXPECT_FALSE(numbering.free_swept(9, kNothingNamed)) << "those that live stay";
}

TEST(Numbering, ABackendThatComesAgainIsAnotherOne) {
  Numbering numbering;
  numbering.update({{"a", {}}}, 1);
  numbering.update({}, 2);
  numbering.update({{"a", {}}}, 3);
  EXPECT_EQ(numbering.index_of("a"), 1u);
  EXPECT_EQ(numbering.leaving(), 1u);
  const Numbering restored(numbering.places());
  EXPECT_EQ(restored.index_of("a"), 1u);
}

TEST(Numbering, ANewBackendAtAUsedIndexHasAnotherIncarnation) {
  Numbering numbering;
  numbering.update({{"a", {}}}, 1);
  const uint8_t first = numbering.places()[0].incarnation;
  numbering.update({}, 2);
  numbering.free_swept(2, kNothingNamed);
  numbering.update({{"a", {}}}, 3);
  EXPECT_EQ(numbering.index_of("a"), 0u);
  EXPECT_NE(numbering.places()[0].incarnation, first);
}

// Whatever no dataplane sweeps, or sweeps too slowly.
TEST(Numbering, ChangesWithoutASweepTakeABoundedNumberOfPlaces) {
  Numbering numbering;
  for (uint64_t change = 1; change <= 200; ++change) {
    ByName<Backend> backends{{"stays", {}}};
    numbering.update(backends, 2 * change);
    backends["new"];
    for (size_t i = 0; i < Numbering::kMostLeaving / 2; ++i) backends[fmt::format("x{}", i)];
    numbering.update(backends, 2 * change + 1);
    ASSERT_EQ(numbering.index_of("stays"), 0u);
    ASSERT_LE(numbering.leaving(), Numbering::kMostLeaving);
    ASSERT_LE(numbering.places().size(), Numbering::kMostLeaving * 2);
  }
  EXPECT_GT(numbering.places().size(), Numbering::kMostLeaving);
}

TEST(Numbering, WhereTooManyLeaveTheOldestGiveUpTheirPlaces) {
  Numbering numbering;
  ByName<Backend> backends;
  for (size_t i = 0; i <= Numbering::kMostLeaving; ++i) backends[fmt::format("b{:04}", i)];
  numbering.update(backends, 1);
  backends.erase("b0007");
  numbering.update(backends, 2);
  EXPECT_EQ(numbering.leaving(), 1u);
  numbering.update({}, 3);
  EXPECT_EQ(numbering.leaving(), Numbering::kMostLeaving);
  numbering.update({{"new", {}}}, 4);
  EXPECT_EQ(numbering.index_of("new"), 7u);
}

TEST(Numbering, ManyRandomChangesNeverMoveOrShareAnIndex) {
  const auto seed = std::random_device()();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937 random(seed);
  Numbering numbering;
  ByName<Backend> backends;
  std::map<std::string, uint32_t> indices;
  for (uint64_t step = 1; step <= 2000; ++step) {
    const std::string name = fmt::format("n{}", random() % 60);
    if (backends.erase(name) > 0) {
      indices.erase(name);
    } else {
      backends[name];
    }
    numbering.update(backends, step);
    if (random() % 4 == 0) {
      numbering.free_swept(step, [&](uint32_t) { return random() % 8 == 0; });
    }
    for (const auto& [known, index] : indices) ASSERT_EQ(numbering.index_of(known), index);
    if (backends.contains(name)) indices[name] = numbering.index_of(name);
    for (const auto& [known, backend] : backends) {
      const Numbering::Place& place = numbering.places()[numbering.index_of(known)];
      ASSERT_EQ(place.name, known);
      ASSERT_TRUE(place.lives());
    }
    ASSERT_LE(numbering.places().size(), 150u);
  }
}

}  // namespace
}  // namespace maglev
