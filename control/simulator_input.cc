#include "control/simulator_input.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <span>

#include <fmt/format.h>
#include <boost/locale/utf.hpp>

namespace maglev {
namespace {

constexpr uint64_t kMaxKeys = 100'000'000;

// Of bytes or requests in all: exact as a double, and so far below 2^64 that replicas fit too.
constexpr uint64_t kMaxLoad = uint64_t{1} << 53;

// What is read may be a pipe or a device without an end.
constexpr size_t kMaxFile = size_t{1} << 30;
constexpr size_t kMaxLine = size_t{1} << 16;

std::unexpected<std::string> wrong(std::string text) {
  return std::unexpected(std::move(text));
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == text.npos) return parts;
    text.remove_prefix(end + 1);
  }
}

constexpr std::string_view kBlanks = " \t\r";

std::string_view trimmed(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
  return text.substr(0, text.find_last_not_of(kBlanks) + 1);
}

// What an option lists between commas.
std::vector<std::string_view> items_of(std::string_view list) {
  std::vector<std::string_view> items = split(list, ',');
  for (std::string_view& item : items) item = trimmed(item);
  return items;
}

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  for (size_t begin; (begin = line.find_first_not_of(kBlanks)) != line.npos;) {
    line.remove_prefix(begin);
    words.push_back(line.substr(0, line.find_first_of(kBlanks)));
    line.remove_prefix(words.back().size());
  }
  return words;
}

// Names go into JSON, SVG and terminals, which take no other text; keys are any bytes.
bool is_readable(std::string_view name) {
  using Utf8 = boost::locale::utf::utf_traits<char>;
  for (auto at = name.begin(); at != name.end();) {
    const auto point = Utf8::decode(at, name.end());
    const bool is_control = point < ' ' || (point >= 0x7f && point < 0xa0);
    const bool is_noncharacter = (point & 0xfffe) == 0xfffe;  // XML has no U+FFFE and U+FFFF
    if (!boost::locale::utf::is_valid_codepoint(point) || is_control || is_noncharacter) {
      return false;
    }
  }
  return true;
}

std::expected<void, std::string> check_readable(std::span<const Node> nodes) {
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (const std::string_view text : {nodes[i].name, nodes[i].zone}) {
      if (is_readable(text)) continue;
      return wrong(fmt::format(
          "the name or zone of node {} is not UTF-8 text without control characters", i + 1));
    }
  }
  return {};
}

std::optional<uint64_t> parse_number(std::string_view text) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::expected<uint32_t, std::string> parse_weight(std::string_view text) {
  const auto weight = parse_number(text);
  if (weight && *weight >= 1 && *weight <= kMaxNodeWeight) return static_cast<uint32_t>(*weight);
  return wrong(fmt::format("weight '{}' is not a whole number from 1 to {}", text, kMaxNodeWeight));
}

// The file's bytes, up to the first line that is too long: for_each_line() refuses that one.
std::expected<std::string, std::string> read_file(const std::string& path) {
  std::error_code unknown;  // what cannot be looked at cannot be opened either, which tells why
  if (std::filesystem::is_directory(path, unknown)) {
    return wrong(fmt::format("cannot read {}: it is a directory", path));
  }
  std::ifstream file(path, std::ios::binary);
  std::string text;
  for (size_t line_start = 0; file && text.size() - line_start <= kMaxLine;) {
    const size_t before = text.size();
    if (before > kMaxFile) {
      return wrong(fmt::format("cannot read {}: it is longer than {} bytes", path, kMaxFile));
    }
    text.resize(before + kMaxLine);
    file.read(text.data() + before, kMaxLine);
    text.resize(before + static_cast<size_t>(file.gcount()));
    const size_t newline = std::string_view(text).substr(before).rfind('\n');
    if (newline != text.npos) line_start = before + newline + 1;
  }
  if (!file.is_open() || file.bad()) {
    return wrong(fmt::format("cannot read {}: {}", path, std::strerror(errno)));
  }
  return text;
}

