// Flow number i of the benches: 2^32 distinct sources, near numbers far apart. Pure, any thread.
#pragma once

#include <cstdint>

namespace maglev {

struct NumberedFlow {
  uint32_t address_bits;  // 17 bits, as many as 198.18.0.0/15 leaves
  uint16_t source_port;   // 32768 and above

  explicit constexpr NumberedFlow(uint32_t number)
      // The factor is odd, so that the product takes each 32-bit value once.
      : address_bits(number * 0x9e3779b1u >> 15),
        source_port(static_cast<uint16_t>(0x8000u | (number * 0x9e3779b1u & 0x7fff))) {}
};

inline constexpr uint32_t kFlowNetwork = 198u << 24 | 18u << 16;  // host order

}  // namespace maglev
