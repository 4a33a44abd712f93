/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* On a backend: takes off what a load balancer put in front of the client's packet, so that the
 * kernel sees that packet, addressed to the VIP. IPv4 or IPv6 inside IPv4 or IPv6: directly, behind
 * GRE, or behind UDP and GUE (tunnel.bpf.h).
 *
 * - Not one of these tunnels, by protocol and UDP port: passes untouched. So does a later fragment
 *   of UDP, which names no port, and IPv6 with extension headers other than a fragment header.
 * - Outer source not among the configured ones: passes untouched, counted. It may be another
 *   tunnel's.
 *
 * From here on the packet is unwrapped, or dropped and counted, whatever is inside:
 * - Lengths or versions are wrong.
 * - The checksum of the outer IPv4 or UDP header is wrong; UDP may do without, over IPv6 unless the
 *   settings say no (RFC 6935).
 * - The outer packet is a fragment. Only a whole packet can be unwrapped.
 * - GRE or GUE says more than "here is an IP packet".
 * - The outer header tells of congestion, the inner flow cannot (RFC 6040).
 *
 * The inner header is changed in its ECN field alone; its own checksum is left to the kernel. */
#include "dataplane/bpf/ecn.bpf.h"
#include "dataplane/bpf/ethernet.bpf.h"
#include "dataplane/bpf/outer.bpf.h"
#include "dataplane/bpf/tunnel.bpf.h"

enum { kCounters = kDecapCounters };
#include "dataplane/bpf/counters.bpf.h"

struct {
  __uint(type, BPF_MAP_TYPE_LPM_TRIE);
  __uint(map_flags, BPF_F_NO_PREALLOC);
  __uint(max_entries, kMaxOuterSources);
  __type(key, struct Prefix4Key);
  __type(value, __u8);
} sources4 SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_LPM_TRIE);
  __uint(map_flags, BPF_F_NO_PREALLOC);
  __uint(max_entries, kMaxOuterSources);
  __type(key, struct Prefix6Key);
  __type(value, __u8);
} sources6 SEC(".maps");

static __always_inline int is_from_load_balancer(const struct Outer* outer) {
  if (outer->is_ipv6) {
    struct Prefix6Key key = {.prefix_length = 128};
    __builtin_memcpy(key.address, outer->addresses, sizeof(key.address));
    return bpf_map_lookup_elem(&sources6, &key) != 0;
  }
  struct Prefix4Key key = {.prefix_length = 32};
  __builtin_memcpy(key.address, outer->addresses, sizeof(key.address));
  return bpf_map_lookup_elem(&sources4, &key) != 0;
}

/* Checks the inner header and brings the outer one's ECN field into it. 0, or why it is dropped. */
static __always_inline int take_over_ecn4(struct xdp_md* context, const struct Inner* inner,
                                          __u8 outer_ecn) {
  struct iphdr ip;
  if (!load(context, inner->at, inner->end, &ip, sizeof(ip))) return kDecapMalformed;
  __u32 total = bpf_ntohs(ip.tot_len);
  if (ip.version != 4 || ip.ihl * 4u < sizeof(ip) || total < ip.ihl * 4u ||
      inner->at + total > inner->end)
    return kDecapMalformed;
  int ecn = combined_ecn(outer_ecn, ecn4(&ip));
  if (ecn < 0) return kDecapEcnDropped;
  if (ecn == ecn4(&ip)) return 0;
  set_ecn4(&ip, ecn);
  return bpf_xdp_store_bytes(context, inner->at, &ip, sizeof(ip)) ? kDecapMalformed : 0;
}

static __always_inline int take_over_ecn6(struct xdp_md* context, const struct Inner* inner,
                                          __u8 outer_ecn) {
  struct ipv6hdr ip;
  if (!load(context, inner->at, inner->end, &ip, sizeof(ip)) || ip.version != 6 ||
      inner->at + sizeof(ip) + bpf_ntohs(ip.payload_len) > inner->end)
    return kDecapMalformed;
  int ecn = combined_ecn(outer_ecn, ecn6(&ip));
  if (ecn < 0) return kDecapEcnDropped;
  if (ecn == ecn6(&ip)) return 0;
  set_ecn6(&ip, ecn);
  return bpf_xdp_store_bytes(context, inner->at, &ip, sizeof(ip)) ? kDecapMalformed : 0;
}

/* Moves the link header up to the inner packet and names what is behind it now. */
static __always_inline int remove_outer(struct xdp_md* context, __u32 link_length,
                                        const struct Inner* inner) {
  __u8 link_header[kMaxLinkHeader] = {};
  __be16 ethertype = inner->is_ipv6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP);
  /* None of these fails on a driver that keeps a frame's headers in its first buffer. */
  if (bpf_xdp_load_bytes(context, 0, link_header, link_length)) return XDP_ABORTED;
  if (bpf_xdp_adjust_head(context, (int)(inner->at - link_length))) return XDP_ABORTED;
  if (bpf_xdp_store_bytes(context, 0, link_header, link_length) ||
      bpf_xdp_store_bytes(context, link_length - sizeof(ethertype), &ethertype, sizeof(ethertype)))
    return XDP_ABORTED;
  count(kDecapUnwrapped);
  return XDP_PASS;
}

SEC("xdp.frags")
int maglev_decap(struct xdp_md* context) {
  __be16 ethertype = 0;
  __u32 link_length = link_header_length((const void*)(long)context->data,
                                         (const void*)(long)context->data_end, &ethertype);
  struct Outer outer = {};
  if (link_length == 0 || !read_outer(context, link_length, ethertype, &outer) ||
      !is_tunnel(context, &outer))
    return XDP_PASS;
  if (!is_from_load_balancer(&outer)) {
    count(kDecapRefusedSource);
    return XDP_PASS;
  }

  struct Inner inner = {};
  int cause = check_outer(context, &outer);
  if (!cause) cause = open_tunnel(context, &outer, &inner);
  if (!cause)
    cause = inner.is_ipv6 ? take_over_ecn6(context, &inner, outer.ecn)
                          : take_over_ecn4(context, &inner, outer.ecn);
  if (cause) {
    count(cause);
    return XDP_DROP;
  }
  return remove_outer(context, link_length, &inner);
}

char program_license[] SEC("license") = "Dual BSD/GPL";
