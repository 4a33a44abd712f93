/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* On a backend: takes the outer header off IPv4-in-IPv4 packets (RFC 2003) that a load balancer
 * sent, so that the kernel sees the client's packet, addressed to the VIP.
 *
 * - Not IPv4-in-IPv4: passes untouched.
 * - Outer source not among outer_sources: passes untouched, counted. It may be another tunnel's.
 * - The outer packet is a fragment: dropped, counted. Only a whole packet can be unwrapped.
 * - Lengths, versions or the outer checksum are wrong: dropped, counted.
 * - The outer header tells of congestion, the inner flow cannot: dropped, counted (RFC 6040).
 *
 * The inner header is changed in its ECN field alone; its own checksum is left to the kernel. */
#include <linux/in.h>
#include <linux/ip.h>

#include "dataplane/bpf/decap_maps.h"
#include "dataplane/bpf/ethernet.bpf.h"

enum { kCounters = kDecapCounters };
#include "dataplane/bpf/counters.bpf.h"

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, kMaxOuterSources);
  __type(key, __be32);
  __type(value, __u8);
} outer_sources SEC(".maps");

enum {
  kMaxLinkHeader = sizeof(struct ethhdr) + kMaxVlanTags * sizeof(struct VlanTag),
  kMaxIpHeader = 60,
  kMoreFragmentsOrOffset = 0x3fff,
};

enum Ecn { kNotEct = 0, kEct1 = 1, kEct0 = 2, kCongestion = 3, kEcnMask = 3 };

static __always_inline int drop(__u32 cause) {
  count(cause);
  return XDP_DROP;
}

static __always_inline __u16 fold(__u32 sum) {
  sum = (sum & 0xffff) + (sum >> 16);
  return (__u16)(sum + (sum >> 16));
}

/* The outer header at `offset` adds up, options included. */
static __always_inline int checksum_is_good(struct xdp_md* context, __u32 offset, __u32 length) {
  __u8 header[kMaxIpHeader] = {};
  if (length < sizeof(struct iphdr) || length > sizeof(header)) return 0;
  if (bpf_xdp_load_bytes(context, offset, header, length)) return 0;
  return fold((__u32)bpf_csum_diff(0, 0, (__be32*)header, sizeof(header), 0)) == 0xffff;
}

/* RFC 6040, figure 4. Returns 0 when the packet must be dropped. */
static __always_inline int combine_ecn(struct iphdr* inner, __u8 outer_tos) {
  __u8 outer = outer_tos & kEcnMask;
  __u8 old = inner->tos & kEcnMask;
  __u8 new = old;
  if (outer == kCongestion) {
    if (old == kNotEct) return 0;
    new = kCongestion;
  } else if (outer == kEct1 && old == kEct0) {
    new = kEct1;
  }
  if (new == old) return 1;
  /* RFC 1624: the sum with the old word taken out and the new one put in. */
  __be16* word = (__be16*)inner;
  __u32 sum = (__u16)~inner->check + (__u16) ~*word;
  inner->tos = (inner->tos & ~kEcnMask) | new;
  inner->check = (__u16)~fold(sum + *word);
  return 1;
}

/* Takes `length` bytes out between the link header and what follows. */
static __always_inline int remove_outer(struct xdp_md* context, __u32 link_length, __u32 length) {
  __u8 link_header[kMaxLinkHeader];
  if (bpf_xdp_load_bytes(context, 0, link_header, link_length)) return XDP_ABORTED;
  if (bpf_xdp_adjust_head(context, (int)length)) return XDP_ABORTED;
  if (bpf_xdp_store_bytes(context, 0, link_header, link_length)) return XDP_ABORTED;
  count(kDecapUnwrapped);
  return XDP_PASS;
}

SEC("xdp.frags")
int maglev_decap(struct xdp_md* context) {
  void* data = (void*)(long)context->data;
  const void* end = (const void*)(long)context->data_end;
  __be16 ethertype = 0;
  __u32 link_length = link_header_length(data, end, &ethertype);
  if (link_length == 0 || ethertype != bpf_htons(ETH_P_IP)) return XDP_PASS;
  const struct iphdr* outer = data + link_length;
  if ((const void*)(outer + 1) > end || outer->protocol != IPPROTO_IPIP) return XDP_PASS;

  __be32 source = outer->saddr;
  if (!bpf_map_lookup_elem(&outer_sources, &source)) {
    count(kDecapRefusedSource);
    return XDP_PASS;
  }
  __u32 outer_length = outer->ihl * 4;
  __u32 outer_total = bpf_ntohs(outer->tot_len);
  if (outer->version != 4 || outer_length < sizeof(*outer) ||
      link_length + outer_total > bpf_xdp_get_buff_len(context) ||
      outer_total < outer_length + sizeof(struct iphdr) ||
      !checksum_is_good(context, link_length, outer_length))
    return drop(kDecapMalformed);
  if (outer->frag_off & bpf_htons(kMoreFragmentsOrOffset)) return drop(kDecapFragment);

  struct iphdr* inner = data + link_length + outer_length;
  if ((void*)(inner + 1) > end) return drop(kDecapMalformed);
  __u32 inner_total = bpf_ntohs(inner->tot_len);
  if (inner->version != 4 || inner->ihl * 4u < sizeof(*inner) || inner_total < inner->ihl * 4u ||
      inner_total > outer_total - outer_length)
    return drop(kDecapMalformed);
  if (!combine_ecn(inner, outer->tos)) return drop(kDecapEcnDropped);
  return remove_outer(context, link_length, outer_length);
}

char program_license[] SEC("license") = "Dual BSD/GPL";
