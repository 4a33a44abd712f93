#include "dataplane/port.h"

#include <net/if.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <fstream>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "tables/counted.h"

namespace maglev {
namespace {

constexpr std::string_view kAfXdp = "net_af_xdp";
// The AF_XDP driver keeps a fill ring of its own beside the descriptors asked for.
constexpr uint32_t kAfXdpRingBuffers = 4096;

std::unexpected<std::string> failure(const PortSettings& settings, std::string_view what,
                                     int error) {
  return std::unexpected(fmt::format("port {} ({}): {}: {}", settings.name, settings.device, what,
                                     std::strerror(error < 0 ? -error : error)));
}

std::string device_name(const std::string& device) {
  return device.substr(0, device.find(','));
}

bool has_argument(const std::string& device, std::string_view key) {
  return device.find(fmt::format(",{}=", key)) != std::string::npos;
}

// Flows are spread over the tuple where the device can; what it cannot hash is left out.
void ask_for_rss(rte_eth_conf& conf, const rte_eth_dev_info& info, const PortSettings& settings,
                 uint32_t queues) {
  if (queues < 2) return;
  const uint64_t wanted = RTE_ETH_RSS_IP | RTE_ETH_RSS_TCP | RTE_ETH_RSS_UDP;
  const uint64_t able = wanted & info.flow_type_rss_offloads;
  if (able == 0) {
    spdlog::warn(
        "port {}: the device reports no receive-side scaling; how it spreads flows over "
        "its {} queues is its own affair",
        settings.name, queues);
    return;
  }
  conf.rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
  conf.rx_adv_conf.rss_conf.rss_hf = able;
}

}  // namespace

bool is_pci_address(const std::string& device) {
  const auto hex = [](char c) { return std::isxdigit(static_cast<unsigned char>(c)) != 0; };
  const std::string name = device_name(device);
  const std::string_view shape = name.size() == 12 ? "hhhh:hh:hh.h" : "hh:hh.h";
  return name.size() == shape.size() &&
         std::equal(name.begin(), name.end(), shape.begin(),
                    [&](char c, char s) { return s == 'h' ? hex(c) : c == s; });
}

bool is_af_xdp(const PortSettings& port) {
  return port.device.starts_with(kAfXdp);
}

std::string device_interface(const PortSettings& port) {
  constexpr std::string_view kKey = ",iface=";
  const size_t at = port.device.find(kKey);
  // Other devices make the interface they name, or mean a socket by it.
  constexpr std::string_view kOfInterfaces[] = {kAfXdp, "net_af_packet", "net_pcap"};
  const bool has_one = std::ranges::any_of(
      kOfInterfaces, [&](std::string_view driver) { return port.device.starts_with(driver); });
  if (!has_one || at == std::string::npos) return {};
  const size_t begin = at + kKey.size();
  return port.device.substr(begin, port.device.find(',', begin) - begin);
}

std::string device_arguments(const PortSettings& port, const std::string& steering_program) {
  std::string arguments = port.device;
  if (!is_af_xdp(port)) return arguments;
  if (!has_argument(arguments, "queue_count")) {
    arguments += fmt::format(",queue_count={}", port.queues);
  }
  if (!has_argument(arguments, "xdp_prog")) {
    arguments += fmt::format(",xdp_prog={}", steering_program);
  }
  return arguments;
}

std::expected<void, std::string> check_device(const PortSettings& port,
                                              const std::string& steering_program) {
  const std::string interface = device_interface(port);
  const bool needs_one = is_af_xdp(port) || !interface.empty();
  if (needs_one && if_nametoindex(interface.c_str()) == 0) {
    return std::unexpected(
        fmt::format("port {} ({}): there is no interface '{}'", port.name, port.device, interface));
  }
  if (is_af_xdp(port) && access(steering_program.c_str(), R_OK) != 0) {
    return std::unexpected(
        fmt::format("port {}: cannot read the steering program {}: {}: install it (meson install), "
                    "or name it in dataplane.steering_program",
                    port.name, steering_program, std::strerror(errno)));
  }
  return {};
}

std::expected<Port, std::string> Port::find(const PortSettings& settings) {
  uint16_t device = 0;
  const std::string name = device_name(settings.device);
  if (rte_eth_dev_get_port_by_name(name.c_str(), &device) != 0) {
    return std::unexpected(fmt::format(
        "port {}: DPDK has no device '{}': check the address or name, and for a PCI device that it "
        "is bound to a DPDK driver (dpdk-devbind.py --status); DPDK's messages above may say more",
        settings.name, name));
  }
  return Port(settings, device);
}

std::expected<void, std::string> Port::configure(uint32_t workers, rte_mempool* buffers) {
  rte_eth_dev_info info{};
  if (int error = rte_eth_dev_info_get(device_, &info); error != 0) {
    return failure(settings_, "cannot read the device's abilities", error);
  }
  receive_queues_ = std::min<uint32_t>(settings_.queues, info.max_rx_queues);
  transmit_queues_ = std::min<uint32_t>(workers, info.max_tx_queues);
  if (receive_queues_ < settings_.queues) {
    spdlog::warn("port {}: {} asked for, the device has {}", settings_.name,
                 counted(settings_.queues, "RX queue"), receive_queues_);
  }
  if (transmit_queues_ < workers) {
    spdlog::info("port {}: {} workers take turns on {}", settings_.name, workers,
                 counted(transmit_queues_, "TX queue"));
    locks_.resize(transmit_queues_);
    for (rte_spinlock_t& lock : locks_) rte_spinlock_init(&lock);
  }

  rte_eth_conf conf{};
  ask_for_rss(conf, info, settings_, receive_queues_);
  if (int error = rte_eth_dev_configure(device_, static_cast<uint16_t>(receive_queues_),
                                        static_cast<uint16_t>(transmit_queues_), &conf);
      error != 0) {
    return failure(settings_, "cannot configure its queues", error);
  }
  auto rx_descriptors = static_cast<uint16_t>(settings_.rx_descriptors);
  auto tx_descriptors = static_cast<uint16_t>(settings_.tx_descriptors);
  if (int error = rte_eth_dev_adjust_nb_rx_tx_desc(device_, &rx_descriptors, &tx_descriptors);
      error != 0) {
    return failure(settings_, "cannot set the number of descriptors", error);
  }
  const auto socket = static_cast<unsigned>(rte_eth_dev_socket_id(device_));
  for (uint32_t q = 0; q < receive_queues_; ++q) {
    if (int error = rte_eth_rx_queue_setup(device_, static_cast<uint16_t>(q), rx_descriptors,
                                           socket, nullptr, buffers);
        error != 0) {
      return failure(settings_, fmt::format("cannot set up RX queue {}", q), error);
    }
  }
  for (uint32_t q = 0; q < transmit_queues_; ++q) {
    if (int error = rte_eth_tx_queue_setup(device_, static_cast<uint16_t>(q), tx_descriptors,
                                           socket, nullptr);
        error != 0) {
      return failure(settings_, fmt::format("cannot set up TX queue {}", q), error);
    }
  }
  return {};
}

std::expected<void, std::string> Port::start() {
  if (int error = rte_eth_dev_start(device_); error != 0) {
    return failure(settings_, "cannot start", error);
  }
  const PortFacts now = facts();
  spdlog::info("port {}: {} with {} and {}, MTU {}", settings_.name, settings_.device,
               counted(receive_queues_, "RX queue"), counted(transmit_queues_, "TX queue"),
               now.mtu);
  return {};
}

void Port::stop() {
  rte_eth_dev_stop(device_);
}

TransmitQueue Port::transmit_queue(uint32_t worker) {
  const uint32_t queue = worker % transmit_queues_;
  const bool of_kernel = is_af_xdp(settings_) || settings_.device.starts_with("net_af_packet") ||
                         settings_.device.starts_with("net_tap");
  return {device_, static_cast<uint16_t>(queue), locks_.empty() ? nullptr : &locks_[queue],
          of_kernel};
}

PortFacts Port::facts() const {
  PortFacts facts;
  rte_ether_addr mac{};
  uint16_t mtu = 0;
  if (rte_eth_macaddr_get(device_, &mac) == 0) {
    std::copy_n(mac.addr_bytes, facts.mac.size(), facts.mac.begin());
  }
  if (rte_eth_dev_get_mtu(device_, &mtu) == 0) facts.mtu = mtu;
  if (is_af_xdp(settings_)) {
    std::ifstream(fmt::format("/sys/class/net/{}/mtu", device_interface(settings_))) >> facts.mtu;
  }
  return facts;
}

PortReport Port::report() const {
  PortReport report;
  report.name = settings_.name;
  rte_eth_link link{};
  if (rte_eth_link_get_nowait(device_, &link) == 0) report.link_up = link.link_status != 0;
  rte_eth_stats stats{};
  if (rte_eth_stats_get(device_, &stats) == 0) {
    report.receive_missed = stats.imissed;
    report.receive_errors = stats.ierrors;
    report.no_buffer = stats.rx_nombuf;
  }
  return report;
}

uint32_t default_packet_buffers(const DataplaneSettings& settings) {
  uint32_t count = 0;
  for (const PortSettings& port : settings.ports) {
    const uint32_t rings = is_af_xdp(port) ? kAfXdpRingBuffers : 0;
    count += port.queues * (port.rx_descriptors + rings);
    count += settings.total_queues() * port.tx_descriptors;
  }
  return count + settings.total_queues() * 1024;
}

}  // namespace maglev
