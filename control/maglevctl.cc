// maglevctl: the command line over the control socket. docs/maglevctl.md is its reference.
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <optional>
#include <sstream>
#include <thread>
#include <vector>

#include "control/maglevctl_ask.h"
#include "control/maglevctl_stats.h"
#include "control/maglevctl_views.h"
#include "control/simulator_commands.h"
#include "tables/command_line.h"

namespace maglev {
namespace {

using Json = nlohmann::ordered_json;

// What becomes of the request that a command makes.
using Send = int (*)(const AskOptions&, HttpRequest);

// --- stats -----------------------------------------------------------------------------------

struct WatchOptions {
  bool watch = false;
  double interval_s = 1;
  uint64_t count = 0;  // 0: without end
};

// Lines that the terminal has room for, beside the one that the cursor is left on.
size_t terminal_rows() {
  winsize size{};
  ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
  return size.ws_row > 2 ? size.ws_row - 2u : 22u;
}

// Writes over what was there before; what the terminal has no room for is left out, and told.
void show_in_place(const std::string& text) {
  const size_t room = terminal_rows();
  std::string screen = "\033[H";
  size_t lines = 0;
  size_t start = 0;
  for (size_t end; (end = text.find('\n', start)) != std::string::npos; start = end + 1) {
    if (++lines <= room) screen += text.substr(start, end - start) + "\033[K\n";
  }
  if (lines > room) screen += fmt::format("... {} more lines\033[K\n", lines - room);
  fmt::print("{}\033[J", screen);
}

// Shows the rates between successive reports. A daemon that is away for a while is told and waited
// for: forwarding goes on without it.
class Watch {
 public:
  explicit Watch(const AskOptions& options)
      : options_(options), in_place_(!options.json && isatty(STDOUT_FILENO) != 0) {}

  int run(const WatchOptions& watch) {
    const auto first = step();  // there is nothing yet to compare it with
    if (!first) return fail(first.error());
    if (in_place_) fmt::print("\033[2J");
    int outcome = kDone;
    for (uint64_t shown = 0; watch.count == 0 || shown < watch.count; ++shown) {
      std::this_thread::sleep_for(std::chrono::duration<double>(watch.interval_s));
      const auto text = step();
      outcome = text ? kDone : kFailed;
      if (in_place_) {
        show_in_place(text ? *text : text.error() + "\n");
      } else if (text) {
        fmt::print("{}{}", shown == 0 || options_.json ? "" : "\n", *text);
      } else {
        fail(text.error());
      }
      std::fflush(stdout);
    }
    return outcome;
  }

 private:
  // The text of one more sample, or why there is none.
  std::expected<std::string, std::string> step() {
    auto answer = ask_json(options_, "/v1/stats");
    if (!answer) return std::unexpected(answer.error());
    const auto stats = read_stats(*answer);
    if (!stats) return std::unexpected(stats.error());
    const std::optional<Report> before = std::exchange(before_, stats->report);
    if (!before) return "";
    const auto figures = rates(*before, stats->report);
    if (options_.json) {
      (*answer)["rates"] = figures ? rates_to_json(*figures, stats->wanted) : Json();
      return answer->dump() + "\n";
    }
    if (!figures) {
      return before->started_ns == stats->report.started_ns
                 ? "no new report from the dataplane: is maglev-dataplane running?\n"
                 : "the dataplane was started again: counting from now on\n";
    }
    return format_figures(*figures, stats->wanted, in_place_ ? terminal_rows() : SIZE_MAX);
  }

  const AskOptions& options_;
  const bool in_place_;
  std::optional<Report> before_;
};

int show_totals(const AskOptions& options) {
  return show_answer(options, "/v1/stats", [](const Json& answer) {
    const auto stats = read_stats(answer);
    return stats ? format_figures(totals(stats->report), stats->wanted) : stats.error() + "\n";
  });
}

// --- commands --------------------------------------------------------------------------------

// Every command is a leaf of the tree that says what to do once the whole line has been understood.
class CommandLine {
 public:
  CommandLine() {
    app_.require_subcommand(1);
    app_.fallthrough();
    app_.add_option("--socket", options_.socket, "the control socket")
        ->envname("MAGLEV_SOCKET")
        ->capture_default_str();
    app_.add_flag("--json", options_.json, "print the answer as JSON");
    add_pool_commands();
    add_vip_commands();
    add_backend_commands();
    add_apply(&app_, make_change);
    add_plans();
    add_other_commands();
    add_stats();
    add_simulator_commands(app_, options_.json, action_);
    app_.add_subcommand("status", "generations, dataplane, workers")->callback([this] {
      action_ = [this] { return show_answer(options_, "/v1/status", format_status); };
    });
  }

