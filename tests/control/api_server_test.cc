#include "control/api_server.h"

#include <gtest/gtest.h>

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/post.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/write.hpp>
#include <cstring>
#include <thread>

#include "tests/control/fixtures.h"

namespace maglev {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

// A client on plain system calls, so that it can misbehave.
class Client {
 public:
  explicit Client(const std::string& path) : fd_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    connected_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  ~Client() { ::close(fd_); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  bool is_connected() const { return connected_; }
  void send(std::string_view text) {
    while (!text.empty()) {
      const ssize_t sent = ::send(fd_, text.data(), text.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;
      text.remove_prefix(static_cast<size_t>(sent));
    }
  }
  void stop_sending() { ::shutdown(fd_, SHUT_WR); }

  // Reads one answer: its head, and as much body as the head says. Empty on an end or a time-out.
  std::string receive(std::chrono::milliseconds at_most = 5s) {
    const auto deadline = std::chrono::steady_clock::now() + at_most;
    for (;;) {
      const size_t head = buffer_.find("\r\n\r\n");
      if (head != std::string::npos) {
        const size_t whole = head + 4 + body_length(buffer_.substr(0, head));
        if (buffer_.size() >= whole) {
          const std::string answer = buffer_.substr(0, whole);
          buffer_.erase(0, whole);
          return answer;
        }
      }
      if (!read_more(deadline)) return {};
    }
  }
  // Whether the server ends the connection in time.
  bool is_ended(std::chrono::milliseconds at_most) {
    const auto deadline = std::chrono::steady_clock::now() + at_most;
    while (read_more(deadline)) {
    }
    return ended_;
  }

 private:
  static size_t body_length(const std::string& head) {
    const size_t at = head.find("Content-Length: ");
    return at == std::string::npos ? 0 : std::stoul(head.substr(at + 16));
  }
  bool read_more(std::chrono::steady_clock::time_point deadline) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    pollfd ready{fd_, POLLIN, 0};
    if (left.count() <= 0 || ::poll(&ready, 1, static_cast<int>(left.count())) <= 0) return false;
    char bytes[65536];
    const ssize_t got = ::recv(fd_, bytes, sizeof bytes, 0);
    if (got <= 0) {
      ended_ = true;
      return false;
    }
    buffer_.append(bytes, static_cast<size_t>(got));
    return true;
  }

  int fd_;
  bool connected_ = false;
  bool ended_ = false;
  std::string buffer_;
};

std::string request(std::string_view method, std::string_view target, std::string_view body = {},
                    std::string_view headers = {}) {
  return fmt::format("{} {} HTTP/1.1\r\nHost: x\r\n{}Content-Length: {}\r\n\r\n{}", method, target,
                     headers, body.size(), body);
}

// A live server with the real API behind it, on a thread of its own.
class ApiServerTest : public ControllerTest {
 protected:
  void serve(ApiServer::Limits limits) {
    start_healthy();
    auto server = ApiServer::open(
        io_, UnixSocket{path_},
        {[this](const ApiRequest& call) { return answer_api(*controller_, dataplane_, call, {}); },
         [this]() -> const DataplaneStatus& { return dataplane_; }},
        limits);
    ASSERT_TRUE(server) << server.error();
    server_ = std::move(*server);
    thread_ = std::thread([this] { io_.run(); });
  }
  void serve() { serve({.io_timeout = 400ms, .max_connections = 8}); }

  void TearDown() override {
    if (!thread_.joinable()) return;
    on_server([this] { server_.reset(); });
    work_.reset();
    thread_.join();
  }

  // Runs f on the server's thread and waits for it.
  void on_server(std::function<void()> f) {
    std::atomic<bool> done = false;
    boost::asio::post(io_, [&] {
      f();
      done = true;
      done.notify_one();
    });
    done.wait(false);
  }

  void adopt(uint64_t generation) {
    on_server([&] {
      Report report;
      report.ports = {{"uplink", true}};
      report.workers = {{1, 0, 0, 0, generation, 1, 0, {}}};
      dataplane_ = {true, report, {}, {true}};
      server_->dataplane_reported();
    });
  }

