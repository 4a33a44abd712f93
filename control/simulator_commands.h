// maglevctl's commands that need no daemon: `simulate` and `owner`. docs/placement.md is their
// reference.
//
// Thread: one at a time.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace maglev {

// Adds both to the command line. When one of them is asked for, `action` is set to what carries it
// out and returns the exit code: 0, or 2 for bad input. `json` is the flag that all commands share;
// it is read when the action runs. All three outlive the parsing and the action.
void add_simulator_commands(CLI::App& app, const bool& json, std::function<int()>& action);

}  // namespace maglev
