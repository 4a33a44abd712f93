#include "control/publisher.h"

#include <gtest/gtest.h>

#include <sys/stat.h>

#include "control/files.h"
#include "tables/history.h"
#include "tests/control/fixtures.h"

namespace maglev {
namespace {

namespace fs = std::filesystem;
using Image = std::vector<std::byte>;

Image table_of(uint32_t weight) {
  return build_table_file(*build_maglev(std::vector<WeightedName>{{"a", weight}, {"b", 1}}, 251));
}
Checksum name_of(const Image& table) {
  return check_table_file(table)->checksum;
}
Image pool_on(const Checksum& table, std::string_view name) {
  return build_pool_file(name, table, {}, {});
}

class PublisherTest : public testing::Test {
 protected:
  void open() {
    auto opened = Publisher::open(directory_.path("/run"));
    ASSERT_TRUE(opened) << opened.error();
    publisher_ = std::move(*opened);
  }

  // A whole publication with one table and one pool. Returns the table's name.
  Checksum publish(uint64_t generation, uint32_t weight) {
    const Image table = table_of(weight);
    const Image pool = pool_on(name_of(table), "web");
    const Checksum pool_name = check_pool_file(pool)->checksum;
    EXPECT_TRUE(publisher_->write(kTableDirectory, name_of(table), table));
    EXPECT_TRUE(publisher_->write(kPoolDirectory, pool_name, pool));
    const SlotHistory slot{weight, kNoOwner, 0, generation, 0, {}};
    const Image history = build_history_file(BootId{1}, {&slot, 1});
    const Checksum history_name = check_history_file(history)->checksum;
    EXPECT_TRUE(publisher_->write(kHistoryDirectory, history_name, history));
    EXPECT_TRUE(publisher_->replace_root(
        build_root_file(generation, 1, std::vector{PoolReference{pool_name, history_name}}, {}),
        {{kTableDirectory, {name_of(table)}},
         {kPoolDirectory, {pool_name}},
         {kHistoryDirectory, {history_name}}}));
    return name_of(table);
  }

  std::string table_path(const Checksum& name) const {
    return directory_.path("/run/tables/" + name.hex());
  }
  size_t count(std::string_view folder) const {
    const fs::directory_iterator files(directory_.path("/run/" + std::string(folder)));
    return static_cast<size_t>(std::distance(begin(files), end(files)));
  }

