#include "tables/prime.h"

#include <algorithm>

#include <fmt/format.h>

namespace maglev {

bool is_prime(uint64_t n) {
  if (n < 4) return n >= 2;
  if (n % 2 == 0 || n % 3 == 0) return false;
  for (uint64_t d = 5; d <= n / d; d += 6) {
    if (n % d == 0 || n % (d + 2) == 0) return false;
  }
  return true;
}

std::expected<uint32_t, std::string> check_table_size(uint64_t size) {
  const bool in_range = size >= kMinTableSize && size <= kMaxTableSize;
  if (in_range && is_prime(size)) return static_cast<uint32_t>(size);
  uint64_t below = std::clamp(size, kMinTableSize, kMaxTableSize);
  uint64_t above = below;
  while (!is_prime(below)) --below;
  while (!is_prime(above)) ++above;
  const std::string nearest =
      below == above ? fmt::format("{}", below) : fmt::format("{} or {}", below, above);
  return std::unexpected(
      fmt::format("table size {} is not a prime from {} to {}: the nearest allowed is {} (the "
                  "default is {})",
                  size, kMinTableSize, kMaxTableSize, nearest, kDefaultTableSize));
}

}  // namespace maglev
