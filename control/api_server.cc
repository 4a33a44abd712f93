#include "control/api_server.h"

#include <fmt/format.h>
#include <grp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <cerrno>
#include <cstring>
#include <list>
#include <optional>
#include <utility>

#include "control/metrics.h"

namespace maglev {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using Protocol = asio::generic::stream_protocol;  // of Unix and TCP sockets alike
using Acceptor = asio::basic_socket_acceptor<Protocol>;
using boost::system::error_code;

namespace {

// After an answer that ends a connection, what the client still sends is read for a moment: closing
// with bytes unread could take the answer away from it.
constexpr std::chrono::milliseconds kDrainTimeout{2000};
constexpr std::chrono::milliseconds kAcceptAgainAfter{100};

bool is_malformed(error_code error) {
  return error.category() == http::make_error_code(http::error::end_of_stream).category() &&
         error != http::error::end_of_stream && error != http::error::partial_message;
}

// Of a Unix socket the process that connected, as the kernel says.
std::string describe_peer(Protocol::socket& socket) {
  ucred peer{};
  socklen_t length = sizeof peer;
  const bool is_known =
      ::getsockopt(socket.native_handle(), SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 &&
      peer.pid != 0;
  return is_known ? fmt::format("uid {}, pid {}", peer.uid, peer.pid) : "a TCP client";
}

// Makes way for a new socket file.
std::expected<void, std::string> remove_stale_socket(asio::io_context& io,
                                                     const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return {};
  if (!S_ISSOCK(status.st_mode)) {
    return std::unexpected("a file is there that is no socket");
  }
  error_code error;
  asio::local::stream_protocol::socket probe(io);
  probe.connect(asio::local::stream_protocol::endpoint(path), error);
  if (!error) return std::unexpected("another process answers there");
  ::unlink(path.c_str());
  return {};
}

// The file is the owner's alone until it has the rights it is to have.
std::expected<void, std::string> set_rights(const UnixSocket& socket) {
  if (!socket.group.empty()) {
    const ::group* const group = ::getgrnam(socket.group.c_str());
    if (group == nullptr) {
      return std::unexpected(fmt::format("there is no group '{}'", socket.group));
    }
    if (::chown(socket.path.c_str(), static_cast<uid_t>(-1), group->gr_gid) != 0) {
      return std::unexpected(
          fmt::format("cannot give it to group {}: {}", socket.group, std::strerror(errno)));
    }
  }
  if (::chmod(socket.path.c_str(), socket.mode) != 0) {
    return std::unexpected(fmt::format("cannot set its mode: {}", std::strerror(errno)));
  }
  return {};
}

}  // namespace

std::string to_text(const ListenOn& place) {
  if (const auto* const socket = std::get_if<UnixSocket>(&place)) return socket->path;
  const auto& endpoint = std::get<asio::ip::tcp::endpoint>(place);
  const std::string address = endpoint.address().to_string();
  return endpoint.address().is_v6() ? fmt::format("[{}]:{}", address, endpoint.port())
                                    : fmt::format("{}:{}", address, endpoint.port());
}

struct ApiServer::Shared : std::enable_shared_from_this<ApiServer::Shared> {
  class Connection;
  using Connections = std::list<std::shared_ptr<Connection>>;

  Shared(asio::io_context& io_context, ListenOn listen_on, Handlers callbacks, Limits bounds)
      : io(io_context),
        acceptor(io_context),
        accept_timer(io_context),
        place(std::move(listen_on)),
        handlers(std::move(callbacks)),
        limits(bounds) {}

  std::expected<void, std::string> listen();
  void accept();
  void make_room();

  asio::io_context& io;
  Acceptor acceptor;
  asio::steady_timer accept_timer;
  ListenOn place;
  Handlers handlers;
  Limits limits;
  Connections connections;  // the one longest without a request first
  bool is_stopped = false;
};

// One client. Kept alive by its own pending operation and by the server's list.
class ApiServer::Shared::Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(std::shared_ptr<Shared> server, Protocol::socket socket)
      : server_(std::move(server)),
        client_(describe_peer(socket)),
        stream_(std::move(socket)),
        wait_timer_(server_->io) {}

