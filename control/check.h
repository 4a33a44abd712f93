// One check of one backend: the interface that each kind implements in a file of its own, and what
// the kinds share. When to check, how long to wait and what a result means is HealthChecker's.
//
// Thread: that of the io_context. Ownership: shared; a check keeps itself alive while it runs.
//
// Invariants:
// 1. `done` is called once for each start(), from the io_context, never from inside start() or
//    abort(). abort() ends what runs soon, whatever the backend does.
// 2. A check leaves nothing behind: no socket here, no connection in the backend, no process.
// 3. What is read is bounded, whatever the backend sends.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/system/error_code.hpp>
#include <functional>
#include <memory>
#include <string>

#include "control/health_settings.h"

namespace maglev {

struct CheckResult {
  enum class Outcome : uint8_t {
    kPassed,
    kFailed,
    kNotMade,  // this host is short of what the check needs: says nothing about the backend
  };
  Outcome outcome = Outcome::kFailed;
  std::string reason;
};

CheckResult passed(std::string reason);
CheckResult failed(std::string reason);
CheckResult not_made(std::string reason);
// Of an operation that failed; `doing` comes before the error's text.
CheckResult failed_by(const boost::system::error_code& error, const std::string& doing = {});

class Check {
 public:
  using Done = std::function<void(CheckResult)>;
  virtual ~Check() = default;
  virtual void start(Done done) = 0;
  virtual void abort() = 0;
};

class TlsContexts;

using CheckPtr = std::shared_ptr<Check>;
CheckPtr make_tcp_check(boost::asio::io_context& io, const HealthTarget& target);
CheckPtr make_http_check(boost::asio::io_context& io, const HealthTarget& target);
CheckPtr make_https_check(boost::asio::io_context& io, const HealthTarget& target,
                          TlsContexts& contexts);
CheckPtr make_udp_check(boost::asio::io_context& io, const HealthTarget& target);
CheckPtr make_icmp_check(boost::asio::io_context& io, const HealthTarget& target);
CheckPtr make_command_check(boost::asio::io_context& io, const HealthTarget& target);

// Opens a socket whose closing sends a reset: nothing of a check stays behind, neither a socket in
// TIME_WAIT here, one per check and backend, nor a half-closed connection in a backend that hangs.
boost::system::error_code open_for_check(boost::asio::ip::tcp::socket& socket,
                                         const boost::asio::ip::tcp::endpoint& endpoint);

}  // namespace maglev
