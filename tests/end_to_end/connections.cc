// Many long TCP connections that exchange data all the time and check it, and the servers for them.
//
//   connections serve NAME PORT...            answers each message with itself and NAME in front
//   connections keep ADDRESS:PORT [OPTIONS]   keeps connections open until SIGTERM or SIGINT
//
// A message has a fixed length, names its connection and counts. `keep` sends the next one an
// interval after the last was answered; a connection is broken when its answer is wrong, comes from
// another server than the first, or does not come within the patience, or when the other end resets
// or closes it. Another is opened in its place, from the next source port, but not with --once.
//
// `keep` prints a line of JSON for each event, `at` in seconds of CLOCK_MONOTONIC:
//   connected: the handshake is done    answered: the first answer, from `server`
//   unopened: no handshake, `why`       broke: `why`       closed: its lifetime was over
// and at its end one with the number of messages that were answered.
#include <time.h>

#include <CLI/CLI.hpp>
#include <array>
#include <boost/asio.hpp>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

constexpr int kBacklog = 4096;
constexpr Milliseconds kWatchInterval{50};
constexpr Milliseconds kPauseBeforeReopening{100};

struct Message {
  std::array<char, 32> server{};  // zeros in a question
  uint64_t connection = 0;
  uint64_t count = 0;
  std::array<char, 80> filling{};  // differs from message to message

  bool operator==(const Message&) const = default;
};
static_assert(sizeof(Message) == 128);

Message question(uint64_t connection, uint64_t count) {
  Message message{.connection = connection, .count = count};
  for (size_t i = 0; i < message.filling.size(); ++i) {
    message.filling[i] = static_cast<char>(connection * 31 + count * 7 + i);
  }
  return message;
}

auto with_error(error_code& error) {
  return asio::redirect_error(asio::use_awaitable, error);
}

// --- the servers -----------------------------------------------------------------------------

asio::awaitable<void> answer(tcp::socket socket, const std::string& name) {
  error_code error;
  socket.set_option(tcp::no_delay(true), error);
  Message message;
  for (;;) {
    co_await asio::async_read(socket, asio::buffer(&message, sizeof message), with_error(error));
    if (error) co_return;
    std::memcpy(message.server.data(), name.data(), name.size());
    co_await asio::async_write(socket, asio::buffer(&message, sizeof message), with_error(error));
    if (error) co_return;
  }
}

asio::awaitable<void> listen(asio::io_context& context, const std::string& name, uint16_t port) {
  tcp::acceptor acceptor(context);
  acceptor.open(tcp::v4());
  acceptor.set_option(tcp::acceptor::reuse_address(true));
  acceptor.bind({tcp::v4(), port});
  acceptor.listen(kBacklog);
  for (;;) {
    error_code error;
    tcp::socket socket = co_await acceptor.async_accept(with_error(error));
    if (!error) asio::co_spawn(context, answer(std::move(socket), name), asio::detached);
  }
}

// --- the client ------------------------------------------------------------------------------

struct KeepOptions {
  tcp::endpoint target;
  uint32_t count = 1;
  double open_per_s = 200;
  Milliseconds interval{500};
  Milliseconds patience{10'000};
  Milliseconds lifetime{0};  // 0: as long as it lasts
  bool once = false;
  std::vector<asio::ip::address_v4> sources;
  uint16_t first_port = 20000;
};

// Where connections follow one another.
struct Place {
  explicit Place(asio::io_context& context) : socket(context), timer(context) {}

  tcp::socket socket;
  asio::steady_timer timer;
  Clock::time_point deadline = Clock::time_point::max();  // of what is being waited for
  bool impatient = false;                                 // the deadline has closed the socket
};

class Keeper {
 public:
  Keeper(asio::io_context& context, KeepOptions options)
      : context_(context), options_(std::move(options)) {}

  asio::awaitable<void> open_all() {
    asio::co_spawn(context_, watch(), asio::detached);
    asio::steady_timer timer(context_, Clock::now());
    const auto step = std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double>(1 / options_.open_per_s));
    for (uint32_t i = 0; i < options_.count; ++i) {
      places_.push_back(std::make_unique<Place>(context_));
      asio::co_spawn(context_, keep(*places_.back()), asio::detached);
      timer.expires_at(timer.expiry() + step);
      co_await timer.async_wait(asio::use_awaitable);
    }
  }

  void tell_end() const { tell(R"("event": "end", "messages": {})", messages_); }

 private:
  template <typename... Values>
  static void tell(fmt::format_string<Values...> text, Values&&... values) {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    const double seconds =
        static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
    fmt::print("{{\"at\": {:.6f}, {}}}\n", seconds,
               fmt::format(text, std::forward<Values>(values)...));
    std::fflush(stdout);
  }

  // Closes what has been waited for too long.
  asio::awaitable<void> watch() {
    asio::steady_timer timer(context_);
    for (;;) {
      timer.expires_after(kWatchInterval);
      co_await timer.async_wait(asio::use_awaitable);
      for (const auto& place : places_) {
        if (Clock::now() < place->deadline) continue;
        place->impatient = true;
        place->deadline = Clock::time_point::max();
        error_code ignored;
        place->socket.close(ignored);
      }
    }
  }

  asio::awaitable<void> keep(Place& place) {
    for (;;) {
      const uint64_t number = next_number_++;
      co_await one_connection(place, number);
      error_code ignored;
      place.socket.close(ignored);
      place.deadline = Clock::time_point::max();
      if (options_.once) co_return;
      place.timer.expires_after(kPauseBeforeReopening);
      co_await place.timer.async_wait(asio::use_awaitable);
    }
  }

