// One HTTP/1.1 request over a Unix socket, answered or given up within a time limit. Blocks; any
// thread. Errors are those of the system or of the protocol; an answer of whatever status is none.
#pragma once

#include <boost/system/error_code.hpp>
#include <chrono>
#include <expected>
#include <string>

namespace maglev {

struct HttpRequest {
  std::string method;
  std::string target;
  std::string body;  // JSON; empty: none
  std::string if_match = {};
};

struct HttpAnswer {
  unsigned status = 0;
  std::string body;
};

std::expected<HttpAnswer, boost::system::error_code> http_over_unix_socket(
    const std::string& socket_path, const HttpRequest& request, std::chrono::milliseconds timeout);

}  // namespace maglev
