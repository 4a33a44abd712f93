#include "control/setting_readers.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/algorithm/string/join.hpp>
#include <charconv>

#include "tables/file_format.h"

namespace maglev {
namespace {

template <typename T>
T read_by(const YamlCursor& cursor, std::expected<T, std::string> (*parse)(std::string_view)) {
  if (!cursor.exists()) return {};
  auto value = parse(cursor.text());
  if (value) return std::move(*value);
  cursor.fail(value.error());
  return {};
}

}  // namespace

void fail_choice(const YamlCursor& cursor, const std::vector<std::string>& allowed) {
  cursor.fail(fmt::format("expected {}, found '{}'", boost::algorithm::join(allowed, " or "),
                          cursor.text()));
}

uint32_t read_number(const YamlCursor& cursor, uint32_t min, uint32_t max, uint32_t fallback) {
  return static_cast<uint32_t>(cursor.integer(min, max, fallback));
}

uint16_t read_port(const YamlCursor& cursor) {
  return static_cast<uint16_t>(cursor.integer(1, 65535, 1));
}

std::string read_name(const YamlCursor& owner) {
  const YamlCursor cursor = owner.required("name");
  std::string name = cursor.text();
  if (cursor.exists() && !is_name(name)) {
    cursor.fail(
        fmt::format("expected a name of 1 to {} letters, digits and ._:- that starts with "
                    "a letter or digit, found '{}'",
                    kMaxNameLength, name.substr(0, 2 * kMaxNameLength)));
  }
  return name;
}

boost::asio::ip::address read_host(const YamlCursor& cursor) {
  return read_by(cursor, parse_host);
}

Prefix read_prefix(const YamlCursor& cursor) {
  return read_by(cursor, parse_prefix);
}

std::expected<boost::asio::ip::tcp::endpoint, std::string> parse_endpoint(std::string_view text) {
  const size_t colon = std::min(text.rfind(':'), text.size());
  std::string_view host = text.substr(0, colon);
  const bool bracketed = host.starts_with('[') && host.ends_with(']');
  if (bracketed) host = host.substr(1, host.size() - 2);
  const auto address = parse_host(host);
  uint16_t port = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] =
      std::from_chars(text.data() + std::min(colon + 1, text.size()), end, port);
  if (!address || address->is_v6() != bracketed || error != std::errc() || stop != end ||
      port == 0) {
    return std::unexpected(fmt::format(
        "expected an address and a port, as in 127.0.0.1:9655 or \"[::1]:9655\", found '{}'",
        text));
  }
  return boost::asio::ip::tcp::endpoint(*address, port);
}

boost::asio::ip::tcp::endpoint read_endpoint(const YamlCursor& cursor) {
  return read_by(cursor, parse_endpoint);
}

}  // namespace maglev
