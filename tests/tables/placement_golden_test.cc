// Every value of golden/placements.json.
#include <cmath>
#include <fstream>
#include <map>

#include <fmt/format.h>
#include <fmt/printf.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tables/buckets.h"
#include "tables/movement.h"
#include "tables/placement.h"
#include "tables/ring.h"

namespace maglev {
namespace {

using nlohmann::json;

const json& golden() {
  static const json values = [] {
    std::ifstream file(std::string(MAGLEV_GOLDEN_DIRECTORY) + "/placements.json");
    return json::parse(file);
  }();
  return values;
}

std::vector<Node> nodes_of(const json& names) {
  std::vector<Node> nodes;
  for (const auto& name : names) nodes.push_back({name, 1, {}});
  return nodes;
}

PlacementSettings settings_of(const json& example) {
  PlacementSettings settings;
  settings.hash = *parse_key_hash(example["hash"].get<std::string>());
  settings.vnodes = example.value("vnodes", 1u);
  settings.epsilon = example.value("epsilon", 0.25);
  return settings;
}

std::unique_ptr<Placement> made(PlacementKind kind, const std::vector<Node>& nodes,
                                const PlacementSettings& settings = {}) {
  auto placement = make_placement(kind, nodes, settings);
  EXPECT_TRUE(placement) << placement.error();
  return std::move(*placement);
}

std::vector<std::string> numbered_keys(const json& example) {
  std::vector<std::string> keys;
  for (int i = 0; i < example["keys"].get<int>(); ++i) {
    keys.push_back(fmt::sprintf(example["key"].get<std::string>(), i));
  }
  return keys;
}

std::vector<uint32_t> owners_of(const Placement& placement, const std::vector<std::string>& keys) {
  std::vector<uint32_t> owners(keys.size());
  placement.place(keys, owners);
  return owners;
}

TEST(PlacementGolden, HashValues) {
  for (const auto& [name, values] : golden()["hash_values"].items()) {
    const KeyHash hash = *parse_key_hash(name);
    for (const auto& [key, value] : values.items()) {
      EXPECT_EQ(hash_key(hash, key), value.get<uint64_t>()) << name << " of '" << key << "'";
    }
  }
}

TEST(PlacementGolden, MovementOfRings) {
  ASSERT_EQ(golden()["ring_move"].size(), 9u);
  for (const auto& example : golden()["ring_move"]) {
    SCOPED_TRACE(example.dump());
    const auto keys = numbered_keys(example);
    auto nodes = nodes_of(example["nodes"]);
    const auto before = made(PlacementKind::kRing, nodes, settings_of(example));
    nodes.push_back({example["add"], 1, {}});
    const auto after = made(PlacementKind::kRing, nodes, settings_of(example));
    const auto before_owners = owners_of(*before, keys);
    const auto after_owners = owners_of(*after, keys);
    const Assignment was{before->nodes(), before_owners};
    const Assignment is{after->nodes(), after_owners};

    const Balance balance = measure_balance(was);
    for (const NodeLoad& node : balance.nodes) EXPECT_EQ(node.load, example["counts"][node.name]);
    EXPECT_NEAR(balance.peak_over_mean, example["peak_over_mean"].get<double>(), 1e-5);
    EXPECT_NEAR(balance.spread, example["spread"].get<double>(), 1e-6);
    const Movement movement = compare_assignments(was, is);
    EXPECT_EQ(movement.moved, example["moved"]);
    EXPECT_EQ(movement.moved - movement.moved_between_unchanged, example["moved_to_new"]);
    EXPECT_NEAR(movement.ideal_moved,
                example["keys"].get<double>() / static_cast<double>(nodes.size()), 1e-6);
  }
}

TEST(PlacementGolden, MovementOfModulo) {
  for (const auto& example : golden()["modulo_move"]) {
    const auto keys = numbered_keys(example);
    std::vector<Node> nodes;
    for (int i = 0; i < example["from"]; ++i) nodes.push_back({fmt::format("n{}", i), 1, {}});
    const auto before = made(PlacementKind::kModulo, nodes, settings_of(example));
    nodes.push_back({fmt::format("n{}", nodes.size()), 1, {}});
    const auto after = made(PlacementKind::kModulo, nodes, settings_of(example));
    const auto before_owners = owners_of(*before, keys);
    const auto after_owners = owners_of(*after, keys);
    EXPECT_EQ(
        compare_assignments({before->nodes(), before_owners}, {after->nodes(), after_owners}).moved,
        example["moved"]);
  }
}

TEST(PlacementGolden, JumpBuckets) {
  for (const auto& example : golden()["jump"]) {
    const uint64_t key = std::stoull(example["key"].get<std::string>());
    for (const auto& [buckets, bucket] : example["buckets"].items()) {
      EXPECT_EQ(jump_bucket(key, static_cast<uint32_t>(std::stoul(buckets))), bucket) << key;
    }
  }
}

std::vector<std::string> names_of(const Placement& placement, const std::vector<uint32_t>& list) {
  std::vector<std::string> names;
  for (const uint32_t node : list) names.push_back(placement.nodes()[node].name);
  return names;
}

TEST(PlacementGolden, RendezvousOrder) {
  for (const auto& example : golden()["rendezvous"]) {
    const auto placement = made(PlacementKind::kRendezvous, nodes_of(example["nodes"]));
    const auto list = preference_list(*placement, example["key"].get<std::string>(), 4);
    EXPECT_EQ(names_of(*placement, *list), example["order"]);
  }
}

TEST(PlacementGolden, PreferenceListsWithZones) {
  for (const auto& example : golden()["preference_list"]) {
    std::vector<Node> nodes;
    for (const auto& [name, zone] : example["zones"].items()) nodes.push_back({name, 1, zone});
    const auto placement = made(PlacementKind::kRing, nodes, settings_of(example));
    const std::string key = example["key"];
    const auto list = preference_list(*placement, key, example["n"]);
    ASSERT_TRUE(list) << list.error();
    EXPECT_EQ(names_of(*placement, *list), example["list"]);
    EXPECT_EQ(preference_list(*placement, key, 4).error(),
              "4 distinct zones were asked for, but there are only 3");
  }
}

TEST(PlacementGolden, BoundedLoads) {
  for (const auto& example : golden()["bounded"]) {
    const auto placement =
        made(PlacementKind::kBounded, nodes_of(example["nodes"]), settings_of(example));
    const auto owners = owners_of(*placement, numbered_keys(example));
    for (const NodeLoad& node : measure_balance({placement->nodes(), owners}).nodes) {
      EXPECT_EQ(node.load, example["load"][node.name]) << node.name;
      EXPECT_LE(node.load, example["cap"]);
    }
  }
}

TEST(PlacementGolden, HashSlots) {
  for (const auto& example : golden()["hash_slot"]) {
    EXPECT_EQ(hash_slot(example["key"].get<std::string>()), example["slot"]) << example.dump();
  }
}

// The rule's "ties by node name", on two names whose only token is the same.
TEST(PlacementGolden, EqualTokensGoByNodeName) {
  const std::string first = "node-4226", second = "node-53676";
  ASSERT_EQ(hash_key(KeyHash::kSha1, first + "#0"), hash_key(KeyHash::kSha1, second + "#0"));
  PlacementSettings settings;
  settings.hash = KeyHash::kSha1;
  settings.vnodes = 1;
  const std::vector<Node> forward{{first, 1, {}}, {second, 1, {}}};
  const std::vector<Node> backward{{second, 1, {}}, {first, 1, {}}};
  for (const auto& nodes : {forward, backward}) {
    const auto ring = made(PlacementKind::kRing, nodes, settings);
    const auto list = preference_list(*ring, "any key", 2);
    EXPECT_EQ(names_of(*ring, *list), (std::vector<std::string>{first, second}));
  }
}

TEST(PlacementGolden, RingByHand) {
  const json& example = golden()["hand_ring"];
  std::map<std::string, uint64_t> tokens = example["tokens"];
  const auto expect_owners = [&](const std::string& table) {
    std::vector<std::string> names;
    std::vector<Token> ring_tokens;
    for (const auto& [name, position] : tokens) {
      ring_tokens.push_back({position, static_cast<uint32_t>(names.size())});
      names.push_back(name);
    }
    const Ring ring(ring_tokens);
    for (const auto& [position, owner] : example[table].items()) {
      EXPECT_EQ(names[ring.node_at(ring.find(std::stoull(position)))], owner)
          << table << ", " << position;
    }
  };
  expect_owners("keys");
  tokens["D"] = 65;
  expect_owners("with_D_at_65");
  tokens.erase("B");
  expect_owners("then_without_B");
}

}  // namespace
}  // namespace maglev
