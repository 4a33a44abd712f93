#include "dataplane/dataplane.h"

#include <poll.h>
#include <rte_launch.h>
#include <rte_lcore.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

#include <fmt/format.h>
#include <rte_mbuf.h>
#include <rte_ring.h>
#include <spdlog/spdlog.h>

#include "dataplane/environment.h"
#include "tables/boot_time.h"
#include "tables/counted.h"

namespace maglev {
namespace {

constexpr uint64_t kMillisecond = 1'000'000;
constexpr uint64_t kReportInterval_ns = 100 * kMillisecond;
constexpr uint64_t kPortCheckInterval_ns = 1000 * kMillisecond;
// How often the main thread looks whether workers have moved on; and how long it sleeps otherwise.
constexpr int kWaitingForWorkers_ms = 1;
constexpr int kIdle_ms = 50;

std::vector<SteeredVip> steered_vips(const Snapshot* snapshot) {
  std::vector<SteeredVip> vips;
  if (snapshot == nullptr) return vips;
  for (const VipRecord& vip : snapshot->vip_records()) {
    vips.push_back(
        {{vip.address, vip.family, vip.prefix_length}, vip.protocol, vip.port, vip.flags});
  }
  return vips;
}

// SIGHUP asks a daemon to read its configuration again; this one reads it at its start alone.
bool is_told_to_stop(const FileDescriptor& signals) {
  signalfd_siginfo signal{};
  if (read(signals.get(), &signal, sizeof signal) != sizeof signal) return false;
  if (signal.ssi_signo != SIGHUP) return true;
  spdlog::info("SIGHUP changes nothing: a changed configuration takes effect at the next start");
  return false;
}

constexpr uint32_t kHeaderBytes = 256;  // of a packet buffer

uint32_t packet_buffer_room(const DataplaneSettings& settings) {
  return RTE_PKTMBUF_HEADROOM + settings.packet_buffer_bytes;
}

uint32_t packet_buffer_count(const DataplaneSettings& settings) {
  return settings.packet_buffers != 0 ? settings.packet_buffers : default_packet_buffers(settings);
}

rte_mempool* make_packet_buffers(const DataplaneSettings& settings) {
  constexpr uint32_t kCachePerCore = 256;
  return rte_pktmbuf_pool_create(
      "packets", packet_buffer_count(settings), kCachePerCore, 0,
      static_cast<uint16_t>(packet_buffer_room(settings)),
      static_cast<int>(rte_lcore_to_socket_id(settings.cores.front().lcore)));
}

}  // namespace

Dataplane::Dataplane(const DataplaneSettings& settings, const BootId& boot,
                     std::unique_ptr<FlowStore> flows)
    : settings_(settings),
      memory_(static_cast<int>(rte_lcore_to_socket_id(settings.cores.front().lcore))),
      vip_counters_(kMaxCountedVips,
                    [this](uint32_t i) { clear_counters(&WorkerCounters::vips, i); }),
      backend_counters_(kMaxCountedBackends,
                        [this](uint32_t i) { clear_counters(&WorkerCounters::backends, i); }),
      flows_(std::move(flows)),
      snapshots_(settings.total_queues()),
      adopter_(settings.directory, boot, {}, vip_counters_, backend_counters_,
               flows_->pool_numbers(), &memory_),
      started_ns_(boot_time_ns()) {}

Dataplane::~Dataplane() {
  stop_ = true;
  rte_eal_mp_wait_lcore();
  for (Port& port : ports_) port.stop();
}

sigset_t main_loop_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, signal);
  return signals;
}

