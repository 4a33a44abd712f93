#include "tests/model/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <queue>

#include "tables/flow_hash.h"
#include "tables/maglev.h"
#include "tests/model/clients.h"

namespace maglev::model {
namespace {

enum class EventKind : uint8_t {
  kStart,  // of a flow
  kSyn,
  kAnswer,
  kPacket,
  kChange,
  kUndo,
  kPlan,  // a host learns of changes
  kBeginSweep,
  kEndSweep,
  kEcmp,
  kQueues,
  kWorkerCount,
  kControlDies,
  kControlStarts,
  kDataplaneRestart,
  kFlood,
};

struct Event {
  uint64_t at_ns;
  uint64_t order;  // of events at one time
  EventKind kind;
  uint32_t subject;  // a flow, a host or a backend
  bool operator>(const Event& other) const {
    return at_ns != other.at_ns ? at_ns > other.at_ns : order > other.order;
  }
};

constexpr uint64_t kSweep_ns = 6'000'000'000;
constexpr uint64_t kSweepTakes_ns = 2'000'000'000;
constexpr uint32_t kHosts = 2;
// After a change: a host learns of it, and its last worker uses it.
constexpr double kLatestUse_s = 2 + 9;

// As the operator and checks would have it.
struct Backend {
  bool in_pool = true;
  bool drained = false;
  bool failed = false;
  uint32_t weight = 10;
};

class World {
 public:
  explicit World(const Scenario& scenario)
      : scenario_(scenario),
        habits_{scenario.host.idle, scenario.lossy, scenario.long_pauses, scenario.udp},
        random_(mix(scenario.seed)),
        backends_(scenario.backends),
        slot_changed_ns_(scenario.host.slots) {}

  Result run();

 private:
  void at(uint64_t time_ns, EventKind kind, uint32_t subject = 0) {
    events_.push({time_ns, ++order_, kind, subject});
  }
  void after(double seconds, EventKind kind, uint32_t subject = 0) {
    at(now_ns_ + to_ns(seconds), kind, subject);
  }
  void begin();
  void handle(const Event& event);
  void handle_dataplane(const Event& event);
  void handle_control(const Event& event);

  // Backends:
  Membership membership() const;
  uint32_t usable() const;
  void change_something();
  void undo(uint32_t number);
  void tell_hosts();

  // Flows:
  void start_flow();
  void open(uint32_t number);
  void send_syn(uint32_t number);
  void accept_answer(uint32_t number);
  void send_packet(uint32_t number);
  std::array<Chosen, kModeCount> deliver(Flow& flow, PacketKind kind);
  void judge(Flow& flow, const std::array<Chosen, kModeCount>& chosen);
  Cause cause_of(const Flow& flow, const FlowFate& fate, const Chosen& chosen) const;
  void end_flow(uint32_t number);
  void tally(const Flow& flow);
  uint32_t host_of(const FlowIdentity& flow) const;
  uint32_t worker_of(const FlowIdentity& flow, uint32_t host) const;
  void flood();
  void look();

