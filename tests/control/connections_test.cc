#include "control/connections.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <span>

#include "tests/control/fixtures.h"

namespace maglev {
namespace {

using namespace std::chrono_literals;

constexpr uint64_t kSecond_ns = 1'000'000'000;
constexpr uint64_t kIdle_ns = 900 * kSecond_ns;  // the sample's, by default
constexpr uint64_t kWindow_ns = kIdle_ns + kAdoptionGrace_ns;

// Controllers on files, with a dataplane that is only its report.
class ConnectionsTest : public ControllerTest {
 protected:
  struct Published {
    std::vector<std::byte> root, pool, table, history;
    PoolView pool_view;
    TableView table_view;
    std::span<const SlotHistory> slots;  // not settled

    SlotOwner owner(uint32_t slot) const {
      const uint32_t index = pool_view.owner_backends[table_view.owner_of(slot)];
      return {index, pool_view.backends[index].incarnation};
    }
    const SlotHistory* find(uint32_t slot) const {
      const auto found = std::ranges::find(slots, slot, &SlotHistory::slot);
      return found == slots.end() ? nullptr : &*found;
    }
  };

  std::vector<std::byte> file(std::string_view folder, const Checksum& name) const {
    auto content =
        read_whole_file(directory_.path(fmt::format("/run/{}/{}", folder, name.hex())), 1 << 24);
    EXPECT_TRUE(content) << content.error();
    return std::move(*content);
  }

  // What the root in place says of pool `web`.
  Published published() const {
    Published p;
    p.root = *read_whole_file(directory_.path("/run/root"), 1 << 20);
    const auto root = check_root_file(p.root);
    for (const PoolReference& reference : root->pools) {
      p.pool = file(kPoolDirectory, reference.pool);
      p.pool_view = *check_pool_file(p.pool);
      if (p.pool_view.name != "web") continue;
      p.table = file(kTableDirectory, p.pool_view.table);
      p.table_view = *check_table_file(p.table);
      if (reference.history == Checksum{}) break;
      p.history = file(kHistoryDirectory, reference.history);
      const auto history = check_history_file(p.history);
      EXPECT_TRUE(history) << history.error();
      EXPECT_EQ(history->boot, world_.boot);
      EXPECT_TRUE(check_history_fits(*history, p.table_view.size(), p.pool_view.backends.size()));
      p.slots = history->slots;
      break;
    }
    return p;
  }

  void set_state(const char* backend, BackendState state) {
    ASSERT_TRUE(
        controller_->commit(controller_->model().plan_patch_backend("web", backend, {{}, state})));
  }
  void remove(const char* backend) {
    ASSERT_TRUE(controller_->commit(controller_->model().plan_remove_backend("web", backend)));
  }
  void add(const char* backend) {
    ASSERT_TRUE(controller_->commit(
        controller_->model().plan_add_backend("web", {backend, {boot_address()}})));
    answer("web", backend, HealthVerdict::kUp);
    pass(100ms);
  }
  static boost::asio::ip::address boot_address() {
    return boost::asio::ip::make_address_v4("198.18.2.19");
  }

