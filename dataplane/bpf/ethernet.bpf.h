/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once

#include <linux/bpf.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <linux/if_ether.h>
#include <linux/types.h>

enum { kMaxVlanTags = 2 };

struct VlanTag {
  __be16 control;
  __be16 ethertype;
};

enum { kMaxLinkHeader = sizeof(struct ethhdr) + kMaxVlanTags * sizeof(struct VlanTag) };

/* The length of the Ethernet header and up to two VLAN tags (802.1Q, 802.1ad), and the EtherType of
 * what follows; 0 when the frame ends earlier. */
static __always_inline __u32 link_header_length(const void* data, const void* end,
                                                __be16* ethertype) {
  const struct ethhdr* ethernet = data;
  __u32 length = sizeof(*ethernet);
  if (data + length > end) return 0;
  *ethertype = ethernet->h_proto;
#pragma unroll
  for (int i = 0; i < kMaxVlanTags; i++) {
    if (*ethertype != bpf_htons(ETH_P_8021Q) && *ethertype != bpf_htons(ETH_P_8021AD)) break;
    const struct VlanTag* tag = data + length;
    length += sizeof(*tag);
    if (data + length > end) return 0;
    *ethertype = tag->ethertype;
  }
  return length;
}
