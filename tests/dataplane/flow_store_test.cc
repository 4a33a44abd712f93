#include "dataplane/flow_store.h"

#include <gtest/gtest.h>

#include <linux/magic.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>

#include <fmt/format.h>

namespace maglev {
namespace {

namespace fs = std::filesystem;

constexpr BootId kBoot{1, 2, 3};
constexpr uint64_t kNow_ns = 1'000'000'000'000;
constexpr uint64_t kIdle_ns = 900'000'000'000;
constexpr FlowLayout kLayout{2, 1024};
constexpr FlowIdentity kFlow{0x1234567800000000, 0xabcdef0012345678};

class FlowStoreTest : public ::testing::Test {
 protected:
  FlowStoreTest() : path_(fmt::format("/dev/shm/maglev-flow-store-test-{}", getpid())) { remove(); }
  ~FlowStoreTest() override { remove(); }
  void remove() const { FlowStore::remove(path_); }

  std::unique_ptr<FlowStore> open(const FlowLayout& layout = kLayout, const BootId& boot = kBoot,
                                  uint64_t now_ns = kNow_ns) const {
    auto store = FlowStore::open(path_, layout, boot, now_ns);
    if (!store) {
      ADD_FAILURE() << store.error();
      return nullptr;
    }
    return *std::move(store);
  }

  static void add(FlowTable& table, uint32_t backend) {
    const FlowTable::Position at = table.position_of(kFlow);
    FlowTable::Place* place = table.make_room(
        at, 0, false, FlowWorth::kUseless, [](const FlowEntry&) { return false; },
        [](const FlowEntry&) { return FlowWorth::kNeeded; });
    table.store(*place, {.tag = at.tag,
                         .backend = backend,
                         .incarnation = 3,
                         .pool = 1,
                         .state = FlowState::kEstablished,
                         .seen_tick = flow_tick(kNow_ns)});
  }

  std::string before() const { return path_ + ".before"; }

