// maglev-control FILE: reads the configuration, keeps the published tables in step with it, with
// the checks and with the network, and answers the control socket. Everything runs on one thread.
#include <fmt/format.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <boost/algorithm/string/join.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <csignal>
#include <cstdio>
#include <string>

#include "control/api_server.h"
#include "control/configuration.h"
#include "control/controller.h"
#include "control/dataplane_report.h"
#include "control/files.h"
#include "control/health.h"
#include "control/next_hops.h"
#include "control/path_mtu.h"
#include "control/render.h"
#include "tables/boot_id.h"
#include "tables/boot_time.h"
#include "tables/command_line.h"
#include "tables/counted.h"

namespace maglev {
namespace {

namespace asio = boost::asio;

constexpr size_t kMaxConfigurationBytes = size_t{256} << 20;

std::expected<Configuration, std::vector<std::string>> load_configuration(const std::string& path) {
  const auto content = read_whole_file(path, kMaxConfigurationBytes);
  if (!content) return std::unexpected(std::vector{content.error()});
  return read_configuration({reinterpret_cast<const char*>(content->data()), content->size()},
                            path);
}

// Owns everything that runs. The order of the members is the order of construction: what comes
// later uses what comes before.
class Daemon {
 public:
  // Throws std::runtime_error with a sentence.
  Daemon(std::string file, Configuration configuration)
      : file_(std::move(file)),
        health_(io_,
                [this](const std::string& pool, const std::string& backend, const Health& health) {
                  controller_->health_changed(pool, backend, health);
                }),
        next_hops_(need(NextHops::open(
            io_, [this](const auto& changed) { controller_->next_hops_changed(changed); }))),
        stop_signals_(io_, SIGTERM, SIGINT),
        reload_signal_(io_, SIGHUP),
        tick_(io_) {
    auto publisher = need(Publisher::open(configuration.dataplane.directory));
    auto state = need(State::open(configuration.state_directory));
    const UnixSocket socket = configuration.socket;
    std::vector<ListenOn> read_only;
    if (configuration.read_only_socket) read_only.push_back(*configuration.read_only_socket);
    if (configuration.read_only_address) read_only.push_back(*configuration.read_only_address);
    listen_for_path_mtus(configuration.path_mtu_expiry_s);
    report_ = std::make_unique<DataplaneReport>(io_, configuration.dataplane.directory,
                                                [this] { dataplane_reported(); });
    controller_ = std::make_unique<Controller>(std::move(configuration), std::move(state),
                                               std::move(publisher), reported_generation(),
                                               senses(need(read_boot_id())));
    listen_on(socket, [this](const ApiRequest& request) {
      return answer_api(*controller_, report_->status(), request, [this] { return reload(); });
    });
    for (const ListenOn& place : read_only) {
      listen_on(place, [this](const ApiRequest& request) {
        return answer_read_only(*controller_, report_->status(), request);
      });
    }
  }

  void run() {
    stop_signals_.async_wait([this](auto error, int signal) {
      if (error) return;
      spdlog::info("stopping on signal {}: the published tables stay", signal);
      io_.stop();
    });
    wait_for_reload();
    wait_for_tick();
    io_.run();
  }

 private:
  template <typename T>
  static T need(std::expected<T, std::string> value) {
    if (!value) throw std::runtime_error(value.error());
    return std::move(*value);
  }

  void listen_on(const ListenOn& place, std::function<ApiAnswer(const ApiRequest&)> answer) {
    const auto dataplane = [this]() -> const DataplaneStatus& { return report_->status(); };
    servers_.push_back(need(ApiServer::open(io_, place, {std::move(answer), dataplane}, {})));
    spdlog::info("answering on {}", to_text(place));
  }

  uint64_t reported_generation() const {
    const auto& report = report_->status().report;
    return report ? report->adopted_generation : 0;
  }

  // Without it the MTUs of routes and interfaces count alone, which is no reason not to start.
  void listen_for_path_mtus(uint32_t expiry_s) {
    auto opened = PathMtus::open(
        io_, std::chrono::seconds(expiry_s),
        [this](const OuterPacket& packet) { return controller_->is_outer_packet(packet); },
        [this](const auto& changed) { controller_->path_mtus_changed(changed); });
    if (opened) {
      path_mtus_ = std::move(*opened);
    } else {
      spdlog::warn("path MTUs are not learnt from ICMP: {}", opened.error());
    }
  }

  std::optional<PathMtuMemory::Entry> path_mtu_of(const asio::ip::address& address) const {
    return path_mtus_ ? path_mtus_->of(address) : std::nullopt;
  }

  std::optional<PathMtus::Counts> path_mtu_messages() const {
    if (!path_mtus_) return std::nullopt;
    return path_mtus_->counts();
  }

