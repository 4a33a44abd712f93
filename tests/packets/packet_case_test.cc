// Runs each file of tests/packets/cases: packets in; frames out, verdicts and all counters
// compared. With MAGLEV_CAPTURES=DIRECTORY in the environment each case's frames, received and
// sent, are written there as capture files, for other dissectors; with MAGLEV_FUZZ_SEEDS=DIRECTORY
// each case is written there as an input for the fuzzer.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <deque>
#include <fstream>
#include <iterator>
#include <numeric>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "control/configuration.h"
#include "control/render.h"
#include "dataplane/replay_capture.h"
#include "tests/fuzz/recorder.h"
#include "tests/packets/case_file.h"

namespace maglev::packets {
namespace {

namespace fs = std::filesystem;

template <typename T>
T value_of(std::expected<T, std::string> result) {
  if (!result) throw std::runtime_error(result.error());
  return *std::move(result);
}

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern = fs::temp_directory_path() / "maglev-packets-XXXXXX";
    path_ = ::mkdtemp(pattern.data());
  }
  ~TemporaryDirectory() { fs::remove_all(path_); }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

fs::path packets_directory() {
  const char* const other = getenv("MAGLEV_PACKETS");
  return other == nullptr ? MAGLEV_PACKETS_DIRECTORY : other;
}

std::vector<fs::path> case_files() {
  std::vector<fs::path> files;
  const fs::path directory = packets_directory() / "cases";
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) files.push_back(entry.path());
  if (error) {  // found before any test runs, by GoogleTest's registration of them
    std::fputs(
        fmt::format("packet_cases: cannot read {}: {}\n", directory.string(), error.message())
            .c_str(),
        stderr);
    std::exit(2);
  }
  std::ranges::sort(files);
  return files;
}

std::vector<std::byte> read_file(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  return {bytes, bytes + text.size()};
}

void write_file(const fs::path& path, const std::vector<std::byte>& bytes) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

void change_way(BackendRecord& record, const WayOut& way) {
  record.flags = static_cast<uint8_t>(kBackendServes | (way.on_link ? kBackendOnLink : 0));
  record.path_mtu_bytes = way.path_mtu_bytes;
  record.port = way.port;
  if (way.resolved) return;
  BackendRecord unresolved{};
  unresolved.address = record.address;
  unresolved.family = record.family;
  unresolved.incarnation = record.incarnation;
  unresolved.flags = kBackendServes;
  record = unresolved;
}

// Changes what a rendered directory says about the ways to backends.
void change_ways(const fs::path& directory, const std::map<std::string, WayOut>& ways) {
  const std::vector<std::byte> root_file = read_file(directory / kRootFileName);
  const RootView root = value_of(check_root_file(root_file));
  std::vector<PoolReference> pools;
  for (const PoolReference& reference : root.pools) {
    const std::vector<std::byte> file =
        read_file(directory / kPoolDirectory / reference.pool.hex());
    const PoolView pool = value_of(check_pool_file(file));
    std::vector<PoolBackend> backends;
    for (size_t i = 0; i < pool.backends.size(); ++i) {
      backends.push_back({std::string(pool.backend_names[i]), pool.backends[i]});
      const auto way = ways.find(backends.back().name);
      if (way != ways.end()) change_way(backends.back().record, way->second);
    }
    const auto changed = build_pool_file(pool.name, pool.table, backends, {pool.owner_backends});
    pools.push_back({value_of(check_pool_file(changed)).checksum, reference.history});
    write_file(directory / kPoolDirectory / pools.back().pool.hex(), changed);
  }
  std::vector<RootVip> vips;
  for (size_t i = 0; i < root.vips.size(); ++i) {
    vips.push_back({std::string(root.vip_names[i]), root.vips[i]});
  }
  write_file(directory / kRootFileName,
             build_root_file(root.generation, root.hash_seed, pools, vips));
}

