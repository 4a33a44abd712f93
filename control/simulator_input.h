// What the simulator is given on the command line and in files, checked as it is read. Every error
// is a sentence; one about a file begins with FILE:LINE.
//
// Pure but for the functions named read_. Any thread.
#pragma once

#include <expected>
#include <string>
#include <string_view>
#include <vector>

#include "control/simulator.h"

namespace maglev {

// How the command line describes nodes and what becomes of them. Lists are comma-separated.
struct MembershipText {
  std::string nodes;
  std::string nodes_file;
  std::string weights;
  std::string zones;
  std::vector<std::string> add;
  std::vector<std::string> remove;
  std::vector<std::string> weight;  // NODE=WEIGHT
  std::vector<std::string> zone;    // NODE=ZONE
};

struct MembershipChange {
  std::vector<Node> before;
  std::vector<Node> after;
};

std::expected<MembershipChange, std::string> read_membership(const MembershipText& text);

std::expected<std::vector<Node>, std::string> read_nodes_file(const std::string& path);
std::expected<Workload, std::string> read_keys_file(const std::string& path);

// name [weight [zone]] a line, parted by blanks; empty lines and lines that begin with # are
// skipped.
std::expected<std::vector<Node>, std::string> parse_nodes(std::string_view text,
                                                          const std::string& file);
// key, or key<TAB>bytes<TAB>requests, a line; all lines alike.
std::expected<Workload, std::string> parse_keys(std::string_view text, const std::string& file);

// `pattern` with 0 to count - 1 in place of its one %d.
std::expected<Workload, std::string> number_keys(std::string_view pattern, uint64_t count);

}  // namespace maglev
