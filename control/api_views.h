// What the control socket shows, as JSON; the shapes are in docs/control-socket.md. Pure functions
// of what they are given; thread: the controller's.
#pragma once

#include <expected>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "control/controller.h"
#include "control/dataplane_report.h"
#include "control/explain.h"

namespace maglev {

using Json = nlohmann::ordered_json;

Json view_status(const Controller& controller, const DataplaneStatus& dataplane);
// The share of its pool's slots that a backend's weight asks for, 0 where it is not in the table.
using WantedShare = std::function<double(const std::string& pool, const std::string& backend)>;
WantedShare wanted_shares(const Controller& controller);  // valid while nothing changes
Json view_stats(const Report& report, uint64_t adopted_generation, const WantedShare& wanted);
Json view_pool_summary(const Controller& controller, const std::string& name, const Pool& pool);
Json view_pool(const Controller& controller, const DataplaneStatus& dataplane,
               const std::string& name, const Pool& pool);
// The backends, with how far the flows that are left to each are known.
Json view_backends(const Controller& controller, const DataplaneStatus& dataplane,
                   const std::string& pool_name, const Pool& pool);
Json view_foreseen(const std::vector<Controller::Foreseen>& foreseen);
Json view_vip_summary(const std::string& name, const Vip& vip);
// Where the flow's packets go, by the last publication; or why that cannot be told.
std::expected<Json, Refusal> view_flow(const Controller& controller,
                                       const DataplaneStatus& dataplane, const Flow& flow);
Json view_vip(const Controller& controller, const std::string& name, const Vip& vip);

}  // namespace maglev
