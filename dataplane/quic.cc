#include "dataplane/quic.h"

#include <bit>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace maglev {

QuicServers::QuicServers(const Formats& formats, size_t servers)
    : formats_(formats), entries_(std::bit_ceil(2 * servers + 1)) {}

std::expected<QuicServers, std::string> QuicServers::make(const Formats& formats,
                                                          std::span<const QuicServer> servers) {
  for (const QuicCidFormat& format : formats) {
    if (format.exists() && !format.is_valid()) {
      return std::unexpected(
          fmt::format("a server ID of {} octets and a nonce of {}: the ID may have 1 to {}, the "
                      "nonce at least {}, both together at most {}",
                      format.server_id_length, format.nonce_length, kQuicMaxServerIdLength,
                      kQuicMinNonceLength, kQuicMaxCidLength - 1));
    }
  }
  QuicServers made(formats, servers.size());
  for (const QuicServer& server : servers) {
    if (auto added = made.add(server); !added) return std::unexpected(added.error());
  }
  return made;
}

std::expected<void, std::string> QuicServers::add(const QuicServer& server) {
  const auto refuse = [&server](const char* why) {
    return std::unexpected(fmt::format("the server ID {:02x} of config rotation {} {}",
                                       fmt::join(server.id, ""), server.config_rotation, why));
  };
  if (server.config_rotation >= kQuicConfigRotations ||
      server.id.size() != formats_[server.config_rotation].server_id_length || server.id.empty()) {
    return refuse("does not fit a format");
  }
  const Key key = key_of(server.config_rotation, server.id);
  Entry& entry = entries_[place_of(key)];
  if (entry.key == key) return refuse("is there twice");
  entry = {key, server.backend};
  return {};
}

}  // namespace maglev
