// Each kind of check, against servers that behave and servers that do not.
#include "control/check.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/ip/udp.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/ssl.hpp>
#include <filesystem>
#include <fstream>

#include "tests/control/certificates.h"
#include "tests/control/check_fixtures.h"

namespace maglev {
namespace {

using namespace std::chrono_literals;
using boost::asio::ip::tcp;
using boost::asio::ip::udp;
constexpr const char* kTimedOut = "timed out after 300 ms";

class CheckTest : public CheckerTest {
 protected:
  // An HTTP server that reads a request's head, keeps it and writes this; then it closes.
  TcpServer answering(std::string answer) {
    request_.clear();
    return TcpServer(io_, [this, answer = std::move(answer)](TcpServer::SocketPtr socket) {
      async_read_until(*socket, boost::asio::dynamic_buffer(request_), "\r\n\r\n",
                       [socket, answer](const auto& error, size_t) {
                         if (error) return;
                         const auto text = std::make_shared<std::string>(answer);
                         async_write(*socket, boost::asio::buffer(*text),
                                     [socket, text](const auto&, size_t) {});
                       });
    });
  }

  Said http(const std::string& answer, HttpExchange exchange = {}) {
    TcpServer server = answering(answer);
    HealthTarget target = target_of(HealthType::kHttp, server.port());
    target.settings.http = std::move(exchange);
    return first_word(target);
  }

