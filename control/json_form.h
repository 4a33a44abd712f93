// JSON with the fields of the configuration file, for the control socket and the durable state.
// What these write, the readers of configuration.h read. Pure functions, any thread.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "control/configuration.h"

namespace maglev {

nlohmann::ordered_json to_json(const HealthSettings& health);  // null without checks
nlohmann::ordered_json to_json(const std::string& name, const PoolSettings& settings);
nlohmann::ordered_json to_json(const std::string& name, const Backend& backend);
nlohmann::ordered_json to_json(const std::string& name, const Vip& vip);
nlohmann::ordered_json to_json(const BackendPatch& patch);

}  // namespace maglev