  // Waits until the server has published it.
  void expect_generation(uint64_t wanted) {
    uint64_t generation = 0;
    const auto deadline = std::chrono::steady_clock::now() + 5s;
    while (generation < wanted && std::chrono::steady_clock::now() < deadline) {
      on_server([&] { generation = controller_->generation(); });
    }
    EXPECT_EQ(generation, wanted);
  }

  void expect_serving() {
    Client client(path_);
    client.send(request("GET", "/v1/status"));
    EXPECT_TRUE(client.receive().starts_with("HTTP/1.1 200 OK")) << "others are served";
  }

  std::string path_ = directory_.path("/control.sock");
  boost::asio::io_context io_;
  std::optional<boost::asio::executor_work_guard<boost::asio::io_context::executor_type>> work_{
      boost::asio::make_work_guard(io_)};
  DataplaneStatus dataplane_;
  std::unique_ptr<ApiServer> server_;
  std::thread thread_;
};

TEST_F(ApiServerTest, OneConnectionCarriesManyRequests) {
  serve();
  Client client(path_);
  for (int i = 0; i < 50; ++i) {
    client.send(request("GET", "/v1/vips/dns"));
    const std::string answer = client.receive();
    ASSERT_TRUE(answer.starts_with("HTTP/1.1 200 OK\r\n")) << answer;
    EXPECT_NE(answer.find("Content-Type: application/json"), std::string::npos);
  }
  client.send(request("GET", "/v1/status") + request("GET", "/v1/vips") + request("GET", "/no"));
  EXPECT_TRUE(client.receive().starts_with("HTTP/1.1 200"));
  EXPECT_TRUE(client.receive().starts_with("HTTP/1.1 200"));
  EXPECT_TRUE(client.receive().starts_with("HTTP/1.1 404"));
}

TEST_F(ApiServerTest, AChangeIsAnsweredWithItsGeneration) {
  serve();
  Client client(path_);
  client.send(request("PATCH", "/v1/pools/web/backends/b1", R"({"state": "drain"})"));
  EXPECT_NE(client.receive().find("\r\n\r\n{\"generation\":2}"), std::string::npos);
}

TEST_F(ApiServerTest, TheConnectionEndsWhenTheClientAsksForIt) {
  serve();
  Client client(path_);
  client.send(request("GET", "/v1/status", "", "Connection: close\r\n"));
  EXPECT_TRUE(client.receive().starts_with("HTTP/1.1 200"));
  client.stop_sending();
  EXPECT_TRUE(client.is_ended(5s));
}

TEST_F(ApiServerTest, ABodyOverTheLimitIsRefusedAndTheClientHearsIt) {
  serve();
  const std::string body(3 << 20, ' ');
  Client asks_first(path_);
  const std::string whole = request("POST", "/v1/pools", body, "Expect: 100-continue\r\n");
  asks_first.send(whole.substr(0, whole.size() - body.size()));
  EXPECT_TRUE(asks_first.receive().starts_with("HTTP/1.1 413"));
  Client pours(path_);
  std::thread sender([&] { pours.send(request("POST", "/v1/pools", body)); });
  const std::string answer = pours.receive();
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 413")) << answer;
  EXPECT_NE(answer.find("too_large"), std::string::npos);
  pours.stop_sending();
  sender.join();
  expect_serving();
}

TEST_F(ApiServerTest, AWelcomeBodyIsInvited) {
  serve();
  Client client(path_);
  const std::string body = R"({"state": "drain"})";
  const std::string whole =
      request("PATCH", "/v1/pools/web/backends/b1", body, "Expect: 100-continue\r\n");
  client.send(whole.substr(0, whole.size() - body.size()));
  EXPECT_TRUE(client.receive().starts_with("HTTP/1.1 100"));
  client.send(body);
  EXPECT_TRUE(client.receive().starts_with("HTTP/1.1 200"));
}

TEST_F(ApiServerTest, WhatIsNoHttpIsToldSoAndEnded) {
  serve();
  for (const char* nonsense :
       {"hello\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n",
        "POST /v1/pools HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        "POST /v1/pools HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        "POST /v1/pools HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"}) {
    Client client(path_);
    client.send(nonsense);
    const std::string answer = client.receive();
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 400") || answer.starts_with("HTTP/1.1 413"))
        << nonsense << " -> " << answer;
    client.stop_sending();
    EXPECT_TRUE(client.is_ended(5s)) << nonsense;
  }
  Client endless(path_);
  endless.send("GET / HTTP/1.1\r\nX: " + std::string(100000, 'x'));
  EXPECT_TRUE(endless.receive().starts_with("HTTP/1.1 400"));
  expect_serving();
}

TEST_F(ApiServerTest, ABodyShorterThanDeclaredChangesNothingAndEndsInTime) {
  serve();
  const std::string whole = request("PATCH", "/v1/pools/web/backends/b1", R"({"state": "drain"})");
  Client waits(path_);
  waits.send(whole.substr(0, whole.size() - 5));
  Client leaves(path_);
  leaves.send(whole.substr(0, whole.size() - 5));
  leaves.stop_sending();
  expect_serving();
  EXPECT_TRUE(leaves.is_ended(5s));
  EXPECT_TRUE(waits.is_ended(5s)) << "the time limit ends it";
  on_server([&] { EXPECT_EQ(controller_->generation(), 1u); });
}

TEST_F(ApiServerTest, ABodyLongerThanDeclaredIsTakenAsDeclaredAndTheRestIsNoRequest) {
  serve();
  Client client(path_);
  client.send(request("PATCH", "/v1/pools/web/backends/b1", R"({"weight": 2})") + "0}\r\n\r\n");
  EXPECT_TRUE(client.receive().starts_with("HTTP/1.1 200"));
  EXPECT_TRUE(client.receive().starts_with("HTTP/1.1 400"));
  on_server(
      [&] { EXPECT_EQ(controller_->model().pools().at("web").backends.at("b1").weight, 2u); });
}

TEST_F(ApiServerTest, ARequestCutAtAnyByteHarmsNobody) {
  serve();
  const std::string whole = request("PATCH", "/v1/pools/web/backends/b1", R"({"weight": 7})");
  for (size_t length = 0; length < whole.size(); ++length) {
    Client client(path_);
    client.send(whole.substr(0, length));
  }
  expect_serving();
  on_server([&] { EXPECT_EQ(controller_->generation(), 1u); });
}

TEST_F(ApiServerTest, AClientThatNeverReadsIsEndedAndHoldsUpNobody) {
  serve();
  Pool pool;
  for (uint32_t i = 0; i < 2000; ++i) {
    pool.backends[fmt::format("n{}", i)].address = boost::asio::ip::address_v4(0x0a000000 + i);
  }
  on_server([&] {
    ASSERT_TRUE(controller_->commit(controller_->model().plan_add_pool({"large", pool})));
  });
  Client deaf(path_);
  for (int i = 0; i < 20; ++i) deaf.send(request("GET", "/v1/pools/large"));
  for (int i = 0; i < 5; ++i) expect_serving();
  std::this_thread::sleep_for(900ms);
  EXPECT_TRUE(deaf.is_ended(5s));
}

TEST_F(ApiServerTest, ASlowClientIsServedBesideOthers) {
  serve({});
  Client slow(path_);
  for (const char byte : request("GET", "/v1/status")) {
    slow.send({&byte, 1});
    if (byte == '\n') expect_serving();
  }
  EXPECT_TRUE(slow.receive().starts_with("HTTP/1.1 200"));
}

TEST_F(ApiServerTest, MoreConnectionsThanTheLimitReplaceTheOneIdleLongest) {
  serve({.io_timeout = 30s, .max_connections = 8});
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 8; ++i) {
    clients.push_back(std::make_unique<Client>(path_));
    clients.back()->send(request("GET", "/v1/status"));
    EXPECT_FALSE(clients.back()->receive().empty());
  }
  clients[0]->send(request("GET", "/v1/status"));
  EXPECT_FALSE(clients[0]->receive().empty());
  expect_serving();
  EXPECT_TRUE(clients[1]->is_ended(5s));
  clients[0]->send(request("GET", "/v1/status"));
  EXPECT_FALSE(clients[0]->receive().empty());
}

TEST_F(ApiServerTest, ARequestOfAConnectionThatHadToMakeRoomIsNotCarriedOut) {
  serve({.io_timeout = 30s, .max_connections = 1});
  Client early(path_);
  early.send(request("GET", "/v1/status"));
  EXPECT_FALSE(early.receive().empty());
  std::unique_ptr<Client> late;
  on_server([&] {  // both arrive before the server looks again
    early.send(request("PATCH", "/v1/pools/web/backends/b1", R"({"weight": 7})"));
    late = std::make_unique<Client>(path_);
  });
  late->send(request("GET", "/v1/status"));
  EXPECT_FALSE(late->receive().empty());
  EXPECT_TRUE(early.receive().empty());
  on_server([&] { EXPECT_EQ(controller_->generation(), 1u); });
}

TEST_F(ApiServerTest, ClientsThatAllWaitMakeRoomToo) {
  serve({.io_timeout = 30s, .max_connections = 4});
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 4; ++i) {
    clients.push_back(std::make_unique<Client>(path_));
    clients.back()->send(request("PATCH", "/v1/pools/web/backends/b1?wait=adopted",
                                 fmt::format(R"({{"weight": {}}})", i + 2)));
    expect_generation(static_cast<uint64_t>(i) + 2);
  }
  expect_serving();
  EXPECT_TRUE(clients[0]->is_ended(5s));
  adopt(100);
  for (size_t i = 1; i < clients.size(); ++i) {
    EXPECT_NE(clients[i]->receive().find("adopted"), std::string::npos) << i;
  }
}

