// Sends a flow file at a set rate out of port 0 and takes back on port 1 what comes of it; prints
// one line of JSON with percentiles of how long that took.
//
//   latency_generator EAL_OPTIONS -- PCAP PACKETS_PER_SECOND SECONDS
//
// The time of a packet runs from when it was *meant* to be sent, start + number / rate, so that a
// stall anywhere is felt by all packets that it holds up. A packet is known by its number, which
// stands in the last four bytes of its frame: encapsulation only adds in front. "send_delay" is the
// generator's own part, from when it was meant to be sent to when the port was asked to.
//
// The main thread polls both ports itself: waiting for a worker, it would spin. The first second is
// not recorded. Stops when everything is back, or a second after the last packet was sent.
#include <pcap/pcap.h>
#include <rte_cycles.h>
#include <rte_eal.h>
#include <rte_ethdev.h>

#include <boost/histogram.hpp>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

namespace {

namespace bh = boost::histogram;
using Json = nlohmann::ordered_json;
using Frame = std::vector<uint8_t>;

constexpr uint16_t kBurst = 64;
constexpr uint16_t kDescriptors = 1024;
constexpr unsigned kBuffers = 16383;
constexpr unsigned kCachePerCore = 256;
constexpr auto kConnectTimeout = std::chrono::seconds(20);

void check(int result, const char* what) {
  if (result < 0)
    throw std::runtime_error(fmt::format("cannot {}: {}", what, rte_strerror(-result)));
}

// Times in TSC ticks; bins are 0.2 % wide, from ten to 1e11 ticks.
class Times {
 public:
  void add(uint64_t ticks) {
    histogram_(static_cast<double>(ticks));
    largest_ = std::max(largest_, ticks);
    ++count_;
  }
  uint64_t count() const { return count_; }

  Json percentiles_us() const {
    Json json = Json::object();
    for (const double percent : {50.0, 90.0, 99.0, 99.9, 99.99}) {
      json[fmt::format("{}", percent)] = to_us(quantile(percent / 100));
    }
    json["max"] = to_us(static_cast<double>(largest_));
    return json;
  }

 private:
  static double to_us(double ticks) {
    return std::round(ticks * 1e9 / static_cast<double>(rte_get_tsc_hz())) / 1e3;
  }
  // The upper edge of the bin that holds it.
  double quantile(double share) const {
    const double wanted = share * static_cast<double>(count_);
    double seen = 0;
    for (auto&& bin : bh::indexed(histogram_, bh::coverage::all)) {
      seen += *bin;
      if (seen >= wanted) return std::min(bin.bin().upper(), static_cast<double>(largest_));
    }
    return static_cast<double>(largest_);
  }

  using Axis = bh::axis::regular<double, bh::axis::transform::log>;
  decltype(bh::make_histogram_with(std::vector<double>(), Axis(1, 1, 2))) histogram_ =
      bh::make_histogram_with(std::vector<double>(), Axis(11513, 10, 1e11));
  uint64_t largest_ = 0;
  uint64_t count_ = 0;
};

std::vector<Frame> read_frames(const std::string& path) {
  char error[PCAP_ERRBUF_SIZE] = "";
  pcap_t* const file = pcap_open_offline(path.c_str(), error);
  if (file == nullptr) throw std::runtime_error(error);
  std::vector<Frame> frames;
  pcap_pkthdr* header = nullptr;
  const u_char* bytes = nullptr;
  while (pcap_next_ex(file, &header, &bytes) == 1) frames.emplace_back(bytes, bytes + header->len);
  pcap_close(file);
  if (frames.empty()) throw std::runtime_error(path + " holds no packet");
  return frames;
}

class Generator {
 public:
  Generator(std::vector<Frame> frames, double packets_per_s, double seconds, rte_mempool* buffers)
      : frames_(std::move(frames)),
        buffers_(buffers),
        interval_ticks_(static_cast<double>(rte_get_tsc_hz()) / packets_per_s),
        first_recorded_(static_cast<uint32_t>(packets_per_s)),
        count_(static_cast<uint32_t>(packets_per_s * (1 + seconds))) {}

  void run() {
    start_ = rte_rdtsc();
    while (sent_ < count_) {
      send_what_is_due();
      take_back();
    }
    for (const uint64_t end = rte_rdtsc() + rte_get_tsc_hz();
         received_ < sent_ && rte_rdtsc() < end;) {
      take_back();
    }
  }

  Json result() const {
    return {{"sent", sent_},
            {"lost", sent_ - received_},
            {"recorded", latency_.count()},
            {"latency_us", latency_.percentiles_us()},
            {"send_delay_us", send_delay_.percentiles_us()}};
  }

