#include "control/health_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/algorithm/hex.hpp>
#include <charconv>
#include <iterator>

#include "control/setting_readers.h"

namespace maglev {
namespace {

constexpr uint32_t kMaxIntervalMs = 3600000;
constexpr uint32_t kMaxInARow = 1000;
constexpr uint32_t kMaxHalfLifeS = 86400;
constexpr uint32_t kMaxPenalty = 1000;
constexpr size_t kMaxTextLength = 1024;
constexpr size_t kMaxArguments = 64;

constexpr Choice<HealthType> kHealthTypes[] = {
    {"tcp", HealthType::kTcp}, {"http", HealthType::kHttp}, {"https", HealthType::kHttps},
    {"udp", HealthType::kUdp}, {"icmp", HealthType::kIcmp}, {"command", HealthType::kCommand}};
constexpr Choice<bool> kEncodings[] = {{"text", false}, {"hex", true}};

using Keys = std::vector<std::string_view>;

Keys keys_of(HealthType type) {
  Keys keys{"type", "interval_ms", "timeout_ms", "rise", "fall", "damping"};
  const auto add = [&](std::initializer_list<std::string_view> more) {
    keys.insert(keys.end(), more);
  };
  if (type != HealthType::kIcmp) add({"port"});
  if (type == HealthType::kHttp || type == HealthType::kHttps) {
    add({"method", "path", "host", "status", "body"});
  }
  if (type == HealthType::kHttps) add({"server_name", "ca_file", "verify"});
  if (type == HealthType::kUdp) add({"encoding", "send", "expect"});
  if (type == HealthType::kCommand) add({"argv"});
  return keys;
}

std::string read_text(const YamlCursor& cursor, std::string_view fallback = {}) {
  std::string text = cursor.text(fallback);
  if (text.size() > kMaxTextLength) {
    cursor.fail(fmt::format("expected at most {} bytes, found {}", kMaxTextLength, text.size()));
  }
  return text;
}

// Stands in the head of a request, where a blank or a line's end would become another part of it.
std::string read_token(const YamlCursor& cursor, std::string_view fallback = {}) {
  std::string token = read_text(cursor, fallback);
  if (std::ranges::any_of(token, [](char c) { return c <= ' ' || c > '~'; })) {
    cursor.fail("expected printable ASCII without blanks");
  }
  return token;
}

StatusRange read_status(const YamlCursor& cursor) {
  const std::string text = cursor.text();
  StatusRange range;
  const char* const end = text.data() + text.size();
  std::from_chars_result read = std::from_chars(text.data(), end, range.first);
  range.last = range.first;
  if (read.ec == std::errc() && read.ptr != end && *read.ptr == '-') {
    read = std::from_chars(read.ptr + 1, end, range.last);
  }
  const bool is_sound = read.ec == std::errc() && read.ptr == end && range.first >= 100 &&
                        range.first <= range.last && range.last <= 599;
  if (!is_sound) {
    cursor.fail(fmt::format(
        "expected a status from 100 to 599 or a range as in 200-299, found '{}'", text));
  }
  return range;
}

HttpExchange read_http(const YamlCursor& cursor) {
  HttpExchange http;
  constexpr Choice<std::string_view> kMethods[] = {
      {"GET", "GET"}, {"HEAD", "HEAD"}, {"OPTIONS", "OPTIONS"}};
  http.method = read_choice(cursor.optional("method"), kMethods, std::string_view(http.method));
  const YamlCursor path = cursor.optional("path");
  http.path = read_token(path, http.path);
  if (!http.path.starts_with('/')) path.fail("expected a path that starts with /");
  http.host = read_token(cursor.optional("host"));
  if (const YamlCursor status = cursor.optional("status"); status.exists()) {
    http.statuses.clear();
    for (const YamlCursor& element : status.elements()) {
      http.statuses.push_back(read_status(element));
    }
    if (http.statuses.empty()) status.fail("expected a list of statuses, as in [200-299, 304]");
  }
  const YamlCursor body = cursor.optional("body");
  http.body = read_text(body);
  if (!http.body.empty() && http.method == "HEAD") {
    body.fail("an answer to HEAD has no body: choose method GET");
  }
  return http;
}

TlsExpectation read_tls(const YamlCursor& cursor) {
  TlsExpectation tls;
  tls.server_name = read_token(cursor.optional("server_name"));
  const YamlCursor ca_file = cursor.optional("ca_file");
  tls.ca_file = ca_file.text();
  if (!tls.ca_file.empty() && !tls.ca_file.starts_with('/')) {
    ca_file.fail(fmt::format("expected an absolute path, found '{}'", tls.ca_file));
  }
  tls.verify = cursor.optional("verify").boolean(tls.verify);
  return tls;
}

std::string read_bytes(const YamlCursor& cursor, bool is_hex) {
  const std::string text = read_text(cursor);
  if (!is_hex) return text;
  std::string bytes;
  try {
    boost::algorithm::unhex(text, std::back_inserter(bytes));
  } catch (const boost::algorithm::hex_decode_error&) {
    cursor.fail(fmt::format("expected pairs of hexadecimal digits, found '{}'", text));
  }
  return bytes;
}

UdpExchange read_udp(const YamlCursor& cursor) {
  UdpExchange udp;
  udp.is_hex = read_choice(cursor.optional("encoding"), kEncodings, udp.is_hex);
  udp.send = read_bytes(cursor.required("send"), udp.is_hex);
  udp.expect = read_bytes(cursor.optional("expect"), udp.is_hex);
  return udp;
}

std::vector<std::string> read_argv(const YamlCursor& cursor) {
  std::vector<std::string> argv;
  for (const YamlCursor& element : cursor.elements()) {
    argv.push_back(read_text(element));
    if (argv.back().find('\0') != std::string::npos) element.fail("expected text without a NUL");
  }
  if (!cursor.exists()) return argv;
  if (argv.empty() || !argv.front().starts_with('/') || argv.size() > kMaxArguments) {
    cursor.fail(fmt::format(
        "expected a program's absolute path and its arguments, at most {} in all", kMaxArguments));
  }
  return argv;
}

DampingSettings read_damping(const YamlCursor& cursor) {
  DampingSettings damping;
  if (!cursor.exists()) return damping;
  cursor.only_keys({"half_life_s", "hold_at", "release_at"});
  damping.half_life_s = read_number(cursor.required("half_life_s"), 1, kMaxHalfLifeS, 1);
  damping.hold_at = read_number(cursor.optional("hold_at"), 2, kMaxPenalty, damping.hold_at);
  const YamlCursor release_at = cursor.optional("release_at");
  damping.release_at = read_number(release_at, 1, kMaxPenalty, damping.release_at);
  if (damping.release_at >= damping.hold_at) release_at.fail("expected less than hold_at");
  return damping;
}

}  // namespace

std::string_view to_text(HealthType type) {
  return type == HealthType::kNone ? "none" : text_of(type, kHealthTypes);
}

std::string to_text(const StatusRange& range) {
  return range.first == range.last ? fmt::format("{}", range.first)
                                   : fmt::format("{}-{}", range.first, range.last);
}

std::string to_hex(std::string_view bytes) {
  std::string text;
  boost::algorithm::hex_lower(bytes, std::back_inserter(text));
  return text;
}

std::string endpoint_text(HealthType type, const boost::asio::ip::address& address, uint16_t port) {
  const std::string host = address.to_string();
  if (port == 0) return fmt::format("{} {}", to_text(type), host);
  return fmt::format(fmt::runtime(address.is_v4() ? "{} {}:{}" : "{} [{}]:{}"), to_text(type), host,
                     port);
}

HealthSettings read_health(const YamlCursor& cursor) {
  HealthSettings health;
  if (!cursor.exists()) return health;
  health.type = read_choice(cursor.required("type"), kHealthTypes, HealthType::kTcp);
  cursor.only_keys(keys_of(health.type));
  const YamlCursor port = cursor.optional("port");
  if (port.exists()) {
    health.port = read_port(port);
  } else if (health.type != HealthType::kIcmp && health.type != HealthType::kCommand) {
    health.port = read_port(cursor.required("port"));
  }
  health.interval_ms =
      read_number(cursor.optional("interval_ms"), 10, kMaxIntervalMs, health.interval_ms);
  health.timeout_ms =
      read_number(cursor.optional("timeout_ms"), 10, kMaxIntervalMs, health.timeout_ms);
  health.rise = read_number(cursor.optional("rise"), 1, kMaxInARow, health.rise);
  health.fall = read_number(cursor.optional("fall"), 1, kMaxInARow, health.fall);
  health.damping = read_damping(cursor.optional("damping"));
  if (health.type == HealthType::kHttp || health.type == HealthType::kHttps) {
    health.http = read_http(cursor);
  }
  if (health.type == HealthType::kHttps) health.tls = read_tls(cursor);
  if (health.type == HealthType::kUdp) health.udp = read_udp(cursor);
  if (health.type == HealthType::kCommand) health.argv = read_argv(cursor.required("argv"));
  return health;
}

}  // namespace maglev
