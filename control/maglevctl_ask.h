// What the commands of maglevctl do with the control socket: one request, its answer on standard
// output or the reason why there is none on standard error, and the exit code.
//
// One thread. Waits for the answer.
#pragma once

#include <chrono>
#include <cstdint>
#include <expected>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "control/http_client.h"

namespace maglev {

// Exit codes.
inline constexpr int kDone = 0;
inline constexpr int kFailed = 1;  // the daemon refused, or cannot be reached

// What all commands share.
struct AskOptions {
  std::string socket = "/run/maglev/control.sock";
  bool json = false;
  bool wait = false;
  uint32_t timeout_ms = 5000;
  std::optional<uint64_t> if_generation;
};

// A name as one segment of a path, whatever is in it.
std::string segment(const std::string& name);

// The JSON at a path, or what to tell the user.
std::expected<nlohmann::ordered_json, std::string> ask_json(const AskOptions& options,
                                                            const std::string& path);

// These return the exit code.
int fail(const std::string& message);
int show_answer(const AskOptions& options, const std::string& path,
                const std::function<std::string(const nlohmann::ordered_json&)>& format);
int make_change(const AskOptions& options, HttpRequest request);
int show_plan(const AskOptions& options, HttpRequest request);  // of the same request

}  // namespace maglev
