/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The guard: a classifier at the ingress of an interface that drops VIP traffic on its way into the
 * kernel. Why it is there: steering.h. */
#include <linux/if_packet.h>
#include <linux/pkt_cls.h>

#include "dataplane/bpf/vips.bpf.h"

enum { kCounters = kGuardCounters };
#include "dataplane/bpf/counters.bpf.h"

/* Enough of a frame to find its ports, but for the longest chains of extension headers. */
enum { kHeaders = 256 };

SEC("tc")
int maglev_guard(struct __sk_buff* buffer) {
  const void* data = (const void*)(long)buffer->data;
  const void* end = (const void*)(long)buffer->data_end;
  __u32 wanted = buffer->len < kHeaders ? buffer->len : kHeaders;
  if (data + wanted > end) {
    /* Only the linear part can be read; drivers may leave headers in a page. */
    bpf_skb_pull_data(buffer, wanted);
    data = (const void*)(long)buffer->data;
    end = (const void*)(long)buffer->data_end;
  }
  /* UNSPEC: further filters have their say. What is for another host the kernel drops itself. */
  if (buffer->pkt_type == PACKET_OTHERHOST || !is_for_worker(data, end)) return TC_ACT_UNSPEC;
  count(kGuardDropped);
  return TC_ACT_SHOT;
}

char program_license[] SEC("license") = "Dual BSD/GPL";