  const Scenario& scenario_;
  ClientHabits habits_;
  Random random_;
  uint64_t now_ns_ = to_ns(1000);
  uint64_t order_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::vector<Backend> backends_;
  std::vector<uint32_t> owners_;
  std::vector<uint64_t> slot_changed_ns_;
  std::vector<Host> hosts_;
  std::array<bool, kHosts> control_dead_{};
  uint64_t ecmp_epoch_ = 0;
  uint64_t queue_epoch_ = 0;
  std::vector<Flow> flows_{Flow({}, 0)};  // the first is none
  uint64_t live_flows_ = 0;
  Result result_;
};

// --- backends ---

Membership World::membership() const {
  Membership members;
  std::vector<WeightedName> names;
  std::vector<uint32_t> by_name;
  members.serves.resize(backends_.size());
  for (uint32_t i = 0; i < backends_.size(); ++i) {
    const Backend& backend = backends_[i];
    if (!backend.in_pool) continue;
    members.pool.push_back(i);
    members.serves[i] = !backend.failed;
    if (backend.failed || backend.drained) continue;
    names.push_back({fmt::format("backend-{:06}", i), backend.weight});  // sorted by number
    by_name.push_back(i);
  }
  const MaglevTable table = *build_maglev(names, scenario_.host.slots);
  for (const uint32_t owner : table.slots) members.owners.push_back(by_name[owner]);
  return members;
}

uint32_t World::usable() const {
  return static_cast<uint32_t>(std::ranges::count_if(
      backends_, [](const Backend& b) { return b.in_pool && !b.failed && !b.drained; }));
}

void World::change_something() {
  const auto number = static_cast<uint32_t>(random_.below(backends_.size()));
  Backend& backend = backends_[number];
  const bool may_lose = usable() > 3;
  if (!backend.in_pool) return;
  ++result_.changes;
  if (backend.failed || backend.drained) {
    backend.failed = backend.drained = false;
  } else if (random_.chance(scenario_.removals)) {
    backend.in_pool = false;
    backends_.emplace_back();
  } else if (may_lose && random_.chance(scenario_.failures)) {
    backend.failed = true;
  } else if (may_lose && random_.chance(0.7)) {
    backend.drained = true;
  } else {
    backend.weight = static_cast<uint32_t>(1 + random_.below(20));
  }
  if (scenario_.flap_back) {
    after(random_.uniform(0.5, 2.0 * scenario_.host.idle.tcp_s), EventKind::kUndo, number);
  }
  tell_hosts();
}

void World::undo(uint32_t number) {
  Backend& backend = backends_[number];
  backend.failed = backend.drained = false;
  backend.weight = 10;
  tell_hosts();
}

// Each host finds out by itself, and so at a time of its own.
void World::tell_hosts() {
  const std::vector<uint32_t> owners = membership().owners;
  for (uint32_t slot = 0; slot < owners.size(); ++slot) {
    if (!owners_.empty() && owners[slot] != owners_[slot]) slot_changed_ns_[slot] = now_ns_;
  }
  owners_ = owners;
  after(0, EventKind::kPlan, 0);
  after(random_.uniform(0, 2), EventKind::kPlan, 1);
}

// --- flows ---

uint32_t World::host_of(const FlowIdentity& flow) const {
  return scenario_.ecmp ? static_cast<uint32_t>(mix(flow.second ^ ecmp_epoch_) % kHosts) : 0;
}

uint32_t World::worker_of(const FlowIdentity& flow, uint32_t host) const {
  return static_cast<uint32_t>(mix(flow.second + queue_epoch_) % hosts_[host].workers());
}

void World::start_flow() {
  flows_.emplace_back(FlowIdentity{random_.next(), random_.next()}, random_.next());
  open(static_cast<uint32_t>(flows_.size() - 1));
  after(random_.exponential(1 / scenario_.flows_per_s), EventKind::kStart);
}

void World::open(uint32_t number) {
  Flow& flow = flows_[number];
  flow.started_ns = now_ns_;
  flow.slot = slot_of(flow.identity.hash, scenario_.host.slots);
  flow.host = host_of(flow.identity);
  flow.queue_epoch = queue_epoch_;
  const bool answered = plan_flow(flow, habits_);
  ++result_.flows;
  ++live_flows_;
  flow.syns = answered ? flow.syns : 4;
  for (uint32_t i = 0; i < flow.syns; ++i) after(kSynTimes_s[i], EventKind::kSyn, number);
  if (answered) {
    at(flow.answered_ns, EventKind::kAnswer, number);
  } else {
    --live_flows_;
  }
  flow.syns = 0;
}

std::array<Chosen, kModeCount> World::deliver(Flow& flow, PacketKind kind) {
  const uint32_t host = host_of(flow.identity);
  flow.moved_host |= host != flow.host;
  flow.moved_worker |= flow.queue_epoch != queue_epoch_;
  flow.host = host;
  flow.queue_epoch = queue_epoch_;
  flow.last_packet_ns = now_ns_;
  ++result_.packets;
  std::array<Chosen, kModeCount> chosen;
  for (uint32_t mode = 0; mode < kModeCount; ++mode) {
    chosen[mode] = hosts_[host].choose(static_cast<Mode>(mode), {flow.identity, kind, flow.opening},
                                       worker_of(flow.identity, host), now_ns_);
  }
  return chosen;
}

void World::send_syn(uint32_t number) {
  Flow& flow = flows_[number];
  const auto chosen =
      deliver(flow, flow.habit == Habit::kUdp ? PacketKind::kUdp : PacketKind::kOpening);
  for (uint32_t mode = 0; mode < kModeCount; ++mode) {
    flow.fates[mode].syns[flow.syns] = chosen[mode];
  }
  ++flow.syns;
}

void World::accept_answer(uint32_t number) {
  Flow& flow = flows_[number];
  for (FlowFate& fate : flow.fates) {
    fate.backend = fate.syns[flow.answered_syn].backend;
    fate.index = fate.syns[flow.answered_syn].index;
    fate.fate = fate.backend == kNobody ? Fate::kExcused : Fate::kAlive;
  }
  send_packet(number);
}

Cause World::cause_of(const Flow& flow, const FlowFate& fate, const Chosen& chosen) const {
  if (chosen.neither && chosen.index == fate.index && !flow.moved_host) return Cause::kReplaced;
  if (flow.moved_host) {
    return slot_changed_ns_[flow.slot] >= flow.started_ns ? Cause::kEcmpOld : Cause::kEcmpYoung;
  }
  if (flow.paused_too_long) return Cause::kIdleTooLong;
  if (scenario_.flood != Flood::kNone || scenario_.host.entries_per_worker < 1000) {
    return Cause::kCrowded;
  }
  const bool workers_differ =
      scenario_.host.late_adoption && now_ns_ < slot_changed_ns_[flow.slot] + to_ns(kLatestUse_s);
  if (workers_differ && (flow.syns > 1 || flow.moved_worker)) return Cause::kLateWorkers;
  if (flow.syns > 1) return Cause::kHandshake;
  if (flow.moved_worker) return Cause::kQueues;
  if (flow.reused) return Cause::kPortReuse;
  return Cause::kSlotChanged;
}

void World::judge(Flow& flow, const std::array<Chosen, kModeCount>& chosen) {
  for (uint32_t mode = 0; mode < kModeCount; ++mode) {
    FlowFate& fate = flow.fates[mode];
    ModeResult& result = result_.modes[mode];
    if (fate.fate == Fate::kExcused || chosen[mode].backend == fate.backend) continue;
    const Cause cause = cause_of(flow, fate, chosen[mode]);
    if (fate.fate == Fate::kAlive) {
      const bool down = std::ranges::any_of(
          hosts_, [&](const Host& host) { return host.was_down(fate.backend, flow.started_ns); });
      fate.fate = down && cause != Cause::kReplaced ? Fate::kExcused : Fate::kViolated;
      fate.cause = static_cast<uint8_t>(cause);
      result.excused += fate.fate == Fate::kExcused;
    }
    if (fate.fate == Fate::kViolated) ++result.packets[fate.cause];
  }
}

void World::send_packet(uint32_t number) {
  Flow& flow = flows_[number];
  const bool udp = flow.habit == Habit::kUdp;
  PacketKind kind = udp ? PacketKind::kUdp : PacketKind::kData;
  if (flow.packets_left <= 2 && !udp && !flow.closing && flow.random.chance(0.8)) {
    kind = flow.random.chance(0.2) ? PacketKind::kReset : PacketKind::kFin;
    flow.closing = true;
  }
  judge(flow, deliver(flow, kind));
  const bool over = flow.packets_left == 0 || kind == PacketKind::kReset;
  if (over) return end_flow(number);
  --flow.packets_left;
  const double pause_s = next_pause_s(flow, habits_);
  flow.paused_too_long |= pause_s > (udp ? habits_.idle.udp_s : habits_.idle.tcp_s);
  after(pause_s, EventKind::kPacket, number);
}

void World::end_flow(uint32_t number) {
  Flow& flow = flows_[number];
  --live_flows_;
  if (!scenario_.port_reuse || !flow.random.chance(0.5)) return;
  const double pause_s =
      flow.random.chance(0.7) ? flow.random.uniform(0.01, 5) : flow.random.uniform(5, 200);
  Flow next(flow.identity, flow.random.next());
  next.reused = true;
  const auto fresh = static_cast<uint32_t>(flows_.size());
  flows_.push_back(next);
  after(pause_s, EventKind::kStart, fresh);
}

void World::tally(const Flow& flow) {
  const Fate in_full = flow.fates[static_cast<uint32_t>(Mode::kFull)].fate;
  for (uint32_t mode = 0; mode < kModeCount; ++mode) {
    const FlowFate& fate = flow.fates[mode];
    if (fate.fate != Fate::kViolated) continue;
    ++result_.modes[mode].flows[fate.cause];
    result_.modes[mode].kept_by_full[fate.cause] += in_full == Fate::kAlive;
  }
}

void World::flood() {
  constexpr PacketKind kKinds[] = {PacketKind::kData, PacketKind::kOpening, PacketKind::kData,
                                   PacketKind::kUdp, PacketKind::kReset};
  for (uint32_t i = 0; i < 100; ++i) {
    const Packet packet{{random_.next(), random_.next()},
                        kKinds[static_cast<uint32_t>(scenario_.flood)],
                        static_cast<uint8_t>(random_.next())};
    const uint32_t host = host_of(packet.flow);
    for (const Mode mode : {Mode::kFull, Mode::kChanged}) {
      hosts_[host].choose(mode, packet, worker_of(packet.flow, host), now_ns_);
    }
    ++result_.flood_packets;
  }
  after(0.1, EventKind::kFlood);
}

void World::look() {
  ++result_.looks;
  result_.live_flows += live_flows_;
  for (const Host& host : hosts_) {
    const TableShare share = host.count_entries(now_ns_);
    result_.entries_full += share.entries_full;
    result_.entries_changed += share.entries_changed;
  }
}

// --- time ---

void World::begin() {
  for (uint32_t host = 0; host < kHosts; ++host) {
    hosts_.emplace_back(scenario_.host, random_.next());
    hosts_.back().change(membership(), now_ns_);
    after(random_.uniform(1, 5), EventKind::kBeginSweep, host);
  }
  owners_ = membership().owners;
  after(0, EventKind::kStart);
  after(random_.exponential(scenario_.change_every_s), EventKind::kChange);
  const double idle_s = scenario_.host.idle.tcp_s;
  if (scenario_.ecmp) after(random_.uniform(1, 10 * idle_s), EventKind::kEcmp);
  if (scenario_.queues) after(random_.uniform(1, 3 * idle_s), EventKind::kQueues);
  if (scenario_.worker_count) after(random_.uniform(1, 3 * idle_s), EventKind::kWorkerCount);
  if (scenario_.control_restarts) after(random_.uniform(1, idle_s), EventKind::kControlDies);
  if (scenario_.dataplane_restarts) {
    after(random_.uniform(1, 2 * idle_s), EventKind::kDataplaneRestart);
  }
  if (scenario_.flood != Flood::kNone) after(random_.uniform(1, idle_s), EventKind::kFlood);
}

void World::handle_dataplane(const Event& event) {
  const double idle_s = scenario_.host.idle.tcp_s;
  switch (event.kind) {
    case EventKind::kEcmp:
      ++ecmp_epoch_;
      after(random_.uniform(0.5, 5) * idle_s, EventKind::kEcmp);
      break;
    case EventKind::kQueues:
      ++queue_epoch_;
      for (Host& host : hosts_) host.reassign_queues(now_ns_);
      after(random_.uniform(2, 4) * idle_s, EventKind::kQueues);
      break;
    case EventKind::kWorkerCount:
      ++queue_epoch_;
      for (Host& host : hosts_) {
        host.set_worker_count(static_cast<uint32_t>(1 + random_.below(4)), now_ns_);
      }
      after(random_.uniform(2, 4) * idle_s, EventKind::kWorkerCount);
      break;
    case EventKind::kDataplaneRestart:
      for (Host& host : hosts_) host.restart_dataplane(now_ns_);
      after(random_.uniform(0.2, 2) * idle_s, EventKind::kDataplaneRestart);
      break;
    default:
      flood();
  }
}

void World::handle_control(const Event& event) {
  Host* host = event.subject < kHosts ? &hosts_[event.subject] : nullptr;
  switch (event.kind) {
    case EventKind::kChange:
      change_something();
      after(random_.exponential(scenario_.change_every_s), EventKind::kChange);
      break;
    case EventKind::kUndo:
      undo(event.subject);
      break;
    case EventKind::kPlan:
      if (!control_dead_[event.subject]) host->change(membership(), now_ns_);
      break;
    case EventKind::kBeginSweep:
      host->begin_sweep(now_ns_);
      at(now_ns_ + kSweepTakes_ns, EventKind::kEndSweep, event.subject);
      break;
    case EventKind::kEndSweep:
      if (!control_dead_[event.subject]) host->end_sweep(now_ns_);
      if (event.subject == 0) look();
      at(now_ns_ + kSweep_ns, EventKind::kBeginSweep, event.subject);
      break;
    case EventKind::kControlDies:
      control_dead_[event.subject] = true;
      after(random_.uniform(1, scenario_.host.idle.tcp_s), EventKind::kControlStarts,
            event.subject);
      break;
    default:
      control_dead_[event.subject] = false;
      host->restart_control();
      host->change(membership(), now_ns_);
      after(random_.uniform(10, 100), EventKind::kControlDies,
            static_cast<uint32_t>(random_.below(kHosts)));
  }
}

void World::handle(const Event& event) {
  switch (event.kind) {
    case EventKind::kStart:
      return event.subject == 0 ? start_flow() : open(event.subject);
    case EventKind::kSyn:
      return send_syn(event.subject);
    case EventKind::kAnswer:
      return accept_answer(event.subject);
    case EventKind::kPacket:
      return send_packet(event.subject);
    case EventKind::kEcmp:
    case EventKind::kQueues:
    case EventKind::kWorkerCount:
    case EventKind::kDataplaneRestart:
    case EventKind::kFlood:
      return handle_dataplane(event);
    default:
      return handle_control(event);
  }
}

Result World::run() {
  begin();
  const uint64_t end_ns = now_ns_ + to_ns(scenario_.duration_s);
  while (events_.top().at_ns < end_ns) {
    const Event event = events_.top();
    events_.pop();
    now_ns_ = event.at_ns;
    handle(event);
  }
  for (const Host& host : hosts_) {
    result_.settled_packets += host.settled_packets();
    result_.unsettled_packets += host.unsettled_packets();
    result_.lookups_changed += host.lookups_changed();
  }
  for (const Flow& flow : flows_) tally(flow);
  return result_;
}

}  // namespace

Result run(const Scenario& scenario) {
  return World(scenario).run();
}

}  // namespace maglev::model
