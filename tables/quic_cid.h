// How servers put their IDs into QUIC connection IDs, as operators configure it and as it is
// published: draft-ietf-quic-load-balancers-21, without encryption.
#pragma once

#include <array>
#include <compare>
#include <cstdint>

namespace maglev {

inline constexpr uint32_t kQuicMaxCidLength = 20;  // RFC 9000, section 17.2: versions 1 and 2
inline constexpr uint32_t kQuicConfigRotations = 7;
// The draft allows longer ones; these fit a word.
inline constexpr uint32_t kQuicMaxServerIdLength = 8;
inline constexpr uint32_t kQuicMinNonceLength = 4;

// All zeros: connection IDs are not looked at.
struct QuicCidFormat {
  uint8_t server_id_length = 0;  // octets; 0: there is no format
  uint8_t nonce_length = 0;
  uint8_t rotation_and_encoding = 0;  // config rotation, and kLengthEncoded
  auto operator<=>(const QuicCidFormat&) const = default;

  // All servers put the length into octet 0, so that other IDs can be told.
  static constexpr uint8_t kLengthEncoded = 0x80;

  uint32_t config_rotation() const { return rotation_and_encoding & 0x7fu; }
  bool length_encoded() const { return (rotation_and_encoding & kLengthEncoded) != 0; }
  uint32_t cid_length() const { return 1u + server_id_length + nonce_length; }
  bool exists() const { return server_id_length != 0; }
  // Whether the draft and the limits above allow it.
  bool is_valid() const {
    return server_id_length >= 1 && server_id_length <= kQuicMaxServerIdLength &&
           nonce_length >= kQuicMinNonceLength && cid_length() <= kQuicMaxCidLength &&
           config_rotation() < kQuicConfigRotations;
  }
};
static_assert(sizeof(QuicCidFormat) == 3);

// Octets behind the length are zero.
struct QuicServerId {
  std::array<uint8_t, kQuicMaxServerIdLength> octets{};
  uint8_t length = 0;  // 0: none
  uint8_t zero[7] = {};
  auto operator<=>(const QuicServerId&) const = default;
};
static_assert(sizeof(QuicServerId) == 16);

}  // namespace maglev
