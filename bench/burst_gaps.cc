// Preloaded into any DPDK program (LD_PRELOAD): measures the time from one receive of its polling
// thread to the next, without a line in the program.
//
//   MAGLEV_BURST_GAPS=FILE MAGLEV_BURST_GAPS_SECONDS=WARM_UP,MEASURED
//
// The RX callback is added when the program starts port 0, and runs in the thread that polls it:
// one RX queue. When the program has ended the file holds one JSON object: the TSC's frequency,
// ticks and packets of the measured time, the longest gap, and the number of gaps by their length,
// [least ticks, count]. A bucket is at most an eighth of its least value wide.
#include <dlfcn.h>
#include <rte_cycles.h>
#include <rte_ethdev.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <cstdlib>

namespace {

constexpr uint32_t kBitsKept = 3;  // of a gap, below its highest one
constexpr uint32_t kSteps = 1u << kBitsKept;

class Gaps {
 public:
  Gaps() {
    const char* const seconds = std::getenv("MAGLEV_BURST_GAPS_SECONDS");
    if (seconds == nullptr || std::sscanf(seconds, "%lf,%lf", &warm_up_s_, &measured_s_) != 2) {
      std::fprintf(stderr, "burst_gaps: MAGLEV_BURST_GAPS_SECONDS must be WARM_UP,MEASURED\n");
      std::exit(1);
    }
  }

  void receive(uint64_t now, uint16_t packets) {
    if (last_ == 0) {
      const auto hz = static_cast<double>(rte_get_tsc_hz());
      begin_ = now + static_cast<uint64_t>(warm_up_s_ * hz);
      end_ = begin_ + static_cast<uint64_t>(measured_s_ * hz);
    } else if (last_ >= begin_ && now < end_) {
      const uint64_t gap = now - last_;
      ++counts_[bucket_of(gap)];
      ticks_ += gap;
      packets_ += packets;
      longest_ = std::max(longest_, gap);
    }
    last_ = now;
  }

  void write(const char* path) const {
    FILE* const file = std::fopen(path, "w");
    if (file == nullptr) return std::perror("burst_gaps: cannot write MAGLEV_BURST_GAPS");
    std::fprintf(file,
                 "{\"hz\": %lu, \"ticks\": %lu, \"packets\": %lu, \"longest\": %lu, \"gaps\": [",
                 rte_get_tsc_hz(), ticks_, packets_, longest_);
    const char* separator = "";
    for (uint32_t bucket = 0; bucket < counts_.size(); ++bucket) {
      if (counts_[bucket] == 0) continue;
      std::fprintf(file, "%s[%lu, %lu]", separator, least_of(bucket), counts_[bucket]);
      separator = ", ";
    }
    std::fprintf(file, "]}\n");
    std::fclose(file);
  }

 private:
  static uint32_t bucket_of(uint64_t gap) {
    if (gap < kSteps) return static_cast<uint32_t>(gap);
    const auto shift = static_cast<uint32_t>(std::bit_width(gap)) - kBitsKept - 1;
    return (shift << kBitsKept) + static_cast<uint32_t>(gap >> shift);
  }

  static uint64_t least_of(uint32_t bucket) {
    if (bucket < kSteps) return bucket;
    const uint32_t shift = (bucket >> kBitsKept) - 1;
    return uint64_t{kSteps + bucket % kSteps} << shift;
  }

  double warm_up_s_ = 0;
  double measured_s_ = 0;
  uint64_t begin_ = 0;
  uint64_t end_ = 0;
  uint64_t last_ = 0;  // 0: none yet
  uint64_t ticks_ = 0;
  uint64_t packets_ = 0;
  uint64_t longest_ = 0;
  std::array<uint64_t, 64 * kSteps> counts_{};
};

Gaps* gaps = nullptr;

uint16_t note(uint16_t, uint16_t, rte_mbuf**, uint16_t count, uint16_t, void*) {
  gaps->receive(rte_rdtsc(), count);
  return count;
}

[[gnu::destructor]] void write_gaps() {
  const char* const path = std::getenv("MAGLEV_BURST_GAPS");
  if (gaps != nullptr && path != nullptr) gaps->write(path);
}

}  // namespace

extern "C" int rte_eth_dev_start(uint16_t port) {
  using Start = int(uint16_t);
  const auto start = reinterpret_cast<Start*>(dlsym(RTLD_NEXT, "rte_eth_dev_start"));
  if (port == 0) {
    gaps = new Gaps;
    if (rte_eth_add_rx_callback(port, 0, note, nullptr) == nullptr) return -rte_errno;
  }
  return start(port);
}
