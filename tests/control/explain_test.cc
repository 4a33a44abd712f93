#include "control/explain.h"

#include <fstream>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "control/vip.h"

namespace maglev {
namespace {

TEST(FindVip, TheLongestPrefixHasTheAddressAndTheNamedPortComesFirst) {
  const auto vip = [](const char* prefix, VipProtocol protocol, uint16_t port) {
    Vip made;
    made.prefix = *parse_prefix(prefix);
    made.protocol = protocol;
    made.port = port;
    return made;
  };
  const ByName<Vip> vips = {{"a-wide", vip("198.51.100.0/24", VipProtocol::kTcp, 80)},
                            {"b-any", vip("198.51.100.10", VipProtocol::kTcpAndUdp, kAnyPort)},
                            {"c-named", vip("198.51.100.10", VipProtocol::kUdp, 53)},
                            {"d-wide", vip("198.51.0.0/16", VipProtocol::kTcp, 22)}};
  const auto find = [&](const char* protocol, const char* destination) {
    const Served served = find_vip(vips, *parse_flow(protocol, "203.0.113.1:9", destination));
    return served.vip == nullptr ? "none" : served.vip->first;
  };
  EXPECT_EQ(find("udp", "198.51.100.10:53"), "c-named");
  EXPECT_EQ(find("tcp", "198.51.100.10:53"), "b-any");
  EXPECT_EQ(find("tcp", "198.51.100.11:80"), "a-wide");
  EXPECT_EQ(find("udp", "198.51.100.11:80"), "none");
  EXPECT_EQ(find("tcp", "198.51.100.11:22"), "none") << "the shorter prefix does not apply";
  EXPECT_EQ(find("tcp", "198.51.1.1:22"), "d-wide");
}

TEST(HashOf, EveryGoldenFlowIsReproduced) {
  std::ifstream file(std::string(MAGLEV_GOLDEN_DIRECTORY) + "/flow_hash.json");
  const auto golden = nlohmann::json::parse(file);
  for (const auto& entry : golden["flows"]) {
    SCOPED_TRACE(entry.dump());
    Flow flow;
    flow.protocol = entry["protocol"];
    flow.source = boost::asio::ip::make_address(entry["source"].get<std::string>());
    flow.source_port = entry["source_port"];
    flow.destination = boost::asio::ip::make_address(entry["destination"].get<std::string>());
    flow.destination_port = entry["destination_port"];
    const uint64_t seed = std::stoull(entry["seed"].get<std::string>());
    Vip vip;
    EXPECT_EQ(fmt::format("{:016x}", hash_of(flow, vip, seed)), entry["hash"]);
    vip.hash = HashPolicy::kSource;
    EXPECT_EQ(fmt::format("{:016x}", hash_of(flow, vip, seed)), entry["source_only_hash"]);
    vip.hash = HashPolicy::kFiveTuple;
    vip.fragments = FragmentPolicy::kAddress;
    Flow without_ports = flow;
    without_ports.source_port = without_ports.destination_port = 0;
    EXPECT_EQ(hash_of(flow, vip, seed), hash_of(without_ports, Vip{}, seed));
  }
}

}  // namespace
}  // namespace maglev
