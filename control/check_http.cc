// A check that an HTTP/1.1 request is answered as expected.
#include <boost/asio/post.hpp>
#include <utility>

#include "control/check_http_exchange.h"

namespace maglev {
namespace {

using boost::asio::ip::tcp;
using boost::system::error_code;

class HttpCheck : public Check, public std::enable_shared_from_this<HttpCheck> {
 public:
  HttpCheck(boost::asio::io_context& io, const HealthTarget& target)
      : endpoint_(target.address, target.settings.port),
        socket_(io),
        exchange_(socket_, target, kHttpPort) {}

  void start(Done done) override {
    auto finish = [self = shared_from_this(), done = std::move(done)](CheckResult result) {
      self->abort();
      done(std::move(result));
    };
    if (const error_code error = open_for_check(socket_, endpoint_)) {
      boost::asio::post(socket_.get_executor(),
                        [finish = std::move(finish), error] { finish(failed_by(error)); });
      return;
    }
    socket_.async_connect(endpoint_,
                          [this, finish = std::move(finish)](const error_code& error) mutable {
                            if (error) return finish(failed_by(error));
                            exchange_.start(std::move(finish));
                          });
  }

  void abort() override {
    error_code ignored;
    socket_.close(ignored);
  }

 private:
  static constexpr uint16_t kHttpPort = 80;

  const tcp::endpoint endpoint_;
  tcp::socket socket_;
  HttpExchangeOver<tcp::socket> exchange_;
};

}  // namespace

CheckPtr make_http_check(boost::asio::io_context& io, const HealthTarget& target) {
  return std::make_shared<HttpCheck>(io, target);
}

}  // namespace maglev
