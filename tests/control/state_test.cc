#include "control/state.h"

#include <gtest/gtest.h>

#include <fmt/format.h>
#include <sqlite3.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <functional>
#include <random>
#include <thread>

#include "tables/history.h"
#include "tests/control/fixtures.h"

namespace maglev {
namespace {

namespace fs = std::filesystem;
using Kind = OverrideKey::Kind;

const OverrideKey kB1{Kind::kBackend, "web", "b1"};

class StateTest : public testing::Test {
 protected:
  RememberedState open() {
    state_.reset();
    auto opened = State::open(directory_.path("/state"));
    EXPECT_TRUE(opened) << opened.error();
    state_ = std::move(opened->state);
    return std::move(opened->remembered);
  }
  std::string database() const { return directory_.path("/state/control.db"); }
  size_t set_aside() const {
    size_t count = 0;
    for (const auto& entry : fs::directory_iterator(directory_.path("/state"))) {
      if (entry.path().filename().string().starts_with("control.db.damaged-")) ++count;
    }
    return count;
  }

  TemporaryDirectory directory_;
  std::unique_ptr<State> state_;
};

TEST_F(StateTest, ANewOneIsEmpty) {
  const RememberedState remembered = open();
  EXPECT_EQ(remembered.generation, 0u);
  EXPECT_TRUE(remembered.overrides.empty());
  EXPECT_TRUE(remembered.numberings.empty());
  EXPECT_TRUE(remembered.verdicts.empty());
}

TEST_F(StateTest, EveryKindOfOverrideIsFoundAgain) {
  open();
  PoolSettings settings;
  settings.table_size = 251;
  settings.min_healthy = 2;
  settings.health = {HealthType::kTcp, 80, 700, 300, 4, 5};
  settings.source = Source::kSocket;
  Backend backend{boost::asio::ip::make_address_v4("10.0.0.1"), 0, BackendState::kDrain,
                  Source::kSocket};
  Vip vip;
  vip.prefix = *parse_prefix("2001:db8::/64");
  vip.protocol = VipProtocol::kUdp;
  vip.pool = "p";
  vip.hash = HashPolicy::kSource;
  vip.encapsulation = Encapsulation::kGueVariant1;
  vip.gue_port = 6081;
  vip.fragments = FragmentPolicy::kAddress;
  vip.flags = kVipAllFlags;
  vip.source = Source::kSocket;
  const Overrides saved = {
      {{Kind::kPool, "", "gone"}, Removed{}},
      {{Kind::kPool, "", "p"}, settings},
      {{Kind::kBackend, "p", "b"}, backend},
      {{Kind::kBackend, "web", "b1"}, BackendPatch{7, BackendState::kMaintenance}},
      {{Kind::kBackend, "web", "b2"}, BackendPatch{{}, BackendState::kReady}},
      {{Kind::kVip, "", "v"}, vip},
  };
  ASSERT_TRUE(state_->save_overrides(saved));
  const RememberedState remembered = open();
  ASSERT_EQ(remembered.overrides.size(), saved.size());
  for (const Override& change : saved) {
    const auto found = std::ranges::find(remembered.overrides, change.key, &Override::key);
    ASSERT_NE(found, remembered.overrides.end()) << change.key.name;
    EXPECT_TRUE(found->value == change.value) << change.key.name;
  }
}

TEST_F(StateTest, WhatIsForgottenIsGoneAndAPoolTakesItsBackendsAlong) {
  open();
  ASSERT_TRUE(state_->save_overrides({{kB1, BackendPatch{7, {}}},
                                      {{Kind::kBackend, "web", "b2"}, Removed{}},
                                      {{Kind::kBackend, "api", "b2"}, Removed{}}}));
  ASSERT_TRUE(state_->save_overrides({{kB1, Forgotten{}}}));
  EXPECT_EQ(open().overrides.size(), 2u);
  ASSERT_TRUE(state_->save_overrides({{{Kind::kPool, "", "web"}, Removed{}}}));
  EXPECT_EQ(open().overrides.size(), 2u) << "the removed pool, and api's backend";
}

TEST_F(StateTest, APublicationIsFoundAgain) {
  open();
  Numbering numbering;
  numbering.update({{"a", {}}, {"b", {}}, {"c", {}}}, 7);
  numbering.update({{"b", {}}, {"c", {}}}, 8);
  numbering.free_swept(8, [](uint32_t) { return false; });
  numbering.update({{"b", {}}}, 9);
  const SlotHistory slot{5, 1, 3, 70, 2, {}};
  const std::vector<std::byte> history = build_history_file(BootId{1}, {&slot, 1});
  ASSERT_TRUE(state_->save_publication({9,
                                        {{"web", &numbering}},
                                        {{"web", history}},
                                        {{"web", "b", "10.0.0.1:80", HealthVerdict::kDown}}}));
  RememberedState remembered = open();
  EXPECT_EQ(remembered.generation, 9u);
  EXPECT_EQ(remembered.numberings.at("web").places(), numbering.places());
  EXPECT_EQ(remembered.numberings.at("web").leaving(), 1u);
  EXPECT_EQ(remembered.histories.at("web"), history);
  ASSERT_EQ(remembered.verdicts.size(), 1u);
  EXPECT_EQ(remembered.verdicts[0].verdict, HealthVerdict::kDown);
  EXPECT_EQ(remembered.verdicts[0].target, "10.0.0.1:80");

  ASSERT_TRUE(state_->save_publication({10,
                                        {{"web", nullptr}},
                                        {{"web", {}}},
                                        {{"web", "b", "10.0.0.1:80", HealthVerdict::kUnknown}}}));
  remembered = open();
  EXPECT_EQ(remembered.generation, 10u);
  EXPECT_TRUE(remembered.numberings.empty());
  EXPECT_TRUE(remembered.histories.empty());
  EXPECT_TRUE(remembered.verdicts.empty());
}

TEST_F(StateTest, ASecondProcessIsRefusedAndNothingIsSetAside) {
  open();
  const auto second = State::open(directory_.path("/state"));
  ASSERT_FALSE(second);
  EXPECT_NE(second.error().find("another process"), std::string::npos) << second.error();
  EXPECT_EQ(set_aside(), 0u);
}

TEST_F(StateTest, ADamagedDatabaseIsSetAsideAndAStartGoesOn) {
  const auto damages = std::vector<std::function<void(const std::string&)>>{
      [](const std::string& path) { std::ofstream(path) << "this is no database at all"; },
      [](const std::string& path) {
        std::fstream file(path, std::ios::in | std::ios::out);
        for (int page = 1; page < 5; ++page) {
          file.seekp(page * 4096);
          file << std::string(4000, '\x5a');
        }
      },
      [](const std::string& path) { fs::resize_file(path, 5000); },
  };
  for (size_t i = 0; i < damages.size(); ++i) {
    open();
    ASSERT_TRUE(state_->save_overrides({{kB1, BackendPatch{7, {}}}}));
    state_.reset();
    damages[i](database());
    const RememberedState remembered = open();
    EXPECT_TRUE(remembered.overrides.empty()) << "damage " << i;
    EXPECT_EQ(set_aside(), i + 1);
    EXPECT_TRUE(state_->save_overrides({{kB1, BackendPatch{8, {}}}})) << "the new one works";
  }
}

TEST_F(StateTest, ARowThatCannotBeUnderstoodCostsOnlyItself) {
  open();
  ASSERT_TRUE(state_->save_overrides({{kB1, BackendPatch{7, {}}}}));
  state_.reset();
  sqlite3* database = nullptr;
  ASSERT_EQ(sqlite3_open(this->database().c_str(), &database), SQLITE_OK);
  const char* odd_rows =
      "INSERT INTO overrides VALUES (3, '', 'v', '{\"name\": \"v\", \"colour\": 1}');"
      "INSERT INTO overrides VALUES (2, 'web', 'x', 'not json: [');"
      "INSERT INTO overrides VALUES (77, 'web', 'x', '{}');"
      "INSERT INTO places VALUES ('web', -5, 'x', 1);"
      "INSERT INTO leaving VALUES ('web', 7, 'x', 1);"
      "INSERT INTO histories VALUES ('web', 'no history');";
  ASSERT_EQ(sqlite3_exec(database, odd_rows, nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(database);
  const RememberedState remembered = open();
  ASSERT_EQ(remembered.overrides.size(), 1u);
  EXPECT_TRUE(remembered.overrides[0].key == kB1);
  EXPECT_TRUE(remembered.histories.empty());
  EXPECT_EQ(set_aside(), 0u);
}

TEST_F(StateTest, ADirectoryThatCannotBeUsedIsNamed) {
  std::ofstream(directory_.path("/file")) << "in the way";
  const auto opened = State::open(directory_.path("/file"));
  ASSERT_FALSE(opened);
  EXPECT_NE(opened.error().find(directory_.path("/file")), std::string::npos);
}

// A child saves weights 1, 2, 3, ... and tells each once it is saved; it is killed at a random
// instant. What it told must be there.
TEST_F(StateTest, WhatWasAcknowledgedSurvivesAKillAtAnyInstant) {
  const auto seed = std::random_device()();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937 random(seed);
  uint32_t last_told = 0;
  for (int round = 0; round < 20; ++round) {
    state_.reset();
    int told[2];
    ASSERT_EQ(::pipe(told), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      auto opened = State::open(directory_.path("/state"));
      for (uint32_t weight = last_told + 1; opened && weight <= kMaxWeight; ++weight) {
        if (!opened->state->save_overrides({{kB1, BackendPatch{weight, {}}}})) break;
        if (::write(told[1], &weight, sizeof weight) != sizeof weight) break;
      }
      ::_exit(1);
    }
    ::close(told[1]);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 60000));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    for (uint32_t weight = 0; ::read(told[0], &weight, sizeof weight) == sizeof weight;) {
      last_told = weight;
    }
    ::close(told[0]);
    const RememberedState remembered = open();
    const uint32_t found =
        remembered.overrides.empty()
            ? 0
            : std::get<BackendPatch>(remembered.overrides[0].value).weight.value_or(0);
    ASSERT_GE(found, last_told);
    last_told = found;
  }
  EXPECT_GT(last_told, 0u) << "no child lived long enough to save anything";
  EXPECT_EQ(set_aside(), 0u);
}

}  // namespace
}  // namespace maglev
