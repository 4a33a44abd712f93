#include "dataplane/adoption.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <numeric>
#include <optional>
#include <random>

#include "tests/dataplane/fixture.h"

namespace maglev {
namespace {

using namespace testing;
namespace fs = std::filesystem;

// A published tree on disk, written as the publisher does: content-named files, root by rename.
class Directory {
 public:
  Directory() {
    // In memory where possible: the corruption test writes hundreds of thousands of files.
    const fs::path parent = fs::is_directory("/dev/shm") ? "/dev/shm" : fs::temp_directory_path();
    std::string pattern = (parent / "maglev-adoption-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
    fs::create_directory(path_ / kTableDirectory);
    fs::create_directory(path_ / kPoolDirectory);
    fs::create_directory(path_ / kHistoryDirectory);
  }
  ~Directory() { fs::remove_all(path_); }

  void publish(const Tree& tree) {
    write(path_ / kTableDirectory / name_of(tree.table), tree.table);
    write(path_ / kPoolDirectory / name_of(tree.pool), tree.pool);
    if (!tree.history.empty()) {
      write(path_ / kHistoryDirectory / name_of(tree.history), tree.history);
    }
    write_root(tree.root);
  }
  void write_root(const Image& root) { write(path_ / kRootFileName, root); }
  void write(const fs::path& path, const Image& image) {
    const fs::path aside = path.string() + ".new";
    std::ofstream(aside, std::ios::binary)
        .write(reinterpret_cast<const char*>(image.data()),
               static_cast<std::streamsize>(image.size()));
    fs::rename(aside, path);
  }
  const fs::path& path() const { return path_; }

  static std::string name_of(const Image& image) {
    FileHeader header;
    std::memcpy(&header, image.data(), sizeof header);
    return header.checksum.hex();
  }

 private:
  fs::path path_;
};

const std::vector<RootVip> kVips = {make_vip("web", "198.51.100.10", 80)};

class Adoption : public ::testing::Test {
 protected:
  Adopter make_adopter() {
    return Adopter(directory_.path(), boot_, bed_.ports, bed_.vip_counters, bed_.backend_counters,
                   numbers_, std::pmr::new_delete_resource());
  }

