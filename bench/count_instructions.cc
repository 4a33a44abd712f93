// Runs the pipeline over a flow file, for callgrind to count its instructions: the same count in
// every run, whatever else the machine does.
//
//   count_instructions DIRECTORY PCAP    DIRECTORY holds a published tree
//
// Collects only inside forward_burst() and count_burst(), from the second time through the file on;
// prints the number of packets collected. Fails when one of them is not forwarded.
#include <pcap/pcap.h>
#include <valgrind/callgrind.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <vector>

#include <fmt/format.h>

#include "dataplane/adoption.h"
#include "dataplane/pipeline.h"

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

// Returns how many packets went through.
uint64_t run_through(std::span<const std::vector<uint8_t>> frames, const Snapshot* snapshot,
                     WorkerCounters& counters, bool collect) {
  alignas(64) static uint8_t rooms[kMaxBurst][kRoom];
  static Burst burst;
  // The bench's packets are plain: they make no frames of the worker's own.
  static PathState state(
      0, 1, 0, [](void*, uint32_t) { return OutFrame{}; }, nullptr,
      std::pmr::new_delete_resource());
  uint64_t packets = 0;
  for (; frames.size() >= kMaxBurst; frames = frames.subspan(kMaxBurst)) {
    burst.count = kMaxBurst;
    for (uint32_t i = 0; i < kMaxBurst; ++i) {
      burst.frame[i] = rooms[i] + kHeadroom;
      burst.length[i] = static_cast<uint32_t>(frames[i].size());
      burst.verdict[i] = Verdict::kForwarded;
      std::ranges::copy(frames[i], burst.frame[i]);
    }
    if (collect) CALLGRIND_TOGGLE_COLLECT;
    forward_burst(burst, snapshot, state);
    count_burst(burst, counters, state);
    if (collect) CALLGRIND_TOGGLE_COLLECT;
    packets += kMaxBurst;
  }
  return packets;
}

int run(const char* directory, const char* pcap) {
  Counting counting;
  const std::vector<PortFacts> ports(2, PortFacts{{2, 0, 0, 0, 0, 1}, 1500});
  Adopter adopter(directory, ports, counting.vip_places, counting.backend_places,
                  std::pmr::new_delete_resource());
  const auto snapshot = adopter.poll();
  if (snapshot == nullptr) throw std::runtime_error(adopter.last_refusal());
  const auto frames = read_frames(pcap);
  uint64_t packets = run_through(frames, snapshot.get(), counting.counters, false);
  const uint64_t collected = run_through(frames, snapshot.get(), counting.counters, true);
  packets += collected;
  const auto& forwarded = counting.counters.verdicts[static_cast<size_t>(Verdict::kForwarded)];
  if (collected == 0 || forwarded.get() != packets) {
    throw std::runtime_error(fmt::format("{} of {} packets forwarded", forwarded.get(), packets));
  }
  fmt::print("{}\n", collected);
  return 0;
}

}  // namespace
}  // namespace maglev

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fputs("usage: count_instructions DIRECTORY PCAP\n", stderr);
    return 2;
  }
  try {
    return maglev::run(argv[1], argv[2]);
  } catch (const std::exception& e) {
    fmt::print(stderr, "count_instructions: {}\n", e.what());
    return 1;
  }
}
