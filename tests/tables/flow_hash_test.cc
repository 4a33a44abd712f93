#include "tables/flow_hash.h"

#include <arpa/inet.h>

#include <fstream>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace maglev {
namespace {

template <typename Key>
void expect_golden(const nlohmann::json& flow, const Key& key) {
  std::string bytes;
  for (size_t i = 0; i < sizeof key; ++i) {
    bytes += fmt::format("{:02x}", reinterpret_cast<const uint8_t*>(&key)[i]);
  }
  EXPECT_EQ(bytes, flow["bytes"]);
  const uint64_t seed = std::stoull(flow["seed"].get<std::string>());
  EXPECT_EQ(fmt::format("{:016x}", hash_flow(key, seed)), flow["hash"]);
  EXPECT_EQ(fmt::format("{:016x}", hash_source(key, seed)), flow["source_only_hash"]);
  for (const auto& [size, slot] : flow["slots"].items()) {
    EXPECT_EQ(slot_of(hash_flow(key, seed), static_cast<uint32_t>(std::stoul(size))), slot);
  }
  for (const auto& [size, slot] : flow["source_only_slots"].items()) {
    EXPECT_EQ(slot_of(hash_source(key, seed), static_cast<uint32_t>(std::stoul(size))), slot);
  }
}

TEST(FlowHash, EveryGoldenFlowIsReproduced) {
  std::ifstream file(std::string(MAGLEV_GOLDEN_DIRECTORY) + "/flow_hash.json");
  const auto golden = nlohmann::json::parse(file);
  ASSERT_EQ(golden["flows"].size(), 32u);
  for (const auto& flow : golden["flows"]) {
    SCOPED_TRACE(flow.dump());
    const std::string source = flow["source"];
    const std::string destination = flow["destination"];
    const uint16_t source_port = htons(flow["source_port"].get<uint16_t>());
    const uint16_t destination_port = htons(flow["destination_port"].get<uint16_t>());
    if (source.find(':') == std::string::npos) {
      FlowKey4 key{0, 0, source_port, destination_port, flow["protocol"]};
      ASSERT_EQ(inet_pton(AF_INET, source.c_str(), &key.source_be), 1);
      ASSERT_EQ(inet_pton(AF_INET, destination.c_str(), &key.destination_be), 1);
      expect_golden(flow, key);
    } else {
      FlowKey6 key{{}, {}, source_port, destination_port, flow["protocol"]};
      ASSERT_EQ(inet_pton(AF_INET6, source.c_str(), key.source), 1);
      ASSERT_EQ(inet_pton(AF_INET6, destination.c_str(), key.destination), 1);
      expect_golden(flow, key);
    }
  }
}

TEST(FlowHash, SlotsStayBelowTheSize) {
  for (uint32_t size : {7u, 65537u, 16777213u}) {
    EXPECT_EQ(slot_of(0, size), 0u);
    EXPECT_EQ(slot_of(~uint64_t{0}, size), size - 1);
  }
}

}  // namespace
}  // namespace maglev