  Directory directory_;
  TestBed bed_;
  std::vector<PoolNumberRecord> number_records_{64};
  PoolNumbers numbers_{number_records_};
  BootId boot_ = kBoot;
};

SlotHistory past_slot(uint32_t slot, uint32_t fallback, uint8_t incarnation = 0) {
  return {.slot = slot,
          .fallback = fallback,
          .pending_until_ns = 10,
          .inherit_until_ns = 20,
          .fallback_incarnation = incarnation,
          .zero = {}};
}

TEST_F(Adoption, WithoutARootThereIsNothingAndNothingIsWrong) {
  Adopter adopter = make_adopter();
  EXPECT_EQ(adopter.poll(), nullptr);
  EXPECT_EQ(adopter.refused_roots(), 0u);
}

TEST_F(Adoption, ANewRootIsAdoptedOnce) {
  Adopter adopter = make_adopter();
  directory_.publish(make_tree(1, 3, 251, kVips));
  const auto first = adopter.poll();
  ASSERT_NE(first, nullptr) << adopter.last_refusal();
  EXPECT_EQ(first->generation(), 1u);
  EXPECT_EQ(adopter.poll(), nullptr);
  directory_.publish(make_tree(2, 4, 251, kVips));
  EXPECT_EQ(adopter.poll()->generation(), 2u);
  EXPECT_EQ(adopter.refused_roots(), 0u);
}

TEST_F(Adoption, AnUnchangedPoolIsSharedAndNeedsNoFile) {
  Adopter adopter = make_adopter();
  directory_.publish(make_tree(1, 3, 251, kVips));
  const auto first = adopter.poll();
  fs::remove_all(directory_.path() / kTableDirectory);
  fs::remove_all(directory_.path() / kPoolDirectory);
  directory_.write_root(make_tree(2, 3, 251, {}).root);
  const auto second = adopter.poll();
  ASSERT_NE(second, nullptr) << adopter.last_refusal();
  EXPECT_EQ(first->pools()[0], second->pools()[0]);
}

TEST_F(Adoption, AGenerationThatDoesNotGrowIsRefused) {
  Adopter adopter = make_adopter();
  directory_.publish(make_tree(5, 3, 251, kVips));
  ASSERT_NE(adopter.poll(), nullptr);
  directory_.publish(make_tree(4, 4, 251, kVips));
  EXPECT_EQ(adopter.poll(), nullptr);
  directory_.publish(make_tree(5, 4, 251, kVips));
  EXPECT_EQ(adopter.poll(), nullptr);
  EXPECT_EQ(adopter.refused_roots(), 2u);
  EXPECT_NE(adopter.last_refusal().find("generation 5 after generation 5"), std::string::npos);
}

TEST_F(Adoption, AMissingFileRefusesTheRootUntilItIsThere) {
  Adopter adopter = make_adopter();
  const Tree tree = make_tree(1, 3, 251, kVips);
  directory_.write_root(tree.root);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(adopter.poll(), nullptr);
  EXPECT_EQ(adopter.refused_roots(), 1u) << "counted once";
  directory_.publish(tree);
  EXPECT_NE(adopter.poll(), nullptr) << adopter.last_refusal();
}

TEST_F(Adoption, WhatIsNoRegularFileIsRefusedWithoutWaiting) {
  Adopter adopter = make_adopter();
  ASSERT_EQ(mkfifo((directory_.path() / kRootFileName).c_str(), 0600), 0);
  EXPECT_EQ(adopter.poll(), nullptr);
  EXPECT_NE(adopter.last_refusal().find("no regular file"), std::string::npos);
}

TEST_F(Adoption, NewPortsBuildTheSameRootAnew) {
  Adopter adopter = make_adopter();
  directory_.publish(make_tree(1, 3, 251, kVips));
  const auto before = adopter.poll();
  ASSERT_NE(before, nullptr);
  adopter.set_ports({{{2, 0, 0, 0, 0, 9}, 1500}});
  const auto after = adopter.poll();
  ASSERT_NE(after, nullptr) << adopter.last_refusal();
  EXPECT_EQ(after->generation(), 1u);
  const BackendEntry& entry = after->pools()[0]->ways.begin()->second[0];
  EXPECT_EQ(entry.block[kIpv4Block - entry.header_length + 11], 9);
  EXPECT_EQ(adopter.poll(), nullptr);
}

TEST_F(Adoption, ABackendBehindAPortThatDoesNotExistRefusesTheRoot) {
  Adopter adopter = make_adopter();
  adopter.set_ports({});
  directory_.publish(make_tree(1, 3, 251, kVips));
  EXPECT_EQ(adopter.poll(), nullptr);
  EXPECT_NE(adopter.last_refusal().find("port 0, but there are only 0"), std::string::npos)
      << adopter.last_refusal();
}

TEST_F(Adoption, ASlotsHistoryIsReadWithItsPool) {
  const auto settled = bed_.adopt(make_tree(1, 3, 251, kVips));
  const auto& owners = settled->pools()[0]->slots16;
  Adopter adopter = make_adopter();
  // The backends there are have incarnation 0.
  directory_.publish(make_tree(1, 3, 251, kVips, 42, 0,
                               {past_slot(0, 2), past_slot(7, kNoOwner), past_slot(250, 2, 1)}));
  const auto snapshot = adopter.poll();
  ASSERT_NE(snapshot, nullptr) << adopter.last_refusal();
  const PoolImage& pool = *snapshot->pools()[0];
  ASSERT_EQ(pool.unsettled.size(), 3u);
  EXPECT_EQ(pool.unsettled[0].slot, 0u);
  EXPECT_EQ(pool.unsettled[0].owner, owners[0]);
  EXPECT_EQ(pool.unsettled[0].fallback, 2u);
  EXPECT_EQ(pool.unsettled[0].pending_until_ns, 10u);
  EXPECT_EQ(pool.unsettled[0].inherit_until_ns, 20u);
  EXPECT_EQ(pool.unsettled[1].fallback, owners[7]) << "there is none";
  EXPECT_EQ(pool.unsettled[2].fallback, owners[250]) << "another backend has its place";
  EXPECT_EQ(pool.unsettled[2].pending_until_ns, 0u) << "nothing waits for it";
  EXPECT_EQ(pool.unsettled[2].inherit_until_ns, 20u);
  EXPECT_EQ(pool.slots16[7], 3u + 1u) << "behind the backends";
  EXPECT_EQ(pool.slots16[8], owners[8]);
}

TEST_F(Adoption, SlotsAreWideWhereIndicesAndUnsettledSlotsTogetherNeedIt) {
  std::vector<SlotHistory> past;
  for (uint32_t slot = 0; slot < 65534; ++slot) past.push_back(past_slot(slot, 0));
  const auto narrow = bed_.adopt(make_tree(1, 1, 65537, kVips, 42, 0, past));
  EXPECT_EQ(narrow->pools()[0]->slot_bytes(), 2u);
  past.push_back(past_slot(65534, 0));
  const auto wide = bed_.adopt(make_tree(2, 1, 65537, kVips, 42, 0, past));
  EXPECT_EQ(wide->pools()[0]->slot_bytes(), 4u);
  EXPECT_EQ(wide->tracked_pools()[0].slot_of_word(65535).inherit_until_ns, 20u);
  EXPECT_EQ(wide->tracked_pools()[0].slot_of_word(0).inherit_until_ns, 0u);
}

TEST_F(Adoption, AnotherHistoryIsAdoptedThoughThePoolIsTheSame) {
  Adopter adopter = make_adopter();
  directory_.publish(make_tree(1, 3, 251, kVips, 42, 0, {past_slot(0, 2)}));
  const auto first = adopter.poll();
  directory_.publish(make_tree(2, 3, 251, kVips, 42, 0, {past_slot(1, 2)}));
  const auto second = adopter.poll();
  directory_.publish(make_tree(3, 3, 251, kVips));
  const auto third = adopter.poll();
  ASSERT_TRUE(first && second && third) << adopter.last_refusal();
  EXPECT_EQ(first->pools()[0]->unsettled[0].slot, 0u);
  EXPECT_EQ(second->pools()[0]->unsettled[0].slot, 1u);
  EXPECT_TRUE(third->pools()[0]->unsettled.empty());
}

TEST_F(Adoption, AHistoryOfAnotherBootTellsNothing) {
  boot_ = {2};
  Adopter adopter = make_adopter();
  directory_.publish(make_tree(1, 3, 251, kVips, 42, 0, {past_slot(0, 2)}));
  const auto snapshot = adopter.poll();
  ASSERT_NE(snapshot, nullptr) << adopter.last_refusal();
  EXPECT_TRUE(snapshot->pools()[0]->unsettled.empty());
}

TEST_F(Adoption, AHistoryThatIsMissingOrDoesNotFitRefusesTheRoot) {
  Adopter adopter = make_adopter();
  Tree tree = make_tree(1, 3, 251, kVips, 42, 0, {past_slot(0, 2)});
  tree.history.clear();
  directory_.publish(tree);
  EXPECT_EQ(adopter.poll(), nullptr);
  EXPECT_NE(adopter.last_refusal().find("histories/"), std::string::npos) << adopter.last_refusal();
  directory_.publish(make_tree(2, 3, 251, kVips, 42, 0, {past_slot(251, 2)}));
  EXPECT_EQ(adopter.poll(), nullptr);
  EXPECT_NE(adopter.last_refusal().find("slot 251"), std::string::npos) << adopter.last_refusal();
  directory_.publish(make_tree(3, 3, 251, kVips, 42, 0, {past_slot(0, 3)}));
  EXPECT_EQ(adopter.poll(), nullptr);
  EXPECT_NE(adopter.last_refusal().find("no place"), std::string::npos) << adopter.last_refusal();
}

uint64_t seed_from_environment() {
  const char* text = std::getenv("MAGLEV_SEED");
  return text != nullptr ? std::strtoull(text, nullptr, 0) : std::random_device()();
}

// Truncates, flips bits, overwrites words with likely values, or swaps ranges.
void corrupt(Image& image, std::mt19937_64& random) {
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  const size_t changes = 1 + below(4);
  for (size_t c = 0; c < changes; ++c) {
    if (image.empty()) return;
    switch (below(4)) {
      case 0:
        image.resize(below(image.size() + 1));
        break;
      case 1:
        image[below(image.size())] ^= std::byte{1} << below(8);
        break;
      case 2: {
        constexpr uint64_t kValues[] = {0, 1, 0xff, 0xffff, 0xffffffff, ~uint64_t{0}, 1u << 31};
        const uint64_t value = kValues[below(std::size(kValues))];
        const size_t width = size_t{1} << below(4);
        const size_t at = below(image.size()) / width * width;
        std::memcpy(image.data() + at, &value, std::min(width, image.size() - at));
        break;
      }
      case 3:
        image[below(image.size())] = image[below(image.size())];
        break;
    }
  }
}

// With the checksum and the length recomputed the structural checks alone decide.
void recompute_checksums(Image& image) {
  if (image.size() < sizeof(FileHeader)) return;
  if (image.size() % 8 == 0) {
    const uint64_t length = image.size();
    std::memcpy(image.data() + offsetof(FileHeader, length_bytes), &length, sizeof length);
  }
  seal(image);
}

std::vector<SlotHistory> random_past(uint32_t slots, uint32_t backends, std::mt19937_64& random) {
  std::vector<SlotHistory> past;
  for (uint32_t slot = 0; slot < slots; slot += 1 + static_cast<uint32_t>(random() % 50)) {
    past.push_back(past_slot(slot, static_cast<uint32_t>(random() % backends)));
  }
  return past;
}

bool is_index(uint32_t backend, const PoolImage& pool) {
  return backend == kNoBackendIndex || backend < pool.backend_names.size();
}

bool names_its_own(const PoolImage& pool) {
  return std::ranges::all_of(pool.unsettled, [&](const UnsettledSlot& slot) {
    return slot.slot < pool.slots16.size() && is_index(slot.owner, pool) &&
           is_index(slot.fallback, pool);
  });
}

// The root and the pool name their children by checksum: follow the change upwards.
void rename_in(Image& parent, const std::string& old_name, const Image& child) {
  const auto from = Checksum::from_hex(old_name)->bytes;
  const auto to = Checksum::from_hex(Directory::name_of(child))->bytes;
  const auto old_bytes = std::as_bytes(std::span(from));
  const auto at = std::search(parent.begin(), parent.end(), old_bytes.begin(), old_bytes.end());
  if (at == parent.end()) return;
  std::ranges::copy(std::as_bytes(std::span(to)), at);
  seal(parent);
}

std::vector<Bytes> thousand_frames() {
  std::vector<Bytes> frames;
  for (uint16_t i = 0; i < 1000; ++i) {
    frames.push_back(make_frame(
        {.source_port = i, .destination_port = static_cast<uint16_t>(i % 10 == 0 ? i : 80)}));
  }
  return frames;
}

TEST_F(Adoption, AnyCorruptionIsRefusedOrHarmless) {
  const char* count_text = std::getenv("MAGLEV_CORRUPTIONS");
  const int corruptions = count_text != nullptr ? std::atoi(count_text) : 100000;
  const uint64_t seed = seed_from_environment();
  std::cout << corruptions << " corruptions, MAGLEV_SEED=" << seed << "\n";
  std::mt19937_64 random(seed);

  std::optional<Adopter> adopter(make_adopter());
  const std::vector<RootVip> vips = {make_vip("web", "198.51.100.10", 80),
                                     make_vip("any", "198.51.100.11", kAnyPort)};
  directory_.publish(make_tree(1, 5, 251, vips));
  std::shared_ptr<const Snapshot> current = adopter->poll();
  ASSERT_NE(current, nullptr);
  const std::vector<Bytes> frames = thousand_frames();
  BurstRunner runner(bed_.counters);
  int adopted = 0;
  uint64_t refused = 0;
  uint64_t generation = 1;
  for (int i = 0; i < corruptions; ++i) {
    const uint32_t backends = 1 + static_cast<uint32_t>(random() % 6);
    Tree tree =
        make_tree(++generation, backends, 251, vips, 42, 0, random_past(251, backends, random));
    Image* const files[] = {&tree.table, &tree.pool, &tree.history, &tree.root};
    Image& victim = *files[random() % std::size(files)];
    const std::string table_name = Directory::name_of(tree.table);
    const std::string pool_name = Directory::name_of(tree.pool);
    const std::string history_name = Directory::name_of(tree.history);
    corrupt(victim, random);
    const bool consistent = random() % 2 == 0 && victim.size() >= sizeof(FileHeader);
    if (consistent) {
      recompute_checksums(victim);
      if (tree.table.size() >= sizeof(FileHeader)) rename_in(tree.pool, table_name, tree.table);
      rename_in(tree.root, pool_name, tree.pool);
      if (tree.history.size() >= sizeof(FileHeader)) {
        rename_in(tree.root, history_name, tree.history);
      }
      directory_.publish(tree);
    } else {
      // The live files: under the names that the parents know.
      directory_.write(directory_.path() / kTableDirectory / table_name, tree.table);
      directory_.write(directory_.path() / kPoolDirectory / pool_name, tree.pool);
      directory_.write(directory_.path() / kHistoryDirectory / history_name, tree.history);
      directory_.write_root(tree.root);
    }
    if (auto snapshot = adopter->poll()) {
      current = std::move(snapshot);
      for (const auto& pool : current->pools()) ASSERT_TRUE(names_its_own(*pool));
      generation = std::max(generation, current->generation());
      ++adopted;
      if (generation > uint64_t{1} << 60) {  // a corrupted generation: start over
        generation = 1;
        refused += adopter->refused_roots();
        adopter.emplace(make_adopter());
      }
    }
    for (std::span<const Bytes> left(frames); !left.empty();) {
      const size_t burst = std::min<size_t>(left.size(), kMaxBurst);
      runner.run(left.first(burst), current.get());
      left = left.subspan(burst);
    }
  }
  const WorkerTotals totals = read_totals(bed_.counters);
  EXPECT_EQ(totals.received_packets, uint64_t{1000} * static_cast<uint64_t>(corruptions));
  EXPECT_EQ(totals.received_packets,
            std::accumulate(totals.verdicts.begin(), totals.verdicts.end(), uint64_t{0}));
  refused += adopter->refused_roots();
  std::cout << adopted << " adopted as harmless, " << refused << " refused\n";
  EXPECT_GT(refused, 0u);
}

}  // namespace
}  // namespace maglev
