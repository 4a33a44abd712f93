// The part of the configuration file that both daemons read: the directory they share and the
// dataplane's ports. Control reads the rest of the file too; the dataplane does not look at it.
// Pure functions, any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tables/yaml_cursor.h"

namespace maglev {

struct PortSettings {
  std::string name;       // what other settings and messages call it
  std::string device;     // DPDK device: a PCI address, or a virtual device with its arguments
  std::string interface;  // kernel interface with the port's addresses and routes; may be empty
  uint32_t queues = 1;    // RX queues, each polled by a worker of its own; 0: it only sends
  uint32_t rx_descriptors = 1024;
  uint32_t tx_descriptors = 1024;
  bool operator==(const PortSettings&) const = default;
};

// One entry of `cores`: a worker's logical core id and the processor it runs on. "5" is both;
// "5@1" is logical core 5 on processor 1. Ids may have gaps.
struct CoreSettings {
  uint32_t lcore = 0;
  uint32_t processor = 0;
  bool operator==(const CoreSettings&) const = default;
};

struct DataplaneSettings {
  std::string directory = "/run/maglev";
  CoreSettings main_core;
  std::vector<CoreSettings> cores;          // at least one per RX queue, taken in order
  uint32_t memory_mib = 256;                // of hugepages, for packet buffers and tables
  bool hugepages = true;                    // false: ordinary memory, for trials only
  uint32_t packet_buffers = 0;              // 0: worked out from queues and descriptors
  uint32_t packet_buffer_bytes = 2048;      // longest frame that one buffer holds
  uint32_t icmp_answers_per_second = 1000;  // of each worker: errors, and likewise echo replies
  uint32_t flow_entries = 1u << 20;         // of each worker: flows that it can remember
  std::string flow_store;                   // path of their file; empty: worked out
  std::string steering_program;             // path of the XDP object; empty: the installed one
  std::vector<std::string> eal_options;     // further DPDK EAL options, as they are
  std::vector<PortSettings> ports;

  uint32_t total_queues() const;
};

// Reads `directory` and `dataplane` of the whole document. Mistakes go to the cursor.
DataplaneSettings read_dataplane_settings(const YamlCursor& document);

}  // namespace maglev
