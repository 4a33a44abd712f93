// How every program reads its command line. Main thread, once, at start.
#pragma once

#include <optional>

#include <CLI/CLI.hpp>

namespace maglev {

// Exit code for a wrong command line or bad input.
inline constexpr int kWrongUsage = 2;

// The code to exit with at once, since help was asked for or the usage is wrong; else nullopt.
inline std::optional<int> parse_command_line(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kWrongUsage;
  }
  return std::nullopt;
}

}  // namespace maglev
