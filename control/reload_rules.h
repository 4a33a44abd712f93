// What another configuration file may not change, or not at once. Pure functions, any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "control/configuration.h"
#include "control/model.h"

namespace maglev {

// What another value of would need a new process, as sentences.
std::vector<std::string> find_fixed(const Configuration& now, const Configuration& next);

// Settings of pools and VIPs that stay for their lives, as sentences.
std::vector<std::string> find_fixed(const Model& now, const Model& next);

// What the dataplane has taken from the file and goes on with until it is started again.
std::vector<std::string_view> find_waiting(const DataplaneSettings& now,
                                           const DataplaneSettings& next);

}  // namespace maglev
