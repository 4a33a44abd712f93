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

inline uint32_t slot_of(uint64_t hash, uint32_t size) {
  return static_cast<uint32_t>(((hash >> 32) * size) >> 32);
}

}  // namespace maglev
