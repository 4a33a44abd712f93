#include "tests/control/certificates.h"

#include <cstdio>
#include <stdexcept>

namespace maglev {
namespace {

Certificate make_unsigned(const char* common_name, long from_s, long until_s) {
  Certificate made{KeyPtr(EVP_EC_gen("P-256")), X509Ptr(X509_new())};
  X509* const x509 = made.x509.get();
  static long serial = 0;
  X509_set_version(x509, X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(x509), ++serial);
  X509_gmtime_adj(X509_getm_notBefore(x509), from_s);
  X509_gmtime_adj(X509_getm_notAfter(x509), until_s);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(x509), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(common_name), -1, -1, 0);
  X509_set_pubkey(x509, made.key.get());
  return made;
}

void extend(X509* x509, int id, const char* value) {
  X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, nullptr, id, value);
  if (extension == nullptr) throw std::runtime_error("no such extension");
  X509_add_ext(x509, extension, -1);
  X509_EXTENSION_free(extension);
}

void sign_by(X509* x509, const Certificate& issuer) {
  X509_set_issuer_name(x509, X509_get_subject_name(issuer.x509.get()));
  if (X509_sign(x509, issuer.key.get(), EVP_sha256()) == 0) throw std::runtime_error("not signed");
}

}  // namespace

Certificate make_authority() {
  static int number = 0;
  const std::string name = "authority " + std::to_string(++number);
  Certificate authority = make_unsigned(name.c_str(), -60, 3600);
  extend(authority.x509.get(), NID_basic_constraints, "critical,CA:TRUE");
  sign_by(authority.x509.get(), authority);
  return authority;
}

Certificate Certificate::sign(const char* alternative_name, long from_s, long until_s) const {
  Certificate made = make_unsigned("server", from_s, until_s);
  extend(made.x509.get(), NID_subject_alt_name, alternative_name);
  sign_by(made.x509.get(), *this);
  return made;
}

void write_pem(const Certificate& certificate, const std::filesystem::path& file) {
  std::FILE* const stream = std::fopen(file.c_str(), "w");
  if (stream == nullptr || PEM_write_X509(stream, certificate.x509.get()) == 0) {
    throw std::runtime_error("not written");
  }
  std::fclose(stream);
}

}  // namespace maglev
