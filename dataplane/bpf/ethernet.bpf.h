/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#pragma once

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <linux/if_ether.h>
#include <linux/types.h>

enum { kMaxVlanTags = 2 };

struct VlanTag {
  __be16 control;
  __be16 ethertype;
};

/* Moves *cursor past the Ethernet header and up to two VLAN tags (802.1Q, 802.1ad). Returns the
 * EtherType of what follows, or 0 when the frame ends earlier. */
static __always_inline __be16 skip_ethernet(const void** cursor, const void* end) {
  const struct ethhdr* ethernet = *cursor;
  if ((const void*)(ethernet + 1) > end) return 0;
  __be16 ethertype = ethernet->h_proto;
  const struct VlanTag* tag = (const void*)(ethernet + 1);
#pragma unroll
  for (int i = 0; i < kMaxVlanTags; i++) {
    if (ethertype != bpf_htons(ETH_P_8021Q) && ethertype != bpf_htons(ETH_P_8021AD)) break;
    if ((const void*)(tag + 1) > end) return 0;
    ethertype = tag->ethertype;
    tag++;
  }
  *cursor = tag;
  return ethertype;
}
