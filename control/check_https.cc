// A check that an HTTP/1.1 request over TLS is answered as expected, by a server whose certificate
// is valid for the expected name (RFC 6125) and from a known authority.
#include <openssl/x509v3.h>

#include <boost/asio/post.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <optional>
#include <utility>

#include "control/check_http_exchange.h"
#include "control/tls_contexts.h"

namespace maglev {
namespace {

using boost::asio::ip::tcp;
using boost::system::error_code;
namespace ssl = boost::asio::ssl;

std::string expected_name(const HealthTarget& target) {
  const HealthSettings& settings = target.settings;
  if (!settings.tls.server_name.empty()) return settings.tls.server_name;
  if (settings.http.host.empty()) return target.address.to_string();
  return settings.http.host.substr(0, settings.http.host.find(':'));
}

class HttpsCheck : public Check, public std::enable_shared_from_this<HttpsCheck> {
 public:
  HttpsCheck(boost::asio::io_context& io, const HealthTarget& target, TlsContexts& contexts)
      : endpoint_(target.address, target.settings.port),
        name_(expected_name(target)),
        context_(contexts.with_authorities(target.settings.tls.ca_file)),
        socket_(io) {
    if (!context_) return;
    stream_.emplace(socket_, **context_);
    set_up_name(target.settings.tls.verify);
    exchange_.emplace(*stream_, target, kHttpsPort);
  }

  void start(Done done) override {
    auto finish = [self = shared_from_this(), done = std::move(done)](CheckResult result) {
      self->abort();
      done(std::move(result));
    };
    std::optional<CheckResult> failure;
    if (!context_) {
      failure = not_made(context_.error());
    } else if (const error_code error = open_for_check(socket_, endpoint_)) {
      failure = failed_by(error);
    }
    if (failure) {
      boost::asio::post(socket_.get_executor(),
                        [finish = std::move(finish), failure] { finish(*failure); });
      return;
    }
    socket_.async_connect(endpoint_,
                          [this, finish = std::move(finish)](const error_code& error) mutable {
                            if (error) return finish(failed_by(error));
                            shake_hands(std::move(finish));
                          });
  }

  void abort() override {
    error_code ignored;
    socket_.close(ignored);
  }

 private:
  static constexpr uint16_t kHttpsPort = 443;

  void set_up_name(bool verify) {
    SSL* const session = stream_->native_handle();
    error_code error;
    boost::asio::ip::make_address(name_, error);
    const bool is_address = !error;
    // What SSL_set_tlsext_host_name() stands for, which is a macro with a cast of C's.
    if (!is_address) {
      SSL_ctrl(session, SSL_CTRL_SET_TLSEXT_HOSTNAME, TLSEXT_NAMETYPE_host_name, name_.data());
    }
    if (!verify) return;
    stream_->set_verify_mode(ssl::verify_peer);
    if (is_address) {
      X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(session), name_.c_str());
    } else {
      SSL_set1_host(session, name_.c_str());
    }
  }

  void shake_hands(Done finish) {
    stream_->async_handshake(ssl::stream_base::client,
                             [this, finish = std::move(finish)](const error_code& error) mutable {
                               if (error) return finish(judge_handshake(error));
                               exchange_->start(std::move(finish));
                             });
  }

  CheckResult judge_handshake(const error_code& error) {
    const long verdict = SSL_get_verify_result(stream_->native_handle());
    if (verdict == X509_V_OK) return failed_by(error, "no TLS session");
    return failed(fmt::format("certificate refused, expected one of {}: {}", name_,
                              X509_verify_cert_error_string(verdict)));
  }

  const tcp::endpoint endpoint_;
  std::string name_;
  const std::expected<TlsContexts::ContextPtr, std::string> context_;
  tcp::socket socket_;
  std::optional<ssl::stream<tcp::socket&>> stream_;
  std::optional<HttpExchangeOver<ssl::stream<tcp::socket&>>> exchange_;
};

}  // namespace

CheckPtr make_https_check(boost::asio::io_context& io, const HealthTarget& target,
                          TlsContexts& contexts) {
  return std::make_shared<HttpsCheck>(io, target, contexts);
}

}  // namespace maglev
