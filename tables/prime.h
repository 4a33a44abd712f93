// Prime table sizes. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <expected>
#include <string>

namespace maglev {

// Sizes a lookup table may have: primes in [kMinTableSize, kMaxTableSize]. The upper bound is the
// largest prime below 2^24; a table of that size takes 64 MiB with 32-bit slots.
inline constexpr uint64_t kMinTableSize = 3;
inline constexpr uint64_t kMaxTableSize = 16777213;
inline constexpr uint32_t kDefaultTableSize = 65537;

bool is_prime(uint64_t n);

// The size itself, or a sentence that names the nearest allowed primes.
std::expected<uint32_t, std::string> check_table_size(uint64_t size);

}  // namespace maglev