std::expected<std::unique_ptr<Dataplane>, std::string> Dataplane::create(
    const DataplaneSettings& settings, const std::string& steering_program) {
  const auto boot = read_boot_id();
  if (!boot) return std::unexpected(boot.error());
  auto flows =
      FlowStore::open(flow_store_path(settings), {settings.total_queues(), settings.flow_entries},
                      *boot, boot_time_ns());
  if (!flows) return std::unexpected(flows.error());
  std::unique_ptr<Dataplane> dataplane(new Dataplane(settings, *boot, *std::move(flows)));
  // The first snapshot comes before the ports start: the guard in front of the kernel must know the
  // VIPs before the stale steering program goes.
  if (auto ok = dataplane->find_ports(); !ok) return std::unexpected(ok.error());
  dataplane->adopt();
  if (auto ok = dataplane->prepare_steering(steering_program); !ok) {
    return std::unexpected(ok.error());
  }
  if (auto ok = dataplane->start_ports(); !ok) return std::unexpected(ok.error());
  if (auto ok = dataplane->make_workers(); !ok) return std::unexpected(ok.error());
  if (const std::string& why = dataplane->flows_->not_kept(); !why.empty()) {
    spdlog::warn("flows remembered before are not kept: {}", why);
  }
  spdlog::info("{} kept from before", counted(dataplane->flows_->kept(), "flow"));
  return dataplane;
}

std::expected<void, std::string> Dataplane::find_ports() {
  for (const PortSettings& settings : settings_.ports) {
    auto port = Port::find(settings);
    if (!port) return std::unexpected(port.error());
    ports_.push_back(std::move(*port));
    port_facts_.push_back(ports_.back().facts());
  }
  adopter_.set_ports(port_facts_);
  return {};
}

std::expected<void, std::string> Dataplane::prepare_steering(const std::string& steering_program) {
  const std::vector<SteeredVip> vips = steered_vips(snapshots_.owner().get());
  for (uint32_t p = 0; p < ports_.size(); ++p) {
    if (!is_af_xdp(ports_[p].settings())) continue;
    auto steering =
        Steering::prepare(device_interface(ports_[p].settings()), steering_program, vips);
    if (!steering) return std::unexpected(steering.error());
    steered_.push_back({p, std::move(*steering)});
  }
  return {};
}

std::expected<void, std::string> Dataplane::start_ports() {
  buffers_ = make_packet_buffers(settings_);
  if (buffers_ == nullptr) {
    return std::unexpected(fmt::format(
        "{} packet buffers ({} MiB) do not fit dataplane.memory_mib {}: raise it, or lower the "
        "ports' descriptors or dataplane.packet_buffers",
        packet_buffer_count(settings_),
        uint64_t{packet_buffer_count(settings_)} * (packet_buffer_room(settings_) + kHeaderBytes) >>
            20,
        settings_.memory_mib));
  }
  for (Port& port : ports_) {
    if (auto ok = port.configure(settings_.total_queues(), buffers_); !ok) return ok;
    if (auto ok = port.start(); !ok) return ok;
  }
  for (SteeredPort& steered : steered_) {
    if (auto ok = steered.steering.bind(); !ok) return ok;
  }
  return {};
}

// Through which workers hand fragments to each other.
std::expected<std::vector<rte_ring*>, std::string> make_inboxes(const DataplaneSettings& settings) {
  std::vector<rte_ring*> inboxes;
  const uint32_t workers = settings.total_queues();
  if (workers == 1) return inboxes;
  constexpr uint32_t kPlaces = 512;
  for (uint32_t i = 0; i < workers; ++i) {
    inboxes.push_back(rte_ring_create(
        fmt::format("fragments_{}", i).c_str(), kPlaces,
        static_cast<int>(rte_lcore_to_socket_id(settings.cores[i].lcore)), RING_F_SC_DEQ));
    if (inboxes.back() == nullptr) {
      return std::unexpected("the workers' inboxes do not fit dataplane.memory_mib: raise it");
    }
  }
  return inboxes;
}