void record(const fs::path& directory, fuzz::Recorder& recorder) {
  const std::vector<std::byte> root_file = read_file(directory / kRootFileName);
  const RootView root = value_of(check_root_file(root_file));
  std::vector<BackendRecord> backends;
  for (const PoolReference& reference : root.pools) {
    const std::vector<std::byte> file =
        read_file(directory / kPoolDirectory / reference.pool.hex());
    std::ranges::copy(value_of(check_pool_file(file)).backends, std::back_inserter(backends));
  }
  recorder.publish(root, backends);
}

void publish(const Step& step, const Publish& what, Replay& replay, fuzz::Recorder& recorder) {
  const auto configuration = read_configuration(what.configuration, step.where);
  if (!configuration) {
    throw std::runtime_error(fmt::format("{}", fmt::join(configuration.error(), "\n")));
  }
  const TemporaryDirectory directory;
  if (const auto rendered = render(*configuration, directory.path(), {}); !rendered) {
    throw std::runtime_error(rendered.error());
  }
  if (!what.ways.empty()) change_ways(directory.path(), what.ways);
  if (const auto adopted = replay.adopt(directory.path()); !adopted) {
    throw std::runtime_error(adopted.error());
  }
  record(directory.path(), recorder);
}

std::string hex(const Bytes& bytes) {
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 16) {
    const size_t end = std::min(bytes.size(), i + 16);
    text += fmt::format("  {:4}: {:02x}\n", i,
                        fmt::join(bytes.begin() + static_cast<ptrdiff_t>(i),
                                  bytes.begin() + static_cast<ptrdiff_t>(end), " "));
  }
  return text.empty() ? "  nothing\n" : text;
}

struct Happened {
  std::string outcome;
  Bytes frame;
};

void compare(const Step& step, const Expect& expected, std::deque<Happened>& happened) {
  if (happened.empty()) {
    ADD_FAILURE() << step.where << ": nothing more happens; expected: " << expected.outcome;
    return;
  }
  EXPECT_EQ(happened.front().outcome, expected.outcome) << step.where;
  const Bytes& frame = happened.front().frame;
  const auto got = std::ranges::mismatch(frame, expected.frame).in1;
  if (frame != expected.frame) {
    ADD_FAILURE() << step.where << ": the frames differ from byte " << got - frame.begin()
                  << " on.\nexpected:\n"
                  << hex(expected.frame) << "sent:\n"
                  << hex(frame);
  }
  happened.pop_front();
}

// Writes frames to a file below MAGLEV_CAPTURES, if that is set.
void capture(const std::string& name, const std::vector<Bytes>& frames) {
  const char* const directory = getenv("MAGLEV_CAPTURES");
  if (directory == nullptr) return;
  auto file = value_of(CaptureWriter::create(fs::path(directory) / name));
  for (const Bytes& frame : frames) file.write({0, frame});
  if (const auto written = file.finish(); !written) throw std::runtime_error(written.error());
}

void write_seed(const std::string& name, const fuzz::Recorder& recorder) {
  if (const char* const directory = getenv("MAGLEV_FUZZ_SEEDS")) {
    const auto bytes = std::as_bytes(std::span(recorder.input()));
    write_file(fs::path(directory) / name, {bytes.begin(), bytes.end()});
  }
}

class Case : public testing::TestWithParam<fs::path> {
 protected:
  // The packets of a burst are the neighbouring steps that one worker receives on one port.
  void receive_burst(size_t first, size_t end, Replay& replay, fuzz::Recorder& recorder) {
    const auto& head = std::get<Receive>(case_.steps[first].what);
    std::vector<ReceivedFrame> burst;
    for (size_t i = first; i < end; ++i) {
      const auto& received = std::get<Receive>(case_.steps[i].what);
      burst.push_back({received.frame, received.segmented});
      received_.push_back(received.frame);
    }
    recorder.receive(head.worker, head.port, burst);
    replay.receive(head.worker, head.port, burst);
  }