  std::string request_;
};

HttpExchange expecting_body(std::string body) {
  HttpExchange exchange;
  exchange.body = std::move(body);
  return exchange;
}

TEST_F(CheckTest, HttpPassesOnAStatusThatIsExpected) {
  EXPECT_EQ(http("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"), (Said{kUp, "status 200"}));
  HttpExchange exchange;
  exchange.statuses = {{200, 299}, {404, 404}};
  EXPECT_EQ(http("HTTP/1.1 404 Not Found\r\n\r\n", exchange), (Said{kUp, "status 404"}));
  EXPECT_EQ(http("HTTP/1.1 302 Found\r\n\r\n", exchange), (Said{kDown, "status 302"}));
}

TEST_F(CheckTest, HttpFailsOnAStatusThatIsNot) {
  EXPECT_EQ(http("HTTP/1.1 503 Service Unavailable\r\n\r\n"), (Said{kDown, "status 503"}));
}

TEST_F(CheckTest, HttpSendsMethodPathAndHost) {
  HttpExchange exchange;
  exchange.method = "HEAD";
  exchange.path = "/health?deep=1";
  exchange.host = "api.example";
  // An answer to HEAD tells a length and sends no body.
  EXPECT_EQ(http("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", exchange),
            (Said{kUp, "status 200"}));
  EXPECT_TRUE(request_.starts_with("HEAD /health?deep=1 HTTP/1.1\r\n")) << request_;
  EXPECT_NE(request_.find("\r\nHost: api.example\r\n"), std::string::npos) << request_;
}

TEST_F(CheckTest, HttpNamesTheAddressAsTheHostWhereNoneIsGiven) {
  TcpServer server = answering("HTTP/1.1 200 OK\r\n\r\n");
  EXPECT_EQ(first_word(target_of(HealthType::kHttp, server.port())).verdict, kUp);
  EXPECT_NE(request_.find(fmt::format("\r\nHost: 127.0.0.1:{}\r\n", server.port())),
            std::string::npos)
      << request_;
}

TEST_F(CheckTest, HttpLooksForTheExpectedBody) {
  const std::string chunked =
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nall\r\n5\r\n well\r\n0\r\n\r\n";
  EXPECT_EQ(http(chunked, expecting_body("l well")),
            (Said{kUp, "status 200 and the expected body"}));
  EXPECT_EQ(http(chunked, expecting_body("ready")),
            (Said{kDown, "the body's first 8 bytes lack what is expected"}));
}

TEST_F(CheckTest, HttpFindsABodyThatIsCutAnywhere) {
  const std::string padding(4093, 'x');  // so that it lies across two of the reader's chunks
  const std::string body = padding + "ready";
  EXPECT_EQ(http(fmt::format("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{}", body.size(), body),
                 expecting_body("ready"))
                .verdict,
            kUp);
}

TEST_F(CheckTest, HttpReadsNoMoreThanItsBoundOfAHugeBody) {
  size_t sent = 0;
  const std::string chunk(65536, 'x');
  std::function<void(TcpServer::SocketPtr)> flood = [&](TcpServer::SocketPtr socket) {
    async_write(*socket, boost::asio::buffer(chunk), [&, socket](const auto& error, size_t length) {
      sent += length;
      if (!error) flood(socket);
    });
  };
  const std::string head = "HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n";
  TcpServer server(io_, [&](TcpServer::SocketPtr socket) {
    async_write(*socket, boost::asio::buffer(head),
                [&, socket](const auto&, size_t) { flood(socket); });
  });
  HealthTarget target = target_of(HealthType::kHttp, server.port(), 60000);
  target.settings.http = expecting_body("never");
  const Said found = first_word(target);
  EXPECT_EQ(found.verdict, kDown);
  EXPECT_TRUE(found.reason.starts_with("the body's first 6")) << found.reason;
  EXPECT_LT(sent, 20'000'000u);  // what both kernels hold of it
}

TEST_F(CheckTest, HttpTellsWhatIsNoHttp) {
  EXPECT_EQ(http("SSH-2.0-OpenSSH_9.2\r\n").verdict, kDown);
  EXPECT_EQ(said(changes_[0].health).reason, "reading the answer: bad version");
}

TEST_F(CheckTest, HttpTellsAHeadWithoutEnd) {
  EXPECT_EQ(http("HTTP/1.1 200 OK\r\nX: " + std::string(100000, 'x')),
            (Said{kDown, "reading the answer: header limit exceeded"}));
}

TEST_F(CheckTest, HttpTellsAnAnswerCutShort) {
  EXPECT_EQ(http("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nall", expecting_body("well")),
            (Said{kDown, "reading the body: partial message"}));
  EXPECT_EQ(http(""), (Said{kDown, "closed without an answer"}));
}

TEST_F(CheckTest, HttpTimesOutWhereNobodyAnswers) {
  std::vector<TcpServer::SocketPtr> kept;
  TcpServer silent(io_, [&](TcpServer::SocketPtr socket) { kept.push_back(socket); });
  EXPECT_EQ(first_word(target_of(HealthType::kTcp, silent.port())), (Said{kUp, "connected"}));
  for (const HealthType type : {HealthType::kHttp, HealthType::kHttps}) {
    EXPECT_EQ(first_word(target_of(type, silent.port())), (Said{kDown, kTimedOut}));
  }
}

// Each byte comes long before the time-out, their sum long after it.
TEST_F(CheckTest, HttpTimesOutOnAnAnswerByteByByte) {
  const std::string answer = "HTTP/1.1 200 OK\r\n\r\n";
  boost::asio::steady_timer pause(io_);
  size_t sent = 0;
  std::function<void(TcpServer::SocketPtr)> drip = [&](TcpServer::SocketPtr socket) {
    boost::system::error_code error;
    if (sent == answer.size()) return;
    socket->send(boost::asio::buffer(&answer[sent++], 1), 0, error);
    pause.expires_after(50ms);
    pause.async_wait([&, socket](const auto& e) {
      if (!e) drip(socket);
    });
  };
  TcpServer server(io_, drip);
  EXPECT_EQ(first_word(target_of(HealthType::kHttp, server.port(), 60000)),
            (Said{kDown, kTimedOut}));
  EXPECT_GE(sent, 4u);
}

TEST_F(CheckTest, HttpTellsAReset) {
  TcpServer server(io_, [](TcpServer::SocketPtr socket) {
    socket->set_option(boost::asio::socket_base::linger(true, 0));
    socket->close();
  });
  const Said found = first_word(target_of(HealthType::kHttp, server.port()));
  EXPECT_EQ(found.verdict, kDown);
  EXPECT_NE(found.reason.find("reset by peer"), std::string::npos) << found.reason;
}

// A TLS server with a certificate of the test's own authority.
class HttpsCheckTest : public CheckTest {
 protected:
  Said https(const Certificate& certificate, TlsExpectation tls) {
    boost::asio::ssl::context context(boost::asio::ssl::context::tls_server);
    SSL_CTX_use_certificate(context.native_handle(), certificate.x509.get());
    SSL_CTX_use_PrivateKey(context.native_handle(), certificate.key.get());
    using Stream = boost::asio::ssl::stream<tcp::socket>;
    TcpServer server(io_, [&](TcpServer::SocketPtr socket) {
      const auto stream = std::make_shared<Stream>(std::move(*socket), context);
      stream->async_handshake(Stream::server, [this, stream](const auto& error) {
        if (error) return;
        const char* const name =
            SSL_get_servername(stream->native_handle(), TLSEXT_NAMETYPE_host_name);
        asked_name_ = name == nullptr ? "" : name;
        const auto text = std::make_shared<std::string>("HTTP/1.1 200 OK\r\n\r\n");
        async_write(*stream, boost::asio::buffer(*text), [stream, text](const auto&, size_t) {});
      });
    });
    HealthTarget target = target_of(HealthType::kHttps, server.port());
    target.settings.tls = std::move(tls);
    return first_word(target);
  }

  TlsExpectation trusting(std::string server_name) const {
    return {std::move(server_name), authority_file_.string(), true};
  }

