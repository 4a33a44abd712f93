/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The guard: a classifier at the ingress of an interface that drops VIP traffic on its way into the
 * kernel. Why it is there: steering.h. */
#include <linux/pkt_cls.h>

#include "dataplane/bpf/vips.bpf.h"

enum { kCounters = kGuardCounters };
#include "dataplane/bpf/counters.bpf.h"

SEC("tc")
int maglev_guard(struct __sk_buff* buffer) {
  const void* data = (const void*)(long)buffer->data;
  const void* end = (const void*)(long)buffer->data_end;
  if (data + kDestinationWithin > end) {
    /* Only the linear part can be read; drivers may leave headers in a page. */
    __u32 length = buffer->len < kDestinationWithin ? buffer->len : kDestinationWithin;
    bpf_skb_pull_data(buffer, length);
    data = (const void*)(long)buffer->data;
    end = (const void*)(long)buffer->data_end;
  }
  /* UNSPEC: further filters have their say. */
  if (!is_for_vip(data, end)) return TC_ACT_UNSPEC;
  count(kGuardDropped);
  return TC_ACT_SHOT;
}

char program_license[] SEC("license") = "Dual BSD/GPL";
