#include "dataplane/worker.h"

#include <rte_cycles.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>

#include <algorithm>

namespace maglev {
namespace {

constexpr uint64_t kExpiryInterval_ns = 100'000'000;

// A packet buffer for a frame of `room` bytes behind the pipeline's headroom.
OutFrame allocate_frame(void* pool, uint32_t room) {
  OutFrame out;
  rte_mbuf* buffer = rte_pktmbuf_alloc(static_cast<rte_mempool*>(pool));
  if (buffer == nullptr) return out;
  if (rte_pktmbuf_headroom(buffer) < kRequiredHeadroom || rte_pktmbuf_tailroom(buffer) < room) {
    rte_pktmbuf_free(buffer);
    return out;
  }
  out.buffer = buffer;
  out.frame = rte_pktmbuf_mtod(buffer, uint8_t*);
  return out;
}

void describe(rte_mbuf* const* buffers, uint32_t count, Burst& burst) {
  burst.count = count;
  std::fill_n(burst.verdict, count, Verdict::kForwarded);
  for (uint32_t i = 0; i < count; ++i) {
    uint8_t* const frame = rte_pktmbuf_mtod(buffers[i], uint8_t*);
    __builtin_prefetch(frame);
    __builtin_prefetch(frame - kEthernetHeaderLength, 1);  // no device wrote there
    burst.frame[i] = frame;
    burst.length[i] = rte_pktmbuf_pkt_len(buffers[i]);
    if (!rte_pktmbuf_is_contiguous(buffers[i]) ||
        rte_pktmbuf_headroom(buffers[i]) < kRequiredHeadroom) [[unlikely]] {
      burst.verdict[i] = Verdict::kSegmented;
    }
  }
}

// Makes a buffer hold the frame that the pipeline left in it.
void take_over_frame(rte_mbuf* buffer, const uint8_t* frame, uint32_t length) {
  buffer->data_off = static_cast<uint16_t>(frame - static_cast<uint8_t*>(buffer->buf_addr));
  buffer->data_len = static_cast<uint16_t>(length);
  buffer->pkt_len = length;
  buffer->ol_flags = 0;
}

uint16_t send(const TransmitQueue& queue, rte_mbuf** buffers, uint16_t count) {
  if (queue.lock == nullptr) return rte_eth_tx_burst(queue.device, queue.queue, buffers, count);
  rte_spinlock_lock(queue.lock);
  const uint16_t sent = rte_eth_tx_burst(queue.device, queue.queue, buffers, count);
  rte_spinlock_unlock(queue.lock);
  return sent;
}

}  // namespace

Worker::Worker(const WorkerPlace& place, std::vector<TransmitQueue> transmit_queues,
               WorkerCounters& counters, const WorkerSurroundings& surroundings)
    : place_(place),
      transmit_queues_(std::move(transmit_queues)),
      counters_(counters),
      snapshots_(surroundings.snapshots),
      stop_(surroundings.stop),
      inboxes_(surroundings.inboxes),
      partial_checksums_(transmit_queues_[place.port].partial_checksums),
      state_(place.number, static_cast<uint32_t>(std::max<size_t>(1, inboxes_.size())),
             surroundings.answers_per_second, allocate_frame, surroundings.buffers,
             surroundings.memory) {
  state_.flows = {surroundings.flows.tables[place.number], &surroundings.flows,
                  &counters_.tracking};
}

uint64_t Worker::burst_time_ns() {
  static const double ns_per_tick = 1e9 / static_cast<double>(rte_get_tsc_hz());
  return static_cast<uint64_t>(static_cast<double>(rte_rdtsc()) * ns_per_tick);
}

// Sends runs of neighbours with one way out; frees what was dropped or found no room.
void Worker::transmit() {
  const uint32_t count = burst_.count;
  uint32_t free_count = 0;
  rte_mbuf* to_free[kMaxBurst];
  for (uint32_t i = 0; i < count;) {
    if (burst_.verdict[i] != Verdict::kForwarded) {
      if (burst_.verdict[i] < Verdict::kCount) to_free[free_count++] = buffers()[i];
      ++i;
      continue;
    }
    const uint32_t first = i;
    const uint16_t port = burst_.out_port[first];
    do {
      take_over_frame(buffers()[i], burst_.frame[i], burst_.length[i]);
      ++i;
    } while (i < count && burst_.verdict[i] == Verdict::kForwarded && burst_.out_port[i] == port);
    const uint32_t sent =
        send(transmit_queues_[port], buffers() + first, static_cast<uint16_t>(i - first));
    for (uint32_t unsent = first + sent; unsent < i; ++unsent) {
      burst_.verdict[unsent] = Verdict::kTransmitFull;
      to_free[free_count++] = buffers()[unsent];
    }
  }
  if (free_count > 0) rte_pktmbuf_free_bulk(to_free, free_count);
}

void Worker::hand_over() {
  for (uint32_t n = 0; n < burst_.uncommon_count; ++n) {
    const uint32_t i = burst_.uncommon[n];
    if (burst_.verdict[i] != Verdict::kHandedOver && burst_.verdict[i] != Verdict::kHeld) continue;
    buffers()[i]->port = transmit_queues_[burst_.in_port].device;  // answers leave by it
    if (burst_.verdict[i] == Verdict::kHandedOver &&
        rte_ring_enqueue(inboxes_[burst_.out_port[i]], buffers()[i]) != 0) {
      burst_.verdict[i] = Verdict::kFragmentOverflow;
    }
  }
}

void Worker::send_own_frames() {
  for (uint32_t i = 0; i < state_.outbox.count(); ++i) {
    const OutFrame& out = state_.outbox[i];
    auto* buffer = static_cast<rte_mbuf*>(out.buffer);
    take_over_frame(buffer, out.frame, out.length);
    if (send(transmit_queues_[out.port], &buffer, 1) == 1) {
      counters_.originated[static_cast<uint32_t>(out.origin)].add(1);
    } else {
      counters_.originated_lost.add(1);
      rte_pktmbuf_free(buffer);
    }
  }
  state_.outbox.clear();
}

// burst_ has its packets and where they come from.
void Worker::forward(const Snapshot* snapshot) {
  burst_.now_ns = burst_time_ns();
  forward_burst(burst_, snapshot, state_);
  if (burst_.uncommon_count > 0) hand_over();
  transmit();
  count_burst(burst_, counters_, state_);
  if (state_.outbox.count() > 0) send_own_frames();
}

// All came by the port that their buffers name.
void Worker::take_burst(BurstSource source, std::span<rte_mbuf*> packets) {
  const auto device = packets.front()->port;
  const auto port = std::ranges::find(transmit_queues_, device, &TransmitQueue::device);
  burst_.source = source;
  burst_.in_port = static_cast<uint16_t>(port - transmit_queues_.begin());
  burst_.partial_checksums = false;  // done when they were received
  std::ranges::copy(packets, buffers());
  describe(packets.data(), static_cast<uint32_t>(packets.size()), burst_);
}

void Worker::forward_released(const Snapshot* snapshot) {
  while (state_.fragments.has_released()) {
    const HeldFrame held = state_.fragments.take_released();
    rte_mbuf* buffer = static_cast<rte_mbuf*>(held.buffer);
    take_burst(BurstSource::kHold, {&buffer, 1});
    if (held.verdict != Verdict::kForwarded) burst_.verdict[0] = held.verdict;
    forward(snapshot);
  }
}

// Fragments that others handed over, and those of the hold that may go on or have waited too long.
void Worker::go_on_with_waiting(const Snapshot* snapshot) {
  if (!inboxes_.empty()) {
    rte_mbuf* packets[kMaxBurst];
    const uint32_t count = rte_ring_dequeue_burst(
        inboxes_[place_.number], reinterpret_cast<void**>(packets), kMaxBurst, nullptr);
    for (uint32_t i = 0; i < count;) {
      const uint32_t first = i;
      while (i < count && packets[i]->port == packets[first]->port) ++i;
      take_burst(BurstSource::kWorker, {packets + first, i - first});
      forward(snapshot);
    }
  }
  if (state_.fragments.held() == 0) return;
  const uint64_t now = burst_time_ns();
  if (now >= next_expiry_ns_) {
    state_.fragments.expire(now);
    next_expiry_ns_ = now + kExpiryInterval_ns;
  }
  forward_released(snapshot);
}

void Worker::run() {
  Publication<Snapshot>::Reader reader(snapshots_, place_.number);
  while (!stop_.load(std::memory_order_relaxed)) {
    const Snapshot* snapshot = reader.current();
    counters_.generation.set(snapshot == nullptr ? 0 : snapshot->generation());
    counters_.polls.add(1);
    const uint16_t received = rte_eth_rx_burst(place_.device, place_.queue, buffers(), kMaxBurst);
    if (received == 0) {
      counters_.empty_polls.add(1);
    } else {
      burst_.source = BurstSource::kDevice;
      burst_.in_port = static_cast<uint16_t>(place_.port);
      burst_.partial_checksums = partial_checksums_;
      describe(buffers(), received, burst_);
      forward(snapshot);
    }
    if (!inboxes_.empty() || state_.fragments.held() > 0) go_on_with_waiting(snapshot);
    reader.quiescent();
  }
}

}  // namespace maglev
