/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Explicit congestion notification where a tunnel ends: RFC 6040, figure 4. */
#pragma once

#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/types.h>

#include "dataplane/bpf/checksum.bpf.h"

enum Ecn { kNotEct = 0, kEct1 = 1, kEct0 = 2, kCongestion = 3, kEcnMask = 3 };

/* The traffic class lies across the first two bytes, the ECN field in the second alone. */
enum { kIpv6EcnShift = 4 };

static __always_inline __u8 ecn4(const struct iphdr* ip) {
  return ip->tos & kEcnMask;
}

static __always_inline __u8 ecn6(const struct ipv6hdr* ip) {
  return ip->flow_lbl[0] >> kIpv6EcnShift & kEcnMask;
}

/* What the inner header is to say. Negative: it cannot tell of congestion, the packet must go. */
static __always_inline int combined_ecn(__u8 outer, __u8 inner) {
  if (outer == kCongestion) return inner == kNotEct ? -1 : kCongestion;
  return outer == kEct1 && inner == kEct0 ? kEct1 : inner;
}

/* The checksum is brought along (RFC 1624), so that a wrong one stays wrong. */
static __always_inline void set_ecn4(struct iphdr* ip, __u8 ecn) {
  const __be16* word = (const __be16*)ip;
  __u32 sum = (__u16)~ip->check + (__u16) ~*word;
  ip->tos = (ip->tos & ~kEcnMask) | ecn;
  ip->check = (__u16)~fold(sum + *word);
}

static __always_inline void set_ecn6(struct ipv6hdr* ip, __u8 ecn) {
  ip->flow_lbl[0] = (ip->flow_lbl[0] & ~(kEcnMask << kIpv6EcnShift)) | ecn << kIpv6EcnShift;
}
