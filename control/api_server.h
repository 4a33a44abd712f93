// HTTP/1.1 on a Unix socket or a TCP address, for the control API.
//
// Thread: everything on the one thread that runs the io_context. Ownership: owns the listening
// socket and a Unix socket's file, and all connections; must be destroyed before the io_context.
// A client that is slow, broken or gone costs itself alone: every read and write has a time limit,
// a body has a size limit, and a client that waits for an adoption holds up nobody.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <expected>
#include <functional>
#include <memory>
#include <string>

#include "control/api.h"
#include "control/listen_on.h"

namespace maglev {

class ApiServer {
 public:
  struct Handlers {
    std::function<ApiAnswer(const ApiRequest&)> answer;
    std::function<const DataplaneStatus&()> dataplane;
  };
  struct Limits {
    std::chrono::milliseconds io_timeout{30000};  // for a request to arrive, an answer to leave
    size_t max_body_bytes = size_t{1} << 20;
    // Beyond it a new one replaces the one idle longest or, where all wait for an adoption, the one
    // that has waited longest.
    size_t max_connections = 256;
  };

  // Replaces the socket file of a process that is gone. Fails with a sentence when something
  // answers there, or the kernel or the file system refuses.
  static std::expected<std::unique_ptr<ApiServer>, std::string> open(boost::asio::io_context& io,
                                                                     ListenOn place,
                                                                     Handlers handlers,
                                                                     Limits limits);
  ~ApiServer();
  ApiServer(const ApiServer&) = delete;
  ApiServer& operator=(const ApiServer&) = delete;

  // To be called when the dataplane has reported: sends the answers that were held for it.
  void dataplane_reported();

 private:
  struct Shared;
  explicit ApiServer(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

  std::shared_ptr<Shared> shared_;
};

}  // namespace maglev
