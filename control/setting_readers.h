// Readers of single settings, shared by the files that read parts of the configuration. Mistakes
// are noted at the cursor. Pure functions, any thread.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <cstdint>
#include <expected>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "control/prefix.h"
#include "tables/yaml_cursor.h"

namespace maglev {

// A word of the configuration and what it stands for.
template <typename T>
using Choice = std::pair<std::string_view, T>;
template <typename T>
using Choices = std::span<const Choice<std::type_identity_t<T>>>;

template <typename T>
std::string_view text_of(T value, Choices<T> choices) {
  for (const auto& [text, choice] : choices) {
    if (choice == value) return text;
  }
  return "unknown";
}

void fail_choice(const YamlCursor& cursor, const std::vector<std::string>& allowed);

template <typename T>
T read_choice(const YamlCursor& cursor, Choices<T> choices, T fallback) {
  if (!cursor.exists()) return fallback;
  const std::string text = cursor.text();
  std::vector<std::string> allowed;
  for (const auto& [name, choice] : choices) {
    if (name == text) return choice;
    allowed.emplace_back(name);
  }
  fail_choice(cursor, allowed);
  return fallback;
}

uint32_t read_number(const YamlCursor& cursor, uint32_t min, uint32_t max, uint32_t fallback);
uint16_t read_port(const YamlCursor& cursor);

// Of a pool, VIP or backend (is_name in tables/file_format.h).
std::string read_name(const YamlCursor& owner);

// Unspecified where it does not exist or is a mistake.
boost::asio::ip::address read_host(const YamlCursor& cursor);
Prefix read_prefix(const YamlCursor& cursor);
// ADDRESS:PORT or [ADDRESS]:PORT.
std::expected<boost::asio::ip::tcp::endpoint, std::string> parse_endpoint(std::string_view text);
boost::asio::ip::tcp::endpoint read_endpoint(const YamlCursor& cursor);

}  // namespace maglev
