/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The set of VIPs and the question both programs ask of a frame: is it for one of them? */
#pragma once

#include <linux/bpf.h>
#include <linux/ip.h>
#include <linux/ipv6.h>

#include "dataplane/bpf/ethernet.bpf.h"
#include "dataplane/bpf/vip_maps.h"

enum { kMaxVipPrefixes = 65536 };

struct {
  __uint(type, BPF_MAP_TYPE_LPM_TRIE);
  __uint(map_flags, BPF_F_NO_PREALLOC);
  __uint(max_entries, kMaxVipPrefixes);
  __type(key, struct Vip4Key);
  __type(value, __u8);
} vips4 SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_LPM_TRIE);
  __uint(map_flags, BPF_F_NO_PREALLOC);
  __uint(max_entries, kMaxVipPrefixes);
  __type(key, struct Vip6Key);
  __type(value, __u8);
} vips6 SEC(".maps");

/* Enough of a frame to find its destination, whatever its tags. */
enum {
  kDestinationWithin =
      sizeof(struct ethhdr) + kMaxVlanTags * sizeof(struct VlanTag) + sizeof(struct ipv6hdr)
};

/* Frames cut short are for nobody: the kernel drops them without an answer. */
static __always_inline int is_for_vip(const void* data, const void* end) {
  __be16 ethertype = 0;
  __u32 link_length = link_header_length(data, end, &ethertype);
  if (link_length == 0) return 0;
  if (ethertype == bpf_htons(ETH_P_IP)) {
    const struct iphdr* ip = data + link_length;
    if ((const void*)(ip + 1) > end) return 0;
    struct Vip4Key key = {.prefix_length = 32};
    __builtin_memcpy(key.address, &ip->daddr, sizeof(key.address));
    return bpf_map_lookup_elem(&vips4, &key) != 0;
  }
  if (ethertype == bpf_htons(ETH_P_IPV6)) {
    const struct ipv6hdr* ip = data + link_length;
    if ((const void*)(ip + 1) > end) return 0;
    struct Vip6Key key = {.prefix_length = 128};
    __builtin_memcpy(key.address, &ip->daddr, sizeof(key.address));
    return bpf_map_lookup_elem(&vips6, &key) != 0;
  }
  return 0;
}
