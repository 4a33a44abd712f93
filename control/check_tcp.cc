// A check that a TCP connection can be opened.
#include <boost/asio/post.hpp>
#include <utility>

#include "control/check.h"

namespace maglev {
namespace {

using boost::asio::ip::tcp;
using boost::system::error_code;

class TcpCheck : public Check, public std::enable_shared_from_this<TcpCheck> {
 public:
  TcpCheck(boost::asio::io_context& io, const HealthTarget& target)
      : endpoint_(target.address, target.settings.port), socket_(io) {}

  void start(Done done) override {
    auto finish = [self = shared_from_this(), done = std::move(done)](const error_code& error) {
      self->abort();
      done(error ? failed_by(error) : passed("connected"));
    };
    if (const error_code error = open_for_check(socket_, endpoint_)) {
      boost::asio::post(socket_.get_executor(),
                        [finish = std::move(finish), error] { finish(error); });
      return;
    }
    socket_.async_connect(endpoint_, std::move(finish));
  }

  void abort() override {
    error_code ignored;
    socket_.close(ignored);
  }

 private:
  const tcp::endpoint endpoint_;
  tcp::socket socket_;
};

}  // namespace

CheckPtr make_tcp_check(boost::asio::io_context& io, const HealthTarget& target) {
  return std::make_shared<TcpCheck>(io, target);
}

}  // namespace maglev
