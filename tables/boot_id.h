// Which boot of the machine this is: times of CLOCK_BOOTTIME that one boot wrote mean nothing in
// another. Read by each daemon once, at its start.
#pragma once

#include <array>
#include <charconv>
#include <cstdint>
#include <expected>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>

namespace maglev {

using BootId = std::array<uint8_t, 16>;  // never all zeros

// As in 3f0c3a5e-8d5b-4f0e-9a57-2b1e4d6c7f80.
inline std::optional<BootId> parse_boot_id(std::string_view text) {
  if (text.size() != 36) return std::nullopt;
  for (const size_t dash : {8u, 13u, 18u, 23u}) {
    if (text[dash] != '-') return std::nullopt;
  }
  std::string digits(text);
  std::erase(digits, '-');
  if (digits.size() != 32) return std::nullopt;
  BootId id{};
  for (size_t i = 0; i < id.size(); ++i) {
    const char* const begin = digits.data() + 2 * i;
    const auto [end, error] = std::from_chars(begin, begin + 2, id[i], 16);
    if (error != std::errc() || end != begin + 2) return std::nullopt;
  }
  return id == BootId{} ? std::nullopt : std::optional(id);
}

inline std::expected<BootId, std::string> read_boot_id() {
  const std::string path = "/proc/sys/kernel/random/boot_id";
  std::string text;
  std::getline(std::ifstream(path), text);
  if (const auto id = parse_boot_id(text)) return *id;
  return std::unexpected(path + " does not tell this boot's id: is /proc mounted?");
}

}  // namespace maglev
