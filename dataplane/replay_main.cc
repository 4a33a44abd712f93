// maglev-replay DIRECTORY INPUT [OUTPUT]: what the dataplane would do with the packets of a capture
// file, by the tables published in a directory. Needs no device, no hugepages and no root.
#include <cstdio>
#include <filesystem>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "dataplane/replay.h"
#include "dataplane/replay_capture.h"
#include "tables/command_line.h"

namespace maglev {
namespace {

constexpr uint32_t kPorts = 256;
constexpr std::array<uint8_t, 6> kPortMac = {2, 0, 0, 0, 0, 1};

struct Options {
  std::string directory;
  std::string input;
  std::string output;  // empty: no output file
  uint32_t mtu = 1500;
  uint32_t workers = 1;
  uint64_t answers_per_second = 1000;
  bool json = false;
};

std::string text_of(const Outcome& outcome) {
  std::string line = outcome.packet != 0
                         ? fmt::format("{} {}", outcome.packet,
                                       kVerdictNames[static_cast<uint32_t>(outcome.verdict)])
                         : fmt::format("- {}", kOriginNames[static_cast<uint32_t>(outcome.origin)]);
  if (!outcome.vip.empty()) line += fmt::format(" vip {}", outcome.vip);
  if (!outcome.backend.empty())
    line += fmt::format(" backend {}/{}", outcome.pool, outcome.backend);
  if (!outcome.frame.empty()) {
    line += fmt::format(" port {} length {}", outcome.port, outcome.frame.size());
  }
  return line;
}

std::string json_of(const Outcome& outcome) {
  nlohmann::ordered_json line;
  if (outcome.packet != 0) {
    line["packet"] = outcome.packet;
    line["verdict"] = kVerdictNames[static_cast<uint32_t>(outcome.verdict)];
  } else {
    line["origin"] = kOriginNames[static_cast<uint32_t>(outcome.origin)];
  }
  if (!outcome.vip.empty()) line["vip"] = outcome.vip;
  if (!outcome.backend.empty()) {
    line["pool"] = outcome.pool;
    line["backend"] = outcome.backend;
  }
  if (!outcome.frame.empty()) {
    line["port"] = outcome.port;
    line["length"] = outcome.frame.size();
  }
  return line.dump();
}

void print_counters(const Replay& replay, bool json) {
  auto counters = named_counters(replay.report());
  std::erase_if(counters, [](const auto& counter) { return counter.second == 0; });
  if (json) {
    fmt::print("{}\n", nlohmann::json{{"counters", counters}}.dump());
    return;
  }
  fmt::print("\n");
  for (const auto& [name, value] : counters) fmt::print("{} {}\n", name, value);
}

// The time of a capture's first frame is the clock's start; frames that are older than the one
// before them come at its time.
std::expected<void, std::string> replay_capture(const Options& options) {
  auto input = CaptureReader::open(options.input);
  if (!input) return std::unexpected(input.error());
  std::optional<CaptureWriter> output;
  Replay* clock = nullptr;
  const auto tell = [&](const Outcome& outcome) {
    if (outcome.packet != 0 && outcome.verdict >= Verdict::kCount) return;  // it lives on
    fmt::print("{}\n", options.json ? json_of(outcome) : text_of(outcome));
    if (output && !outcome.frame.empty()) output->write({clock->now_ns(), outcome.frame});
  };
  ReplaySettings settings;
  settings.ports.assign(kPorts, {kPortMac, options.mtu});
  settings.workers = options.workers;
  settings.answers_per_second = options.answers_per_second;
  Replay replay(std::move(settings), tell);
  clock = &replay;
  if (auto adopted = replay.adopt(options.directory); !adopted) return adopted;
  if (!options.output.empty()) {
    std::error_code missing;  // a new file is no other one
    if (std::filesystem::equivalent(options.input, options.output, missing)) {
      return std::unexpected(fmt::format("{} is the input too: name another file", options.output));
    }
    auto created = CaptureWriter::create(options.output);
    if (!created) return std::unexpected(created.error());
    output = std::move(*created);
  }
  for (uint32_t worker = 0;; worker = (worker + 1) % options.workers) {
    const auto frame = input->next();
    if (!frame) return std::unexpected(frame.error());
    if (!*frame) break;
    replay.advance_to((*frame)->time_ns);
    const ReceivedFrame received{(*frame)->bytes};
    replay.receive(worker, 0, {&received, 1});
  }
  replay.advance_to(replay.now_ns() + FragmentTable::kHold_ns + 1);  // nothing waits any longer
  print_counters(replay, options.json);
  return output ? output->finish() : std::expected<void, std::string>{};
}

int run(int argc, char** argv) {
  CLI::App app(
      "Runs the packets of a capture file through published tables, as maglev-dataplane would: "
      "prints what becomes of each, and the counters.");
  app.set_version_flag("--version", MAGLEV_VERSION);
  Options options;
  app.add_option("DIRECTORY", options.directory,
                 "published files, as 'maglev-control --render' writes them")
      ->required();
  app.add_option("INPUT", options.input, "capture file of Ethernet frames (pcap or pcapng)")
      ->required();
  app.add_option("OUTPUT", options.output, "capture file to write, with all frames sent");
  app.add_option("--mtu", options.mtu, "MTU of the ports")
      ->capture_default_str()
      ->check(CLI::Range(68, 65535));
  app.add_option("--workers", options.workers, "workers, which receive the packets in turn")
      ->capture_default_str()
      ->check(CLI::Range(1, 128));
  app.add_option("--icmp-answers-per-second", options.answers_per_second,
                 "ICMP errors, and likewise echo replies, of each worker")
      ->capture_default_str()
      ->check(CLI::Range(0, 1'000'000));
  app.add_flag("--json", options.json, "one JSON object per line");
  if (const auto code = parse_command_line(app, argc, argv)) return *code;
  if (const auto done = replay_capture(options); !done) {
    std::fflush(stdout);
    std::fputs(fmt::format("maglev-replay: {}\n", done.error()).c_str(), stderr);
    return kWrongUsage;
  }
  return 0;
}

}  // namespace
}  // namespace maglev

int main(int argc, char** argv) {
  return maglev::run(argc, argv);
}