  void start(Connections::iterator place) {
    place_ = place;
    read_header();
  }

  bool is_waiting() const { return held_.has_value(); }

  void close() {
    if (is_closed_) return;
    is_closed_ = true;
    stream_.close();
    wait_timer_.cancel();
    held_.reset();
    server_->connections.erase(place_);
  }

  void look_at_adoption() {
    const uint64_t adopted = server_->handlers.dataplane().adopted_generation();
    if (!held_ || adopted < held_->wait->generation) return;
    wait_timer_.cancel();
    write(adopted_answer(*std::exchange(held_, std::nullopt)));
  }

 private:
  void read_header() {
    parser_.emplace();
    parser_->body_limit(server_->limits.max_body_bytes);
    stream_.expires_after(server_->limits.io_timeout);
    http::async_read_header(stream_, buffer_, *parser_,
                            [self = shared_from_this()](error_code error, size_t) {
                              if (error) return self->refuse(error);
                              self->invite_body();
                            });
  }

  // A client may ask first whether its body is welcome.
  void invite_body() {
    const bool is_asked = beast::iequals(parser_->get()[http::field::expect], "100-continue");
    if (!is_asked || parser_->is_done()) return read_body();
    auto invitation =
        std::make_shared<http::response<http::empty_body>>(http::status::continue_, 11);
    http::async_write(stream_, *invitation,
                      [self = shared_from_this(), invitation](error_code error, size_t) {
                        if (error) return self->close();
                        self->read_body();
                      });
  }

  void read_body() {
    http::async_read(stream_, buffer_, *parser_,
                     [self = shared_from_this()](error_code error, size_t) {
                       if (error) return self->refuse(error);
                       self->answer();
                     });
  }

  // What cannot be read as a request is answered where that makes sense, and ends the connection.
  void refuse(error_code error) {
    must_close_ = true;
    if (error == http::error::body_limit) {
      return write(refuse_api(
          {"too_large", fmt::format("the body is over {} bytes", server_->limits.max_body_bytes)}));
    }
    if (is_malformed(error)) {
      return write(
          refuse_api({"bad_request", fmt::format("not an HTTP request: {}", error.message())}));
    }
    close();
  }

  void answer() {
    if (is_closed_) return;  // to make room, after the whole request had come in
    auto& list = server_->connections;
    list.splice(list.end(), list, place_);
    http::request<http::string_body> request = parser_->release();
    must_close_ = !request.keep_alive();
    is_head_ = request.method() == http::verb::head;
    ApiAnswer answer = server_->handlers.answer(
        {std::string(request.method_string()), std::string(request.target()),
         std::move(request.body()), std::string(request[http::field::if_match]), client_});
    if (!answer.wait) return write(std::move(answer));
    stream_.expires_never();
    wait_timer_.expires_after(std::chrono::milliseconds(answer.wait->timeout_ms));
    wait_timer_.async_wait([self = shared_from_this()](error_code error) {
      if (error || !self->held_) return;
      const ApiAnswer held = *std::exchange(self->held_, std::nullopt);
      self->write(not_adopted_answer(held, self->server_->handlers.dataplane()));
    });
    held_ = std::move(answer);
    look_at_adoption();
  }

  void write(const ApiAnswer& answer) {
    response_.emplace(static_cast<http::status>(answer.status), 11);
    response_->set(http::field::content_type,
                   answer.metrics.empty() ? "application/json" : kMetricsContentType);
    if (!answer.allow.empty()) response_->set(http::field::allow, answer.allow);
    if (answer.generation != 0) {
      response_->set(http::field::etag, fmt::format("\"{}\"", answer.generation));
    }
    response_->keep_alive(!must_close_);
    if (!answer.metrics.empty()) {
      response_->body() = answer.metrics;
    } else if (!is_head_) {
      // Messages may quote bytes of a request that are not UTF-8.
      response_->body() =
          answer.body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
    }
    response_->prepare_payload();
    stream_.expires_after(server_->limits.io_timeout);
    http::async_write(stream_, *response_, [self = shared_from_this()](error_code error, size_t) {
      if (error) return self->close();
      if (self->must_close_) return self->drain();
      self->read_header();
    });
  }

