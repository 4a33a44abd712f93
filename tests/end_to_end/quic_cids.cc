// Preloaded into ngtcp2's gtlsserver (LD_PRELOAD): its connection IDs name it, in the form of
// draft-ietf-quic-load-balancers-21 without encryption.
//
//   MAGLEV_QUIC_SERVER_ID=DIGITS     hexadecimal, with config rotation 0 and the length encoded
//
// The server asks GnuTLS for as many random octets as its connection IDs have, and for nothing else
// of that length; those behind the server ID stay as random as they were.
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

constexpr size_t kCidLength = 18;  // NGTCP2_SV_SCIDLEN of its examples

extern "C" int gnutls_rnd(int level, void* data, size_t length) {
  using Random = int(int, void*, size_t);
  static const auto random = reinterpret_cast<Random*>(dlsym(RTLD_NEXT, "gnutls_rnd"));
  const int result = random(level, data, length);
  const char* const id = std::getenv("MAGLEV_QUIC_SERVER_ID");
  if (length != kCidLength || id == nullptr) return result;
  auto* const cid = static_cast<uint8_t*>(data);
  cid[0] = kCidLength - 1;
  for (size_t i = 0; 2 * i + 1 < std::strlen(id); ++i) {
    unsigned octet = 0;
    std::sscanf(id + 2 * i, "%2x", &octet);
    cid[1 + i] = static_cast<uint8_t>(octet);
  }
  return result;
}