  void dataplane_reported() {
    controller_->flows_reported(report_->status());
    servers_.front()->dataplane_reported();
  }

  Controller::Senses senses(const BootId& boot) {
    return {[this](const auto& targets) { health_.set_targets(targets); },
            [this](auto pool, auto backend) { return health_.of(pool, backend); },
            [this](const auto& addresses) { next_hops_->watch(addresses); },
            [this](const auto& address) { return next_hops_->of(address); },
            [this](const auto& address) { return path_mtu_of(address); },
            [this] { return path_mtu_messages(); },
            Controller::Clock::now,
            boot_time_ns,
            boot};
  }

  void wait_for_reload() {
    reload_signal_.async_wait([this](auto error, int) {
      if (error) return;
      reload();
      wait_for_reload();
    });
  }

  std::expected<void, std::vector<std::string>> reload() {
    auto configuration = load_configuration(file_);
    auto taken = configuration ? controller_->reload(std::move(*configuration))
                               : std::unexpected(std::move(configuration.error()));
    if (taken) {
      const uint32_t expiry_s = controller_->configuration().path_mtu_expiry_s;
      if (path_mtus_) path_mtus_->set_expiry(std::chrono::seconds(expiry_s));
      spdlog::info("{} is taken again", file_);
      return {};
    }
    for (const std::string& mistake : taken.error()) spdlog::error(mistake);
    spdlog::error("{} is not taken: what was in force stays", file_);
    return taken;
  }

  void wait_for_tick() {
    tick_.expires_after(Controller::kTick);
    tick_.async_wait([this](auto error) {
      if (error) return;
      controller_->tick();
      wait_for_tick();
    });
  }

  std::string file_;
  asio::io_context io_;
  HealthChecker health_;
  std::unique_ptr<NextHops> next_hops_;
  std::unique_ptr<PathMtus> path_mtus_;  // null where the kernel refused the sockets
  std::unique_ptr<DataplaneReport> report_;
  std::unique_ptr<Controller> controller_;
  std::vector<std::unique_ptr<ApiServer>> servers_;  // the control socket's first
  asio::signal_set stop_signals_;
  asio::signal_set reload_signal_;
  asio::steady_timer tick_;
};

struct Options {
  std::string file;
  bool only_check = false;
  bool only_render = false;
  std::string render_into;
  std::vector<std::string> outer_sources;
};

int run_render(const Options& options, const Configuration& configuration) {
  std::vector<asio::ip::address> outer_sources;
  for (const std::string& text : options.outer_sources) {
    const auto address = parse_host(text);
    if (!address) {
      fmt::print(stderr, "--outer-source: {}\n", address.error());
      return kWrongUsage;
    }
    outer_sources.push_back(*address);
  }
  if (const auto done = render(configuration, options.render_into, outer_sources); !done) {
    fmt::print(stderr, "{}\n", done.error());
    return 1;
  }
  return 0;
}

int run(const Options& options) {
  const std::string& file = options.file;
  auto configuration = load_configuration(file);
  if (!configuration) {
    const std::string errors = boost::algorithm::join(configuration.error(), "\n") + "\n";
    std::fputs(errors.c_str(), stderr);  // which does not throw when nobody reads it
    return kWrongUsage;
  }
  if (options.only_render) return run_render(options, *configuration);
  if (options.only_check) {
    fmt::print("{} is valid: {}, {}\n", file, counted(configuration->pools.size(), "pool"),
               counted(configuration->vips.size(), "VIP"));
    return 0;
  }
  try {
    Daemon(file, std::move(*configuration)).run();
  } catch (const std::exception& error) {
    spdlog::error(error.what());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace maglev

int main(int argc, char** argv) {
  spdlog::set_default_logger(spdlog::stderr_logger_st("maglev-control"));
  spdlog::set_pattern("%Y-%m-%dT%H:%M:%S.%e %l %v");
  std::signal(SIGPIPE, SIG_IGN);
  ::umask(0077);  // what this program writes holds secrets

  CLI::App app("Builds and publishes the tables that maglev-dataplane forwards by.");
  maglev::Options options;
  app.add_option("FILE", options.file, "the configuration file")->required();
  CLI::Option* const check =
      app.add_flag("--check", options.only_check, "only tell whether FILE is valid");
  CLI::Option* const render = app.add_flag(
      "--render", options.only_render,
      "only write what would be published with all ready backends up; asks no network");
  CLI::Option* const into =
      app.add_option("--into", options.render_into, "the directory to render into");
  render->needs(into)->excludes(check);
  into->needs(render);
  app.add_option("--outer-source", options.outer_sources,
                 "rendered source of outer headers, of its family")
      ->needs(render);
  app.set_version_flag("--version", MAGLEV_VERSION);
  if (const auto code = maglev::parse_command_line(app, argc, argv)) return *code;
  return maglev::run(options);
}
