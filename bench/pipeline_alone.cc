// The pipeline without a device: what a packet costs it, and in which stage.
//
//   pipeline_alone instructions DIRECTORY PCAP    DIRECTORY holds a published tree
//   pipeline_alone ticks DIRECTORY PCAP
//
// "instructions" is for callgrind, which counts the same in every run, whatever else the machine
// does: it collects only inside forward_burst() and count_burst(), from the second time through the
// file on. Prints the number of packets collected. Built where callgrind is.
//
// "ticks" reads the time stamp counter between the stages of each burst, kPasses times through the
// file, and prints a line of JSON: TSC ticks a packet of each stage, as medians over the passes. A
// frame is copied into a buffer before its burst, as a device would, and what a device writes is in
// the cache. Tables lie in hugepages, as they do in the dataplane.
//
// Both fail when a packet is not forwarded.
#include <x86intrin.h>

#include <pcap/pcap.h>
#include <sys/mman.h>
#if __has_include(<valgrind/callgrind.h>)
#include <valgrind/callgrind.h>
#else
#define CALLGRIND_TOGGLE_COLLECT
#endif

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "dataplane/adoption.h"
#include "dataplane/pipeline.h"
#include "tables/boot_time.h"

namespace maglev {
namespace {

constexpr uint32_t kHeadroom = 128;
constexpr uint32_t kRoom = 2048;

struct Counting {
  Counting()
      : vips(std::make_unique<FlowCounters[]>(kMaxCountedVips)),
        backends(std::make_unique<FlowCounters[]>(kMaxCountedBackends)) {
    counters.vips = vips.get();
    counters.backends = backends.get();
  }
  std::unique_ptr<FlowCounters[]> vips;
  std::unique_ptr<FlowCounters[]> backends;
  WorkerCounters counters;
  CounterRegistry vip_places{kMaxCountedVips, [](uint32_t) {}};
  CounterRegistry backend_places{kMaxCountedBackends, [](uint32_t) {}};
};

std::vector<std::vector<uint8_t>> read_frames(const char* path) {
  char error[PCAP_ERRBUF_SIZE] = "";
  pcap_t* const file = pcap_open_offline(path, error);
  if (file == nullptr) throw std::runtime_error(error);
  std::vector<std::vector<uint8_t>> frames;
  pcap_pkthdr* header = nullptr;
  const u_char* bytes = nullptr;
  while (pcap_next_ex(file, &header, &bytes) == 1) frames.emplace_back(bytes, bytes + header->len);
  pcap_close(file);
  return frames;
}

// Where the dataplane has its tables too.
class HugePages : public std::pmr::memory_resource {
  static constexpr size_t kPage = size_t{2} << 20;
  static size_t whole_pages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

  void* do_allocate(size_t bytes, size_t) override {
    void* const memory = mmap(nullptr, whole_pages(bytes), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("too few free hugepages for the tables");
    return memory;
  }
  void do_deallocate(void* memory, size_t bytes, size_t) override {
    munmap(memory, whole_pages(bytes));
  }
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
    return this == &other;
  }
};

// Buffers as a device would fill them, in turn.
struct Buffers {
  static constexpr uint32_t kBursts = 4;
  alignas(64) uint8_t rooms[kBursts * kMaxBurst][kRoom];
  uint32_t next = 0;

  void receive(std::span<const std::vector<uint8_t>> frames, Burst& burst) {
    burst.count = kMaxBurst;
    for (uint32_t i = 0; i < kMaxBurst; ++i) {
      burst.frame[i] = rooms[next++ % std::size(rooms)] + kHeadroom;
      burst.length[i] = static_cast<uint32_t>(frames[i].size());
      burst.verdict[i] = Verdict::kForwarded;
      std::ranges::copy(frames[i], burst.frame[i]);
    }
  }
};

// Calls f(burst) for each whole burst of the file; returns how many packets they held.
template <typename F>
uint64_t for_each_burst(std::span<const std::vector<uint8_t>> frames, F f) {
  static Buffers buffers;
  static Burst burst;
  uint64_t packets = 0;
  for (; frames.size() >= kMaxBurst; frames = frames.subspan(kMaxBurst)) {
    buffers.receive(frames, burst);
    f(burst);
    packets += kMaxBurst;
  }
  return packets;
}

struct Alone {
  Alone(std::vector<std::vector<uint8_t>> of_file, const Snapshot& forward_by,
        WorkerCounters& count, HugePages& memory)
      : frames(std::move(of_file)), snapshot(&forward_by), counters(count) {
    const size_t bytes = FlowTable::bytes_for(std::bit_ceil(2 * frames.size()));
    flow_table.emplace(
        std::span(static_cast<std::byte*>(memory.allocate(bytes, 128)), bytes));  // zeros
    shared_flows.tables.push_back(&*flow_table);
    shared_flows.boot_offset_ns = boot_time_ns();
    state.flows = {&*flow_table, &shared_flows, &counters.tracking};
  }

