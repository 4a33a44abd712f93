#include "control/simulator_commands.h"

#include <unistd.h>

#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "control/simulator.h"
#include "control/simulator_input.h"
#include "control/simulator_views.h"
#include "tables/command_line.h"

namespace maglev {
namespace {

constexpr int kDone = 0;
constexpr const char* kDefaultHash = "md5-64";

struct Arguments {
  std::string placement = "maglev";
  std::optional<std::string> hash;  // nullopt: not given
  MembershipText membership;
  PlacementSettings settings;
  uint32_t replicas = 1;
  // simulate
  std::string keys = "key:%d";
  uint64_t count = 100'000;
  std::string keys_file;
  std::string table_out;
  std::string plot;
  std::optional<double> headroom;
  // owner
  std::vector<std::string> keys_to_place;
  uint32_t next = 3;
};

// One line, rewritten in place, for who watches a terminal.
class Progress {
 public:
  ~Progress() {
    if (shown_) fmt::print(stderr, "\r\033[K");
  }

  void show(std::string_view what, double share) {
    const auto now = std::chrono::steady_clock::now();
    if (!terminal_ || now - last_ < std::chrono::milliseconds(100)) return;
    last_ = now;
    shown_ = true;
    fmt::print(stderr, "\r{}: {:.0f} %\033[K", what, share * 100);
    std::fflush(stderr);
  }