  // A sweep of now, by a dataplane whose workers use what is published.
  Report swept(std::vector<uint32_t> disagreeing = {}, std::vector<BackendFlows> backends = {}) {
    Report report;
    report.started_ns = 1;
    report.written_ns = world_.boot_time_ns();
    report.sweep = {world_.boot_time_ns(), world_.boot_time_ns(), controller_->generation(), {}};
    report.sweep.pools.push_back({"web", std::move(disagreeing), std::move(backends)});
    return report;
  }
  void take(const Report& report) {
    DataplaneStatus status;
    status.running = true;
    status.report = report;
    // What the clock of the machine says of the report's age is not asked here.
    status.report->written_ns = UINT64_MAX;
    controller_->flows_reported(status);
    pass(100ms);
  }
  void pass_window() {
    pass(std::chrono::milliseconds((kWindow_ns + kAdoptionGrace_ns) / 1'000'000));
  }
  size_t unsettled() const { return published().slots.size(); }
  uint32_t index_of(std::string_view backend) const {
    return controller_->connections().numbering("web")->index_of(backend);
  }
};

TEST_F(ConnectionsTest, ASlotThatChangesHandsIsPublishedWithWhoHadIt) {
  start_healthy();
  const Published before = published();
  EXPECT_TRUE(before.slots.empty()) << "nothing came before the first table";
  set_state("b1", BackendState::kDrain);
  const Published after = published();
  const uint64_t now_ns = world_.boot_time_ns();
  for (uint32_t slot = 0; slot < after.table_view.size(); ++slot) {
    const SlotHistory* past = after.find(slot);
    ASSERT_EQ(past != nullptr, before.owner(slot) != after.owner(slot)) << slot;
    if (past == nullptr) continue;
    EXPECT_EQ((SlotOwner{past->fallback, past->fallback_incarnation}), before.owner(slot));
    EXPECT_EQ(past->pending_until_ns, now_ns + kSynGrace_ns);
    EXPECT_EQ(past->inherit_until_ns, now_ns + kWindow_ns);
  }
  EXPECT_GT(after.slots.size(), 80u);
}

TEST_F(ConnectionsTest, EveryCauseOfAChangeLeavesAHistory) {
  start_healthy();
  const auto changes = std::vector<std::function<void()>>{
      [&] { set_state("b1", BackendState::kDrain); },
      [&] { set_state("b1", BackendState::kReady); },
      [&] { set_state("b2", BackendState::kMaintenance); },
      [&] { remove("b2"); },
      [&] { add("b9"); },
      [&] {
        answer("web", "b3", HealthVerdict::kDown);
        pass(100ms);
      },
      [&] {
        ASSERT_TRUE(
            controller_->commit(controller_->model().plan_patch_backend("web", "b1", {9, {}})));
      },
      [&] {
        text_.replace(text_.find("address: 198.18.2.11}"), 21, "address: 198.18.2.11, weight: 2}");
        ASSERT_TRUE(controller_->reload(*read_configuration(text_, "test.yaml")));
        pass(100ms);
      }};
  for (size_t i = 0; i < changes.size(); ++i) {
    const Published before = published();
    changes[i]();
    const Published after = published();
    for (uint32_t slot = 0; slot < after.table_view.size(); ++slot) {
      ASSERT_TRUE(after.owner(slot) == before.owner(slot) || after.find(slot) != nullptr)
          << "change " << i << ", slot " << slot;
      if (const SlotHistory* old = before.find(slot)) {
        const SlotHistory* now = after.find(slot);
        ASSERT_NE(now, nullptr) << "change " << i << ", slot " << slot;
        ASSERT_EQ(std::memcmp(old, now, sizeof *old), 0) << "change " << i << ", slot " << slot;
      }
    }
  }
  EXPECT_GT(unsettled(), 200u);
}

TEST_F(ConnectionsTest, OnlyThePoolWhoseSlotsMovedHasAnotherHistory) {
  start_healthy();
  set_state("b1", BackendState::kDrain);
  const Checksum history = controller_->planned("web")->history;
  EXPECT_NE(history, Checksum{});
  EXPECT_EQ(controller_->planned("plain")->history, Checksum{});
  const Checksum pool = controller_->planned("web")->pool;
  const auto b2 = boost::asio::ip::make_address_v4("198.18.2.12");
  world_.unreachable.insert(b2);
  controller_->next_hops_changed({b2});
  pass(100ms);
  EXPECT_NE(controller_->planned("web")->pool, pool);
  EXPECT_EQ(controller_->planned("web")->history, history) << "a next hop moves no slot";
}

TEST_F(ConnectionsTest, APoolWithoutAVipThatAsksForItHasNoHistory) {
  text_.replace(text_.find("port: 80, pool: web"), 19, "port: 80, pool: web, tracking: full");
  start_healthy();
  set_state("b1", BackendState::kDrain);
  EXPECT_EQ(unsettled(), 0u);
}

TEST_F(ConnectionsTest, TheWindowIsTheLongestIdleTimeOfThePoolsVips) {
  text_ +=
      "  - {name: slow, address: 198.51.100.11, protocol: tcp, port: 80, pool: web, idle: {tcp_s: "
      "5000}}\n"
      "  - {name: slower, address: 198.51.100.12, protocol: tcp, port: 80, pool: web, tracking: "
      "full, idle: {tcp_s: 9000}}\n";
  start_healthy();
  set_state("b1", BackendState::kDrain);
  EXPECT_EQ(published().slots[0].inherit_until_ns,
            world_.boot_time_ns() + 5000 * kSecond_ns + kAdoptionGrace_ns);
}

TEST_F(ConnectionsTest, ALongerIdleTimeMakesOpenWindowsLonger) {
  start_healthy();
  set_state("b1", BackendState::kDrain);
  pass(10s);
  Vip slow;
  slow.prefix = *parse_prefix("198.51.100.11");
  slow.pool = "web";
  slow.idle.tcp_s = 5000;
  const uint64_t now_ns = world_.boot_time_ns();
  ASSERT_TRUE(controller_->commit(controller_->model().plan_add_vip({"slow", slow})));
  EXPECT_EQ(published().slots[0].inherit_until_ns, now_ns + 5000 * kSecond_ns + kAdoptionGrace_ns);
}

TEST_F(ConnectionsTest, ARestartOfControlAltersNoHistoryAndNoWindow) {
  start_healthy();
  set_state("b1", BackendState::kDrain);
  const Checksum history = controller_->planned("web")->history;
  const uint64_t generation = controller_->generation();
  pass(100s);
  restart();
  pass(100ms);
  EXPECT_EQ(controller_->generation(), generation) << "there was nothing to publish";
  ASSERT_TRUE(controller_->planned("web"));
  EXPECT_EQ(controller_->planned("web")->history, history);
  set_state("b2", BackendState::kDrain);
  const Published after = published();
  EXPECT_EQ(after.slots[0].inherit_until_ns,
            world_.boot_time_ns() - 100 * kSecond_ns - 100'000'000 + kWindow_ns);
}

TEST_F(ConnectionsTest, AChangeWhileControlIsAwayIsFollowedToo) {
  start_healthy();
  const Published before = published();
  text_.replace(text_.find("address: 198.18.2.11}"), 21, "address: 198.18.2.11, state: drain}");
  restart();
  pass(100ms);
  const Published after = published();
  ASSERT_GT(after.slots.size(), 80u);
  for (const SlotHistory& past : after.slots) {
    EXPECT_EQ((SlotOwner{past.fallback, past.fallback_incarnation}), before.owner(past.slot));
  }
}

TEST_F(ConnectionsTest, AnotherBootOfTheMachineEmptiesTheHistories) {
  start_healthy();
  set_state("b1", BackendState::kDrain);
  world_.boot = BootId{2};
  restart();
  pass(100ms);
  EXPECT_EQ(unsettled(), 0u);
  restart();
  pass(100ms);
  EXPECT_EQ(unsettled(), 0u);
}

TEST_F(ConnectionsTest, WithoutItsDurableStateControlGoesByWhatIsPublished) {
  start_healthy();
  remove("b1");
  const uint32_t b3 = index_of("b3");
  const uint64_t until_ns = published().slots[0].inherit_until_ns;
  pass(100s);
  stop();
  std::filesystem::remove_all(directory_.path("/state"));
  start_healthy();
  EXPECT_EQ(index_of("b3"), b3) << "flows are remembered by it";
  const Published after = published();
  EXPECT_GT(after.slots.size(), 80u);
  EXPECT_EQ(after.slots[0].inherit_until_ns, until_ns);
}

TEST_F(ConnectionsTest, AFailedPublicationKeepsWhoHadTheSlots) {
  start_healthy();
  const Published before = published();
  std::filesystem::remove_all(directory_.path("/run/histories"));
  std::ofstream(directory_.path("/run/histories")) << "in the way";
  EXPECT_FALSE(controller_->commit(
      controller_->model().plan_patch_backend("web", "b1", {{}, BackendState::kDrain})));
  pass(std::chrono::milliseconds(2 * kWindow_ns / 1'000'000));
  EXPECT_FALSE(controller_->commit(
      controller_->model().plan_patch_backend("web", "b2", {{}, BackendState::kDrain})));
  std::filesystem::remove(directory_.path("/run/histories"));
  pass(1000ms);
  const Published after = published();
  ASSERT_GT(after.slots.size(), 150u);
  for (const SlotHistory& past : after.slots) {
    EXPECT_EQ((SlotOwner{past.fallback, past.fallback_incarnation}), before.owner(past.slot));
    EXPECT_GT(past.inherit_until_ns, world_.boot_time_ns());
  }
}

TEST_F(ConnectionsTest, ASweepSettlesSlotsAndWhatItSawDisagreeStays) {
  start_healthy();
  set_state("b1", BackendState::kDrain);
  const uint32_t slot = published().slots[3].slot;
  take(swept());
  EXPECT_GT(unsettled(), 80u) << "their windows are open";
  pass_window();
  take(swept({slot}, {{index_of("b1"), 1, 1}}));
  const Published after = published();
  ASSERT_EQ(after.slots.size(), 1u);
  EXPECT_EQ(after.slots[0].slot, slot);
  pass(1s);
  take(swept());
  EXPECT_EQ(unsettled(), 0u);
}

TEST_F(ConnectionsTest, AReportThatCannotBeChangesNothing) {
  start_healthy();
  set_state("b1", BackendState::kDrain);
  const size_t all = unsettled();
  Report early = swept();
  pass_window();
  const auto spoilt = std::vector<std::function<void(Report&)>>{
      [&](Report& r) { r.sweep = early.sweep; },
      [&](Report& r) { r.sweep.began_ns = r.sweep.ended_ns = world_.boot_time_ns() + kSecond_ns; },
      [&](Report& r) { r.sweep.began_ns += 1; },
      [&](Report& r) { r.sweep.generation = controller_->generation() + 1; },
      [&](Report& r) { r.sweep.generation = controller_->generation() - 1; },
      [&](Report& r) { r.sweep.generation = 0; },
      [&](Report& r) { r.sweep.pools[0].disagreeing = {251}; },
      [&](Report& r) { r.sweep.pools[0].disagreeing = {UINT32_MAX}; },
      [&](Report& r) {
        r.sweep.pools[0].backends = {{3, 1, 1}};
      },
      [&](Report& r) { r.sweep.pools[0].pool = "nobody"; },
      [&](Report& r) { r.sweep.pools.clear(); },
  };
  for (size_t i = 0; i < spoilt.size(); ++i) {
    pass(1s);
    Report report = swept();
    spoilt[i](report);
    take(report);
    ASSERT_EQ(unsettled(), all) << "report " << i;
  }
  pass(1s);
  take(swept());
  EXPECT_EQ(unsettled(), 0u) << "and does not spoil what follows";
}

TEST_F(ConnectionsTest, AReportOfAProcessThatIsGoneIsNotBelieved) {
  start_healthy();
  set_state("b1", BackendState::kDrain);
  pass_window();
  DataplaneStatus gone;
  gone.report = swept();
  controller_->flows_reported(gone);
  gone.running = true;
  gone.report->written_ns = 1;  // and not since
  controller_->flows_reported(gone);
  pass(100ms);
  EXPECT_GT(unsettled(), 80u);
}

TEST_F(ConnectionsTest, AnIndexIsUsedAgainOnceNothingNamesIt) {
  start_healthy();
  const uint32_t b1 = index_of("b1");
  remove("b1");
  take(swept({}, {}));
  add("b4");
  EXPECT_NE(index_of("b4"), b1) << "histories name it";
  pass_window();
  take(swept({}, {{b1, 1, 7}}));
  EXPECT_EQ(unsettled(), 0u);
  add("b5");
  EXPECT_NE(index_of("b5"), b1) << "flows name it";
  pass(1s);
  take(swept());
  add("b6");
  EXPECT_EQ(index_of("b6"), b1);
  restart();
  pass(100ms);
  EXPECT_EQ(index_of("b6"), b1);
  EXPECT_EQ(published().pool_view.backends[b1].incarnation, 2);
}

Report with_losses(Report report, uint64_t count) {
  report.events = {{"flow_known", 5}, {std::string(kLostFlowEvents[0]), count}};
  return report;
}

TEST_F(ConnectionsTest, FlowsThatFoundNoRoomKeepTheWindowOpenWithinABound) {
  start_healthy();
  set_state("b1", BackendState::kDrain);
  const auto end_ns = [&] { return published().slots[0].inherit_until_ns; };
  const uint64_t changed_ns = world_.boot_time_ns();
  const uint64_t first_ns = end_ns();
  uint64_t losses = 7;
  take(with_losses(swept(), losses));
  take(with_losses(swept(), ++losses));
  EXPECT_EQ(end_ns(), first_ns) << "half of it is not over yet";
  const uint64_t generation = controller_->generation();
  pass(500s);
  const uint64_t extended_ns = world_.boot_time_ns() + kWindow_ns;
  take(with_losses(swept(), losses));
  EXPECT_EQ(end_ns(), extended_ns);
  pass(600s);
  take(with_losses(swept(), losses));
  EXPECT_EQ(end_ns(), extended_ns) << "what found no room has been seen again since";
  for (int i = 0; i < 500; ++i) {
    pass(10s);
    take(with_losses(swept(), ++losses));
    if (unsettled() == 0) break;
    ASSERT_LE(end_ns(), changed_ns + kMostWindows * kWindow_ns);
  }
  EXPECT_EQ(unsettled(), 0u);
  EXPECT_GE(world_.boot_time_ns(), changed_ns + kMostWindows * kWindow_ns);
  EXPECT_LE(controller_->generation(), generation + 2 * kMostWindows + 1) << "few publications";
}

TEST_F(ConnectionsTest, LossesOfBeforeTheFirstReportExtendNothing) {
  start_healthy();
  set_state("b1", BackendState::kDrain);
  const Checksum history = controller_->planned("web")->history;
  pass(800s);
  take(with_losses(swept(), 1000));
  Report other = with_losses(swept(), 2000);
  other.started_ns = 2;
  take(other);
  EXPECT_EQ(controller_->planned("web")->history, history);
}

}  // namespace
}  // namespace maglev
