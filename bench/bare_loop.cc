// What a rig costs without a load balancer: one thread that receives bursts on port 0 and sends
// them on port 1, and looks at no packet.
//
//   bare_loop EAL_OPTIONS -- BUFFERS BUFFER_BYTES
//
// Set up as maglev-dataplane sets up its ports: the same mempool, cache, descriptors and burst. The
// first line is the TSC's frequency in Hz; then come lines of nanoseconds and packets sent since
// the start, until SIGINT or SIGTERM.
#include <rte_cycles.h>
#include <rte_eal.h>
#include <rte_ethdev.h>
#include <rte_launch.h>
#include <rte_lcore.h>
#include <signal.h>
#include <time.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

constexpr uint16_t kBurst = 64;
constexpr uint16_t kDescriptors = 1024;
constexpr unsigned kCachePerCore = 256;
constexpr timespec kInterval{0, 100'000'000};

struct alignas(64) Loop {
  std::atomic<uint64_t> sent{0};
  std::atomic<bool> stop{false};
};

void check(int result, const char* what) {
  if (result >= 0) return;
  std::fprintf(stderr, "bare_loop: cannot %s: %s\n", what, rte_strerror(-result));
  std::exit(1);
}

void start_port(uint16_t port, rte_mempool* buffers) {
  const rte_eth_conf conf{};
  const auto receives = static_cast<uint16_t>(port == 0 ? 1 : 0);
  check(rte_eth_dev_configure(port, receives, 1, &conf), "configure a port");
  if (receives != 0) {
    check(rte_eth_rx_queue_setup(port, 0, kDescriptors, 0, nullptr, buffers), "set up an RX queue");
  }
  check(rte_eth_tx_queue_setup(port, 0, kDescriptors, 0, nullptr), "set up a TX queue");
  check(rte_eth_dev_start(port), "start a port");
}

int forward(void* argument) {
  Loop& loop = *static_cast<Loop*>(argument);
  rte_mbuf* buffers[kBurst];
  uint64_t total = 0;
  while (!loop.stop.load(std::memory_order_relaxed)) {
    const uint16_t received = rte_eth_rx_burst(0, 0, buffers, kBurst);
    if (received == 0) continue;
    const uint16_t sent = rte_eth_tx_burst(1, 0, buffers, received);
    if (sent < received) rte_pktmbuf_free_bulk(buffers + sent, received - sent);
    total += sent;
    loop.sent.store(total, std::memory_order_relaxed);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const int used = rte_eal_init(argc, argv);
  check(used, "start DPDK");
  if (argc - used != 3 || rte_eth_dev_count_avail() != 2 || rte_lcore_count() != 2) {
    std::fprintf(
        stderr,
        "usage: bare_loop EAL_OPTIONS -- BUFFERS BUFFER_BYTES, with two devices and two cores\n");
    return 2;
  }
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  const auto count = static_cast<unsigned>(std::stoul(argv[used + 1]));
  const auto room = static_cast<uint16_t>(RTE_PKTMBUF_HEADROOM + std::stoul(argv[used + 2]));
  rte_mempool* const buffers = rte_pktmbuf_pool_create("packets", count, kCachePerCore, 0, room, 0);
  check(buffers == nullptr ? -rte_errno : 0, "make packet buffers");
  for (const uint16_t port : {uint16_t{0}, uint16_t{1}}) start_port(port, buffers);

  Loop loop;
  check(rte_eal_remote_launch(forward, &loop, rte_get_next_lcore(-1u, 1, 0)), "start the loop");
  std::printf("%lu\n", rte_get_tsc_hz());
  while (sigtimedwait(&signals, nullptr, &kInterval) < 0) {
    timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    std::printf("%ld %lu\n", now.tv_sec * 1'000'000'000 + now.tv_nsec,
                loop.sent.load(std::memory_order_relaxed));
    std::fflush(stdout);
  }
  loop.stop = true;
  rte_eal_mp_wait_lcore();
  return 0;
}
