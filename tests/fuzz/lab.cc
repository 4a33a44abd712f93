#include "tests/fuzz/lab.h"

#include <algorithm>
#include <cstring>
#include <memory_resource>
#include <stdexcept>
#include <string>

#include "dataplane/parse.h"
#include "tests/fuzz/require.h"

namespace maglev::fuzz {

Statistics statistics;

namespace {

constexpr uint32_t kInboxRoom = 32;
constexpr uint64_t kExpiryInterval_ns = 100'000'000;

}  // namespace

Lab::Buffer::Buffer(uint32_t bytes)
    : block(std::make_unique_for_overwrite<uint8_t[]>(kRequiredHeadroom + bytes)),
      room(bytes),
      frame(block.get() + kRequiredHeadroom),
      length(bytes) {}

Lab::Worker::Worker(Lab& lab, uint32_t number, uint32_t workers, uint64_t answers_per_second)
    : state(number, workers, answers_per_second, &Lab::allocate, &lab,
            std::pmr::new_delete_resource()) {
  counters.vips = vips.data();
  counters.backends = backends.data();
}

Lab::Lab(uint32_t workers, uint64_t answers_per_second)
    : ports_{{{{2, 0, 0, 0, 0, 1}, 1500}, {{2, 0, 0, 0, 0, 2}, 1600}, {{2, 0, 0, 0, 0, 3}, 9000}}} {
  for (uint32_t w = 0; w < workers; ++w) {
    workers_.push_back(std::make_unique<Worker>(*this, w, workers, answers_per_second));
  }
}

Lab::~Lab() = default;

void Lab::free(Buffer* buffer) {
  --live_buffers_;
  delete buffer;
}

OutFrame Lab::allocate(void* lab, uint32_t room) {
  Lab& self = *static_cast<Lab*>(lab);
  OutFrame out;
  if (self.free_buffers_ == 0) return out;
  if (self.free_buffers_ != UINT32_MAX) --self.free_buffers_;
  auto* buffer = new Buffer(room);
  buffer->where = Where::kOwn;
  ++self.live_buffers_;
  out.buffer = buffer;
  out.frame = buffer->frame;
  return out;
}

uint8_t* Lab::add_frame(uint32_t length, bool segmented) {
  auto* buffer = new Buffer(length);
  buffer->segmented = segmented;
  ++live_buffers_;
  pending_.push_back(buffer);
  return buffer->frame;
}

ByteView Lab::last_frame() const {
  return pending_.empty() ? ByteView{} : ByteView{pending_.back()->frame, pending_.back()->length};
}

uint8_t* Lab::patch_last_frame() {
  return pending_.back()->frame;
}

void Lab::resize_last_frame(uint32_t length) {
  Buffer* old = pending_.back();
  pending_.pop_back();
  uint8_t* frame = add_frame(length, old->segmented);
  const uint32_t kept = std::min(length, old->length);
  std::memcpy(frame, old->frame, kept);
  std::memset(frame + kept, 0xee, length - kept);
  free(old);
}

void Lab::publish(const Configuration& configuration, uint64_t hash_seed) {
  Published next = fuzz::publish(configuration, generation_ + 1, hash_seed, ports_, registries_);
  if (next.snapshot == nullptr) {
    ++statistics.refused;
    return;
  }
  ++statistics.adopted;
  ++generation_;
  published_ = std::move(next);
}

std::span<const VipRecord> Lab::vips() const {
  if (published_.snapshot == nullptr) return {};
  return published_.snapshot->vip_records();
}

void Lab::take_burst(BurstSource source, std::span<Buffer* const> buffers) {
  burst_.count = static_cast<uint32_t>(buffers.size());
  burst_.source = source;
  burst_.in_port = static_cast<uint16_t>(buffers.front()->port);
  burst_.partial_checksums = false;
  for (uint32_t i = 0; i < burst_.count; ++i) {
    buffers[i]->where = Where::kReceived;
    burst_.buffer[i] = buffers[i];
    burst_.frame[i] = buffers[i]->frame;
    burst_.length[i] = buffers[i]->length;
    burst_.verdict[i] = buffers[i]->segmented ? Verdict::kSegmented : Verdict::kForwarded;
  }
}

void Lab::receive(uint32_t worker, uint32_t port, bool partial_checksums, uint32_t transmit_room) {
  if (pending_.empty()) return;
  statistics.packets += pending_.size();
  for (Buffer* buffer : pending_) buffer->port = port;
  take_burst(BurstSource::kDevice, pending_);
  pending_.clear();
  burst_.partial_checksums = partial_checksums;
  transmit_room_ = transmit_room;
  forward(*workers_[worker]);
  transmit_room_ = UINT32_MAX;
}

void Lab::wait(uint32_t number) {
  Worker& worker = *workers_[number];
  while (!worker.inbox.empty()) {
    std::vector<Buffer*> buffers;
    do {
      buffers.push_back(worker.inbox.front());
      worker.inbox.pop_front();
      require(buffers.back()->where == Where::kInbox && buffers.back()->worker == number,
              "a packet in an inbox is elsewhere too");
    } while (!worker.inbox.empty() && worker.inbox.front()->port == buffers.front()->port);
    take_burst(BurstSource::kWorker, buffers);
    forward(worker);
  }
  if (worker.state.fragments.held() == 0) return;
  if (now_ns_ >= worker.next_expiry_ns) {
    worker.state.fragments.expire(now_ns_);
    worker.next_expiry_ns = now_ns_ + kExpiryInterval_ns;
  }
  while (worker.state.fragments.has_released()) {
    const HeldFrame held = worker.state.fragments.take_released();
    auto* buffer = static_cast<Buffer*>(held.buffer);
    require(buffer->where == Where::kHeld && buffer->worker == number,
            "a packet was released that was not held");
    require(held.frame == buffer->frame && held.length == buffer->length,
            "a held packet is not where it was");
    take_burst(BurstSource::kHold, {&buffer, 1});
    if (held.verdict != Verdict::kForwarded) burst_.verdict[0] = held.verdict;
    forward(worker);
  }
}

void Lab::keep_originals() {
  size_t total = 0;
  for (uint32_t i = 0; i < burst_.count; ++i) total += burst_.length[i];
  originals_.resize(std::max(originals_.size(), total));
  uint8_t* at = originals_.data();
  for (uint32_t i = 0; i < burst_.count; ++i) {
    std::copy_n(burst_.frame[i], burst_.length[i], at);
    if (burst_.partial_checksums && burst_.verdict[i] == Verdict::kForwarded) {
      complete_checksum(at, burst_.length[i]);
    }
    original_[i] = {at, burst_.length[i]};
    at += burst_.length[i];
  }
}

void Lab::forward(Worker& worker) {
  const Snapshot* snapshot = published_.snapshot.get();
  burst_.now_ns = now_ns_;
  keep_originals();
  forward_burst(burst_, snapshot, worker.state);
  check_outcome(worker);
  move_on(worker);
  transmit();
  count_burst(burst_, worker.counters, worker.state);
  ++statistics.bursts;
  for (uint32_t i = 0; i < burst_.count; ++i) {
    if (burst_.verdict[i] < Verdict::kCount) {
      ++statistics.verdicts[static_cast<uint32_t>(burst_.verdict[i])];
      free(&buffer_of(i));
    }
  }
  send_own_frames(worker);
  check_counters(worker);
}

// Before anything is sent: what each packet has become.
void Lab::check_outcome(const Worker& worker) {
  for (uint32_t i = 0; i < burst_.count; ++i) {
    const Verdict verdict = burst_.verdict[i];
    require(verdict <= Verdict::kHandedOver, "a verdict is none");
    require(verdict != Verdict::kTransmitFull, "the pipeline spoke for the transmit ring");
    if (verdict == Verdict::kHandedOver) {
      require(burst_.source == BurstSource::kDevice, "a packet was handed over twice");
      require(burst_.out_port[i] < workers_.size() && burst_.out_port[i] != worker.state.worker,
              "a packet was handed to no other worker");
    }
    if (verdict == Verdict::kForwarded) check_frame(i);
    if (published_.snapshot != nullptr) check_by_general_reader(i);
  }
}

// Packets that fixed offsets can read must be read the same by the code for all others.
void Lab::check_by_general_reader(uint32_t i) {
  static Burst twin;
  static PathState none(
      0, 1, 0, [](void*, uint32_t) { return OutFrame{}; }, nullptr,
      std::pmr::new_delete_resource());
  const ByteView frame = original_[i];
  const auto length = static_cast<uint32_t>(frame.size());
  const auto link = parse_link(frame.data(), length);
  IpHeader header;
  if (!link || buffer_of(i).segmented || burst_.verdict[i] == Verdict::kFragmentExpired ||
      burst_.verdict[i] == Verdict::kFragmentOverflow ||
      parse_ip(frame.data() + link->length, length - link->length, false, header) !=
          Verdict::kForwarded ||
      header.fragment || (header.protocol != kProtocolTcp && header.protocol != kProtocolUdp)) {
    return;
  }
  twin.count = 1;
  twin.frame[0] = const_cast<uint8_t*>(frame.data());  // read only
  twin.length[0] = length;
  twin.vip[0] = nullptr;
  twin.tag[0] = kNoTag;
  classify_uncommon(twin, 0, *published_.snapshot, none);
  require(twin.vip[0] == burst_.vip[i], "two readers found two VIPs");
  if (twin.vip[0] == nullptr) {
    require(twin.verdict[0] == burst_.verdict[i], "two readers came to two verdicts");
  } else {
    require(twin.hash[0] == burst_.hash[i], "two readers found two hashes");
    require(twin.packet_length[0] == burst_.packet_length[i], "two readers found two lengths");
  }
}

// Of a packet whose VIP and backend are known.
Route Lab::route_of(uint32_t i) const {
  const auto vip = static_cast<size_t>(burst_.vip[i] - published_.snapshot->vips().data());
  const BackendRecord& backend = published_.records[burst_.backend[i]->counter];
  return {published_.snapshot->vip_records()[vip], backend, ports_[backend.port]};
}

void Lab::check_frame(uint32_t i) const {
  const auto& buffer = *static_cast<const Buffer*>(burst_.buffer[i]);
  const uint8_t* start = buffer.block.get();
  const uint8_t* end = start + kRequiredHeadroom + buffer.room;
  require(burst_.frame[i] >= start && burst_.frame[i] + burst_.length[i] <= end,
          "a frame reaches beyond its buffer");
  require(burst_.out_port[i] < ports_.size(), "a frame leaves by a port that is not there");
  require(burst_.vip[i] != nullptr && burst_.backend[i] != nullptr,
          "a packet was forwarded to nobody");
  const Route route = route_of(i);
  require(route.backend.resolved == 1 && route.backend.port == burst_.out_port[i],
          "a packet goes to a backend whose next hop is not known, or by another way");
  check_forwarded({burst_.frame[i], burst_.length[i]}, route, packet_in(original_[i]));
}

// Into the hold, or to another worker.
void Lab::move_on(Worker& worker) {
  for (uint32_t i = 0; i < burst_.count; ++i) {
    Buffer& buffer = buffer_of(i);
    if (burst_.verdict[i] == Verdict::kHeld) {
      buffer.where = Where::kHeld;
      buffer.worker = worker.state.worker;
      ++statistics.held;
    } else if (burst_.verdict[i] == Verdict::kHandedOver) {
      Worker& next = *workers_[burst_.out_port[i]];
      if (next.inbox.size() == kInboxRoom) {
        burst_.verdict[i] = Verdict::kFragmentOverflow;
        continue;
      }
      buffer.where = Where::kInbox;
      buffer.worker = next.state.worker;
      next.inbox.push_back(&buffer);
      ++statistics.handed_over;
    }
  }
}

void Lab::transmit() {
  uint32_t room = transmit_room_;
  for (uint32_t i = 0; i < burst_.count; ++i) {
    if (burst_.verdict[i] != Verdict::kForwarded) continue;
    if (room == 0) {
      burst_.verdict[i] = Verdict::kTransmitFull;
    } else {
      --room;
    }
  }
}

void Lab::send_own_frames(Worker& worker) {
  cut_packet_ = 0;
  for (uint32_t i = 0; i < worker.state.outbox.count(); ++i) {
    const OutFrame& out = worker.state.outbox[i];
    check_own_frame(out);
    ++statistics.originated[static_cast<uint32_t>(out.origin)];
    free(static_cast<Buffer*>(out.buffer));
  }
  worker.state.outbox.clear();
}

void Lab::check_own_frame(const OutFrame& out) {
  const auto& buffer = *static_cast<const Buffer*>(out.buffer);
  const uint8_t* start = buffer.block.get();
  require(buffer.where == Where::kOwn, "a frame of the worker's own is in another's buffer");
  require(out.frame >= start && out.frame + out.length <= start + kRequiredHeadroom + buffer.room,
          "a frame of the worker's own reaches beyond its buffer");
  require(out.port < ports_.size(), "a frame of the worker's own leaves by no port");
  const ByteView frame{out.frame, out.length};
  if (out.origin != Origin::kFragment) {
    require(out.port == burst_.in_port, "an answer leaves by another port");
    check_answer(frame, out.origin);
    return;
  }
  // It is part of a packet of this burst, the last one's or one behind.
  std::string complaint = "a further part belongs to no packet of its burst";
  for (; cut_packet_ < burst_.count; ++cut_packet_) {
    const uint32_t i = cut_packet_;
    const BackendEntry* backend = burst_.backend[i];
    const ByteView packet = packet_in(original_[i]);
    if (backend == nullptr || packet.size() <= backend->max_packet_length) continue;
    try {
      return check_further_part(frame, route_of(i), packet);
    } catch (const std::logic_error& error) {
      complaint = error.what();
    }
  }
  throw std::logic_error(complaint);
}

void Lab::check_counters(const Worker& worker) const {
  const WorkerTotals totals = read_totals(worker.counters);
  uint64_t ended = 0;
  for (const uint64_t count : totals.verdicts) ended += count;
  require(totals.received_packets == ended + totals.held + totals.handed_over - totals.taken_over,
          "received is not verdicts and held and handed over");
  require(totals.held == worker.state.fragments.held(), "the held counter does not fit the hold");
}

// At the end: what VIPs and backends counted adds up to what was forwarded.
void Lab::check_sums(const Worker& worker) const {
  const uint64_t forwarded =
      worker.counters.verdicts[static_cast<uint32_t>(Verdict::kForwarded)].get();
  uint64_t of_vips = 0, of_backends = 0;
  for (const FlowCounters& flow : worker.vips) of_vips += flow.forwarded.packets.get();
  for (const FlowCounters& flow : worker.backends) of_backends += flow.forwarded.packets.get();
  require(of_vips == forwarded, "the VIPs' packets are not all that were forwarded");
  require(of_backends == forwarded, "the backends' packets are not all that were forwarded");
}

void Lab::finish() {
  receive(0, 0, false, UINT32_MAX);
  for (uint32_t round = 0; round < 2; ++round) {
    for (uint32_t w = 0; w < workers_.size(); ++w) wait(w);
    pass_time(FragmentTable::kHold_ns + kExpiryInterval_ns);
  }
  for (const auto& worker : workers_) {
    require(worker->state.fragments.held() == 0, "a packet is held beyond its time");
    statistics.released += worker->counters.released.get();
    check_sums(*worker);
  }
  require(live_buffers_ == 0, "a packet buffer was lost");
}

}  // namespace maglev::fuzz
