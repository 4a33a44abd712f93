// ring, bounded and ketama: placements that walk a ring of tokens.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <boost/crc.hpp>

#include "tables/placement_kinds.h"
#include "tables/ring.h"

namespace maglev {
namespace {

// 1 GiB of tokens.
constexpr uint64_t kMaxTokens = uint64_t{1} << 26;

std::expected<void, std::string> check_token_count(std::span<const Node> nodes, uint64_t per_unit) {
  uint64_t count = 0;
  for (const Node& node : nodes) count += node.weight * per_unit;
  if (count <= kMaxTokens) return {};
  return std::unexpected(
      fmt::format("{} tokens are more than the {} that a ring may have: a weight is a number of "
                  "tokens here, times {}; take smaller weights{}",
                  count, kMaxTokens, per_unit, per_unit > 1 ? " or fewer vnodes" : ""));
}

class RingPlacement : public Placement {
 public:
  RingPlacement(std::vector<Node> nodes, KeyHash hash, std::vector<Token> tokens)
      : Placement(std::move(nodes)), hash_(hash), ring_(std::move(tokens)) {}

  uint32_t owner(std::string_view key) const override {
    return ring_.node_at(ring_.find(hash_key(hash_, key)));
  }
  void visit(std::string_view key, const std::function<bool(uint32_t)>& wanted) const override {
    visit_places(
        nodes().size(), ring_.find(hash_key(hash_, key)), ring_.size(),
        [&](size_t token) { return ring_.node_at(token); }, wanted);
  }
  KeyPlace locate(std::string_view key) const override {
    const uint64_t hash = hash_key(hash_, key);
    return {hash, "position", hash};
  }
  size_t memory_bytes() const override { return ring_.memory_bytes(); }

 private:
  KeyHash hash_;
  Ring ring_;
};

std::vector<Token> make_tokens(std::span<const Node> nodes, const PlacementSettings& settings) {
  std::vector<Token> tokens;
  for (uint32_t i = 0; i < nodes.size(); ++i) {
    const uint64_t count = uint64_t{settings.vnodes} * nodes[i].weight;
    for (uint64_t j = 0; j < count; ++j) {
      tokens.push_back({hash_key(settings.hash, fmt::format("{}#{}", nodes[i].name, j)), i});
    }
  }
  return tokens;
}

class BoundedPlacement : public RingPlacement {
 public:
  BoundedPlacement(std::vector<Node> nodes, const PlacementSettings& settings,
                   std::vector<Token> tokens)
      : RingPlacement(std::move(nodes), settings.hash, std::move(tokens)),
        epsilon_(settings.epsilon) {}

  void place(std::span<const std::string> keys, std::span<uint32_t> owners) const override {
    std::vector<uint64_t> room = capacities(keys.size());
    for (size_t i = 0; i < keys.size(); ++i) {
      uint32_t& chosen = owners[i];
      chosen = owner(keys[i]);
      if (room[chosen] == 0) {
        visit(keys[i], [&](uint32_t node) {
          chosen = node;
          return room[node] == 0;
        });
      }
      --room[chosen];
    }
  }

 private:
  std::vector<uint64_t> capacities(size_t keys) const {
    double total = 0;
    for (const Node& node : nodes()) total += node.weight;
    std::vector<uint64_t> capacities;
    for (const Node& node : nodes()) {
      const double bound = (1 + epsilon_) * static_cast<double>(keys) * node.weight / total;
      capacities.push_back(static_cast<uint64_t>(std::ceil(bound)));
    }
    return capacities;
  }

  double epsilon_;
};

// --- ketama, as in nginx's ngx_http_upstream_hash_module ----------------------------------------

constexpr uint64_t kKetamaPoints = 160;

class Ketama final : public Placement {
 public:
  Ketama(std::vector<Node> nodes, std::vector<Token> points)
      : Placement(std::move(nodes)), ring_(std::move(points)) {}

  uint32_t owner(std::string_view key) const override {
    return ring_.node_at(ring_.find(crc(key)));
  }
  void visit(std::string_view key, const std::function<bool(uint32_t)>& wanted) const override {
    visit_places(
        nodes().size(), ring_.find(crc(key)), ring_.size(),
        [&](size_t point) { return ring_.node_at(point); }, wanted);
  }
  KeyPlace locate(std::string_view key) const override { return {crc(key), "position", crc(key)}; }
  size_t memory_bytes() const override { return ring_.memory_bytes(); }

 private:
  static uint32_t crc(std::string_view key) {
    boost::crc_32_type crc;
    crc.process_bytes(key.data(), key.size());
    return crc.checksum();
  }

  Ring ring_;
};

// The server's name as nginx hashes it: host, a zero byte, port. "unix:" paths have no port, nor
// has a name that does not end in a colon and digits.
boost::crc_32_type begin_ketama(std::string_view name) {
  std::string_view host = name, port;
  constexpr std::string_view kUnix = "unix:";
  const auto is_unix = [](char a, char b) { return (a | 0x20) == b; };
  if (name.size() >= kUnix.size() &&
      std::ranges::equal(name.substr(0, kUnix.size()), kUnix, is_unix)) {
    host.remove_prefix(kUnix.size());
  } else {
    const size_t colon = name.find_last_not_of("0123456789");
    if (colon != name.npos && name[colon] == ':') {
      host = name.substr(0, colon);
      port = name.substr(colon + 1);
    }
  }
  boost::crc_32_type crc;
  crc.process_bytes(host.data(), host.size());
  crc.process_byte(0);
  crc.process_bytes(port.data(), port.size());
  return crc;
}

}  // namespace

MadePlacement make_ring(std::vector<Node> nodes, const PlacementSettings& settings) {
  if (const auto fits = check_token_count(nodes, settings.vnodes); !fits) {
    return std::unexpected(fits.error());
  }
  std::vector<Token> tokens = make_tokens(nodes, settings);
  return std::make_unique<RingPlacement>(std::move(nodes), settings.hash, std::move(tokens));
}

MadePlacement make_bounded(std::vector<Node> nodes, const PlacementSettings& settings) {
  if (const auto fits = check_token_count(nodes, settings.vnodes); !fits) {
    return std::unexpected(fits.error());
  }
  std::vector<Token> tokens = make_tokens(nodes, settings);
  return std::make_unique<BoundedPlacement>(std::move(nodes), settings, std::move(tokens));
}

MadePlacement make_ketama(std::vector<Node> nodes) {
  if (const auto fits = check_token_count(nodes, kKetamaPoints); !fits) {
    return std::unexpected(fits.error());
  }
  std::vector<Token> points;
  for (uint32_t i = 0; i < nodes.size(); ++i) {
    const boost::crc_32_type begun = begin_ketama(nodes[i].name);
    uint32_t last = 0;
    for (uint64_t j = 0; j < kKetamaPoints * nodes[i].weight; ++j) {
      boost::crc_32_type crc = begun;
      // nginx hashes the previous point in the host's order, which is little-endian here.
      crc.process_bytes(&last, sizeof last);
      last = crc.checksum();
      points.push_back({last, i});
    }
  }
  return std::make_unique<Ketama>(std::move(nodes), std::move(points));
}

}  // namespace maglev