std::expected<void, std::string> Dataplane::make_workers() {
  auto inboxes = make_inboxes(settings_);
  if (!inboxes) return std::unexpected(inboxes.error());
  const WorkerSurroundings surroundings{snapshots_,      stop_,
                                        buffers_,        *std::move(inboxes),
                                        &memory_,        settings_.icmp_answers_per_second,
                                        flows_->shared()};
  uint32_t number = 0;
  for (uint32_t p = 0; p < ports_.size(); ++p) {
    for (uint32_t q = 0; q < ports_[p].receive_queues(); ++q, ++number) {
      WorkerCounters& counters = counters_.emplace_back();
      std::pmr::polymorphic_allocator<FlowCounters> allocator(&memory_);
      counters.vips = allocator.allocate(kMaxCountedVips);
      counters.backends = allocator.allocate(kMaxCountedBackends);
      std::uninitialized_value_construct_n(counters.vips, kMaxCountedVips);
      std::uninitialized_value_construct_n(counters.backends, kMaxCountedBackends);

      std::vector<TransmitQueue> ways_out;
      for (Port& port : ports_) ways_out.push_back(port.transmit_queue(number));
      const WorkerPlace place{number, settings_.cores[number].lcore, p, ports_[p].device(),
                              static_cast<uint16_t>(q)};
      workers_.emplace_back(place, std::move(ways_out), counters, surroundings);
    }
  }
  return {};
}

void Dataplane::clear_counters(FlowCounters* WorkerCounters::*counters, uint32_t index) {
  for (WorkerCounters& worker : counters_) {
    (worker.*counters)[index].clear();
  }
}

// Workers tell from the clocks' difference which flows have expired.
void Dataplane::set_clocks() {
  flows_->shared().boot_offset_ns.store(boot_time_ns() - Worker::burst_time_ns(),
                                        std::memory_order_relaxed);
}

