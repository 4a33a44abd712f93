#include "dataplane/replay.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "dataplane/heap_flow_table.h"
#include "dataplane/reporter.h"

namespace maglev {
namespace {

std::string_view name_of(const Snapshot& snapshot, const VipEntry& vip) {
  return snapshot.vip_names()[static_cast<size_t>(&vip - snapshot.vips().data())];
}

void name_backend(const Snapshot& snapshot, const BackendEntry& backend, Outcome& outcome) {
  for (const auto& pool : snapshot.pools()) {
    for (const auto& [way, entries] : pool->ways) {
      const BackendEntry* const first = entries.data();
      if (std::less<>{}(&backend, first) || !std::less<>{}(&backend, first + entries.size())) {
        continue;
      }
      outcome.pool = pool->name;
      outcome.backend = pool->backend_names[static_cast<size_t>(&backend - first)];
      return;
    }
  }
}

void add_flow(std::map<std::string, uint64_t>& counters, const std::string& name,
              const NamedCount& count) {
  counters[name + " forwarded_packets"] = count.forwarded.packets;
  counters[name + " forwarded_bytes"] = count.forwarded.bytes;
  counters[name + " dropped_packets"] = count.dropped.packets;
  counters[name + " dropped_bytes"] = count.dropped.bytes;
}

}  // namespace

std::map<std::string, uint64_t> named_counters(const Report& report) {
  std::map<std::string, uint64_t> counters;
  const size_t verdicts = report.verdicts.size();
  for (size_t w = 0; w < report.workers.size(); ++w) {
    const WorkerReport& worker = report.workers[w];
    const std::string prefix = report.workers.size() == 1 ? "" : fmt::format("worker {} ", w);
    counters[prefix + "received_packets"] = worker.received.packets;
    counters[prefix + "received_bytes"] = worker.received.bytes;
    counters[prefix + "held"] = worker.held;
    counters[prefix + "handed_over"] = worker.handed_over;
    counters[prefix + "taken_over"] = worker.taken_over;
    for (size_t v = 0; v < verdicts; ++v) {
      counters[prefix + report.verdicts[v]] = report.verdict_counts[w * verdicts + v];
    }
  }
  for (const EventCount& event : report.events) counters[event.name] = event.count;
  for (const NamedCount& vip : report.vips) add_flow(counters, "vip " + vip.name, vip);
  for (const NamedCount& backend : report.backends) {
    add_flow(counters, fmt::format("backend {}/{}", backend.pool, backend.name), backend);
  }
  return counters;
}

constexpr uint64_t kFlowEntries = 1u << 16;

struct Replay::Worker {
  Worker(Replay& replay, uint32_t number)
      : state(number, replay.settings_.workers, replay.settings_.answers_per_second,
              &Replay::allocate, &replay, std::pmr::new_delete_resource()),
        vips(replay.settings_.counted_vips),
        backends(replay.settings_.counted_backends),
        flows(kFlowEntries) {
    counters.vips = vips.data();
    counters.backends = backends.data();
    state.flows = {&flows.table(), &replay.flows_, &counters.tracking};
    replay.flows_.tables.push_back(&flows.table());
  }

