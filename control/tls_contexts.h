// OpenSSL contexts, which hold the certificates of authorities: kept between checks, since reading
// them takes far longer than a check. One thread.
#pragma once

#include <boost/asio/ssl/context.hpp>
#include <expected>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

namespace maglev {

class TlsContexts {
 public:
  using ContextPtr = std::shared_ptr<boost::asio::ssl::context>;

  // Of a file of authorities, read again after it was changed; empty: the system's, as they are
  // when first asked for. Fails with a sentence where the file cannot be read.
  std::expected<ContextPtr, std::string> with_authorities(const std::string& ca_file);

 private:
  struct Entry {
    std::filesystem::file_time_type changed;
    ContextPtr context;
  };
  std::map<std::string, Entry> by_file_;
};

}  // namespace maglev
