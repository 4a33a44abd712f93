// The two functions from a key to a numbered bucket that others publish values for. Pure.
#pragma once

#include <cstdint>
#include <string_view>

namespace maglev {

// "A Fast, Minimal Memory, Consistent Hash Algorithm" (Lamping and Veach, 2014). At least 1 bucket.
uint32_t jump_bucket(uint64_t key, uint32_t buckets);

// Redis Cluster's specification: CRC-16/XMODEM modulo 16384, of what stands between the key's first
// '{' and the next '}' when that is not empty, else of the whole key.
inline constexpr uint32_t kHashSlots = 16384;
uint32_t hash_slot(std::string_view key);

}  // namespace maglev
