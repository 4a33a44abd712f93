// The simulator: what a change of membership does to the keys of a service, worked out without a
// daemon. Reads no file and prints nothing; control/simulator_input.h and
// control/simulator_views.h do.
//
// Thread: one at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <expected>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tables/movement.h"
#include "tables/placement.h"

namespace maglev {

struct Workload {
  std::vector<std::string> keys;
  // Of each key, when they are known: equal keys are not equal work.
  std::vector<uint64_t> bytes;
  std::vector<uint64_t> requests;
};

struct Scenario {
  PlacementSettings settings;
  std::vector<Node> before;
  std::vector<Node> after;
  Workload workload;
  uint32_t replicas = 1;
};

// Called now and then with the share of the work that is done, from 0 to 1.
using OnProgress = std::function<void(double share)>;

struct Simulation {
  PlacementKind kind{};
  std::unique_ptr<Placement> before;
  std::unique_ptr<Placement> after;
  Change keys;
  std::optional<Change> bytes;
  std::optional<Change> requests;
  uint64_t modulo_moved = 0;  // keys that hash modulo the weights would have moved
  std::chrono::nanoseconds build_time{};
  double lookup_ns = 0;  // per key
  size_t memory_bytes = 0;
};

// Fails with a sentence: see make_placement and preference_list.
std::expected<Simulation, std::string> simulate(PlacementKind kind, const Scenario& scenario,
                                                const OnProgress& on_progress);

// What an operator should think about before making the change. Headroom is the share of requests
// (of keys where requests are not known) that may miss at once.
std::vector<std::string> find_warnings(const Simulation& simulation,
                                       std::optional<double> headroom);

}  // namespace maglev
