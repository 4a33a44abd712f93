#include "tables/settings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

namespace maglev {
namespace {

constexpr const char* kGood = R"(
directory: /run/maglev-test
dataplane:
  main_core: 0
  cores: ["3@1", 7]
  eal_options: [--no-pci]
  ports:
    - {name: uplink, device: "net_af_xdp0,iface=lb0", interface: lb0}
    - name: second
      device: 0000:01:00.0
)";

std::pair<DataplaneSettings, std::vector<std::string>> read(std::string_view text) {
  std::vector<std::string> errors;
  const YamlCursor document = YamlCursor::parse(text, "maglev.yaml", errors);
  DataplaneSettings settings = read_dataplane_settings(document);
  return {settings, errors};
}

TEST(Settings, AGoodFileIsReadWithDefaults) {
  const auto [settings, errors] = read(kGood);
  EXPECT_TRUE(errors.empty()) << errors.front();
  EXPECT_EQ(settings.directory, "/run/maglev-test");
  ASSERT_EQ(settings.cores.size(), 2u);
  EXPECT_EQ(settings.cores[0].lcore, 3u);
  EXPECT_EQ(settings.cores[0].processor, 1u);
  EXPECT_EQ(settings.cores[1].processor, 7u);
  ASSERT_EQ(settings.ports.size(), 2u);
  EXPECT_EQ(settings.ports[0].device, "net_af_xdp0,iface=lb0");
  EXPECT_EQ(settings.ports[1].rx_descriptors, 1024u);
  EXPECT_EQ(settings.total_queues(), 2u);
}

TEST(Settings, EachMistakeIsToldWithLineAndColumn) {
  const auto [settings, errors] = read(R"(directory: /run/x
dataplane:
  cores: [1]
  memory_mib: lots
  speed: 9
  ports:
    - name: a
      device: net_null0
      queues: 65
    - name: a
      device: net_null1
)");
  ASSERT_EQ(errors.size(), 5u);
  EXPECT_EQ(errors[0],
            "maglev.yaml:5:3: dataplane: unknown setting 'speed': expected one of main_core, "
            "cores, memory_mib, hugepages, packet_buffers, packet_buffer_bytes, "
            "icmp_answers_per_second, flow_entries, flow_store, steering_program, eal_options, "
            "ports");
  EXPECT_EQ(errors[1],
            "maglev.yaml:4:15: dataplane.memory_mib: expected a whole number from 64 to 1048576, "
            "found 'lots'");
  EXPECT_EQ(errors[2],
            "maglev.yaml:9:15: dataplane.ports[0].queues: expected a whole number from 0 to 64, "
            "found '65'");
  EXPECT_NE(errors[3].find("maglev.yaml:10:7"), std::string::npos) << errors[3];
  EXPECT_NE(errors[3].find("two ports are named 'a'"), std::string::npos) << errors[3];
  EXPECT_NE(errors[4].find("1 core for 2 RX queues"), std::string::npos) << errors[4];
}

TEST(Settings, FlowTablesArePowersOfTwoAndTheirFileHasAnAbsolutePath) {
  const auto [settings, errors] = read(R"(dataplane:
  cores: [1]
  flow_entries: 100000
  flow_store: flows
  ports: [{name: a, device: net_null0}]
)");
  ASSERT_EQ(errors.size(), 2u);
  EXPECT_EQ(errors[0].substr(0, 17), "maglev.yaml:3:17:") << errors[0];
  EXPECT_NE(errors[0].find("65536 or 131072"), std::string::npos) << errors[0];
  EXPECT_NE(errors[1].find("absolute path"), std::string::npos) << errors[1];
}

TEST(Settings, APortMayOnlySendButNotEveryPort) {
  const std::string sender =
      "dataplane:\n  cores: [1]\n  ports:\n    - {name: b, device: net_null1, queues: 0}\n";
  const auto [mixed, no_errors] = read(sender + "    - {name: a, device: net_null0}\n");
  EXPECT_TRUE(no_errors.empty());
  EXPECT_EQ(mixed.total_queues(), 1u);
  const auto [silent, errors] = read(sender);
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_NE(errors[0].find("no port has an RX queue"), std::string::npos) << errors[0];
}

TEST(Settings, AnAfXdpPortCannotOnlySend) {
  const auto [settings, errors] = read(R"(dataplane:
  cores: [1]
  ports:
    - {name: a, device: net_null0}
    - {name: b, device: "net_af_xdp0,iface=lb0", queues: 0}
)");
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].substr(0, 16), "maglev.yaml:5:7:") << errors[0];
  EXPECT_NE(errors[0].find("set queues to 1"), std::string::npos) << errors[0];
}

TEST(Settings, AQuotedNumberIsText) {
  const auto [settings, errors] = read(R"(
dataplane:
  memory_mib: "256"
  hugepages: "true"
  cores: [1]
  ports: [{name: a, device: net_null0}]
)");
  ASSERT_EQ(errors.size(), 2u);
  EXPECT_NE(errors[0].find("whole number"), std::string::npos) << errors[0];
  EXPECT_NE(errors[1].find("true or false"), std::string::npos) << errors[1];
}

TEST(Settings, ASyntaxErrorIsToldWithItsPlace) {
  const auto [settings, errors] = read("dataplane: [1, 2\n");
  ASSERT_FALSE(errors.empty());
  EXPECT_EQ(errors[0].substr(0, 14), "maglev.yaml:2:") << errors[0];
}

TEST(Settings, EveryTruncationEitherReadsOrNamesAPlaceAndNeverThrows) {
  const std::string text = kGood;
  for (size_t length = 0; length < text.size(); ++length) {
    const auto [settings, errors] = read(text.substr(0, length));
    for (const std::string& error : errors) EXPECT_EQ(error.substr(0, 11), "maglev.yaml") << error;
  }
  EXPECT_FALSE(read("").second.empty());
}

TEST(Settings, AFurtherDocumentIsAMistakeAndNotPassedOver) {
  const size_t lines = static_cast<size_t>(std::count(kGood, kGood + std::strlen(kGood), '\n'));
  for (const std::string more : {"---\nvips: []\n", "...\nvips: []\n"}) {
    const auto [settings, errors] = read(kGood + more);
    ASSERT_EQ(errors.size(), 1u) << more;
    EXPECT_EQ(errors[0].find(fmt::format("maglev.yaml:{}:", lines + 2)), 0u) << errors[0];
  }
}

TEST(Settings, NestingTooDeepIsToldAsSuch) {
  const std::string text = "dataplane: " + std::string(100000, '[') + std::string(100000, ']');
  const auto [settings, errors] = read(text);
  ASSERT_FALSE(errors.empty());
  EXPECT_NE(errors[0].find("nested too deep"), std::string::npos) << errors[0];
}

TEST(Settings, CoreIdsAreUsedOnce) {
  const auto [settings, errors] = read(R"(
dataplane:
  main_core: 1
  cores: [1]
  ports: [{name: a, device: net_null0}]
)");
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_NE(errors[0].find("core id 1 is used twice"), std::string::npos);
}

}  // namespace
}  // namespace maglev
