#include "dataplane/worker.h"

#include <rte_ethdev.h>
#include <rte_mbuf.h>

namespace maglev {
namespace {

void describe(rte_mbuf* const* buffers, uint32_t count, Burst& burst) {
  burst.count = count;
  for (uint32_t i = 0; i < count; ++i) {
    burst.frame[i] = rte_pktmbuf_mtod(buffers[i], uint8_t*);
    burst.length[i] = rte_pktmbuf_pkt_len(buffers[i]);
    const bool whole = rte_pktmbuf_is_contiguous(buffers[i]) &&
                       rte_pktmbuf_headroom(buffers[i]) >= kRequiredHeadroom;
    burst.verdict[i] = whole ? Verdict::kForwarded : Verdict::kSegmented;
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

// Sends runs of neighbours with one way out; frees what was dropped or found no room.
void Worker::transmit(Burst& burst, rte_mbuf** buffers) {
  uint32_t free_count = 0;
  rte_mbuf* to_free[kMaxBurst];
  for (uint32_t i = 0; i < burst.count;) {
    if (burst.verdict[i] != Verdict::kForwarded) {
      to_free[free_count++] = buffers[i++];
      continue;
    }
    const uint32_t first = i;
    const uint16_t port = burst.out_port[first];
    for (; i < burst.count && burst.verdict[i] == Verdict::kForwarded && burst.out_port[i] == port;
         ++i) {
      take_over_frame(buffers[i], burst.frame[i], burst.length[i]);
    }
    const uint32_t sent =
        send(transmit_queues_[port], buffers + first, static_cast<uint16_t>(i - first));
    for (uint32_t unsent = first + sent; unsent < i; ++unsent) {
      burst.verdict[unsent] = Verdict::kTransmitFull;
      to_free[free_count++] = buffers[unsent];
    }
  }
  if (free_count > 0) rte_pktmbuf_free_bulk(to_free, free_count);
}

void Worker::run() {
  Publication<Snapshot>::Reader reader(snapshots_, reader_);
  rte_mbuf* buffers[kMaxBurst];
  Burst burst;
  while (!stop_.load(std::memory_order_relaxed)) {
    const Snapshot* snapshot = reader.current();
    counters_.generation.set(snapshot == nullptr ? 0 : snapshot->generation());
    counters_.polls.add(1);
    const uint16_t received = rte_eth_rx_burst(place_.device, place_.queue, buffers, kMaxBurst);
    if (received == 0) {
      counters_.empty_polls.add(1);
    } else {
      describe(buffers, received, burst);
      forward_burst(burst, snapshot);
      transmit(burst, buffers);
      count_burst(burst, counters_);
    }
    reader.quiescent();
  }
}

}  // namespace maglev
