#include "control/metrics.h"

#include <prometheus/text_serializer.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

namespace maglev {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

// Families in the order in which they are first told; each member belongs to the last one begun.
class Families {
 public:
  Families& begin(MetricType type, std::string name, std::string help) {
    families_.push_back({std::move(name), std::move(help), type, {}});
    return *this;
  }
  Families& gauge(std::string name, std::string help) {
    return begin(MetricType::Gauge, std::move(name), std::move(help));
  }
  Families& counter(std::string name, std::string help) {
    return begin(MetricType::Counter, std::move(name), std::move(help));
  }
  void add(Labels labels, double value) {
    ClientMetric metric;
    metric.label = std::move(labels);
    metric.counter.value = value;
    metric.gauge.value = value;
    families_.back().metric.push_back(std::move(metric));
  }
  void add(Labels labels, uint64_t value) { add(std::move(labels), static_cast<double>(value)); }
  void add(double value) { add({}, value); }

  std::string text() const { return prometheus::TextSerializer().Serialize(families_); }

 private:
  std::vector<MetricFamily> families_;
};

void add_state(Families& families, const Controller& controller, const DataplaneStatus& dataplane) {
  families.gauge("maglev_build_info", "The version that runs.")
      .add({{"version", MAGLEV_VERSION}}, 1.0);
  families.gauge("maglev_generation", "Last generation published.")
      .add({}, controller.generation());
  families.gauge("maglev_adopted_generation", "Generation that all workers use at least.")
      .add({}, dataplane.adopted_generation());
  families.gauge("maglev_dataplane_running", "Whether a dataplane process lives.")
      .add(dataplane.running ? 1 : 0);
}

void add_pools(Families& families, const Controller& controller) {
  const auto& pools = controller.model().pools();
  families.gauge("maglev_pool_table_info", "Name of the pool's table: equal on hosts that agree.");
  for (const auto& [name, pool] : pools) {
    if (const PlannedPool* plan = controller.planned(name)) {
      families.add({{"pool", name}, {"table", plan->table.hex()}}, 1.0);
    }
  }
  families.gauge("maglev_pool_backends_in_table", "Backends that own slots.");
  for (const auto& [name, pool] : pools) {
    const PlannedPool* plan = controller.planned(name);
    families.add({{"pool", name}}, plan != nullptr ? plan->membership.members.size() : uint64_t{0});
  }
  families.gauge("maglev_pool_fail_open",
                 "Whether all ready backends are used because too few are healthy.");
  for (const auto& [name, pool] : pools) {
    const PlannedPool* plan = controller.planned(name);
    families.add({{"pool", name}}, plan != nullptr && plan->membership.fail_open ? 1.0 : 0.0);
  }
}

void add_histories(Families& families, const Controller& controller) {
  const Connections& connections = controller.connections();
  families.gauge("maglev_pool_unsettled_slots",
                 "Slots that changed hands and may have flows of before.");
  for (const auto& [name, pool] : controller.model().pools()) {
    const PoolHistory* history = connections.history(name);
    families.add({{"pool", name}}, history != nullptr ? history->entries().size() : uint64_t{0});
  }
  families.gauge("maglev_pool_leaving_backends",
                 "Backends removed of which flows may be remembered.");
  for (const auto& [name, pool] : controller.model().pools()) {
    const Numbering* numbering = connections.numbering(name);
    families.add({{"pool", name}}, numbering != nullptr ? numbering->leaving() : uint64_t{0});
  }
}

// f(labels, pool's name, pool, backend's name, backend) for each backend of each pool.
template <typename F>
void for_each_backend(const Controller& controller, F f) {
  for (const auto& [pool_name, pool] : controller.model().pools()) {
    for (const auto& [name, backend] : pool.backends) {
      f(Labels{{"pool", pool_name}, {"backend", name}}, pool_name, pool, name, backend);
    }
  }
}

void add_backends(Families& families, const Controller& controller) {
  families.gauge("maglev_backend_up", "What checks say; none of a backend not checked yet.");
  for_each_backend(controller, [&](Labels labels, const std::string& pool_name, const Pool& pool,
                                   const std::string& name, const Backend&) {
    if (pool.settings.health.type == HealthType::kNone) return;
    const HealthVerdict verdict = controller.health_of(pool_name, name).verdict;
    if (verdict == HealthVerdict::kUnknown) return;
    families.add(std::move(labels), verdict == HealthVerdict::kUp ? 1.0 : 0.0);
  });
  families.gauge("maglev_backend_state", "What the operator wants of the backend.");
  for_each_backend(controller, [&](Labels labels, const std::string&, const Pool&,
                                   const std::string&, const Backend& backend) {
    labels.push_back({"state", std::string(to_text(backend.state))});
    families.add(std::move(labels), 1.0);
  });
  families.gauge("maglev_backend_weight", "The weight that the operator gave.");
  for_each_backend(controller, [&](Labels labels, const std::string&, const Pool&,
                                   const std::string&, const Backend& backend) {
    families.add(std::move(labels), uint64_t{backend.weight});
  });
  families.gauge("maglev_backend_slots", "Slots that the backend owns.");
  for_each_backend(controller, [&](Labels labels, const std::string& pool_name, const Pool&,
                                   const std::string& name, const Backend&) {
    const PlannedPool* plan = controller.planned(pool_name);
    families.add(std::move(labels), uint64_t{plan != nullptr ? plan->slots_of(name) : 0});
  });
  families.gauge("maglev_backend_next_hop_resolved", "Whether the way to the backend is known.");
  for_each_backend(controller, [&](Labels labels, const std::string&, const Pool&,
                                   const std::string&, const Backend& backend) {
    families.add(std::move(labels),
                 controller.way_out_of(backend.address).next_hop.resolved ? 1.0 : 0.0);
  });
}

// Packets and bytes of what is named, forwarded and dropped.
void add_traffic(Families& families, const std::string& thing,
                 const std::vector<NamedCount>& counts) {
  for (const auto& [unit, member] :
       {std::pair("packets", &PacketCount::packets), std::pair("bytes", &PacketCount::bytes)}) {
    families.counter("maglev_" + thing + "_" + unit + "_total",
                     "Received for the " + thing + ", by whether it went on to a backend.");
    for (const NamedCount& count : counts) {
      for (const auto& [result, traffic] :
           {std::pair("forwarded", &count.forwarded), std::pair("dropped", &count.dropped)}) {
        Labels labels;
        if (!count.pool.empty()) labels.push_back({"pool", count.pool});
        labels.push_back({thing, count.name});
        labels.push_back({"result", result});
        families.add(std::move(labels), traffic->*member);
      }
    }
  }
}

void add_workers(Families& families, const DataplaneStatus& dataplane) {
  const Report& report = *dataplane.report;
  const auto of_each = [&](auto value) {
    for (size_t i = 0; i < report.workers.size(); ++i) {
      const WorkerReport& worker = report.workers[i];
      families.add({{"worker", std::to_string(i)},
                    {"port", report.ports[worker.port].name},
                    {"queue", std::to_string(worker.queue)}},
                   value(i, worker));
    }
  };
  using Worker = const WorkerReport&;
  families.counter("maglev_received_packets_total", "Received from the worker's queue.");
  of_each([](size_t, Worker worker) { return worker.received.packets; });
  families.counter("maglev_received_bytes_total", "Received from the worker's queue.");
  of_each([](size_t, Worker worker) { return worker.received.bytes; });
  families.counter("maglev_worker_polls_total", "Looks at the worker's queue.");
  of_each([](size_t, Worker worker) { return worker.polls; });
  families.counter("maglev_worker_empty_polls_total", "Looks that found nothing.");
  of_each([](size_t, Worker worker) { return worker.empty_polls; });
  families.gauge("maglev_worker_flow_room", "Flows that the worker can remember.");
  of_each([](size_t, Worker worker) { return worker.flow_room; });
  families.gauge("maglev_worker_flows", "Flows that have a place there, live or expired.");
  of_each([](size_t, Worker worker) { return worker.flows; });
  families.gauge("maglev_worker_generation", "Generation that the worker uses.");
  of_each([](size_t, Worker worker) { return worker.generation; });
  families.gauge("maglev_worker_progress", "Whether the worker polls still.");
  of_each([&](size_t i, Worker) { return dataplane.makes_progress(i) ? 1.0 : 0.0; });
}

void add_ports(Families& families, const std::vector<PortReport>& ports) {
  const auto of_each = [&](auto value) {
    for (const PortReport& port : ports) families.add({{"port", port.name}}, value(port));
  };
  families.gauge("maglev_port_link_up", "Whether the port has a link.");
  of_each([](const PortReport& port) { return port.link_up ? 1.0 : 0.0; });
  families.counter("maglev_port_missed_packets_total",
                   "Lost by the device for want of room in its ring.");
  of_each([](const PortReport& port) { return port.receive_missed; });
  families.counter("maglev_port_error_packets_total", "Received damaged.");
  of_each([](const PortReport& port) { return port.receive_errors; });
  families.counter("maglev_port_unbuffered_packets_total", "Lost for want of packet buffers.");
  of_each([](const PortReport& port) { return port.no_buffer; });
  families.counter("maglev_port_steering_dropped_packets_total",
                   "For a VIP while no worker was there.");
  of_each([](const PortReport& port) { return port.steering_dropped; });
}

// Of the last look at all flows.
void add_flows(Families& families, const Controller& controller, const SweepReport& sweep) {
  if (sweep.began_ns == 0) return;
  const uint64_t now_ns = controller.boot_time_ns();
  families.gauge("maglev_sweep_age_seconds", "Since the last whole look at the flows remembered.")
      .add(static_cast<double>(now_ns - std::min(now_ns, sweep.ended_ns)) / 1e9);
  families.gauge("maglev_backend_flows_remembered", "Flows that workers remember of the backend.");
  for (const PoolFlows& pool : sweep.pools) {
    const auto known = controller.model().pools().find(pool.pool);
    const Numbering* numbering = controller.connections().numbering(pool.pool);
    if (known == controller.model().pools().end() || numbering == nullptr) continue;
    std::map<std::pair<uint32_t, uint32_t>, uint64_t> flows;
    for (const BackendFlows& backend : pool.backends) {
      flows[{backend.backend, backend.incarnation}] = backend.flows;
    }
    for (uint32_t index = 0; index < numbering->places().size(); ++index) {
      const Numbering::Place& place = numbering->places()[index];
      if (!place.lives()) continue;
      families.add({{"pool", pool.pool}, {"backend", place.name}},
                   flows[{index, place.incarnation}]);
    }
  }
}

void add_report(Families& families, const Controller& controller,
                const DataplaneStatus& dataplane) {
  const Report& report = *dataplane.report;
  families.gauge("maglev_report_age_seconds", "Since the dataplane last told about itself.")
      .add(static_cast<double>(dataplane.report_age_ms()) / 1000);
  families.counter("maglev_refused_roots_total", "Publications that the dataplane did not take.")
      .add({}, report.refused_roots);
  families.counter("maglev_packets_total", "Every packet received, by what became of it.");
  for (size_t v = 0; v < report.verdicts.size(); ++v) {
    uint64_t packets = 0;
    for (size_t w = 0; w < report.workers.size(); ++w) {
      packets += report.verdict_counts[w * report.verdicts.size() + v];
    }
    families.add({{"verdict", report.verdicts[v]}}, packets);
  }
  families.counter("maglev_events_total", "What workers count beside packets received.");
  for (const EventCount& event : report.events) {
    families.add({{"event", event.name}}, event.count);
  }
  add_workers(families, dataplane);
  add_flows(families, controller, report.sweep);
  add_ports(families, report.ports);
  add_traffic(families, "vip", report.vips);
  add_traffic(families, "backend", report.backends);
}

}  // namespace

std::string metrics_text(const Controller& controller, const DataplaneStatus& dataplane) {
  Families families;
  add_state(families, controller, dataplane);
  add_pools(families, controller);
  add_histories(families, controller);
  add_backends(families, controller);
  if (dataplane.report) add_report(families, controller, dataplane);
  return families.text();
}

}  // namespace maglev
