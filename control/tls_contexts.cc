#include "control/tls_contexts.h"

#include <fmt/format.h>

namespace maglev {

std::expected<TlsContexts::ContextPtr, std::string> TlsContexts::with_authorities(
    const std::string& ca_file) {
  boost::system::error_code error;
  std::filesystem::file_time_type changed;
  if (!ca_file.empty()) {
    std::error_code missing;
    changed = std::filesystem::last_write_time(ca_file, missing);
    if (missing) {
      return std::unexpected(fmt::format("cannot read ca_file {}: {}", ca_file, missing.message()));
    }
  }
  const auto known = by_file_.find(ca_file);
  if (known != by_file_.end() && known->second.changed == changed) return known->second.context;

  auto context = std::make_shared<boost::asio::ssl::context>(boost::asio::ssl::context::tls_client);
  if (ca_file.empty()) {
    context->set_default_verify_paths(error);
  } else {
    context->load_verify_file(ca_file, error);
  }
  if (error) {
    return std::unexpected(fmt::format("cannot read authorities from {}: {}",
                                       ca_file.empty() ? "the system's" : ca_file,
                                       error.message()));
  }
  by_file_.insert_or_assign(ca_file, Entry{changed, context});
  return context;
}

}  // namespace maglev
