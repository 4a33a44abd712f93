/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The outer IP header of a frame: what it says, and whether that can be true. */
#pragma once

#include <linux/bpf.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>

#include "dataplane/bpf/checksum.bpf.h"
#include "dataplane/bpf/decap_maps.h"
#include "dataplane/bpf/ecn.bpf.h"
#include "dataplane/bpf/fragment.bpf.h"

/* Offsets count from the start of the frame. */
struct Outer {
  __u32 at;
  __u32 inside; /* what follows the header, its options and an IPv6 fragment header */
  __u32 end;    /* by the header's own length; behind it there may be padding */
  __u8 is_ipv6;
  __u8 version;
  __u8 protocol;
  __u8 ecn;
  __u8 is_fragment;
  __u8 is_later_fragment;
  __u32 addresses[8]; /* source, destination; of IPv4 the first two */
};

static __always_inline int read_outer4(struct xdp_md* context, struct Outer* outer) {
  struct iphdr ip;
  if (bpf_xdp_load_bytes(context, outer->at, &ip, sizeof(ip))) return 0;
  __u16 fragment = bpf_ntohs(ip.frag_off);
  outer->inside = outer->at + ip.ihl * 4;
  outer->end = outer->at + bpf_ntohs(ip.tot_len);
  outer->version = ip.version;
  outer->protocol = ip.protocol;
  outer->ecn = ecn4(&ip);
  outer->is_fragment = (fragment & (kOffsetMask4 | kMoreFragments4)) != 0;
  outer->is_later_fragment = (fragment & kOffsetMask4) != 0;
  outer->addresses[0] = ip.saddr;
  outer->addresses[1] = ip.daddr;
  return 1;
}

/* Of extension headers only the fragment header is looked behind: no load balancer of ours sends
 * any, but a router's fragment must be told from a packet that is not ours. */
static __always_inline int read_outer6(struct xdp_md* context, struct Outer* outer) {
  struct ipv6hdr ip;
  if (bpf_xdp_load_bytes(context, outer->at, &ip, sizeof(ip))) return 0;
  outer->is_ipv6 = 1;
  outer->inside = outer->at + sizeof(ip);
  outer->end = outer->inside + bpf_ntohs(ip.payload_len);
  outer->version = ip.version;
  outer->protocol = ip.nexthdr;
  outer->ecn = ecn6(&ip);
  __builtin_memcpy(outer->addresses, &ip.saddr, sizeof(outer->addresses));
  if (outer->protocol != IPPROTO_FRAGMENT) return 1;

  struct FragmentHeader fragment;
  if (bpf_xdp_load_bytes(context, outer->inside, &fragment, sizeof(fragment))) return 0;
  outer->inside += sizeof(fragment);
  outer->protocol = fragment.next_header;
  outer->is_fragment = 1;
  outer->is_later_fragment = (bpf_ntohs(fragment.offset) & kOffsetMask6) != 0;
  return 1;
}

/* 0 when there is no whole IP header behind the link header. */
static __always_inline int read_outer(struct xdp_md* context, __u32 at, __be16 ethertype,
                                      struct Outer* outer) {
  outer->at = at;
  if (ethertype == bpf_htons(ETH_P_IP)) return read_outer4(context, outer);
  if (ethertype == bpf_htons(ETH_P_IPV6)) return read_outer6(context, outer);
  return 0;
}

/* 0, or why the packet is dropped. */
static __always_inline int check_outer(struct xdp_md* context, const struct Outer* outer) {
  __u32 shortest = outer->is_ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);
  if (outer->version != (outer->is_ipv6 ? 6 : 4) || outer->inside < outer->at + shortest ||
      outer->end < outer->inside || outer->end > bpf_xdp_get_buff_len(context))
    return kDecapMalformed;
  if (!outer->is_ipv6 && sum_of(context, outer->at, outer->inside, 0) != kGoodSum)
    return kDecapBadChecksum;
  return outer->is_fragment ? kDecapFragment : 0;
}
