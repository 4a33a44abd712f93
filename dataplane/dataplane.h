// The dataplane process once EAL runs: its ports, its workers, and the main thread's loop, which
// adopts what control publishes, frees what workers have left, and reports. Main thread only.
#pragma once

#include <signal.h>

#include <atomic>
#include <deque>
#include <expected>
#include <memory>
#include <string>
#include <vector>

#include "dataplane/adoption.h"
#include "dataplane/bpf/steering.h"
#include "dataplane/counter_registry.h"
#include "dataplane/flow_store.h"
#include "dataplane/hugepage_memory.h"
#include "dataplane/port.h"
#include "dataplane/publication.h"
#include "dataplane/reporter.h"
#include "dataplane/sweep_reports.h"
#include "dataplane/worker.h"
#include "tables/settings.h"

namespace maglev {

// Those that Dataplane::run() reads: SIGTERM, SIGINT, SIGHUP.
sigset_t main_loop_signals();

class Dataplane {
 public:
  // Adopts what is published, opens the ports and puts the steering programs of AF_XDP ports in
  // place; nothing is received yet.
  static std::expected<std::unique_ptr<Dataplane>, std::string> create(
      const DataplaneSettings& settings, const std::string& steering_program);
  ~Dataplane();

  // Runs workers on their cores and the main loop here, until SIGTERM or SIGINT. The caller has
  // blocked main_loop_signals() before any thread was made. Steering programs stay in place.
  std::expected<void, std::string> run();

 private:
  struct SteeredPort {
    uint32_t port;  // index into ports_
    Steering steering;
  };

  Dataplane(const DataplaneSettings& settings, const BootId& boot,
            std::unique_ptr<FlowStore> flows);

  std::expected<void, std::string> find_ports();
  std::expected<void, std::string> prepare_steering(const std::string& steering_program);
  std::expected<void, std::string> start_ports();
  std::expected<void, std::string> make_workers();
  void clear_counters(FlowCounters* WorkerCounters::*counters, uint32_t index);

  void adopt();
  void publish(std::shared_ptr<const Snapshot> snapshot);
  bool all_workers_use_current() const;
  void finish_publication();          // once all workers use it
  uint64_t least_generation() const;  // that a worker uses
  void set_clocks();
  void look_after_flows(uint64_t now_ns);
  void check_ports();
  void write_report();
  void tick();

  DataplaneSettings settings_;
  HugepageMemory memory_;
  // Declared before whatever holds snapshots: these outlive them.
  std::deque<WorkerCounters> counters_;  // one per worker
  CounterRegistry vip_counters_;
  CounterRegistry backend_counters_;
  std::unique_ptr<FlowStore> flows_;
  Publication<Snapshot> snapshots_;
  Adopter adopter_;

  std::deque<Port> ports_;
  std::vector<PortFacts> port_facts_;
  std::vector<SteeredPort> steered_;
  rte_mempool* buffers_ = nullptr;  // EAL's, until the process ends
  std::deque<Worker> workers_;
  std::atomic<bool> stop_{false};

  SweepReports sweeps_;               // reads the tables in flows_
  std::vector<uint64_t> polls_seen_;  // by worker, when it was told not to look into the tables of
                                      // before; empty: there are none
  uint64_t started_ns_;
  bool publication_pending_ = false;  // published, not used by all workers yet
  bool told_stuck_ = false;
  uint64_t refusals_told_ = 0;
  std::string report_problem_;  // told; empty while reports can be written
  uint64_t next_report_ns_ = 0;
  uint64_t next_port_check_ns_ = 0;
};

}  // namespace maglev
