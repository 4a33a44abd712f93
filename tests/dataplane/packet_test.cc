#include "dataplane/packet.h"

#include <gtest/gtest.h>

#include <array>

namespace maglev {
namespace {

// With every checksum that a header can have, so also with the one that 0x0100 takes to all ones.
TEST(DecrementTtl, LeavesTheChecksumThatComputingItAnewGives) {
  for (uint32_t id = 0; id < 65536; ++id) {
    std::array<uint8_t, kIpv4HeaderLength> header = {0x45, 0, 0, 46, 0, 0, 0, 0, 64, kProtocolTcp};
    store_be16(header.data() + 4, static_cast<uint16_t>(id));
    const auto checksum = [&header] {
      store_be16(header.data() + kIpv4ChecksumOffset, 0);
      return static_cast<uint16_t>(~sum_words(header.data(), kIpv4HeaderLength));
    };
    store_be16(header.data() + kIpv4ChecksumOffset, checksum());
    decrement_ttl(header.data());
    EXPECT_EQ(header[kIpv4TtlOffset], 63);
    const uint16_t mended = load_be16(header.data() + kIpv4ChecksumOffset);
    EXPECT_EQ(mended, checksum()) << "id " << id;
  }
}

}  // namespace
}  // namespace maglev