 private:
  uint64_t meant_at(uint32_t number) const {
    return start_ + static_cast<uint64_t>(number * interval_ticks_);
  }

  void send_what_is_due() {
    const uint64_t now = rte_rdtsc();
    rte_mbuf* burst[kBurst];
    uint16_t due = 0;
    while (due < kBurst && sent_ + due < count_ && meant_at(sent_ + due) <= now) ++due;
    if (due == 0 || rte_pktmbuf_alloc_bulk(buffers_, burst, due) != 0) return;
    for (uint16_t i = 0; i < due; ++i) fill(burst[i], sent_ + i);
    const uint16_t taken = rte_eth_tx_burst(0, 0, burst, due);
    if (taken < due) rte_pktmbuf_free_bulk(burst + taken, due - taken);  // tried again, late
    for (uint16_t i = 0; i < taken; ++i, ++sent_) {
      if (sent_ >= first_recorded_) send_delay_.add(now - meant_at(sent_));
    }
  }

  void fill(rte_mbuf* buffer, uint32_t number) const {
    const Frame& frame = frames_[number % frames_.size()];
    const auto length = static_cast<uint16_t>(frame.size());
    auto* const bytes = rte_pktmbuf_mtod(buffer, uint8_t*);
    std::memcpy(bytes, frame.data(), length - sizeof number);
    std::memcpy(bytes + length - sizeof number, &number, sizeof number);
    buffer->data_len = length;
    buffer->pkt_len = length;
  }

  void take_back() {
    rte_mbuf* burst[kBurst];
    const uint16_t count = rte_eth_rx_burst(1, 0, burst, kBurst);
    if (count == 0) return;
    const uint64_t now = rte_rdtsc();
    for (uint16_t i = 0; i < count; ++i) {
      uint32_t number;
      const auto* const bytes = rte_pktmbuf_mtod(burst[i], const uint8_t*);
      std::memcpy(&number, bytes + burst[i]->data_len - sizeof number, sizeof number);
      if (number >= first_recorded_) latency_.add(now - meant_at(number));
    }
    received_ += count;
    rte_pktmbuf_free_bulk(burst, count);
  }

  std::vector<Frame> frames_;
  rte_mempool* buffers_;
  double interval_ticks_;
  uint32_t first_recorded_;
  uint32_t count_;
  uint64_t start_ = 0;
  uint32_t sent_ = 0;
  uint32_t received_ = 0;
  Times latency_;
  Times send_delay_;
};

void start_port(uint16_t port, rte_mempool* buffers) {
  const rte_eth_conf conf{};
  check(rte_eth_dev_configure(port, 1, 1, &conf), "configure a port");
  check(rte_eth_rx_queue_setup(port, 0, kDescriptors, 0, nullptr, buffers), "set up an RX queue");
  check(rte_eth_tx_queue_setup(port, 0, kDescriptors, 0, nullptr), "set up a TX queue");
  check(rte_eth_dev_start(port), "start a port");
}

void wait_until_connected() {
  const auto deadline = std::chrono::steady_clock::now() + kConnectTimeout;
  for (const uint16_t port : {uint16_t{0}, uint16_t{1}}) {
    rte_eth_link link{};
    while (rte_eth_link_get_nowait(port, &link) == 0 && link.link_status == 0) {
      if (std::chrono::steady_clock::now() > deadline) {
        throw std::runtime_error(fmt::format("nobody connected to port {}", port));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(500));  // until its workers poll
}

int run(int argc, char** argv) {
  const int used = rte_eal_init(argc, argv);
  check(used, "start DPDK");
  if (argc - used != 4 || rte_eth_dev_count_avail() != 2) {
    throw std::runtime_error(
        "usage: latency_generator EAL_OPTIONS -- PCAP PACKETS_PER_SECOND SECONDS, with two "
        "devices");
  }
  rte_mempool* const buffers =
      rte_pktmbuf_pool_create("packets", kBuffers, kCachePerCore, 0, RTE_MBUF_DEFAULT_BUF_SIZE, 0);
  check(buffers == nullptr ? -rte_errno : 0, "make packet buffers");
  for (const uint16_t port : {uint16_t{0}, uint16_t{1}}) start_port(port, buffers);
  std::puts("ready");
  std::fflush(stdout);
  wait_until_connected();
  Generator generator(read_frames(argv[used + 1]), std::stod(argv[used + 2]),
                      std::stod(argv[used + 3]), buffers);
  generator.run();
  std::puts(generator.result().dump().c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& e) {
    fmt::print(stderr, "latency_generator: {}\n", e.what());
    return 1;
  }
}