  std::vector<std::vector<uint8_t>> frames;
  const Snapshot* snapshot;
  WorkerCounters& counters;
  std::optional<FlowTable> flow_table;
  SharedFlows shared_flows;
  // The bench's packets are plain: they make no frames of the worker's own.
  PathState state{0,       1,
                  0,       [](void*, uint32_t) { return OutFrame{}; },
                  nullptr, std::pmr::new_delete_resource()};

  void run_whole(Burst& burst) {
    forward_burst(burst, snapshot, state);
    count_burst(burst, counters, state);
  }
};

uint64_t count_instructions(Alone& alone) {
  uint64_t packets = for_each_burst(alone.frames, [&](Burst& burst) { alone.run_whole(burst); });
  const uint64_t collected = for_each_burst(alone.frames, [&](Burst& burst) {
    CALLGRIND_TOGGLE_COLLECT;
    alone.run_whole(burst);
    CALLGRIND_TOGGLE_COLLECT;
  });
  fmt::print("{}\n", collected);
  return packets + collected;
}

constexpr std::array kStages = {"begin", "classify", "choose", "track", "encapsulate", "count"};
constexpr size_t kPasses = 21;

uint64_t count_ticks(Alone& alone) {
  uint64_t packets = 0;
  std::array<std::array<double, kPasses>, kStages.size()> ticks{};
  for (size_t pass = 0; pass < kPasses; ++pass) {
    std::array<uint64_t, kStages.size()> sum{};
    const uint64_t in_pass = for_each_burst(alone.frames, [&](Burst& burst) {
      std::array<uint64_t, kStages.size() + 1> at{};
      at[0] = __rdtsc();
      pipeline::begin(burst);
      at[1] = __rdtsc();
      pipeline::classify(burst, *alone.snapshot, alone.state);
      at[2] = __rdtsc();
      pipeline::choose(burst);
      at[3] = __rdtsc();
      if (burst.tracked_count > 0) track_flows(burst, *alone.snapshot, alone.state.flows);
      at[4] = __rdtsc();
      pipeline::encapsulate(burst);
      at[5] = __rdtsc();
      count_burst(burst, alone.counters, alone.state);
      at[6] = __rdtsc();
      for (size_t stage = 0; stage < kStages.size(); ++stage)
        sum[stage] += at[stage + 1] - at[stage];
    });
    packets += in_pass;
    for (size_t stage = 0; stage < kStages.size(); ++stage) {
      ticks[stage][pass] = static_cast<double>(sum[stage]) / static_cast<double>(in_pass);
    }
  }
  for (size_t stage = 0; stage < kStages.size(); ++stage) {
    std::ranges::nth_element(ticks[stage], ticks[stage].begin() + kPasses / 2);
    fmt::print("{}\"{}\": {:.1f}", stage == 0 ? "{" : ", ", kStages[stage],
               ticks[stage][kPasses / 2]);
  }
  fmt::print("}}\n");
  return packets;
}

void run(const std::string& what, const char* directory, const char* pcap) {
  Counting counting;
  HugePages huge_pages;
  std::pmr::monotonic_buffer_resource tables(&huge_pages);
  const std::vector<PortFacts> ports(2, PortFacts{{2, 0, 0, 0, 0, 1}, 1500});
  std::vector<PoolNumberRecord> number_records(kMaxTrackedPools);
  PoolNumbers numbers(number_records);
  const auto boot = read_boot_id();
  if (!boot) throw std::runtime_error(boot.error());
  Adopter adopter(directory, *boot, ports, counting.vip_places, counting.backend_places, numbers,
                  &tables);
  const auto snapshot = adopter.poll();
  if (snapshot == nullptr) throw std::runtime_error(adopter.last_refusal());
  Alone alone(read_frames(pcap), *snapshot, counting.counters, huge_pages);
  const uint64_t packets = what == "ticks" ? count_ticks(alone) : count_instructions(alone);
  const auto& forwarded = counting.counters.verdicts[static_cast<size_t>(Verdict::kForwarded)];
  if (packets == 0 || forwarded.get() != packets) {
    throw std::runtime_error(fmt::format("{} of {} packets forwarded", forwarded.get(), packets));
  }
}

}  // namespace
}  // namespace maglev

int main(int argc, char** argv) {
  const std::string what = argc == 4 ? argv[1] : "";
  if (what != "instructions" && what != "ticks") {
    std::fputs("usage: pipeline_alone instructions|ticks DIRECTORY PCAP\n", stderr);
    return 2;
  }
  try {
    maglev::run(what, argv[2], argv[3]);
    return 0;
  } catch (const std::exception& e) {
    fmt::print(stderr, "pipeline_alone: {}\n", e.what());
    return 1;
  }
}