// Calls use(line) for each line, which ends in LF or CR LF, until one answers with an error.
template <typename Use>
std::expected<void, std::string> for_each_line(std::string_view text, const std::string& file,
                                               const Use& use) {
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    if (line.size() > kMaxLine) {
      return wrong(fmt::format("{}:{}: the line is longer than {} bytes", file, number, kMaxLine));
    }
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (const auto good = use(line); !good) {
      return wrong(fmt::format("{}:{}: {}", file, number, good.error()));
    }
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return {};
}

Node* find_node(std::vector<Node>& nodes, std::string_view name) {
  const auto found = std::ranges::find(nodes, name, &Node::name);
  return found == nodes.end() ? nullptr : &*found;
}

// Applies each NODE=VALUE to its node.
template <typename Apply>
std::expected<void, std::string> set_by_name(std::vector<Node>& nodes,
                                             std::span<const std::string> settings,
                                             std::string_view option, const Apply& apply) {
  std::set<std::string_view> named;
  for (const std::string_view setting : settings) {
    const std::string_view text = trimmed(setting);
    // A name may contain '=', a weight or zone does not.
    const size_t equals = text.rfind('=');
    if (equals == text.npos) {
      return wrong(fmt::format("{} '{}' is not of the form NODE=VALUE", option, text));
    }
    const std::string_view name = text.substr(0, equals);
    Node* const node = find_node(nodes, name);
    if (node == nullptr) return wrong(fmt::format("{} names '{}', which is no node", option, name));
    if (!named.insert(name).second) return wrong(fmt::format("{} names '{}' twice", option, name));
    const std::expected<void, std::string> applied = apply(*node, text.substr(equals + 1));
    if (!applied) return wrong(fmt::format("node '{}': {}", name, applied.error()));
  }
  return {};
}

std::expected<void, std::string> set_lists(std::vector<Node>& nodes, const MembershipText& text) {
  if (!text.weights.empty()) {
    const auto weights = items_of(text.weights);
    if (weights.size() != nodes.size()) {
      return wrong(fmt::format("--weights has {} for {} nodes: give one each", weights.size(),
                               nodes.size()));
    }
    for (size_t i = 0; i < nodes.size(); ++i) {
      const auto weight = parse_weight(weights[i]);
      if (!weight) return wrong(fmt::format("node '{}': {}", nodes[i].name, weight.error()));
      nodes[i].weight = *weight;
    }
  }
  if (!text.zones.empty()) {
    const auto zones = items_of(text.zones);
    if (zones.size() != nodes.size()) {
      return wrong(
          fmt::format("--zones has {} for {} nodes: give one each", zones.size(), nodes.size()));
    }
    for (size_t i = 0; i < nodes.size(); ++i) nodes[i].zone = zones[i];
  }
  return {};
}

std::expected<void, std::string> change_nodes(std::vector<Node>& nodes,
                                              const MembershipText& text) {
  for (const std::string& name : text.remove) {
    Node* const node = find_node(nodes, trimmed(name));
    if (node == nullptr) return wrong(fmt::format("--remove names '{}', which is no node", name));
    nodes.erase(nodes.begin() + (node - nodes.data()));
  }
  for (const std::string& name : text.add) {
    nodes.push_back({std::string(trimmed(name)), 1, {}});
  }
  const auto set =
      set_by_name(nodes, text.weight, "--weight",
                  [](Node& node, std::string_view value) -> std::expected<void, std::string> {
                    const auto weight = parse_weight(value);
                    if (!weight) return wrong(weight.error());
                    node.weight = *weight;
                    return {};
                  });
  if (!set) return set;
  return set_by_name(nodes, text.zone, "--zone",
                     [](Node& node, std::string_view value) -> std::expected<void, std::string> {
                       node.zone = value;
                       return {};
                     });
}

}  // namespace

std::expected<MembershipChange, std::string> read_membership(const MembershipText& text) {
  MembershipChange membership;
  std::vector<Node>& nodes = membership.before;
  if (!text.nodes_file.empty()) {
    auto read = read_nodes_file(text.nodes_file);
    if (!read) return wrong(read.error());
    nodes = std::move(*read);
  } else if (!text.nodes.empty()) {
    for (const std::string_view name : items_of(text.nodes)) {
      nodes.push_back({std::string(name), 1, {}});
    }
  }
  if (const auto set = set_lists(nodes, text); !set) return wrong(set.error());
  membership.after = nodes;
  if (const auto changed = change_nodes(membership.after, text); !changed) {
    return wrong(changed.error());
  }
  for (const auto* side : {&membership.before, &membership.after}) {
    if (const auto good = check_readable(*side); !good) return wrong(good.error());
  }
  return membership;
}

