// Certificates made on the spot, valid or not as a test needs them.
#pragma once

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <filesystem>
#include <memory>
#include <string>

namespace maglev {

template <auto kFree>
struct FreeBy {
  template <typename T>
  void operator()(T* object) const {
    kFree(object);
  }
};
using KeyPtr = std::unique_ptr<EVP_PKEY, FreeBy<EVP_PKEY_free>>;
using X509Ptr = std::unique_ptr<X509, FreeBy<X509_free>>;

struct Certificate {
  KeyPtr key;
  X509Ptr x509;

  // A certificate by this authority for "DNS:name" or "IP:address", valid from and until so many
  // seconds from now.
  Certificate sign(const char* alternative_name, long from_s, long until_s) const;
};

// Valid for an hour, and signed by itself.
Certificate make_authority();

void write_pem(const Certificate& certificate, const std::filesystem::path& file);

}  // namespace maglev
