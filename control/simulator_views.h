// How a simulation is shown: as text, as JSON, as one row of a comparison, and drawn.
// Pure functions, any thread.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "control/simulator.h"

namespace maglev {

std::string simulation_text(const Simulation& simulation, const Scenario& scenario);
nlohmann::ordered_json simulation_json(const Simulation& simulation, const Scenario& scenario,
                                       const std::vector<std::string>& warnings);

// One row a simulation (at least one), then the kinds that refused, each with its reason.
using Refusals = std::vector<std::pair<PlacementKind, std::string>>;
std::string comparison_text(const std::vector<Simulation>& simulations, const Refusals& refusals,
                            uint32_t replicas);

// Left the shares before, right those after, and between them a band for each movement, as thick as
// what moved.
std::string simulation_svg(const Simulation& simulation);

}  // namespace maglev
