// Several changes in one request: all of them or none, in one generation.
//
// Pure function of its arguments; thread: the controller's.
#pragma once

#include <expected>
#include <functional>
#include <string>

#include "control/model.h"

namespace maglev {

struct RequestedChange {
  std::string method;
  std::string path;
  std::string body;  // JSON; empty: none
};

// body: a JSON list of objects with method, path and, where the path takes one, body. plan_one
// plans each of them against what those before it leave. A refusal names the change that it is of.
std::expected<Overrides, Refusal> plan_several(
    const Model& model, const std::string& body,
    const std::function<std::expected<Overrides, Refusal>(const Model&, const RequestedChange&)>&
        plan_one);

}  // namespace maglev
