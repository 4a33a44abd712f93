#include "control/render.h"

#include <fmt/format.h>

#include <filesystem>
#include <iterator>

#include "tests/control/fixtures.h"

namespace maglev {
namespace {

// A rendered directory, read as the dataplane reads it.
class RenderTest : public testing::Test {
 protected:
  void read(const std::vector<boost::asio::ip::address>& outer_sources = {}) {
    const auto configuration = read_configuration(text_, "test.yaml");
    ASSERT_TRUE(configuration) << configuration.error().front();
    const auto rendered = render(*configuration, directory_.path("/out"), outer_sources);
    ASSERT_TRUE(rendered) << rendered.error();
    root_file_ = file("root");
    const auto root = check_root_file(root_file_);
    ASSERT_TRUE(root) << root.error();
    root_ = *root;
  }

  std::vector<std::byte> file(const std::string& name) const {
    return read_whole_file(directory_.path("/out/" + name), 1 << 24).value();
  }

  std::map<std::string, BackendRecord> backends() const {
    std::map<std::string, BackendRecord> found;
    for (const auto& [name, history] : root_.pools) {
      const auto pool_file = file("pools/" + name.hex());
      const auto pool = check_pool_file(pool_file);
      EXPECT_TRUE(pool);
      const auto table_file = file("tables/" + pool->table.hex());
      const auto table = check_table_file(table_file);
      EXPECT_TRUE(table && check_pool_fits_table(*pool, *table));
      for (size_t i = 0; i < pool->backends.size(); ++i) {
        found.emplace(pool->backend_names[i], pool->backends[i]);
      }
    }
    return found;
  }

  TemporaryDirectory directory_;
  std::string text_ = sample_configuration(directory_.path());
  std::vector<std::byte> root_file_;
  RootView root_;
};

Address record_of(const char* address) {
  return to_record(boost::asio::ip::make_address(address));
}

TEST_F(RenderTest, EveryBackendIsUpResolvedAndOnLink) {
  text_.replace(text_.find("198.18.3.1"), 10, "\"2001:db8::a:1\"");
  read();
  EXPECT_EQ(root_.generation, 1u);
  EXPECT_EQ(root_.vips.size(), 2u);
  const auto found = backends();
  ASSERT_EQ(found.size(), 4u);
  const BackendRecord& b1 = found.at("b1");
  EXPECT_EQ(b1.resolved, 1);
  EXPECT_EQ(b1.flags, kBackendServes | kBackendOnLink);
  EXPECT_EQ(b1.port, 0);
  EXPECT_EQ(b1.path_mtu_bytes, 0);
  EXPECT_EQ(b1.outer_source, record_of("198.18.0.1"));
  EXPECT_EQ(b1.outer_source_prefix_length, 32);
  const auto mac = [](const BackendRecord& backend) {
    return std::vector(std::begin(backend.next_hop_mac), std::end(backend.next_hop_mac));
  };
  EXPECT_EQ(mac(b1), (std::vector<uint8_t>{2, 0, 198, 18, 2, 11}));
  const BackendRecord& p1 = found.at("p1");
  EXPECT_EQ(p1.outer_source, record_of("2001:db8::1"));
  EXPECT_EQ(p1.outer_source_prefix_length, 128);
  EXPECT_EQ(mac(p1), (std::vector<uint8_t>{2, 0, 0, 0x0a, 0, 1}));
}

TEST_F(RenderTest, TheFilesAreThoseOfAFreshStart) {
  read();
  const auto plan = [&] {
    const auto configuration = read_configuration(text_, "test.yaml");
    Numbering numbering;
    const Pool& pool = configuration->pools.at("web");
    numbering.update(pool.backends, 1);
    return build_table_file(*build_lookup_table(
        PlacementKind::kMaglev, std::vector<WeightedName>{{"b1", 1}, {"b2", 1}, {"b3", 1}},
        pool.settings.table_size));
  }();
  const Checksum name = check_table_file(plan)->checksum;
  EXPECT_EQ(file("tables/" + name.hex()), plan);
}

TEST_F(RenderTest, OuterSourcesAreThePrefixesUnlessOthersAreAskedFor) {
  text_ += "outer_source_prefixes: [198.18.64.0/24]\n";
  read();
  EXPECT_EQ(backends().at("b1").outer_source, record_of("198.18.64.0"));
  EXPECT_EQ(backends().at("b1").outer_source_prefix_length, 24);
  std::filesystem::remove_all(directory_.path("/out"));
  read({boost::asio::ip::make_address("198.18.9.9")});
  EXPECT_EQ(backends().at("b1").outer_source, record_of("198.18.9.9"));
  EXPECT_EQ(backends().at("b1").outer_source_prefix_length, 32);
}

TEST_F(RenderTest, ADirectoryThatMayBeInUseIsLeftAlone) {
  read();
  const auto before = file("root");
  const auto again = render(*read_configuration(text_, "test.yaml"), directory_.path("/out"), {});
  ASSERT_FALSE(again);
  EXPECT_NE(again.error().find("name a directory without published files"), std::string::npos);
  EXPECT_EQ(file("root"), before);
}

}  // namespace
}  // namespace maglev
