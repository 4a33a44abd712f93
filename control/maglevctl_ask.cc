#include "control/maglevctl_ask.h"

#include <fmt/format.h>

#include <cctype>
#include <cstdio>
#include <string_view>

#include "control/maglevctl_views.h"

namespace maglev {
namespace {

using Json = nlohmann::ordered_json;
namespace errc = boost::system::errc;

constexpr std::chrono::milliseconds kAnswerTimeout{10000};

std::string explain(const std::string& socket, const boost::system::error_code& error) {
  std::string text = fmt::format("cannot ask maglev-control at {}: {}", socket, error.message());
  if (error == errc::no_such_file_or_directory || error == errc::connection_refused) {
    text += "\nIs maglev-control running? Name its socket with --socket PATH or MAGLEV_SOCKET.";
  } else if (error == errc::permission_denied) {
    text += "\nRun maglevctl as a user who may write to that socket, such as root.";
  }
  return text;
}

// The body of a successful answer, or what to tell the user.
std::expected<std::string, std::string> ask(const AskOptions& options, const HttpRequest& request,
                                            std::chrono::milliseconds timeout = kAnswerTimeout) {
  const auto answer = http_over_unix_socket(options.socket, request, timeout);
  if (!answer) return std::unexpected(explain(options.socket, answer.error()));
  if (answer->status >= 200 && answer->status < 300) return answer->body;
  const Json body = Json::parse(answer->body, nullptr, false);
  if (body.is_object() && body.contains("error")) {
    const std::string code = body["error"].value("code", "no code");
    const bool is_made = code == "not_adopted" || code == "not_published";
    return std::unexpected(fmt::format("{}{} ({})", is_made ? "" : "maglev-control refused: ",
                                       body["error"].value("message", "no reason given"), code));
  }
  return std::unexpected(fmt::format("maglev-control answered with HTTP status {}: {}",
                                     answer->status, answer->body.substr(0, 200)));
}

void add_if_match(const AskOptions& options, HttpRequest& request) {
  if (options.if_generation) request.if_match = fmt::format("\"{}\"", *options.if_generation);
}

}  // namespace

std::string segment(const std::string& name) {
  std::string encoded;
  for (const char c : name) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 ||
                       std::string_view("._:-").find(c) != std::string_view::npos;
    encoded += plain ? std::string(1, c)
                     : fmt::format("%{:02X}", static_cast<unsigned>(static_cast<unsigned char>(c)));
  }
  return encoded;
}

std::expected<Json, std::string> ask_json(const AskOptions& options, const std::string& path) {
  const auto body = ask(options, {"GET", path, ""});
  if (!body) return std::unexpected(body.error());
  Json parsed = Json::parse(*body, nullptr, false);
  if (parsed.is_discarded()) {
    return std::unexpected(fmt::format("maglev-control's answer to {} is not JSON", path));
  }
  return parsed;
}

int fail(const std::string& message) {
  fmt::print(stderr, "maglevctl: {}\n", message);
  return kFailed;
}

int show_answer(const AskOptions& options, const std::string& path,
                const std::function<std::string(const Json&)>& format) {
  const auto answer = ask_json(options, path);
  if (!answer) return fail(answer.error());
  fmt::print("{}", options.json ? answer->dump() + "\n" : format(*answer));
  return kDone;
}

int show_plan(const AskOptions& options, HttpRequest request) {
  add_if_match(options, request);
  request.target += "?dry_run=true";
  const auto body = ask(options, request);
  if (!body) return fail(body.error());
  fmt::print("{}", options.json ? *body : format_plan(Json::parse(*body)));
  return kDone;
}

int make_change(const AskOptions& options, HttpRequest request) {
  auto timeout = kAnswerTimeout;
  add_if_match(options, request);
  if (options.wait) {
    request.target += fmt::format("?wait=adopted&timeout_ms={}", options.timeout_ms);
    timeout += std::chrono::milliseconds(options.timeout_ms);
  }
  const auto body = ask(options, request, timeout);
  if (!body) return fail(body.error());
  if (options.json) {
    fmt::print("{}", *body);  // ends with a newline
    return kDone;
  }
  const Json answer = Json::parse(*body);
  fmt::print("generation {}{}\n", answer.at("generation").get<uint64_t>(),
             options.wait ? ", used by all workers" : "");
  return kDone;
}

}  // namespace maglev