 private:
  bool terminal_ = isatty(STDERR_FILENO) != 0;
  bool shown_ = false;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

int refuse(const std::string& message) {
  fmt::print(stderr, "maglevctl: {}\n", message);
  return kWrongUsage;
}

struct OutputFile {
  std::string path;
  std::string text;
};

// All of them or none: written aside first. What is no file, such as a pipe, is written directly.
std::expected<void, std::string> write_files(std::span<const OutputFile> files) {
  namespace fs = std::filesystem;
  std::vector<std::pair<fs::path, fs::path>> renames;
  std::expected<void, std::string> outcome;
  for (const OutputFile& output : files) {
    std::error_code error;
    const bool is_plain =
        !fs::exists(output.path, error) || fs::is_regular_file(output.path, error);
    fs::path target = output.path;
    if (is_plain) {
      const fs::path path = fs::weakly_canonical(output.path, error);
      if (error) {
        outcome = std::unexpected(fmt::format("cannot write {}: {}", output.path, error.message()));
        break;
      }
      target = path.string() + fmt::format(".{}.{}", getpid(), renames.size());
      renames.emplace_back(target, path);
    }
    std::ofstream file(target, std::ios::binary | std::ios::trunc);
    file << output.text;
    file.close();
    if (file) continue;
    outcome =
        std::unexpected(fmt::format("cannot write {}: {}", output.path, std::strerror(errno)));
    break;
  }
  for (const auto& [from, to] : renames) {
    std::error_code error;
    if (outcome) fs::rename(from, to, error);
    if (error) {
      outcome = std::unexpected(fmt::format("cannot write {}: {}", to.string(), error.message()));
    }
    if (!outcome) fs::remove(from, error);
  }
  return outcome;
}

std::expected<KeyHash, std::string> read_hash(const Arguments& arguments) {
  const auto kind = parse_placement_kind(arguments.placement);
  const auto own = kind ? own_hash(*kind) : std::nullopt;  // `all` is none
  if (own && arguments.hash) {
    return std::unexpected(
        fmt::format("{} has a hash of its own, {}: leave --hash out", arguments.placement, *own));
  }
  return parse_key_hash(arguments.hash.value_or(kDefaultHash));
}

std::expected<Scenario, std::string> read_scenario(const Arguments& arguments) {
  Scenario scenario;
  scenario.settings = arguments.settings;
  scenario.replicas = arguments.replicas;
  const auto hash = read_hash(arguments);
  if (!hash) return std::unexpected(hash.error());
  scenario.settings.hash = *hash;
  auto membership = read_membership(arguments.membership);
  if (!membership) return std::unexpected(membership.error());
  scenario.before = std::move(membership->before);
  scenario.after = std::move(membership->after);
  auto workload = arguments.keys_file.empty() ? number_keys(arguments.keys, arguments.count)
                                              : read_keys_file(arguments.keys_file);
  if (!workload) return std::unexpected(workload.error());
  scenario.workload = std::move(*workload);
  return scenario;
}

std::string table_text(const Placement& placement, uint64_t size) {
  std::string text;
  for (const uint32_t owner : placement.fill_table(size)) {
    text += placement.nodes()[owner].name + '\n';
  }
  return text;
}

int run_one(const Arguments& arguments, const Scenario& scenario, bool json) {
  const auto kind = parse_placement_kind(arguments.placement);
  if (!kind) return refuse(kind.error() + ", or all");
  std::optional<Progress> progress(std::in_place);
  const auto simulation =
      simulate(*kind, scenario, [&](double share) { progress->show(arguments.placement, share); });
  progress.reset();
  if (!simulation) return refuse(simulation.error());
  if (!arguments.plot.empty() && arguments.plot == arguments.table_out) {
    return refuse("--table-out and --plot name the same file");
  }
  std::vector<OutputFile> files;
  if (!arguments.table_out.empty()) {
    files.push_back({arguments.table_out, table_text(*simulation->after, arguments.settings.size)});
  }
  if (!arguments.plot.empty()) files.push_back({arguments.plot, simulation_svg(*simulation)});
  if (const auto written = write_files(files); !written) return refuse(written.error());
  const auto warnings = find_warnings(*simulation, arguments.headroom);
  fmt::print("{}", json ? simulation_json(*simulation, scenario, warnings).dump() + "\n"
                        : simulation_text(*simulation, scenario));
  for (const std::string& warning : warnings) fmt::print(stderr, "warning: {}\n", warning);
  return kDone;
}

int run_all(const Arguments& arguments, const Scenario& scenario, bool json) {
  if (!arguments.table_out.empty() || !arguments.plot.empty()) {
    return refuse("--table-out and --plot show one placement: name it with --placement");
  }
  std::vector<Simulation> simulations;
  Refusals refusals;
  {
    Progress progress;
    for (const PlacementKind kind : all_placement_kinds()) {
      auto simulation =
          simulate(kind, scenario, [&](double share) { progress.show(to_text(kind), share); });
      if (simulation) {
        simulations.push_back(std::move(*simulation));
      } else {
        refusals.emplace_back(kind, simulation.error());
      }
    }
  }
  // What no placement takes is wrong with the input.
  if (simulations.empty()) return refuse(refusals.front().second);
  nlohmann::ordered_json all{{"placements", nlohmann::ordered_json::array()},
                             {"refused", nlohmann::ordered_json::array()}};
  std::vector<std::string> warnings;
  for (const Simulation& simulation : simulations) {
    const auto own = find_warnings(simulation, arguments.headroom);
    all["placements"].push_back(simulation_json(simulation, scenario, own));
    warnings.insert(warnings.end(), own.begin(), own.end());
  }
  for (const auto& [kind, reason] : refusals) {
    all["refused"].push_back({{"placement", to_text(kind)}, {"reason", reason}});
  }
  fmt::print("{}",
             json ? all.dump() + "\n" : comparison_text(simulations, refusals, scenario.replicas));
  for (const std::string& warning : warnings) fmt::print(stderr, "warning: {}\n", warning);
  return kDone;
}

int run_simulate(const Arguments& arguments, bool json) {
  try {
    const auto scenario = read_scenario(arguments);
    if (!scenario) return refuse(scenario.error());
    return arguments.placement == "all" ? run_all(arguments, *scenario, json)
                                        : run_one(arguments, *scenario, json);
  } catch (const std::bad_alloc&) {
    return refuse("not enough memory for so many keys: take fewer");
  }
}

// The nodes that follow the owner; fewer than asked when there are no more.
std::vector<std::string> next_nodes(const Placement& placement, const std::string& key,
                                    uint32_t count) {
  std::vector<std::string> names;
  placement.visit(key, [&](uint32_t node) {
    names.push_back(placement.nodes()[node].name);
    return names.size() <= count;
  });
  names.erase(names.begin());
  return names;
}

std::expected<nlohmann::ordered_json, std::string> describe_key(const Placement& placement,
                                                                const std::string& key,
                                                                const Arguments& arguments) {
  const auto replicas = preference_list(placement, key, arguments.replicas);
  if (!replicas) return std::unexpected(replicas.error());
  const KeyPlace place = placement.locate(key);
  std::string bytes;
  for (const char byte : key) bytes += fmt::format("{:02x}", static_cast<uint8_t>(byte));
  nlohmann::ordered_json answer{{"key", key},
                                {"bytes", bytes},
                                {"hash", place.hash},
                                {place.unit, place.value},
                                {"owner", placement.nodes()[placement.owner(key)].name},
                                {"next", next_nodes(placement, key, arguments.next)}};
  if (arguments.replicas > 1) {
    for (const uint32_t node : *replicas) {
      answer["replicas"].push_back(placement.nodes()[node].name);
    }
  }
  return answer;
}

std::string key_text(const nlohmann::ordered_json& answer) {
  std::string text;
  for (const auto& [name, value] : answer.items()) {
    std::string shown = value.is_string() ? value.get<std::string>() : "";
    if (value.is_number()) shown = value.dump();
    if (value.is_array())
      shown = fmt::format("{}", fmt::join(value.get<std::vector<std::string>>(), ", "));
    text += fmt::format("{:<9} {}\n", name, shown);
  }
  return text;
}

int run_owner(const Arguments& arguments, bool json) {
  const auto kind = parse_placement_kind(arguments.placement);
  if (!kind) return refuse(kind.error());
  auto settings = arguments.settings;
  const auto hash = read_hash(arguments);
  if (!hash) return refuse(hash.error());
  settings.hash = *hash;
  const auto membership = read_membership(arguments.membership);
  if (!membership) return refuse(membership.error());
  const auto before = make_placement(*kind, membership->before, settings);
  if (!before) return refuse(before.error());
  const auto after = make_placement(*kind, membership->after, settings, before->get());
  if (!after) return refuse(after.error());
  for (size_t i = 0; i < arguments.keys_to_place.size(); ++i) {
    const auto answer = describe_key(**after, arguments.keys_to_place[i], arguments);
    if (!answer) return refuse(answer.error());
    // A key that is no UTF-8 is told by its bytes.
    constexpr auto kReplace = nlohmann::ordered_json::error_handler_t::replace;
    if (json) {
      fmt::print("{}\n", answer->dump(-1, ' ', false, kReplace));
    } else {
      fmt::print("{}{}", i == 0 ? "" : "\n", key_text(*answer));
    }
  }
  return kDone;
}

// Says what a number must be; CLI11 takes "-1" for a large one, and any NaN for a fraction.
template <typename Number>
std::string check_whole(const std::string& text) {
  Number number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size()) return {};
  return fmt::format("'{}' is not a whole number from 0 to {}", text,
                     std::numeric_limits<Number>::max());
}

std::string check_fraction(const std::string& text) {
  double number = 0;
  if (CLI::detail::lexical_cast(text, number) && number >= 0 && number <= 1) return {};
  return fmt::format("'{}' is not a fraction from 0 to 1", text);
}

// An empty value is a variable of a script that is not set, not a wish for the default.
std::string check_given(const std::string& text) {
  return text.empty() ? "its value is empty: give one, or leave the option out" : "";
}

void add_shared_options(CLI::App& command, Arguments& a, std::string_view also) {
  std::string kinds;
  for (const PlacementKind kind : all_placement_kinds())
    kinds += fmt::format("{}, ", to_text(kind));
  kinds.resize(kinds.size() - 2);
  command.add_option("--placement", a.placement, kinds + std::string(also))->capture_default_str();
  auto* const nodes = command.add_option("--nodes", a.membership.nodes, "names, comma-separated");
  command
      .add_option("--nodes-file", a.membership.nodes_file, "a file of `name [weight [zone]]` lines")
      ->check(check_given)
      ->excludes(nodes);
  command.add_option("--weights", a.membership.weights, "one per node, comma-separated")
      ->check(check_given);
  command.add_option("--zones", a.membership.zones, "one per node, comma-separated")
      ->check(check_given);
  command.add_option("--add", a.membership.add, "nodes to add, at the end")->delimiter(',');
  command.add_option("--remove", a.membership.remove, "nodes to remove")->delimiter(',');
  command.add_option("--weight", a.membership.weight, "NODE=WEIGHT, the weight it is to have")
      ->delimiter(',');
  command.add_option("--zone", a.membership.zone, "NODE=ZONE, the zone it is to have")
      ->delimiter(',');
  command
      .add_option("--hash", a.hash,
                  "md5-64, sha1-32, fnv1a-fmix-32, xxh64; ketama and slots have their own")
      ->default_str(kDefaultHash);
  command.add_option("--vnodes", a.settings.vnodes, "ring, bounded: tokens per unit of weight")
      ->check(check_whole<uint32_t>)
      ->capture_default_str();
  command.add_option("--size", a.settings.size, "slots of the table, a prime")
      ->check(check_whole<uint64_t>)
      ->capture_default_str();
  command
      .add_option("--epsilon", a.settings.epsilon, "bounded: how far above its share a node gets")
      ->check(check_given)
      ->capture_default_str();
  command.add_option("--replicas", a.replicas, "distinct nodes a key, one per zone")
      ->check(CLI::Range(1u, 1000u))
      ->capture_default_str();
}

}  // namespace

void add_simulator_commands(CLI::App& app, const bool& json, std::function<int()>& action) {
  // Kept alive by the callbacks.
  const auto simulate_arguments = std::make_shared<Arguments>();
  CLI::App* const simulate =
      app.add_subcommand("simulate", "what a change of membership would move; needs no daemon");
  Arguments& a = *simulate_arguments;
  add_shared_options(*simulate, a, ", or all for a comparison");
  auto* const keys =
      simulate->add_option("--keys", a.keys, "pattern with %d for a number")->capture_default_str();
  auto* const count = simulate->add_option("--count", a.count, "how many keys of the pattern")
                          ->check(check_whole<uint64_t>)
                          ->capture_default_str();
  simulate
      ->add_option("--keys-file", a.keys_file,
                   "a file of keys, or of `key<TAB>bytes<TAB>requests` lines")
      ->check(check_given)
      ->excludes(keys)
      ->excludes(count);
  simulate->add_option("--table-out", a.table_out, "write the table after: an owner a line")
      ->check(check_given);
  simulate->add_option("--plot", a.plot, "draw shares and movement as SVG")->check(check_given);
  simulate
      ->add_option("--headroom", a.headroom,
                   "warn when more than this share of requests would miss at once")
      ->check(check_fraction);
  simulate->callback([simulate_arguments, &json, &action] {
    action = [simulate_arguments, &json] { return run_simulate(*simulate_arguments, json); };
  });

  const auto owner_arguments = std::make_shared<Arguments>();
  CLI::App* const owner =
      app.add_subcommand("owner", "where one key goes, and why; needs no daemon");
  add_shared_options(*owner, *owner_arguments, "");
  owner->add_option("--next", owner_arguments->next, "how many nodes to tell after the owner")
      ->check(check_whole<uint32_t>)
      ->capture_default_str();
  owner->add_option("KEY", owner_arguments->keys_to_place, "one or more keys")->required();
  owner->callback([owner_arguments, &json, &action] {
    action = [owner_arguments, &json] { return run_owner(*owner_arguments, json); };
  });
}

}  // namespace maglev