  asio::awaitable<void> one_connection(Place& place, uint64_t number) {
    const tcp::endpoint source(
        options_.sources[number % options_.sources.size()],
        static_cast<uint16_t>(options_.first_port + number / options_.sources.size()));
    place.impatient = false;
    place.deadline = Clock::now() + options_.patience;
    error_code error;
    place.socket.open(tcp::v4());
    place.socket.set_option(tcp::no_delay(true));
    place.socket.set_option(tcp::socket::reuse_address(true));
    place.socket.bind(source, error);
    if (!error) co_await place.socket.async_connect(options_.target, with_error(error));
    if (error) {
      tell(R"("event": "unopened", "number": {}, "why": "{}")", number, reason(place, error));
      co_return;
    }
    tell(R"("event": "connected", "number": {}, "source": "{}", "port": {})", number,
         source.address().to_string(), source.port());
    const std::string why = co_await exchange(place, number);
    if (why.empty()) {
      tell(R"("event": "closed", "number": {})", number);
    } else {
      tell(R"("event": "broke", "number": {}, "why": "{}")", number, why);
    }
  }

  // Until it breaks or its lifetime is over: why, or nothing.
  asio::awaitable<std::string> exchange(Place& place, uint64_t number) {
    const Clock::time_point end = options_.lifetime.count() == 0 ? Clock::time_point::max()
                                                                 : Clock::now() + options_.lifetime;
    std::array<char, 32> server{};
    for (uint64_t count = 0;; ++count) {
      const Message asked = question(number, count);
      Message answered;
      error_code error;
      place.deadline = Clock::now() + options_.patience;
      co_await asio::async_write(place.socket, asio::buffer(&asked, sizeof asked),
                                 with_error(error));
      if (!error) {
        co_await asio::async_read(place.socket, asio::buffer(&answered, sizeof answered),
                                  with_error(error));
      }
      if (error) co_return reason(place, error);
      place.deadline = Clock::time_point::max();
      if (count == 0) {
        server = answered.server;
        tell(R"("event": "answered", "number": {}, "server": "{}")", number, server.data());
      }
      // A server with SYN cookies may take a connection over that it has never seen begin.
      if (answered.server != server) co_return "answered by another server";
      answered.server = {};
      if (answered != asked) co_return "wrong answer";
      ++messages_;
      if (Clock::now() >= end) co_return "";
      place.timer.expires_after(options_.interval);
      co_await place.timer.async_wait(asio::use_awaitable);
    }
  }

  static std::string reason(const Place& place, const error_code& error) {
    if (place.impatient) return "no answer";
    if (error == asio::error::eof) return "closed by the other end";
    if (error == asio::error::connection_reset) return "reset";
    return error.message();
  }

  asio::io_context& context_;
  const KeepOptions options_;
  std::vector<std::unique_ptr<Place>> places_;
  uint64_t next_number_ = 0;
  uint64_t messages_ = 0;
};

tcp::endpoint endpoint(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) throw CLI::ValidationError("'" + text + "' is not ADDRESS:PORT");
  return {asio::ip::make_address_v4(text.substr(0, colon)),
          static_cast<uint16_t>(std::stoul(text.substr(colon + 1)))};
}

int run(int argc, char** argv) {
  CLI::App app("Long TCP connections, and servers for them", "connections");
  app.require_subcommand(1);
  std::string name;
  std::vector<uint16_t> ports;
  CLI::App* const serve = app.add_subcommand("serve", "answers");
  serve->add_option("NAME", name)->required()->check([](const std::string& text) {
    return text.size() < sizeof(Message::server) ? "" : "too long a name";
  });
  serve->add_option("PORT", ports)->required();

  KeepOptions options;
  std::string target;
  std::vector<std::string> sources;
  uint32_t interval_ms = 500;
  uint32_t patience_ms = 10'000;
  uint32_t lifetime_ms = 0;
  CLI::App* const keep = app.add_subcommand("keep", "keeps connections open");
  keep->add_option("ADDRESS:PORT", target)->required();
  keep->add_option("--count", options.count)->check(CLI::PositiveNumber);
  keep->add_option("--open-per-s", options.open_per_s)->check(CLI::PositiveNumber);
  keep->add_option("--interval-ms", interval_ms, "between an answer and the next question");
  keep->add_option("--patience-ms", patience_ms)->check(CLI::PositiveNumber);
  keep->add_option("--lifetime-ms", lifetime_ms, "0: as long as it lasts");
  keep->add_flag("--once", options.once, "open no other in the place of a broken one");
  keep->add_option("--source", sources, "addresses, in turn")->required();
  keep->add_option("--first-port", options.first_port, "of each source address");
  CLI11_PARSE(app, argc, argv);

  asio::io_context context(1);
  asio::signal_set signals(context, SIGINT, SIGTERM);
  signals.async_wait([&](error_code, int) { context.stop(); });
  if (*serve) {
    for (const uint16_t port : ports) {
      asio::co_spawn(context, listen(context, name, port), [](std::exception_ptr error) {
        if (error) std::rethrow_exception(error);
      });
    }
    context.run();
    return 0;
  }
  options.target = endpoint(target);
  options.interval = Milliseconds(interval_ms);
  options.patience = Milliseconds(patience_ms);
  options.lifetime = Milliseconds(lifetime_ms);
  for (const std::string& source : sources) {
    options.sources.push_back(asio::ip::make_address_v4(source));
  }
  Keeper keeper(context, std::move(options));
  asio::co_spawn(context, keeper.open_all(), asio::detached);
  context.run();
  keeper.tell_end();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "connections: {}\n", error.what());
    return 1;
  }
}