  void drain() {
    error_code ignored;
    stream_.socket().shutdown(Protocol::socket::shutdown_send, ignored);
    stream_.expires_after(kDrainTimeout);
    drain_more();
  }

  void drain_more() {
    buffer_.clear();
    stream_.async_read_some(buffer_.prepare(size_t{1} << 16),
                            [self = shared_from_this()](error_code error, size_t) {
                              if (error) return self->close();
                              self->drain_more();
                            });
  }

  std::shared_ptr<Shared> server_;
  std::string client_;
  Connections::iterator place_;
  beast::basic_stream<Protocol> stream_;
  asio::steady_timer wait_timer_;
  beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::string_body>> parser_;
  std::optional<http::response<http::string_body>> response_;
  std::optional<ApiAnswer> held_;  // until its generation is adopted
  bool must_close_ = false;        // after the answer
  bool is_head_ = false;
  bool is_closed_ = false;
};

std::expected<void, std::string> ApiServer::Shared::listen() {
  const auto* const unix_socket = std::get_if<UnixSocket>(&place);
  const auto failed = [&](const std::string& why) {
    return std::unexpected(fmt::format("cannot listen on {}: {}", to_text(place), why));
  };
  Protocol::endpoint endpoint;
  if (unix_socket != nullptr) {
    if (const auto free = remove_stale_socket(io, unix_socket->path); !free) {
      return failed(free.error());
    }
    endpoint = asio::local::stream_protocol::endpoint(unix_socket->path);
  } else {
    endpoint = std::get<asio::ip::tcp::endpoint>(place);
  }
  error_code error;
  acceptor.open(endpoint.protocol(), error);
  if (error) return failed(error.message());
  if (unix_socket == nullptr) acceptor.set_option(Acceptor::reuse_address(true), error);
  const mode_t mask = ::umask(0177);
  acceptor.bind(endpoint, error);
  ::umask(mask);
  if (error) return failed(error.message());
  if (unix_socket != nullptr) {
    if (const auto set = set_rights(*unix_socket); !set) return failed(set.error());
  }
  acceptor.listen(Acceptor::max_listen_connections, error);
  if (error) return failed(error.message());
  return {};
}

void ApiServer::Shared::accept() {
  acceptor.async_accept([self = shared_from_this()](error_code error, Protocol::socket socket) {
    if (self->is_stopped) return;
    if (error) {
      self->accept_timer.expires_after(kAcceptAgainAfter);
      self->accept_timer.async_wait([self](error_code stopped) {
        if (!stopped) self->accept();
      });
      return;
    }
    self->make_room();
    auto connection = std::make_shared<Connection>(self, std::move(socket));
    self->connections.push_back(connection);
    connection->start(std::prev(self->connections.end()));
    self->accept();
  });
}

void ApiServer::Shared::make_room() {
  if (connections.empty() || connections.size() < limits.max_connections) return;
  const auto idle = std::ranges::find_if_not(connections, &Connection::is_waiting);
  const std::shared_ptr<Connection> oldest =
      idle == connections.end() ? connections.front() : *idle;
  oldest->close();
}

std::expected<std::unique_ptr<ApiServer>, std::string> ApiServer::open(asio::io_context& io,
                                                                       ListenOn place,
                                                                       Handlers handlers,
                                                                       Limits limits) {
  auto shared = std::make_shared<Shared>(io, std::move(place), std::move(handlers), limits);
  if (const auto listening = shared->listen(); !listening) {
    return std::unexpected(listening.error());
  }
  shared->accept();
  return std::unique_ptr<ApiServer>(new ApiServer(std::move(shared)));
}

ApiServer::~ApiServer() {
  shared_->is_stopped = true;
  error_code ignored;
  shared_->acceptor.close(ignored);
  shared_->accept_timer.cancel();
  const auto connections = shared_->connections;
  for (const auto& connection : connections) connection->close();
  if (const auto* const socket = std::get_if<UnixSocket>(&shared_->place)) {
    ::unlink(socket->path.c_str());
  }
}

void ApiServer::dataplane_reported() {
  const auto connections = shared_->connections;
  for (const auto& connection : connections) connection->look_at_adoption();
}

}  // namespace maglev