TEST_F(ApiServerTest, AnAnswerThatWaitsComesWithTheAdoptionAndHoldsUpNobody) {
  serve();
  Client waits(path_);
  waits.send(request("PATCH", "/v1/pools/web/backends/b1?wait=adopted", R"({"weight": 7})"));
  EXPECT_TRUE(waits.receive(100ms).empty());
  expect_serving();
  adopt(1);
  EXPECT_TRUE(waits.receive(100ms).empty()) << "not by an earlier generation";
  adopt(2);
  EXPECT_NE(waits.receive().find("{\"generation\":2,\"adopted\":true}"), std::string::npos);
  waits.send(request("PATCH", "/v1/pools/web/backends/b1?wait=adopted", R"({"weight": 7})"));
  EXPECT_NE(waits.receive().find("\"adopted\":true"), std::string::npos) << "adopted already";
}

TEST_F(ApiServerTest, AnAnswerThatWaitsInVainSaysSo) {
  serve();
  Client waits(path_);
  waits.send(
      request("PATCH", "/v1/pools/web/backends/b1?wait=adopted&timeout_ms=50", R"({"weight": 7})"));
  const std::string answer = waits.receive();
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 504")) << answer;
  EXPECT_NE(answer.find("not_adopted"), std::string::npos);
  waits.send(request("GET", "/v1/status"));
  EXPECT_TRUE(waits.receive().starts_with("HTTP/1.1 200")) << "the connection goes on";
}

