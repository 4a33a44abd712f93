// What `maglevctl` shows of the control socket's answers, as text of at most 80 columns. Pure
// functions, any thread. They throw nlohmann::json::exception on an answer of another shape than
// docs/control-socket.md gives.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace maglev {

std::string format_flow(const nlohmann::ordered_json& flow);
// Of what a change with ?dry_run=true answers.
std::string format_plan(const nlohmann::ordered_json& foreseen);
std::string format_status(const nlohmann::ordered_json& status);
std::string format_pools(const nlohmann::ordered_json& pools);  // of GET /v1/pools
std::string format_pool(const nlohmann::ordered_json& pool);
std::string format_backends(const nlohmann::ordered_json& pool);  // or its list of backends alone
std::string format_vips(const nlohmann::ordered_json& vips);      // of GET /v1/vips
std::string format_vip(const nlohmann::ordered_json& vip);

}  // namespace maglev