  std::string path_;
};

TEST_F(FlowStoreTest, ARestartFindsItsFlowsWhereTheyWere) {
  auto first = open();
  EXPECT_EQ(first->kept(), 0u);
  add(*first->shared().tables[1], 7);
  first.reset();
  const auto second = open();
  EXPECT_EQ(second->kept(), 1u);
  EXPECT_TRUE(second->not_kept().empty()) << second->not_kept();
  EXPECT_EQ(second->shared().tables[1]->peek(kFlow, 1)->backend, 7u);
  EXPECT_FALSE(second->shared().tables[0]->peek(kFlow, 1));
  EXPECT_EQ(fs::status(path_).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(FlowStoreTest, FlowsOfAnotherNumberOfWorkersAreReadAsLongAsTheyMayLive) {
  auto two = open();
  two->set_longest_idle(kIdle_ns);
  const uint16_t pool = *two->pool_numbers().take("web", kNow_ns);
  add(*two->shared().tables[1], 7);
  two.reset();
  auto three = open({3, 1024});
  EXPECT_EQ(three->kept(), 1u);
  ASSERT_EQ(three->shared().tables_before.size(), 2u);
  EXPECT_EQ(three->shared().tables_before[1]->peek(kFlow, 1)->backend, 7u);
  EXPECT_EQ(three->shared().elsewhere_until_ns, kNow_ns + kIdle_ns);
  EXPECT_EQ(three->pool_numbers().take("web", kNow_ns), pool);
  three.reset();
  // And by the next start too.
  auto again = open({3, 1024}, kBoot, kNow_ns + 1);
  ASSERT_EQ(again->shared().tables_before.size(), 2u);
  EXPECT_FALSE(again->end_before(kNow_ns + kIdle_ns - 1));
  EXPECT_TRUE(again->end_before(kNow_ns + kIdle_ns + 1));
  EXPECT_FALSE(again->end_before(kNow_ns + kIdle_ns + 2)) << "told once";
  EXPECT_EQ(again->shared().elsewhere_until_ns, 0u);
  again->drop_before();
  EXPECT_FALSE(fs::exists(before()));
  again.reset();
  EXPECT_TRUE(open({3, 1024}, kBoot, kNow_ns + 2 * kIdle_ns)->shared().tables_before.empty());
}

TEST_F(FlowStoreTest, FlowsOfAnotherBootOrSeedAreForgotten) {
  auto store = open();
  store->use_seed(42, false);
  add(*store->shared().tables[0], 7);
  store.reset();
  store = open();
  store->use_seed(42, false);
  EXPECT_EQ(store->shared().tables[0]->counters().used.get(), 1u);
  store->use_seed(43, false);
  EXPECT_EQ(store->shared().tables[0]->counters().used.get(), 0u);
  EXPECT_FALSE(store->shared().tables[0]->peek(kFlow, 1));
  add(*store->shared().tables[0], 7);
  store.reset();
  store = open(kLayout, BootId{9});
  EXPECT_EQ(store->kept(), 0u);
  EXPECT_NE(store->not_kept().find("boot"), std::string::npos);
}

TEST_F(FlowStoreTest, AStoreInUseIsRefusedAndStays) {
  const auto store = open();
  const auto other = FlowStore::open(path_, {3, 1024}, kBoot, kNow_ns);
  ASSERT_FALSE(other);
  EXPECT_NE(other.error().find("flow_store"), std::string::npos) << other.error();
  EXPECT_TRUE(fs::exists(path_));
  EXPECT_FALSE(fs::exists(before()));
}

TEST_F(FlowStoreTest, APathOnADiskIsRefused) {
  const auto store = FlowStore::open("/proc/self/nothing", kLayout, kBoot, kNow_ns);
  EXPECT_FALSE(store);
  const std::string path = (fs::current_path() / "no-flow-store").string();
  struct statfs system {};
  ASSERT_EQ(statfs(fs::current_path().c_str(), &system), 0);
  if (system.f_type == TMPFS_MAGIC) GTEST_SKIP() << "the tests run on tmpfs";
  const auto on_disk = FlowStore::open(path, kLayout, kBoot, kNow_ns);
  ASSERT_FALSE(on_disk);
  EXPECT_NE(on_disk.error().find("/dev/shm"), std::string::npos) << on_disk.error();
  EXPECT_FALSE(fs::exists(path));
}

TEST_F(FlowStoreTest, WhatIsNoStoreIsReplaced) {
  fs::create_symlink("/dev/null", path_);
  EXPECT_EQ(open()->kept(), 0u);
  EXPECT_FALSE(fs::is_symlink(path_));
  EXPECT_TRUE(fs::exists("/dev/null"));
  std::ofstream(path_, std::ios::trunc) << "short";
  const auto store = open();
  EXPECT_NE(store->not_kept().find("short"), std::string::npos) << store->not_kept();
}

// Whatever a damaged file holds, what is made of it is a table.
TEST_F(FlowStoreTest, DamageAnywhereIsSurvived) {
  const auto seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 60; ++round) {
    {
      auto store = open();
      ASSERT_NE(store, nullptr);
      add(*store->shared().tables[0], 7);
    }
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    const auto bytes = fs::file_size(path_);
    const uint64_t reach = round % 3 == 0 ? 96 : bytes;  // the header, or anywhere
    for (int i = 0; i < 500; ++i) {
      file.seekp(static_cast<std::streamoff>(random() % reach));
      file.put(static_cast<char>(random()));
    }
    file.close();
    if (round % 7 == 0) fs::resize_file(path_, random() % bytes);
    auto store = open();
    ASSERT_NE(store, nullptr);
    for (FlowTable* table : store->shared().tables) {
      for (uint64_t i = 0; i < table->capacity(); ++i) {
        const auto entry = table->place_at(i).read_shared();
        if (entry) {
          ASSERT_LT(static_cast<uint32_t>(entry->state), kFlowStateCount);
        }
      }
    }
    store->pool_numbers().take("web", kNow_ns);
    store.reset();
    remove();
  }
}

}  // namespace
}  // namespace maglev
