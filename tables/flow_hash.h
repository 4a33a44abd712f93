// The flow hash: a contract between all hosts of a fleet, like a file format. Two hosts with the
// same seed and the same tables send a flow to the same backend.
//
// hash = XXH3_64bits_withSeed(bytes, seed). bytes, in network order, without padding:
//   5-tuple, IPv4: source, destination, source port, destination port, protocol     13 bytes
//   5-tuple, IPv6: likewise                                                         37 bytes
//   source only:   the source address                                           4 or 16 bytes
// Ports are 0 where the protocol has none. slot = ((hash >> 32) * size) >> 32, so a slot comes from
// the upper half of the hash; whatever else is derived from it takes other bits or a remix.
//
// Pure functions, any thread, no allocation. tests/golden/flow_hash.json pins the values.
#pragma once

#include <cstdint>
#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace maglev {

// Changes whenever any value above would: hosts with different versions disagree on every flow.
inline constexpr uint32_t kFlowHashVersion = 1;

// The hashed bytes themselves: fields hold network order.
#pragma pack(push, 1)
struct FlowKey4 {
  uint32_t source_be;
  uint32_t destination_be;
  uint16_t source_port_be;
  uint16_t destination_port_be;
  uint8_t protocol;
};
struct FlowKey6 {
  uint8_t source[16];
  uint8_t destination[16];
  uint16_t source_port_be;
  uint16_t destination_port_be;
  uint8_t protocol;
};
#pragma pack(pop)
static_assert(sizeof(FlowKey4) == 13 && sizeof(FlowKey6) == 37);

inline uint64_t hash_flow(const FlowKey4& key, uint64_t seed) {
  return XXH3_64bits_withSeed(&key, sizeof key, seed);
}
inline uint64_t hash_flow(const FlowKey6& key, uint64_t seed) {
  return XXH3_64bits_withSeed(&key, sizeof key, seed);
}
inline uint64_t hash_source(const FlowKey4& key, uint64_t seed) {
  return XXH3_64bits_withSeed(&key.source_be, sizeof key.source_be, seed);
}
inline uint64_t hash_source(const FlowKey6& key, uint64_t seed) {
  return XXH3_64bits_withSeed(key.source, sizeof key.source, seed);
}

// The same values from words that were read straight from a packet, for keys that never need to
// stand in memory. They spell out what XXH3 does with 13 and 37 bytes (doc/xxhash_spec.md, "XXH3
// algorithm overview", inputs of 9 to 16 and 17 to 128 bytes).
namespace flow_hash {

inline uint64_t secret(uint32_t offset) {
  return XXH_readLE64(XXH3_kSecret + offset);
}

}  // namespace flow_hash

// For IPv4, with what depends on the seed alone made once.
struct FlowHash4 {
  explicit FlowHash4(uint64_t of_seed)
      : seed(of_seed),
        low_secret((flow_hash::secret(24) ^ flow_hash::secret(32)) + of_seed),
        high_secret((flow_hash::secret(40) ^ flow_hash::secret(48)) - of_seed) {}

  // first: bytes 0 to 7 of FlowKey4; last: bytes 5 to 12; little endian.
  uint64_t operator()(uint64_t first, uint64_t last) const {
    const uint64_t low = first ^ low_secret;
    const uint64_t high = last ^ high_secret;
    return XXH3_avalanche(sizeof(FlowKey4) + XXH_swap64(low) + high +
                          XXH3_mul128_fold64(low, high));
  }

  uint64_t seed;
  uint64_t low_secret;
  uint64_t high_secret;
};

// For IPv6 likewise.
struct FlowHash6 {
  explicit FlowHash6(uint64_t seed) {
    for (uint32_t i = 0; i < 8; ++i) {
      secrets[i] = flow_hash::secret(8 * i) + (i % 2 == 0 ? seed : -seed);
    }
  }

  // addresses: the first 36 bytes of FlowKey6, that is both addresses and both ports.
  uint64_t operator()(const uint8_t* addresses, uint8_t protocol) const {
    const auto at = [addresses](uint32_t offset) { return XXH_readLE64(addresses + offset); };
    const auto mix = [this](uint32_t pair, uint64_t low, uint64_t high) {
      return XXH3_mul128_fold64(low ^ secrets[2 * pair], high ^ secrets[2 * pair + 1]);
    };
    const uint64_t last = at(28) >> 8 | uint64_t{protocol} << 56;  // bytes 29 to 36
    return XXH3_avalanche(sizeof(FlowKey6) * XXH_PRIME64_1 + mix(2, at(16), at(24)) +
                          mix(3, at(5), at(13)) + mix(0, at(0), at(8)) + mix(1, at(21), last));
  }

  uint64_t secrets[8];
};

inline uint32_t slot_of(uint64_t hash, uint32_t size) {
  return static_cast<uint32_t>(((hash >> 32) * size) >> 32);
}

}  // namespace maglev