  int run(int argc, char** argv) {
    try {
      app_.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      if (error.get_exit_code() == 0) return app_.exit(error);  // help was asked for
      // Of a word that is no command, CLI11 only says that a command is missing.
      const std::vector<std::string> unknown = app_.remaining(true);
      if (!unknown.empty()) fmt::print(stderr, "maglevctl: unknown: {}\n", unknown.front());
      app_.exit(error);
      return kWrongUsage;
    }
    const int outcome = action_();
    if (std::fflush(stdout) == 0) return outcome;
    return fail(fmt::format("cannot write the answer: {}", std::strerror(errno)));
  }

 private:
  CLI::App* group(const std::string& name, const std::string& about) {
    return group(&app_, name, about);
  }
  static CLI::App* group(CLI::App* parent, const std::string& name, const std::string& about) {
    CLI::App* const made = parent->add_subcommand(name, about);
    made->require_subcommand(1);
    return made;
  }

  // A command that changes something by one request, or tells what the request would change.
  CLI::App* changing(CLI::App* parent, Send send, const std::string& name, const std::string& about,
                     const std::function<HttpRequest()>& request) {
    CLI::App* const made = parent->add_subcommand(name, about);
    if (send == make_change) {
      made->add_flag("--wait", options_.wait, "until all workers use the change");
      made->add_option("--timeout-ms", options_.timeout_ms, "how long --wait waits")
          ->capture_default_str();
    }
    made->add_option("--if-generation", options_.if_generation,
                     "refused when another generation is in force");
    made->callback([this, send, request] {
      action_ = [this, send, request] { return send(options_, request()); };
    });
    return made;
  }

  CLI::App* showing(CLI::App* parent, const std::string& name, const std::string& about,
                    const std::function<std::string()>& path, std::string (*format)(const Json&)) {
    CLI::App* const made = parent->add_subcommand(name, about);
    made->callback([this, path, format] {
      action_ = [this, path, format] { return show_answer(options_, path(), format); };
    });
    return made;
  }

  // An option that becomes a field of the request's body when it is given. What it may be is the
  // daemon's to say.
  template <typename T>
  CLI::Option* field(CLI::App* command, const std::string& option, const std::string& path,
                     const std::string& about) {
    return command->add_option_function<T>(
        option, [this, path](const T& value) { body_[Json::json_pointer(path)] = value; }, about);
  }

  CLI::Option* named(CLI::App* command, const std::string& title, std::string& name) {
    return command->add_option(title, name)->required()->check([](const std::string& text) {
      return text.empty() ? "a name is empty" : "";
    });
  }

  void add_pool_commands();
  void add_vip_commands();
  void add_backend_commands();
  void add_pool_changes(CLI::App* pool, Send send);
  void add_vip_changes(CLI::App* vip, Send send);
  void add_backend_changes(CLI::App* backend, Send send);
  void add_apply(CLI::App* parent, Send send);
  void add_plans();
  void add_other_commands();
  void add_stats();

  // What is no UTF-8 is the daemon's to refuse.
  std::string body() const { return body_.dump(-1, ' ', false, Json::error_handler_t::replace); }
  std::string pool_path() const { return "/v1/pools/" + segment(pool_); }
  std::string backend_path() const { return pool_path() + "/backends/" + segment(backend_); }
  std::string vip_path() const { return "/v1/vips/" + segment(vip_); }

