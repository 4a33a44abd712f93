// DPDK Ethernet devices: how EAL is told about them, and how each is configured. Main thread only,
// except TransmitQueue, which workers use.
#pragma once

#include <rte_ethdev.h>
#include <rte_mempool.h>
#include <rte_spinlock.h>

#include <cstdint>
#include <deque>
#include <expected>
#include <string>
#include <vector>

#include "dataplane/snapshot.h"
#include "tables/report.h"
#include "tables/settings.h"

namespace maglev {

// The EAL options that make a device appear: `-a` for a PCI address, else `--vdev`. For
// net_af_xdp the number of queues and the steering program are added to its arguments.
bool is_pci_address(const std::string& device);
bool is_af_xdp(const PortSettings& port);
// The kernel interface that a device sends and receives on: the iface= argument of AF_XDP,
// AF_PACKET and libpcap; empty where there is none.
std::string device_interface(const PortSettings& port);
std::string device_arguments(const PortSettings& port, const std::string& steering_program);
// What a device needs is there: its interface and, for AF_XDP, the steering program. DPDK itself
// only says afterwards that there is no such device.
std::expected<void, std::string> check_device(const PortSettings& port,
                                              const std::string& steering_program);

// A transmit queue of a device. Where the device has fewer queues than there are workers, several
// share one and take turns by a lock held for one burst; otherwise nothing is locked.
struct TransmitQueue {
  uint16_t device = 0;
  uint16_t queue = 0;
  rte_spinlock_t* lock = nullptr;  // null: this worker's own
  // The device may receive packets whose checksums their sender left to hardware: it shares memory
  // with a kernel that does so, where no wire is between them.
  bool partial_checksums = false;
};

class Port {
 public:
  // Finds the device that EAL made or bound. Order of calls: find, configure, start.
  static std::expected<Port, std::string> find(const PortSettings& settings);
  // `settings.queues` RX queues (fewer where the device has fewer) and up to `workers` TX queues.
  // An AF_XDP device attaches its steering program here.
  std::expected<void, std::string> configure(uint32_t workers, rte_mempool* buffers);
  std::expected<void, std::string> start();
  void stop();

  const PortSettings& settings() const { return settings_; }
  uint16_t device() const { return device_; }
  uint32_t receive_queues() const { return receive_queues_; }
  TransmitQueue transmit_queue(uint32_t worker);
  // MAC address and MTU now. Of an AF_XDP port the MTU is the kernel interface's.
  PortFacts facts() const;
  PortReport report() const;  // without the steering program's counters

 private:
  Port(PortSettings settings, uint16_t device) : settings_(std::move(settings)), device_(device) {}

  PortSettings settings_;
  uint16_t device_;
  uint32_t receive_queues_ = 0;
  uint32_t transmit_queues_ = 0;
  std::deque<rte_spinlock_t> locks_;  // one per TX queue, where they are shared
};

// Packet buffers that ports of these settings need, if the configuration names no number.
uint32_t default_packet_buffers(const DataplaneSettings& settings);

}  // namespace maglev
