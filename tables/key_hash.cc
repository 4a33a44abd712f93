#include "tables/key_hash.h"

#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
// The one-shot functions of OpenSSL 3 look the algorithm up at each call, which takes longer than
// hashing a key; these do not, and are declared under the older interface only.
#define OPENSSL_API_COMPAT 10100
#include <openssl/md5.h>
#include <openssl/sha.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace maglev {
namespace {

constexpr std::array<std::pair<KeyHash, std::string_view>, 4> kNames{{
    {KeyHash::kMd5, "md5-64"},
    {KeyHash::kSha1, "sha1-32"},
    {KeyHash::kFnv1a, "fnv1a-fmix-32"},
    {KeyHash::kXxh64, "xxh64"},
}};

uint64_t md5_64(std::string_view bytes) {
  unsigned char digest[MD5_DIGEST_LENGTH];
  MD5_CTX context;
  MD5_Init(&context);
  MD5_Update(&context, bytes.data(), bytes.size());
  MD5_Final(digest, &context);
  uint64_t first;
  std::memcpy(&first, digest, sizeof first);
  return std::byteswap(first);
}

uint32_t sha1_32(std::string_view bytes) {
  unsigned char digest[SHA_DIGEST_LENGTH];
  SHA_CTX context;
  SHA1_Init(&context);
  SHA1_Update(&context, bytes.data(), bytes.size());
  SHA1_Final(digest, &context);
  uint32_t first;
  std::memcpy(&first, digest, sizeof first);
  return std::byteswap(first);
}

uint32_t fnv1a_fmix_32(std::string_view bytes) {
  uint32_t h = 2166136261u;
  for (const char byte : bytes) h = (h ^ static_cast<uint8_t>(byte)) * 16777619u;
  h = (h ^ (h >> 16)) * 0x85ebca6bu;
  h = (h ^ (h >> 13)) * 0xc2b2ae35u;
  return h ^ (h >> 16);
}

}  // namespace

uint64_t hash_key(KeyHash hash, std::string_view bytes) {
  switch (hash) {
    case KeyHash::kMd5:
      return md5_64(bytes);
    case KeyHash::kSha1:
      return sha1_32(bytes);
    case KeyHash::kFnv1a:
      return fnv1a_fmix_32(bytes);
    case KeyHash::kXxh64:
      return XXH64(bytes.data(), bytes.size(), 0);
  }
  std::unreachable();
}

uint32_t bits_of(KeyHash hash) {
  return hash == KeyHash::kSha1 || hash == KeyHash::kFnv1a ? 32 : 64;
}

std::string_view to_text(KeyHash hash) {
  for (const auto& [value, name] : kNames) {
    if (value == hash) return name;
  }
  std::unreachable();
}

std::expected<KeyHash, std::string> parse_key_hash(std::string_view text) {
  std::array<std::string_view, kNames.size()> choices;
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i].second == text) return kNames[i].first;
    choices[i] = kNames[i].second;
  }
  return std::unexpected(
      fmt::format("unknown hash '{}': choose one of {}", text, fmt::join(choices, ", ")));
}

}  // namespace maglev
