// maglev-dataplane FILE: forwards what is addressed to a VIP, by the tables that control publishes.
#include <csignal>
#include <cstdio>
#include <fstream>
#include <sstream>

#include <fmt/format.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "dataplane/dataplane.h"
#include "dataplane/environment.h"
#include "tables/command_line.h"

namespace maglev {
namespace {

std::expected<DataplaneSettings, std::string> read_settings(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  if (!file || !(text << file.rdbuf())) {
    return std::unexpected(fmt::format("cannot read the configuration file {}", path));
  }
  std::vector<std::string> errors;
  const YamlCursor document = YamlCursor::parse_file(text.str(), path, errors);
  DataplaneSettings settings = read_dataplane_settings(document);
  if (!errors.empty()) return std::unexpected(fmt::format("{}", fmt::join(errors, "\n")));
  return settings;
}

std::expected<void, std::string> detach_steering(const DataplaneSettings& settings) {
  for (const PortSettings& port : settings.ports) {
    if (!is_af_xdp(port)) continue;
    if (auto ok = Steering::detach(device_interface(port)); !ok) return ok;
  }
  FlowStore::remove(flow_store_path(settings));
  return {};
}

// Threads made from here on inherit the mask: the signals are read by the main loop alone.
void block_signals() {
  const sigset_t signals = main_loop_signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

std::expected<void, std::string> forward(const DataplaneSettings& settings) {
  const std::string steering_program =
      settings.steering_program.empty() ? MAGLEV_STEERING_PROGRAM : settings.steering_program;
  block_signals();
  if (auto ok = lock_directory(settings.directory); !ok) return ok;
  for (const PortSettings& port : settings.ports) {
    if (auto ok = check_device(port, steering_program); !ok) return ok;
  }
  if (auto ok = start_eal(settings, steering_program); !ok) return ok;
  auto dataplane = Dataplane::create(settings, steering_program);
  if (!dataplane) return std::unexpected(dataplane.error());
  return (*dataplane)->run();
}

// What it says to standard error does not throw where nobody reads it, unlike fmt::print.
int run(int argc, char** argv) {
  CLI::App app(
      "Forwards packets addressed to VIPs to their backends, by the tables that "
      "maglev-control publishes.");
  app.set_version_flag("--version", MAGLEV_VERSION);
  std::string path;
  bool check = false;
  bool detach = false;
  app.add_option("FILE", path, "configuration file (YAML)")->required();
  app.add_flag("--check", check, "only check the file");
  app.add_flag("--detach", detach,
               "remove the steering programs from the AF_XDP ports, forget all flows, and exit");
  if (const auto code = parse_command_line(app, argc, argv)) return *code;

  std::signal(SIGPIPE, SIG_IGN);  // whoever read the log may go: forwarding does not
  spdlog::set_default_logger(spdlog::stderr_logger_mt("dataplane"));
  spdlog::set_pattern("%Y-%m-%dT%H:%M:%S.%e %l %v");
  const auto settings = read_settings(path);
  if (!settings) {
    std::fputs((settings.error() + "\n").c_str(), stderr);
    return kWrongUsage;
  }
  if (check) return 0;
  const auto ok = detach ? detach_steering(*settings) : forward(*settings);
  if (!ok) {
    std::fputs(fmt::format("maglev-dataplane: {}\n", ok.error()).c_str(), stderr);
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace maglev

int main(int argc, char** argv) {
  return maglev::run(argc, argv);
}