  void run_steps(Replay& replay, fuzz::Recorder& recorder) {
    for (size_t i = 0; i < case_.steps.size();) {
      const Step& step = case_.steps[i++];
      if (const auto* published = std::get_if<Publish>(&step.what)) {
        publish(step, *published, replay, recorder);
      } else if (const auto* waited = std::get_if<Wait>(&step.what)) {
        recorder.wait(waited->ns);
        replay.advance_to(replay.now_ns() + waited->ns);
      } else if (const auto* expected = std::get_if<Expect>(&step.what)) {
        compare(step, *expected, happened_);
      } else {
        const auto& head = std::get<Receive>(step.what);
        const size_t first = i - 1;
        const auto continues = [&](const Step& next) {
          const auto* received = std::get_if<Receive>(&next.what);
          return received != nullptr && received->worker == head.worker &&
                 received->port == head.port;
        };
        while (i < case_.steps.size() && continues(case_.steps[i])) ++i;
        receive_burst(first, i, replay, recorder);
      }
    }
  }

  PacketCase case_;
  std::deque<Happened> happened_;
  std::vector<Bytes> received_;
  std::vector<Bytes> sent_;
};

// At every burst boundary; see dataplane/pipeline.h.
void expect_sums_add_up(const Report& report) {
  uint64_t in = 0;
  uint64_t out =
      std::accumulate(report.verdict_counts.begin(), report.verdict_counts.end(), uint64_t{0});
  for (const WorkerReport& worker : report.workers) {
    in += worker.received.packets + worker.taken_over;
    out += worker.held + worker.handed_over;
  }
  EXPECT_EQ(in, out) << "packets received, and verdicts";
}

TEST_P(Case, Holds) {
  case_ = read_case(GetParam());
  Replay replay(case_.settings, [&](const Outcome& outcome) {
    const Bytes frame(outcome.frame.begin(), outcome.frame.end());
    happened_.push_back({describe(outcome, case_.settings.workers), frame});
    if (!frame.empty()) sent_.push_back(frame);
  });
  fuzz::Recorder recorder(case_.settings);
  replay.advance_to(1'000'000'000);
  run_steps(replay, recorder);
  for (const Happened& rest : happened_) {
    ADD_FAILURE() << "not expected: " << rest.outcome << "\n" << hex(rest.frame);
  }
  expect_sums_add_up(replay.report());
  auto counters = named_counters(replay.report());
  std::erase_if(counters, [](const auto& counter) { return counter.second == 0; });
  for (const auto& [name, value] : case_.counters) {
    EXPECT_EQ(counters[name], value) << name;
    counters.erase(name);
  }
  for (const auto& [name, value] : counters) {
    ADD_FAILURE() << "the case does not name a counter that changes: " << name << " " << value;
  }
  write_seed(GetParam().stem().string(), recorder);
  capture(GetParam().stem().string() + ".received.pcap", received_);
  capture(GetParam().stem().string() + ".sent.pcap", sent_);
}

INSTANTIATE_TEST_SUITE_P(Packets, Case, testing::ValuesIn(case_files()),
                         [](const auto& test) { return test.param.stem().string(); });

// The outcomes that some case expects; each case compares them with what happens.
std::set<std::string> expected_outcomes() {
  std::set<std::string> outcomes;
  for (const fs::path& file : case_files()) {
    for (const Step& step : read_case(file).steps) {
      if (const auto* expected = std::get_if<Expect>(&step.what)) {
        const size_t space = expected->outcome.find(' ');
        outcomes.insert(expected->outcome.substr(
            space + 1, expected->outcome.find(' ', space + 1) - space - 1));
      }
    }
  }
  return outcomes;
}

TEST(Cases, ReachEveryVerdictAndEveryFrameOfOurOwn) {
  const std::set<std::string> outcomes = expected_outcomes();
  for (const std::string_view name : kVerdictNames)
    EXPECT_TRUE(outcomes.contains(std::string(name))) << name;
  for (const std::string_view name : kOriginNames)
    EXPECT_TRUE(outcomes.contains(std::string(name))) << name;
  EXPECT_TRUE(outcomes.contains("held"));
  EXPECT_TRUE(outcomes.contains("handed_over"));
}

}  // namespace
}  // namespace maglev::packets
