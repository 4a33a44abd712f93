// The guard's place at an interface's tc ingress; what it is for is told in steering.h.
//
// Main thread only. Errors as in attachment.h.
#pragma once

#include <cstdint>
#include <expected>
#include <functional>
#include <string>

#include "dataplane/bpf/attachment.h"

namespace maglev {

// Loads a guard, lets `fill` write its VIPs, and only then puts it at the ingress, in one step in
// the place of an older guard. Returns its maps. A foreign filter in that place is refused by name.
std::expected<ProgramMaps, std::string> attach_guard(
    const std::string& interface, uint32_t index,
    const std::function<std::expected<void, std::string>(const ProgramMaps&)>& fill);

// Removes the guard if there is one, and the ingress hook (clsact) when no filter is left on it.
std::expected<void, std::string> detach_guard(const std::string& interface, uint32_t index);

}  // namespace maglev
