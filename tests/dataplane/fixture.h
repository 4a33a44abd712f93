// A small published tree and packets for it, for the tests of this folder.
#pragma once

#include <arpa/inet.h>

#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dataplane/heap_flow_table.h"
#include "dataplane/pipeline.h"
#include "dataplane/snapshot.h"
#include "tables/published.h"

namespace maglev::testing {

using Bytes = std::vector<uint8_t>;
using Image = std::vector<std::byte>;

// Of either family.
Address address(const std::string& text);
AddressFamily family_of(const std::string& text);
uint32_t address_be(const std::string& text);

BackendRecord resolved_backend(const std::string& address_text, uint8_t mac_last,
                               uint16_t port = 0);
RootVip make_vip(std::string name, const std::string& address_text, uint16_t port,
                 VipProtocol protocol = VipProtocol::kTcp, uint32_t pool = 0);

// One published tree as images: a pool of backends b0, b1, .. from 198.18.2.10 on, and VIPs.
struct Tree {
  Image table;
  Image pool;
  Image history;  // of kBoot; empty where every slot is settled
  Image root;
};
inline constexpr BootId kBoot{1};
Tree make_tree(uint64_t generation, uint32_t backends, uint64_t table_size,
               const std::vector<RootVip>& vips, uint64_t hash_seed = 42, uint16_t out_port = 0,
               const std::vector<SlotHistory>& past = {});

// Checks the three images and builds the snapshot, from the heap.
class TestBed {
 public:
  TestBed();
  std::shared_ptr<const Snapshot> adopt(const Tree& tree);

  WorkerCounters counters;
  CounterRegistry vip_counters;
  CounterRegistry backend_counters;
  std::vector<PortFacts> ports;

 private:
  std::vector<FlowCounters> vip_flows_;
  std::vector<FlowCounters> backend_flows_;
};

struct PacketSpec {
  std::string source = "198.18.0.2";
  std::string destination = "198.51.100.10";
  uint16_t source_port = 40000;
  uint16_t destination_port = 80;
  uint8_t protocol = kProtocolTcp;
  uint32_t payload_bytes = 10;
};
// An Ethernet frame with right lengths and IPv4 header checksum.
Bytes make_frame(const PacketSpec& spec);

// Runs frames through forward_burst and count_burst, with headroom in front of each.
class BurstRunner {
 public:
  explicit BurstRunner(WorkerCounters& counters)
      : counters_(counters),
        state_(0, 1, 1000, &BurstRunner::allocate, this, std::pmr::new_delete_resource()) {
    shared_flows.tables.push_back(&flows.table());
    state_.flows = {&flows.table(), &shared_flows, &counters_.tracking};
  }
  void run(std::span<const Bytes> frames, const Snapshot* snapshot);
  Verdict verdict(uint32_t i) const { return burst_.verdict[i]; }
  Bytes output(uint32_t i) const {
    return Bytes(burst_.frame[i], burst_.frame[i] + burst_.length[i]);
  }
  const Burst& burst() const { return burst_; }
  void advance(uint64_t ns) { burst_.now_ns += ns; }

  HeapFlowTable flows{1024};
  SharedFlows shared_flows;

 private:
 private:
  static OutFrame allocate(void* self, uint32_t room);

  WorkerCounters& counters_;
  std::vector<Bytes> storage_;
  std::vector<std::unique_ptr<Bytes>> own_storage_;
  PathState state_;
  Burst burst_{};
};

}  // namespace maglev::testing
