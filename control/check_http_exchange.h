// One HTTP/1.1 request and a bounded look at its answer, over any stream: what checks by HTTP and
// HTTPS share. The same thread and the same rules as in control/check.h; whoever owns the stream
// and this ends an exchange by closing the socket below.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>

#include "control/check.h"

namespace maglev {

template <typename Stream>
class HttpExchangeOver {
 public:
  using Done = std::function<void(CheckResult)>;

  HttpExchangeOver(Stream& stream, const HealthTarget& target, uint16_t default_port)
      : stream_(stream),
        wanted_(target.settings.http),
        request_(boost::beast::http::string_to_verb(wanted_.method), wanted_.path, 11) {
    namespace http = boost::beast::http;
    request_.set(http::field::host, host_of(target, default_port));
    request_.set(http::field::user_agent, "maglev-control");
    request_.set(http::field::connection, "close");
    // Only as much is read as is looked at. Boost 1.74 does not take "no limit" for an answer.
    parser_.body_limit(std::numeric_limits<uint64_t>::max());
    parser_.skip(wanted_.method == "HEAD");
  }

  // On an open connection.
  void start(Done done) {
    done_ = std::move(done);
    boost::beast::http::async_write(stream_, request_, [this](const auto& error, size_t) {
      if (error) return finish(failed_by(error, "sending the request"));
      boost::beast::http::async_read_header(stream_, buffer_, parser_,
                                            [this](const auto& e, size_t) { take_header(e); });
    });
  }

 private:
  static constexpr size_t kMaxBodyBytes = 65536;

  static std::string host_of(const HealthTarget& target, uint16_t default_port) {
    if (!target.settings.http.host.empty()) return target.settings.http.host;
    std::string host = target.address.to_string();
    if (target.address.is_v6()) host = "[" + host + "]";
    return target.settings.port == default_port ? host
                                                : fmt::format("{}:{}", host, target.settings.port);
  }

  void take_header(const boost::system::error_code& error) {
    if (error == boost::beast::http::error::end_of_stream) {
      return finish(failed("closed without an answer"));
    }
    if (error) return finish(failed_by(error, "reading the answer"));
    const unsigned status = parser_.get().result_int();
    const bool is_wanted = std::ranges::any_of(wanted_.statuses, [&](const StatusRange& range) {
      return range.first <= status && status <= range.last;
    });
    if (!is_wanted) return finish(failed(fmt::format("status {}", status)));
    if (wanted_.body.empty()) return finish(passed(fmt::format("status {}", status)));
    read_body();
  }

  void read_body() {
    if (parser_.is_done() || body_.size() >= kMaxBodyBytes) {
      return finish(
          failed(fmt::format("the body's first {} bytes lack what is expected", body_.size())));
    }
    parser_.get().body().data = chunk_.data();
    parser_.get().body().size = chunk_.size();
    boost::beast::http::async_read_some(stream_, buffer_, parser_,
                                        [this](const auto& error, size_t) { take_body(error); });
  }

  void take_body(const boost::system::error_code& error) {
    if (error && error != boost::beast::http::error::need_buffer) {
      return finish(failed_by(error, "reading the body"));
    }
    // What was expected may begin in an earlier chunk.
    const size_t known = body_.size() - std::min(body_.size(), wanted_.body.size());
    body_.append(chunk_.data(), chunk_.size() - parser_.get().body().size);
    if (body_.find(wanted_.body, known) == std::string::npos) return read_body();
    finish(passed(fmt::format("status {} and the expected body", parser_.get().result_int())));
  }

  void finish(CheckResult result) { std::exchange(done_, {})(std::move(result)); }

  Stream& stream_;
  const HttpExchange wanted_;
  boost::beast::http::request<boost::beast::http::empty_body> request_;
  boost::beast::flat_buffer buffer_{kMaxBodyBytes};
  boost::beast::http::response_parser<boost::beast::http::buffer_body> parser_;
  std::array<char, 4096> chunk_;
  std::string body_;
  Done done_;
};

}  // namespace maglev