  PathState state;
  WorkerCounters counters;
  std::vector<FlowCounters> vips;
  std::vector<FlowCounters> backends;
  HeapFlowTable flows;
  Burst burst;
  Packets packets;                // of the burst
  std::deque<const void*> inbox;  // packets that others handed over
};

Replay::Replay(ReplaySettings settings, Sink sink)
    : settings_(std::move(settings)),
      sink_(std::move(sink)),
      vip_counters_(settings_.counted_vips,
                    [this](uint32_t i) {
                      for (const auto& worker : workers_) worker->vips[i].clear();
                    }),
      backend_counters_(settings_.counted_backends, [this](uint32_t i) {
        for (const auto& worker : workers_) worker->backends[i].clear();
      }) {
  for (uint32_t i = 0; i < settings_.workers; ++i) {
    workers_.push_back(std::make_unique<Worker>(*this, i));
  }
}

Replay::~Replay() = default;

void Replay::publish(std::shared_ptr<const Snapshot> snapshot) {
  snapshot_ = std::move(snapshot);
  for (const auto& worker : workers_) {
    worker->counters.generation.set(snapshot_ == nullptr ? 0 : snapshot_->generation());
  }
  vip_counters_.forget_unheld();
  backend_counters_.forget_unheld();
}

std::expected<void, std::string> Replay::adopt(const std::string& directory) {
  std::vector<PoolNumberRecord> number_records(kMaxTrackedPools);
  PoolNumbers numbers(number_records);
  Adopter adopter(directory, {}, settings_.ports, vip_counters_, backend_counters_, numbers,
                  std::pmr::new_delete_resource());
  std::shared_ptr<const Snapshot> snapshot = adopter.poll();
  if (snapshot == nullptr) {
    return std::unexpected(adopter.refused_roots() != 0
                               ? adopter.last_refusal()
                               : fmt::format("{} has no published files: name a directory that "
                                             "'maglev-control --render' has written",
                                             directory));
  }
  publish(std::move(snapshot));
  return {};
}

void Replay::advance_to(uint64_t now_ns) {
  now_ns_ = std::max(now_ns_, now_ns);
  for (const auto& worker : workers_) worker->state.fragments.expire(now_ns_);
  settle();
}

void Replay::receive(uint32_t worker, uint16_t port, std::span<const ReceivedFrame> frames) {
  while (!frames.empty()) {
    const auto burst = frames.first(std::min<size_t>(frames.size(), kMaxBurst));
    frames = frames.subspan(burst.size());
    Packets packets;
    Burst& b = workers_[worker]->burst;
    b.partial_checksums = settings_.partial_checksums;
    for (uint32_t i = 0; i < burst.size(); ++i) {
      std::vector<uint8_t> room(kRequiredHeadroom + burst[i].bytes.size());
      std::ranges::copy(burst[i].bytes, room.begin() + kRequiredHeadroom);
      packets.push_back(std::make_unique<Packet>(Packet{++received_, port, std::move(room)}));
      b.verdict[i] = burst[i].segmented ? Verdict::kSegmented : Verdict::kForwarded;
    }
    forward(*workers_[worker], BurstSource::kDevice, std::move(packets));
    settle();
  }
}

// The burst's verdicts and partial_checksums are set; all packets came by one port.
void Replay::forward(Worker& worker, BurstSource source, Packets packets) {
  Burst& b = worker.burst;
  b.count = static_cast<uint32_t>(packets.size());
  b.source = source;
  b.in_port = packets.front()->port;
  b.now_ns = now_ns_;
  for (uint32_t i = 0; i < b.count; ++i) {
    Packet& packet = *packets[i];
    b.buffer[i] = &packet;
    b.frame[i] = packet.room.data() + kRequiredHeadroom;
    b.length[i] = static_cast<uint32_t>(packet.room.size()) - kRequiredHeadroom;
  }
  forward_burst(b, snapshot_.get(), worker.state);
  transmit(b);
  count_burst(b, worker.counters, worker.state);
  for (uint32_t i = 0; i < b.count; ++i) {
    tell(worker, *packets[i], i);
    if (b.verdict[i] == Verdict::kHandedOver) workers_[b.out_port[i]]->inbox.push_back(b.buffer[i]);
    if (b.verdict[i] >= Verdict::kCount) waiting_.emplace(b.buffer[i], std::move(packets[i]));
  }
  send_own_frames(worker);
}

void Replay::transmit(Burst& b) const {
  uint32_t room = settings_.transmit_room;
  for (uint32_t i = 0; i < b.count; ++i) {
    if (b.verdict[i] != Verdict::kForwarded) continue;
    if (room == 0) {
      b.verdict[i] = Verdict::kTransmitFull;
    } else {
      --room;
    }
  }
}

void Replay::tell(const Worker& worker, const Packet& packet, uint32_t i) {
  const Burst& b = worker.burst;
  Outcome outcome;
  outcome.packet = packet.number;
  outcome.worker = worker.state.worker;
  outcome.verdict = b.verdict[i];
  if (b.vip[i] != nullptr) outcome.vip = name_of(*snapshot_, *b.vip[i]);
  if (b.backend[i] != nullptr) name_backend(*snapshot_, *b.backend[i], outcome);
  if (b.verdict[i] == Verdict::kHandedOver) outcome.next_worker = b.out_port[i];
  if (b.verdict[i] == Verdict::kForwarded) {
    outcome.port = b.out_port[i];
    outcome.frame = {b.frame[i], b.length[i]};
  }
  sink_(outcome);
}

void Replay::send_own_frames(Worker& worker) {
  Outbox& outbox = worker.state.outbox;
  for (uint32_t i = 0; i < outbox.count(); ++i) {
    if (i >= settings_.transmit_room) {
      worker.counters.originated_lost.add(1);
      continue;
    }
    const OutFrame& out = outbox[i];
    worker.counters.originated[static_cast<uint32_t>(out.origin)].add(1);
    Outcome outcome;
    outcome.worker = worker.state.worker;
    outcome.origin = out.origin;
    outcome.port = out.port;
    outcome.frame = {out.frame, out.length};
    sink_(outcome);
  }
  outbox.clear();
  own_buffers_.clear();
}

OutFrame Replay::allocate(void* self, uint32_t room) {
  auto& replay = *static_cast<Replay*>(self);
  OutFrame out;
  if (replay.own_buffers_.size() >= replay.settings_.own_buffers) return out;
  std::vector<uint8_t>& buffer = replay.own_buffers_.emplace_back(kRequiredHeadroom + room);
  out.buffer = buffer.data();
  out.frame = buffer.data() + kRequiredHeadroom;
  return out;
}

std::unique_ptr<Replay::Packet> Replay::take_waiting(const void* packet) {
  return std::move(waiting_.extract(packet).mapped());
}

// One packet that another worker handed over, or that may go on or has waited too long.
bool Replay::go_on_with_waiting(Worker& worker) {
  worker.burst.partial_checksums = false;  // done when it was received
  Packets packets;
  if (!worker.inbox.empty()) {
    packets.push_back(take_waiting(worker.inbox.front()));
    worker.inbox.pop_front();
    worker.burst.verdict[0] = Verdict::kForwarded;
    forward(worker, BurstSource::kWorker, std::move(packets));
    return true;
  }
  if (!worker.state.fragments.has_released()) return false;
  const HeldFrame held = worker.state.fragments.take_released();
  packets.push_back(take_waiting(held.buffer));
  worker.burst.verdict[0] = held.verdict;
  forward(worker, BurstSource::kHold, std::move(packets));
  return true;
}

void Replay::settle() {
  bool moved = true;
  while (moved) {
    moved = false;
    for (const auto& worker : workers_) moved |= go_on_with_waiting(*worker);
  }
}

Report Replay::report() const {
  std::vector<WorkerState> states;
  for (const auto& worker : workers_) {
    states.push_back(
        {worker->state.worker, 0, worker->state.worker, &worker->counters, &worker->flows.table()});
  }
  Report report;
  report.adopted_generation = snapshot_ == nullptr ? 0 : snapshot_->generation();
  report_counters(states, snapshot_.get(), report);
  return report;
}

}  // namespace maglev
