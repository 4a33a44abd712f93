// Hashes of keys and node names.
//
// Canonical key encoding: a key is its bytes, no more. Text is UTF-8 as it was given: no
// normalisation, no terminating zero, no length in front; a number that serves as a key is its
// decimal digits. No hash depends on the process, the host or the language: two programs that hash
// the same bytes agree. tests/golden/placements.json pins values.
//
//   md5-64         the first 8 bytes of MD5, big-endian
//   sha1-32        the first 4 bytes of SHA-1, big-endian
//   fnv1a-fmix-32  32-bit FNV-1a followed by MurmurHash3's 32-bit finaliser
//   xxh64          XXH64 with seed 0
//
// Pure functions, any thread.
#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <string_view>

namespace maglev {

enum class KeyHash : uint8_t { kMd5, kSha1, kFnv1a, kXxh64 };

// The largest values are 2^32 - 1 or 2^64 - 1.
uint64_t hash_key(KeyHash hash, std::string_view bytes);
uint32_t bits_of(KeyHash hash);

// The value spread over 64 bits, so that hashes of either width compare and scale alike.
inline uint64_t widen(KeyHash hash, uint64_t value) {
  return value << (64 - bits_of(hash));
}

std::string_view to_text(KeyHash hash);
// Fails with a sentence that lists the choices.
std::expected<KeyHash, std::string> parse_key_hash(std::string_view text);

}  // namespace maglev
