// A check that a UDP datagram is answered. No answer in time is a failure, and so is a refused
// port, told by ICMP; an answer that lacks the expected bytes is one too.
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/udp.hpp>
#include <boost/asio/post.hpp>
#include <string_view>
#include <utility>

#include "control/check.h"

namespace maglev {
namespace {

using boost::asio::ip::udp;
using boost::system::error_code;

class UdpCheck : public Check, public std::enable_shared_from_this<UdpCheck> {
 public:
  UdpCheck(boost::asio::io_context& io, const HealthTarget& target)
      : endpoint_(target.address, target.settings.port),
        exchange_(target.settings.udp),
        socket_(io) {}

  void start(Done done) override {
    done_ = std::move(done);
    if (const error_code error = send()) {
      boost::asio::post(socket_.get_executor(),
                        [self = shared_from_this(), error] { self->finish(failed_by(error)); });
      return;
    }
    socket_.async_receive(boost::asio::buffer(answer_),
                          [self = shared_from_this()](const error_code& error, size_t length) {
                            self->finish(error ? failed_by(error) : self->judge(length));
                          });
  }

  void abort() override {
    error_code ignored;
    socket_.close(ignored);
  }

 private:
  error_code send() {
    error_code error;
    socket_.open(endpoint_.protocol(), error);
    // Connected, so that only the backend can answer and a refusal is heard.
    if (!error) socket_.connect(endpoint_, error);
    if (!error) socket_.send(boost::asio::buffer(exchange_.send), 0, error);
    return error;
  }

  CheckResult judge(size_t length) const {
    const std::string_view answer(answer_.data(), length);
    if (answer.find(exchange_.expect) == std::string_view::npos) {
      return failed("the answer lacks what is expected");
    }
    return passed("answered");
  }

  void finish(CheckResult result) {
    abort();
    std::exchange(done_, {})(std::move(result));
  }

  const udp::endpoint endpoint_;
  const UdpExchange exchange_;
  udp::socket socket_;
  std::array<char, 2048> answer_;  // more is not looked at
  Done done_;
};

}  // namespace

CheckPtr make_udp_check(boost::asio::io_context& io, const HealthTarget& target) {
  return std::make_shared<UdpCheck>(io, target);
}

}  // namespace maglev
