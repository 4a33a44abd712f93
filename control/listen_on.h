// Where the control API listens.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <string>
#include <variant>

namespace maglev {

struct UnixSocket {
  std::string path;
  unsigned mode = 0600;    // of its file
  std::string group = {};  // of its file; empty: the process's own
  bool operator==(const UnixSocket&) const = default;
};

using ListenOn = std::variant<UnixSocket, boost::asio::ip::tcp::endpoint>;

// Path, ADDRESS:PORT or [ADDRESS]:PORT.
std::string to_text(const ListenOn& place);

}  // namespace maglev