  CLI::App app_{
      "Asks and changes a running maglev-control. Exit codes: 0 done, 1 refused or not "
      "reached, 2 wrong usage.",
      "maglevctl"};
  AskOptions options_;
  WatchOptions watch_;
  std::string pool_;
  std::string backend_;
  std::string vip_;
  std::string changes_;
  std::vector<std::string> flow_;
  Json body_ = Json::object();
  std::function<int()> action_;
};

void CommandLine::add_pool_commands() {
  CLI::App* const pool = group("pool", "sets of backends, each with a table");
  showing(
      pool, "list", "all pools", [] { return "/v1/pools"; }, format_pools);
  named(
      showing(
          pool, "show", "one pool with its backends", [this] { return pool_path(); }, format_pool),
      "POOL", pool_);
  add_pool_changes(pool, make_change);
}

void CommandLine::add_pool_changes(CLI::App* pool, Send send) {
  CLI::App* const add = changing(pool, send, "add", "add a pool", [this] {
    if (body_.contains("health")) body_["health"]["type"] = "tcp";
    body_["name"] = pool_;
    return HttpRequest{"POST", "/v1/pools", body()};
  });
  named(add, "POOL", pool_);
  field<int64_t>(add, "--table-size", "/table_size", "slots, a prime");
  field<std::string>(add, "--placement", "/placement", "maglev, ring, rendezvous or bounded");
  field<int64_t>(add, "--min-healthy", "/min_healthy", "with fewer, all ready backends are used");
  CLI::Option* const port =
      field<int64_t>(add, "--health-port", "/health/port", "check by TCP connects to this port");
  for (const std::string name : {"interval-ms", "timeout-ms", "rise", "fall"}) {
    std::string key = name;
    std::ranges::replace(key, '-', '_');
    field<int64_t>(add, "--health-" + name, "/health/" + key, "of the check")->needs(port);
  }

  named(changing(pool, send, "remove", "remove a pool that no VIP uses",
                 [this] {
                   return HttpRequest{"DELETE", pool_path(), ""};
                 }),
        "POOL", pool_);
}

void CommandLine::add_vip_commands() {
  CLI::App* const vip = group("vip", "virtual addresses");
  showing(
      vip, "list", "all VIPs", [] { return "/v1/vips"; }, format_vips);
  named(showing(
            vip, "show", "one VIP", [this] { return vip_path(); }, format_vip),
        "VIP", vip_);
  add_vip_changes(vip, make_change);
}

void CommandLine::add_vip_changes(CLI::App* vip, Send send) {
  CLI::App* const add = changing(vip, send, "add", "add a VIP", [this] {
    body_["name"] = vip_;
    const std::string port = body_["port"];
    uint16_t number = 0;
    const auto [stop, error] = std::from_chars(port.data(), port.data() + port.size(), number);
    if (error == std::errc() && stop == port.data() + port.size()) body_["port"] = number;
    return HttpRequest{"POST", "/v1/vips", body()};
  });
  named(add, "VIP", vip_);
  field<std::string>(add, "--address", "/address", "an address or a prefix")->required();
  field<std::string>(add, "--protocol", "/protocol", "tcp, udp or tcp_and_udp")->required();
  field<std::string>(add, "--port", "/port", "a number, or any")->required();
  field<std::string>(add, "--pool", "/pool", "the pool it uses")->required();
  field<std::string>(add, "--encapsulation", "/encapsulation", "ipip, gre, gue, gue1 or l2");
  field<int64_t>(add, "--gue-port", "/gue_port", "UDP destination port of gue and gue1");
  field<bool>(add, "--outer-checksum", "/outer_checksum", "of gue and gue1 over IPv6");
  field<std::string>(add, "--hash", "/hash", "five_tuple or source");
  field<std::string>(add, "--fragments", "/fragments", "flow or address");
  field<std::string>(add, "--tracking", "/tracking", "changed, full or none");
  field<int64_t>(add, "--tcp-idle-s", "/idle/tcp_s", "after so long a TCP flow is forgotten");
  field<int64_t>(add, "--tcp-closing-idle-s", "/idle/tcp_closing_s", "after a FIN or RST");
  field<int64_t>(add, "--udp-idle-s", "/idle/udp_s", "likewise of UDP");
  field<std::string>(add, "--echo", "/echo", "answer or kernel");
  field<std::string>(add, "--unserved-ports", "/unserved_ports", "drop or kernel");
  field<std::string>(add, "--too-big", "/too_big", "report or fragment");

  named(changing(vip, send, "remove", "remove a VIP",
                 [this] {
                   return HttpRequest{"DELETE", vip_path(), ""};
                 }),
        "VIP", vip_);
}

void CommandLine::add_backend_commands() {
  CLI::App* const backend = group("backend", "the servers of a pool");
  CLI::App* const list = backend->add_subcommand("list", "all backends of a pool");
  named(list, "POOL", pool_);
  list->callback([this] {
    action_ = [this] { return show_answer(options_, pool_path() + "/backends", format_backends); };
  });
  add_backend_changes(backend, make_change);
}

void CommandLine::add_backend_changes(CLI::App* backend, Send send) {
  const auto one = [&](CLI::App* command) {
    named(command, "POOL", pool_);
    named(command, "NAME", backend_);
    return command;
  };
  CLI::App* const add = one(changing(backend, send, "add", "add a backend", [this] {
    body_["name"] = backend_;
    return HttpRequest{"POST", pool_path() + "/backends", body()};
  }));
  field<std::string>(add, "--address", "/address", "the backend's address")->required();
  field<int64_t>(add, "--weight", "/weight", "share of the flows, relative to the others");
  field<std::string>(add, "--state", "/state", "ready, drain or maintenance");

  CLI::App* const set = one(changing(backend, send, "set", "change weight, state or both", [this] {
    return HttpRequest{"PATCH", backend_path(), body()};
  }));
  CLI::App* const changes = set->add_option_group("change");
  changes->require_option(1, 2);
  field<int64_t>(changes, "--weight", "/weight", "share of the flows, relative to the others");
  field<std::string>(changes, "--state", "/state", "ready, drain or maintenance");

  one(changing(backend, send, "drain", "take it out of the table, keep it configured", [this] {
    return HttpRequest{"PATCH", backend_path(), Json{{"state", "drain"}}.dump()};
  }));
  one(changing(backend, send, "remove", "remove a backend", [this] {
    return HttpRequest{"DELETE", backend_path(), ""};
  }));
}

void CommandLine::add_apply(CLI::App* parent, Send send) {
  CLI::App* const apply =
      changing(parent, send, "apply", "make several changes at once, all of them or none", [this] {
        return HttpRequest{"POST", "/v1/changes", changes_};
      });
  apply
      ->add_option_function<std::string>(
          "FILE",
          [this](const std::string& path) {
            std::ifstream file(path == "-" ? "/dev/stdin" : path);
            std::ostringstream content;
            if (!(content << file.rdbuf()))
              throw CLI::ValidationError("FILE", "cannot read " + path);
            changes_ = content.str();
          },
          "a JSON list of changes; - for standard input")
      ->required();
}

// Every change once more, as a plan.
void CommandLine::add_plans() {
  CLI::App* const plans = group("plan", "what a change would move; changes nothing");
  add_pool_changes(group(plans, "pool", "sets of backends"), show_plan);
  add_vip_changes(group(plans, "vip", "virtual addresses"), show_plan);
  add_backend_changes(group(plans, "backend", "the servers of a pool"), show_plan);
  add_apply(plans, show_plan);
}

void CommandLine::add_other_commands() {
  CLI::App* const explain = showing(
      &app_, "explain", "where the packets of a flow go, and why",
      [this] {
        return fmt::format("/v1/flows/{}/{}/{}", segment(flow_[0]), segment(flow_[1]),
                           segment(flow_[2]));
      },
      format_flow);
  explain
      ->add_option("FLOW", flow_,
                   "tcp or udp, source and destination, as tcp 198.18.0.2:40000 198.51.100.10:80")
      ->expected(3)
      ->required();
  changing(&app_, make_change, "reload", "read the configuration file again", [] {
    return HttpRequest{"POST", "/v1/reload", ""};
  });
}

void CommandLine::add_stats() {
  CLI::App* const stats = app_.add_subcommand("stats", "packets and bits, by VIP and backend");
  CLI::Option* const watch =
      stats->add_flag("--watch", watch_.watch, "show rates, again and again");
  stats->add_option("--interval", watch_.interval_s, "seconds from one to the next")
      ->check(CLI::Range(0.05, 86400.0))
      ->needs(watch)
      ->capture_default_str();
  stats->add_option("--count", watch_.count, "end after so many; 0: never")->needs(watch);
  stats->callback([this] {
    action_ = [this] { return watch_.watch ? Watch(options_).run(watch_) : show_totals(options_); };
  });
}

}  // namespace
}  // namespace maglev

int main(int argc, char** argv) {
  try {
    return maglev::CommandLine().run(argc, argv);
  } catch (const std::exception& error) {  // an answer of a shape that this version does not know
    return maglev::fail(fmt::format("cannot read maglev-control's answer: {}", error.what()));
  }
}
