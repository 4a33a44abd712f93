#include "control/http_client.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <cstdint>
#include <utility>

namespace maglev {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::system::error_code;

namespace {

// A listing of a hundred thousand backends is some forty megabytes.
constexpr uint64_t kMaxAnswerBytes = uint64_t{1} << 30;

}  // namespace

std::expected<HttpAnswer, error_code> http_over_unix_socket(const std::string& socket_path,
                                                            const HttpRequest& request,
                                                            std::chrono::milliseconds timeout) {
  if (socket_path.size() >= sizeof(sockaddr_un::sun_path)) {
    return std::unexpected(make_error_code(boost::system::errc::filename_too_long));
  }
  asio::io_context io;
  beast::basic_stream<asio::local::stream_protocol> stream(io);
  stream.expires_after(timeout);

  http::request<http::string_body> message{http::string_to_verb(request.method), request.target,
                                           11};
  message.set(http::field::host, "localhost");
  message.set(http::field::connection, "close");
  if (!request.body.empty()) message.set(http::field::content_type, "application/json");
  if (!request.if_match.empty()) message.set(http::field::if_match, request.if_match);
  message.body() = request.body;
  message.prepare_payload();

  beast::flat_buffer buffer;
  http::response_parser<http::string_body> answer;
  answer.body_limit(kMaxAnswerBytes);

  // The time limit of a Beast stream holds for asynchronous calls only.
  error_code result;
  stream.async_connect(asio::local::stream_protocol::endpoint(socket_path), [&](error_code error) {
    if (error) {
      result = error;
      return;
    }
    http::async_write(stream, message, [&](error_code write_error, size_t) {
      // A server may answer and close before it has read all: the answer counts then.
      if (write_error && write_error != boost::system::errc::broken_pipe) {
        result = write_error;
        return;
      }
      http::async_read(stream, buffer, answer,
                       [&](error_code read_error, size_t) { result = read_error; });
    });
  });
  io.run();
  if (result) return std::unexpected(result);
  return HttpAnswer{answer.get().result_int(), std::move(answer.get().body())};
}

}  // namespace maglev
