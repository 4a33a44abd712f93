/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The XDP program in front of an AF_XDP port. DPDK's net_af_xdp driver loads the object by path,
 * takes the first program in it, and puts each RX queue's socket into the map named `xsks_map`; the
 * VIPs are filled in by Steering (steering.h), which finds program and maps by these names. */
#include "dataplane/bpf/vips.bpf.h"

enum { kCounters = kSteeringCounters };
#include "dataplane/bpf/counters.bpf.h"

enum { kMaxQueues = 1024 };

struct {
  __uint(type, BPF_MAP_TYPE_XSKMAP);
  __uint(max_entries, kMaxQueues);
  __type(key, __u32);
  __type(value, __u32);
} xsks_map SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, struct InterfaceMac);
} interface_mac SEC(".maps");

/* A switch floods what it has not learnt yet: somebody else is to forward that. The kernel drops
 * it. Broadcast and multicast frames are for us as well. */
static __always_inline int is_for_another_host(const void* data, const void* end) {
  const __u8* destination = data;
  __u32 only = 0;
  const struct InterfaceMac* own = bpf_map_lookup_elem(&interface_mac, &only);
  if (!own || (const void*)(destination + sizeof(own->bytes)) > end) return 1;
  if (destination[0] & 1) return 0;
  __u8 difference = 0;
#pragma unroll
  for (unsigned i = 0; i < sizeof(own->bytes); i++) difference |= destination[i] ^ own->bytes[i];
  return difference != 0;
}

SEC("xdp")
int maglev_steering(struct xdp_md* context) {
  const void* data = (const void*)(long)context->data;
  const void* end = (const void*)(long)context->data_end;
  if (is_for_another_host(data, end) || !is_for_worker(data, end)) {
    count(kSteeringPassed);
    return XDP_PASS;
  }
  /* The kernel takes a socket out of the map when its process dies; then this is XDP_DROP. */
  long action = bpf_redirect_map(&xsks_map, context->rx_queue_index, XDP_DROP);
  count(action == XDP_REDIRECT ? kSteeringRedirected : kSteeringDropped);
  return (int)action;
}

char program_license[] SEC("license") = "Dual BSD/GPL";