  void SetUp() override { write_pem(authority_, authority_file_); }
  void TearDown() override { std::filesystem::remove(authority_file_); }

  const Certificate authority_ = make_authority();
  const std::filesystem::path authority_file_ =
      std::filesystem::temp_directory_path() / fmt::format("maglev-authority-{}.pem", ::getpid());
  std::string asked_name_;
};

TEST_F(HttpsCheckTest, PassesWithAValidCertificateForTheName) {
  const Certificate valid = authority_.sign("DNS:api.example", 0, 3600);
  EXPECT_EQ(https(valid, trusting("api.example")), (Said{kUp, "status 200"}));
  EXPECT_EQ(asked_name_, "api.example");
  EXPECT_EQ(https(authority_.sign("IP:127.0.0.1", 0, 3600), trusting("")),
            (Said{kUp, "status 200"}));
  EXPECT_EQ(asked_name_, "");  // RFC 6066: an address is no server name
}

TEST_F(HttpsCheckTest, TellsACertificateThatHasExpired) {
  EXPECT_EQ(https(authority_.sign("DNS:api.example", -7200, -3600), trusting("api.example")),
            (Said{kDown,
                  "certificate refused, expected one of api.example: certificate has "
                  "expired"}));
}

TEST_F(HttpsCheckTest, TellsACertificateForAnotherName) {
  const Certificate other = authority_.sign("DNS:other.example", 0, 3600);
  EXPECT_EQ(https(other, trusting("api.example")),
            (Said{kDown, "certificate refused, expected one of api.example: hostname mismatch"}));
  EXPECT_EQ(https(other, trusting("")),
            (Said{kDown, "certificate refused, expected one of 127.0.0.1: IP address mismatch"}));
}

TEST_F(HttpsCheckTest, TellsACertificateOfAnUnknownAuthority) {
  const Certificate strange = make_authority().sign("DNS:api.example", 0, 3600);
  const Said found = https(strange, {"api.example", "", true});
  EXPECT_EQ(found, (Said{kDown,
                         "certificate refused, expected one of api.example: unable to get "
                         "local issuer certificate"}));
}

TEST_F(HttpsCheckTest, TakesAnyCertificateWhereNoneIsVerified) {
  const Certificate strange = make_authority().sign("DNS:other.example", -7200, -3600);
  EXPECT_EQ(https(strange, {"api.example", "", false}), (Said{kUp, "status 200"}));
}

TEST_F(HttpsCheckTest, TellsAServerThatSpeaksNoTls) {
  TcpServer talkative(io_, [](TcpServer::SocketPtr socket) {
    boost::system::error_code ignored;
    socket->send(boost::asio::buffer("HTTP/1.1 400 Bad Request\r\n\r\n", 28), 0, ignored);
  });
  const Said found = first_word(target_of(HealthType::kHttps, talkative.port()));
  EXPECT_EQ(found.verdict, kDown);
  EXPECT_TRUE(found.reason.starts_with("no TLS session: ")) << found.reason;
}

TEST_F(HttpsCheckTest, AMissingFileOfAuthoritiesIsNotTheBackendsFault) {
  HealthTarget target = target_of(HealthType::kHttps, 9);
  target.settings.tls.ca_file = "/nonexistent/ca.pem";
  HealthChecker checker = make();
  checker.set_targets({target});
  run_for(100ms);
  EXPECT_TRUE(changes_.empty());
  EXPECT_EQ(checker.of("web", "b1").reason,
            "not checked: cannot read ca_file /nonexistent/ca.pem: No such file or directory");
}

class UdpCheckTest : public CheckTest {
 protected:
  Said exchange(UdpExchange exchange, std::string answer) {
    udp::socket server(io_, udp::endpoint(boost::asio::ip::address_v4::loopback(), 0));
    udp::endpoint from;
    std::array<char, 64> received;
    server.async_receive_from(boost::asio::buffer(received), from,
                              [&](const auto& error, size_t length) {
                                if (error) return;
                                request_.assign(received.data(), length);
                                server.send_to(boost::asio::buffer(answer), from);
                              });
    HealthTarget target = target_of(HealthType::kUdp, server.local_endpoint().port());
    target.settings.udp = std::move(exchange);
    return first_word(target);
  }
};

TEST_F(UdpCheckTest, PassesOnTheExpectedAnswer) {
  EXPECT_EQ(exchange({"ping", "pong", false}, "a pong!"), (Said{kUp, "answered"}));
  EXPECT_EQ(request_, "ping");
  EXPECT_EQ(exchange({"ping", "", false}, "anything"), (Said{kUp, "answered"}));
}

TEST_F(UdpCheckTest, FailsOnAnotherAnswer) {
  EXPECT_EQ(exchange({"ping", "pong", false}, "error"),
            (Said{kDown, "the answer lacks what is expected"}));
}

TEST_F(UdpCheckTest, FailsWithoutAnAnswer) {
  const udp::socket silent(io_, udp::endpoint(boost::asio::ip::address_v4::loopback(), 0));
  EXPECT_EQ(first_word(target_of(HealthType::kUdp, silent.local_endpoint().port())),
            (Said{kDown, kTimedOut}));
}

TEST_F(UdpCheckTest, FailsOnARefusedPort) {
  udp::socket closed(io_, udp::endpoint(boost::asio::ip::address_v4::loopback(), 0));
  const uint16_t port = closed.local_endpoint().port();
  closed.close();
  EXPECT_EQ(first_word(target_of(HealthType::kUdp, port)), (Said{kDown, "connection refused"}));
}

TEST_F(CheckTest, IcmpPassesOnAnAnswerOfEitherFamily) {
  HealthTarget target = target_of(HealthType::kIcmp, 0);
  EXPECT_EQ(first_word(target), (Said{kUp, "answered"}));
  target.address = boost::asio::ip::address_v6::loopback();
  EXPECT_EQ(first_word(target), (Said{kUp, "answered"}));
}

TEST_F(CheckTest, IcmpTellsAnAddressWithoutARoute) {
  HealthTarget target = target_of(HealthType::kIcmp, 0);
  target.address = boost::asio::ip::make_address("255.255.255.254");
  EXPECT_EQ(first_word(target), (Said{kDown, "network is unreachable"}));
}

class CommandCheckTest : public CheckTest {
 protected:
  static HealthTarget running(std::string script) {
    HealthTarget target = target_of(HealthType::kCommand, 8080, 60000);
    target.settings.argv = {"/bin/sh", "-c", std::move(script)};
    return target;
  }
  static bool any_child_left() { return ::waitpid(-1, nullptr, WNOHANG) >= 0; }
};

TEST_F(CommandCheckTest, PassesOnExitStatusZero) {
  EXPECT_EQ(first_word(running("exit 0")), (Said{kUp, "exit status 0"}));
  EXPECT_FALSE(any_child_left());
}

TEST_F(CommandCheckTest, TellsHowTheProgramEnded) {
  EXPECT_EQ(first_word(running("exit 7")), (Said{kDown, "exit status 7"}));
  EXPECT_EQ(first_word(running("kill -SEGV $$")),
            (Said{kDown, "killed by signal 11 (Segmentation fault)"}));
}

TEST_F(CommandCheckTest, TellsAProgramThatIsNotThere) {
  HealthTarget target = running("");
  target.settings.argv = {"/nonexistent/check"};
  EXPECT_EQ(first_word(target),
            (Said{kDown, "cannot run /nonexistent/check: no such file or directory"}));
}

TEST_F(CommandCheckTest, GivesTheProgramTheBackendAndNothingElse) {
  ::setenv("MAGLEV_TEST_SECRET", "1", 1);
  EXPECT_EQ(first_word(running("[ $MAGLEV_POOL/$MAGLEV_BACKEND/$MAGLEV_ADDRESS/$MAGLEV_PORT = "
                               "web/b1/127.0.0.1/8080 ] && [ -z \"$MAGLEV_TEST_SECRET\" ] && "
                               "[ \"$(echo /proc/self/fd/*)\" = \"/proc/self/fd/0 "
                               "/proc/self/fd/1 /proc/self/fd/2 /proc/self/fd/3\" ]")),
            (Said{kUp, "exit status 0"}));
  ::unsetenv("MAGLEV_TEST_SECRET");
}

TEST_F(CommandCheckTest, PassesArgumentsAsTheyAre) {
  HealthTarget target = running("[ \"$1\" = '$(exit 1); *' ]");
  target.settings.argv.insert(target.settings.argv.end(), {"sh", "$(exit 1); *"});
  EXPECT_EQ(first_word(target), (Said{kUp, "exit status 0"}));
}

TEST_F(CommandCheckTest, KillsTheProgramAndItsChildrenAtTheTimeOut) {
  const auto file = std::filesystem::temp_directory_path() / fmt::format("maglev-{}", ::getpid());
  EXPECT_EQ(first_word(running(fmt::format("sleep 60 & echo $! >{}; wait", file.string()))),
            (Said{kDown, kTimedOut}));
  pid_t grandchild = 0;
  std::ifstream(file) >> grandchild;
  std::filesystem::remove(file);
  ASSERT_GT(grandchild, 0);
  // Another process reaps it; until then it is a zombie, which takes no time to become nothing.
  EXPECT_TRUE(run_until([&] {
    std::string state;
    std::ifstream(fmt::format("/proc/{}/stat", grandchild)) >> state >> state >> state;
    return state.empty() || state == "Z";
  }));
  EXPECT_FALSE(any_child_left());
}

}  // namespace
}  // namespace maglev