  TemporaryDirectory directory_;
  std::unique_ptr<Publisher> publisher_;
};

TEST_F(PublisherTest, WhatIsPublishedIsFoundByTheNextProcess) {
  open();
  EXPECT_TRUE(publisher_->root().empty());
  const Checksum table = publish(7, 1);
  EXPECT_TRUE(publisher_->has(kTableDirectory, table));
  publisher_.reset();
  open();
  EXPECT_EQ(check_root_file(publisher_->root())->generation, 7u);
  EXPECT_TRUE(publisher_->has(kTableDirectory, table));
}

TEST_F(PublisherTest, ADirectoryThatWasRemovedIsMadeAgain) {
  open();
  publish(1, 1);
  fs::remove_all(directory_.path("/run"));
  const Checksum table = publish(2, 1);
  EXPECT_TRUE(publisher_->has_root());
  EXPECT_TRUE(publisher_->has(kTableDirectory, table));
}

TEST_F(PublisherTest, NothingThatLiesInTheWayIsWrittenTo) {
  open();
  const std::string victim = directory_.path("/victim");
  std::ofstream(victim) << "precious";
  fs::create_symlink(victim, directory_.path("/run/.aside-root"));
  publish(1, 1);
  EXPECT_TRUE(publisher_->has_root());
  EXPECT_EQ(fs::file_size(victim), 8u);
}

TEST_F(PublisherTest, FilesAreForTheirOwnerAlone) {
  open();
  const Checksum table = publish(1, 1);
  for (const std::string& path :
       {directory_.path("/run"), directory_.path("/run/tables"), directory_.path("/run/pools"),
        directory_.path("/run/root"), table_path(table)}) {
    struct stat status {};
    ASSERT_EQ(::stat(path.c_str(), &status), 0) << path;
    EXPECT_EQ(status.st_mode & 0077, 0u) << path;
  }
}

TEST_F(PublisherTest, ASecondOneIsRefusedAndNamesTheDirectory) {
  open();
  publish(1, 1);
  const auto second = Publisher::open(directory_.path("/run"));
  ASSERT_FALSE(second);
  EXPECT_NE(second.error().find("another maglev-control"), std::string::npos);
  EXPECT_NE(second.error().find(directory_.path("/run")), std::string::npos);
  EXPECT_EQ(count("tables"), 1u);
}

TEST_F(PublisherTest, FilesOfTheLastFewRootsStayAndOlderOnesGo) {
  open();
  std::vector<Checksum> tables;
  for (uint32_t i = 1; i <= 8; ++i) tables.push_back(publish(i, i));
  EXPECT_EQ(count("tables"), Publisher::kKeptRoots + 1);
  EXPECT_EQ(count("pools"), Publisher::kKeptRoots + 1);
  EXPECT_EQ(count("histories"), Publisher::kKeptRoots + 1);
  EXPECT_TRUE(publisher_->has(kTableDirectory, tables[7]));
  EXPECT_TRUE(publisher_->has(kTableDirectory, tables[7 - Publisher::kKeptRoots]));
  EXPECT_FALSE(publisher_->has(kTableDirectory, tables[7 - Publisher::kKeptRoots - 1]));
}

TEST_F(PublisherTest, FilesOfTheRootFoundAtTheStartStayForAWhile) {
  open();
  const Checksum before = publish(1, 1);
  publisher_.reset();
  open();
  publish(2, 2);
  EXPECT_TRUE(publisher_->has(kTableDirectory, before));
}

TEST_F(PublisherTest, AGoodFileIsNotWrittenAgain) {
  open();
  const Checksum table = publish(1, 1);
  const auto written = fs::last_write_time(table_path(table));
  publisher_.reset();
  open();
  EXPECT_TRUE(publisher_->has(kTableDirectory, table));
  EXPECT_EQ(fs::last_write_time(table_path(table)), written);
}

TEST_F(PublisherTest, ADamagedOrForeignFileUnderAGoodNameIsNotTaken) {
  open();
  const Checksum table = publish(1, 1);
  {
    std::fstream file(table_path(table), std::ios::in | std::ios::out);
    file.seekp(100);
    file.put('\x7f');
  }
  EXPECT_FALSE(publisher_->has(kTableDirectory, table)) << "a byte changed";
  ASSERT_TRUE(replace_file(table_path(table), table_of(9)));
  EXPECT_FALSE(publisher_->has(kTableDirectory, table)) << "a whole file, but another";
  fs::resize_file(table_path(table), 3);
  EXPECT_FALSE(publisher_->has(kTableDirectory, table)) << "cut short";
  fs::remove(table_path(table));
  EXPECT_FALSE(publisher_->has(kTableDirectory, table)) << "gone";
  ASSERT_TRUE(publisher_->write(kTableDirectory, table, table_of(1)));
  EXPECT_TRUE(publisher_->has(kTableDirectory, table));
}

TEST_F(PublisherTest, ADamagedRootIsNoRoot) {
  open();
  publish(3, 1);
  publisher_.reset();
  fs::resize_file(directory_.path("/run/root"), 50);
  open();
  EXPECT_TRUE(publisher_->root().empty());
}

TEST_F(PublisherTest, WhatAKilledProcessLeftAsideIsRemoved) {
  open();
  publish(1, 1);
  publisher_.reset();
  for (const char* place : {"/run/.aside-root", "/run/tables/.aside-0", "/run/pools/.aside-0"}) {
    std::ofstream(directory_.path(place)) << "half";
  }
  open();
  EXPECT_FALSE(fs::exists(directory_.path("/run/.aside-root")));
  EXPECT_EQ(count("tables"), 1u);
  EXPECT_EQ(count("pools"), 1u);
}

TEST_F(PublisherTest, ADirectoryThatCannotBeMadeIsNamed) {
  std::ofstream(directory_.path("/file")) << "in the way";
  const auto opened = Publisher::open(directory_.path("/file/run"));
  ASSERT_FALSE(opened);
  EXPECT_NE(opened.error().find(directory_.path("/file/run")), std::string::npos) << opened.error();
}

}  // namespace
}  // namespace maglev