std::expected<void, std::string> Dataplane::run() {
  set_clocks();
  for (Worker& worker : workers_) {
    const auto entry = [](void* self) {
      static_cast<Worker*>(self)->run();
      return 0;
    };
    if (int error = rte_eal_remote_launch(entry, &worker, worker.place().lcore); error != 0) {
      return std::unexpected(fmt::format("cannot start a worker on core {}: {}",
                                         worker.place().lcore, std::strerror(-error)));
    }
  }
  const sigset_t mask = main_loop_signals();
  const FileDescriptor signals(signalfd(-1, &mask, SFD_CLOEXEC));
  const FileDescriptor changes(inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  if (signals.get() < 0 || changes.get() < 0 ||
      inotify_add_watch(changes.get(), settings_.directory.c_str(), IN_MOVED_TO) < 0) {
    return std::unexpected(
        fmt::format("cannot watch {}: {}", settings_.directory, std::strerror(errno)));
  }
  spdlog::info("ready: {}", counted(workers_.size(), "worker"));
  pollfd events[] = {{signals.get(), POLLIN, 0}, {changes.get(), POLLIN, 0}};
  while (true) {
    const bool waiting = publication_pending_ || snapshots_.retired_count() > 0;
    poll(events, std::size(events), waiting ? kWaitingForWorkers_ms : kIdle_ms);
    if ((events[0].revents & POLLIN) != 0 && is_told_to_stop(signals)) break;
    alignas(inotify_event) char names[4096];
    while (read(changes.get(), names, sizeof names) > 0) {
    }
    tick();
  }
  spdlog::info(
      "stopping; steering programs stay in place and drop VIP traffic until the next "
      "start (maglev-dataplane --detach removes them)");
  return {};
}

// Whatever woke the main thread: what is new is adopted, what is due is done.
void Dataplane::tick() {
  snapshots_.reclaim();
  adopt();
  if (publication_pending_ && all_workers_use_current()) finish_publication();
  const uint64_t now_ns = boot_time_ns();
  look_after_flows(now_ns);
  if (now_ns >= next_port_check_ns_) {
    check_ports();
    next_port_check_ns_ = now_ns + kPortCheckInterval_ns;
  }
  if (now_ns >= next_report_ns_) write_report();
}

void Dataplane::adopt() {
  if (!snapshots_.may_publish()) {
    if (!told_stuck_) spdlog::error("a worker is stuck: further generations wait for it");
    told_stuck_ = true;
    return;
  }
  told_stuck_ = false;
  if (auto snapshot = adopter_.poll(); snapshot != nullptr) publish(std::move(snapshot));
  if (adopter_.refused_roots() != refusals_told_) {
    refusals_told_ = adopter_.refused_roots();
    spdlog::error("refused: {}", adopter_.last_refusal());
    next_report_ns_ = 0;
  }
}

void Dataplane::publish(std::shared_ptr<const Snapshot> snapshot) {
  flows_->use_seed(snapshot->hash_seed(), snapshots_.owner() != nullptr);
  uint64_t longest_idle_ns = 0;
  for (const TrackedPool& pool : snapshot->tracked_pools()) {
    longest_idle_ns = std::max(longest_idle_ns, pool.idle.longest_ns());
  }
  flows_->set_longest_idle(longest_idle_ns);
  const std::vector<SteeredVip> vips = steered_vips(snapshot.get());
  for (SteeredPort& steered : steered_) {
    if (auto ok = steered.steering.add_vips(vips); !ok) spdlog::error("{}", ok.error());
  }
  snapshots_.publish(std::move(snapshot));
  publication_pending_ = true;
}

bool Dataplane::all_workers_use_current() const {
  const uint64_t current = snapshots_.owner()->generation();
  return std::ranges::all_of(counters_, [current](const WorkerCounters& worker) {
    return worker.generation.get() == current;
  });
}

void Dataplane::finish_publication() {
  publication_pending_ = false;
  const std::vector<SteeredVip> vips = steered_vips(snapshots_.owner().get());
  for (SteeredPort& steered : steered_) {
    if (auto ok = steered.steering.set_vips(vips); !ok) spdlog::error("{}", ok.error());
  }
  next_report_ns_ = 0;
}

uint64_t Dataplane::least_generation() const {
  uint64_t least = std::numeric_limits<uint64_t>::max();
  for (const WorkerCounters& worker : counters_) least = std::min(least, worker.generation.get());
  return least;
}

void Dataplane::look_after_flows(uint64_t now_ns) {
  set_clocks();
  if (sweeps_.poll(snapshots_.owner().get(), flows_->shared(), least_generation(), now_ns)) {
    next_report_ns_ = 0;
  }
  if (flows_->end_before(now_ns)) {
    for (const WorkerCounters& worker : counters_) polls_seen_.push_back(worker.polls.get());
  }
  if (polls_seen_.empty() || sweeps_.looking()) return;
  for (size_t i = 0; i < counters_.size(); ++i) {
    if (counters_[i].polls.get() < polls_seen_[i] + 2) return;
  }
  flows_->drop_before();
  polls_seen_.clear();
}

void Dataplane::check_ports() {
  for (SteeredPort& steered : steered_) {
    if (auto ok = steered.steering.follow_mac(); !ok) spdlog::error("{}", ok.error());
  }
  std::vector<PortFacts> now;
  for (const Port& port : ports_) now.push_back(port.facts());
  if (now == port_facts_) return;
  spdlog::info("a port's MAC address or MTU has changed");
  port_facts_ = now;
  adopter_.set_ports(std::move(now));
}

void Dataplane::write_report() {
  Report report;
  report.started_ns = started_ns_;
  report.written_ns = boot_time_ns();
  const Snapshot* snapshot = snapshots_.owner().get();
  report.adopted_generation = snapshot == nullptr ? 0 : snapshot->generation();
  report.refused_roots = adopter_.refused_roots();
  report.last_refusal = adopter_.last_refusal();
  std::vector<WorkerState> states;
  for (const Worker& worker : workers_) {
    states.push_back({worker.place().lcore, worker.place().port, worker.place().queue,
                      &worker.counters(), flows_->shared().tables[worker.place().number]});
  }
  report_counters(states, snapshot, report);
  report.sweep = sweeps_.last();
  for (const Port& port : ports_) report.ports.push_back(port.report());
  for (const SteeredPort& steered : steered_) {
    const auto counters = steered.steering.counters();
    if (!counters) continue;
    report.ports[steered.port].steering_dropped = counters->dropped + counters->guarded;
  }
  const auto written = maglev::write_report(settings_.directory, report);
  const std::string problem = written ? "" : written.error();
  if (!problem.empty() && problem != report_problem_) spdlog::error("{}", problem);
  report_problem_ = problem;
  next_report_ns_ = report.written_ns + kReportInterval_ns;
}

}  // namespace maglev