std::expected<std::vector<Node>, std::string> read_nodes_file(const std::string& path) {
  const auto text = read_file(path);
  if (!text) return wrong(text.error());
  return parse_nodes(*text, path);
}

std::expected<Workload, std::string> read_keys_file(const std::string& path) {
  const auto text = read_file(path);
  if (!text) return wrong(text.error());
  return parse_keys(*text, path);
}

std::expected<std::vector<Node>, std::string> parse_nodes(std::string_view text,
                                                          const std::string& file) {
  std::vector<Node> nodes;
  const auto add = [&](std::string_view line) -> std::expected<void, std::string> {
    const auto words = words_of(line);
    if (words.empty() || words[0].starts_with('#')) return {};
    if (words.size() > 3) {
      return wrong(fmt::format("{} fields instead of name, weight and zone", words.size()));
    }
    Node node{std::string(words[0]), 1, {}};
    if (words.size() > 1) {
      const auto weight = parse_weight(words[1]);
      if (!weight) return wrong(weight.error());
      node.weight = *weight;
    }
    if (words.size() > 2) node.zone = words[2];
    nodes.push_back(std::move(node));
    return {};
  };
  if (const auto read = for_each_line(text, file, add); !read) return wrong(read.error());
  return nodes;
}

std::expected<Workload, std::string> parse_keys(std::string_view text, const std::string& file) {
  Workload workload;
  uint64_t all_bytes = 0, all_requests = 0;
  size_t fields = 0;
  const auto add = [&](std::string_view line) -> std::expected<void, std::string> {
    const auto parts = split(line, '\t');
    if (parts[0].empty()) return wrong("the key is empty");
    if (parts.size() != 1 && parts.size() != 3) {
      return wrong(
          fmt::format("{} fields instead of a key, or a key, bytes and requests parted by "
                      "tabs",
                      parts.size()));
    }
    if (fields == 0) fields = parts.size();
    if (parts.size() != fields) {
      return wrong(fmt::format("{} fields after lines of {}", parts.size(), fields));
    }
    workload.keys.emplace_back(parts[0]);
    if (fields == 1) return {};
    const auto bytes = parse_number(parts[1]);
    const auto requests = parse_number(parts[2]);
    if (!bytes || !requests) {
      return wrong(fmt::format("'{}' is not a whole number", bytes ? parts[2] : parts[1]));
    }
    workload.bytes.push_back(*bytes);
    workload.requests.push_back(*requests);
    const uint64_t most = std::max(*bytes, *requests);
    if (most > kMaxLoad) return wrong(fmt::format("{} is more than {}", most, kMaxLoad));
    all_bytes += *bytes;
    all_requests += *requests;
    if (std::max(all_bytes, all_requests) > kMaxLoad) {
      return wrong(fmt::format("all bytes or requests so far are more than {}", kMaxLoad));
    }
    return {};
  };
  if (const auto read = for_each_line(text, file, add); !read) return wrong(read.error());
  if (workload.keys.empty()) return wrong(fmt::format("{}: no key in it", file));
  return workload;
}

std::expected<Workload, std::string> number_keys(std::string_view pattern, uint64_t count) {
  const size_t place = pattern.find("%d");
  if (place == pattern.npos || pattern.find('%', place + 1) != pattern.npos ||
      pattern.find('%') != place) {
    return wrong(fmt::format("key pattern '{}' needs exactly one %, in %d", pattern));
  }
  if (count < 1 || count > kMaxKeys) {
    return wrong(fmt::format("a count of {} keys is not from 1 to {}", count, kMaxKeys));
  }
  Workload workload;
  workload.keys.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    workload.keys.push_back(
        fmt::format("{}{}{}", pattern.substr(0, place), i, pattern.substr(place + 2)));
  }
  return workload;
}

}  // namespace maglev