TEST_F(ApiServerTest, AClientThatLeavesWhileItWaitsHarmsNobody) {
  serve();
  {
    Client leaves(path_);
    leaves.send(request("DELETE", "/v1/vips/dns?wait=adopted&timeout_ms=100"));
    EXPECT_TRUE(leaves.receive(50ms).empty());
  }
  std::this_thread::sleep_for(150ms);
  adopt(2);
  expect_serving();
}

TEST_F(ApiServerTest, TheSocketIsForItsOwnerAloneAndGoesWithTheServer) {
  serve();
  struct stat status {};
  ASSERT_EQ(::stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  TearDown();
  EXPECT_FALSE(fs::exists(path_));
}

TEST_F(ApiServerTest, TheSocketOfADeadProcessIsReplacedAndThatOfALiveOneIsNot) {
  const int dead = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path_.copy(address.sun_path, sizeof address.sun_path - 1);
  ASSERT_EQ(::bind(dead, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ::close(dead);
  serve();
  expect_serving();
  boost::asio::io_context other_io;
  const auto second = ApiServer::open(other_io, UnixSocket{path_}, {}, {});
  ASSERT_FALSE(second);
  EXPECT_NE(second.error().find("another process answers there"), std::string::npos);
  expect_serving();
}

TEST_F(ApiServerTest, AFileInTheWayIsLeftAlone) {
  std::ofstream(path_) << "precious";
  const auto server = ApiServer::open(io_, UnixSocket{path_}, {}, {});
  ASSERT_FALSE(server);
  EXPECT_TRUE(fs::exists(path_));
}

TEST_F(ApiServerTest, ARequestTellsWhoSentIt) {
  std::string client;
  auto server = ApiServer::open(io_, UnixSocket{path_},
                                {[&](const ApiRequest& call) {
                                   client = call.client;
                                   io_.stop();
                                   return ApiAnswer{};
                                 },
                                 [this]() -> const DataplaneStatus& { return dataplane_; }},
                                {});
  ASSERT_TRUE(server) << server.error();
  Client asking(path_);
  asking.send(request("GET", "/v1/status"));
  io_.run_for(5s);
  EXPECT_EQ(client, fmt::format("uid {}, pid {}", ::getuid(), ::getpid()));
}

TEST_F(ApiServerTest, TheSocketHasTheRightsAsked) {
  const auto mode_of = [this](unsigned mode) {
    const auto server = ApiServer::open(io_, UnixSocket{path_, mode}, {}, {});
    EXPECT_TRUE(server) << server.error();
    return fs::status(path_).permissions() & fs::perms::mask;
  };
  EXPECT_EQ(mode_of(0600), fs::perms(0600));
  EXPECT_EQ(mode_of(0666), fs::perms(0666)) << "whatever the umask";
  const auto none = ApiServer::open(io_, UnixSocket{path_, 0660, "no-such-group"}, {}, {});
  ASSERT_FALSE(none);
  EXPECT_NE(none.error().find("there is no group 'no-such-group'"), std::string::npos);
}

TEST_F(ApiServerTest, ATcpAddressIsServedToo) {
  boost::asio::ip::tcp::endpoint place(boost::asio::ip::address_v4::loopback(), 0);
  {  // a port that is free
    boost::asio::ip::tcp::acceptor probe(io_, place);
    place = probe.local_endpoint();
  }
  start_healthy();
  const ApiServer::Handlers handlers = {
      [this](const ApiRequest& call) { return answer_read_only(*controller_, dataplane_, call); },
      [this]() -> const DataplaneStatus& { return dataplane_; }};
  auto server = ApiServer::open(io_, place, handlers, {});
  ASSERT_TRUE(server) << server.error();
  EXPECT_NE(ApiServer::open(io_, place, handlers, {}).error().find(to_text(place)),
            std::string::npos)
      << "it is taken";
  boost::asio::ip::tcp::socket client(io_);
  client.connect(place);
  boost::asio::write(client, boost::asio::buffer(request("GET", "/metrics")));
  std::string answer;
  boost::asio::async_read_until(client, boost::asio::dynamic_buffer(answer),
                                "maglev_generation 1\n", [this](auto, size_t) { io_.stop(); });
  io_.run_for(5s);
  EXPECT_NE(answer.find("Content-Type: text/plain; version=0.0.4"), std::string::npos) << answer;
  EXPECT_NE(answer.find("maglev_generation 1\n"), std::string::npos);
}

}  // namespace
}  // namespace maglev
