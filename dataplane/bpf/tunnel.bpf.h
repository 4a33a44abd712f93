/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What lies between the outer IP header and the inner one: nothing (RFC 2003, 2473, 4213), GRE
 * (RFC 2784), or UDP and GUE (draft-ietf-intarea-gue-09). */
#pragma once

#include <linux/bpf.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/udp.h>

#include "dataplane/bpf/checksum.bpf.h"
#include "dataplane/bpf/decap_maps.h"
#include "dataplane/bpf/outer.bpf.h"

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, struct DecapSettings);
} settings SEC(".maps");

struct GreHeader {
  __be16 flags;
  __be16 ethertype;
};

struct GueHeader {
  __u8 kind; /* variant (2 bits), control (1), length of what is optional (5) */
  __u8 protocol;
  __be16 flags;
};

enum {
  /* Checksum, routing, key, sequence number, source route, recursion (RFC 1701, 2890) and a version
   * other than 0; the rest a receiver has to ignore. */
  kGreRefused = 0xfc07,
  kGueVariantShift = 6,
};

/* Where the inner packet starts, by what headers in front of it say. */
struct Inner {
  __u32 at;
  __u32 end;
  __u8 is_ipv6;
};

/* Within a packet, not within its frame: behind its end there may be padding. */
static __always_inline int load(struct xdp_md* context, __u32 at, __u32 end, void* to,
                                __u32 length) {
  return at + length <= end && bpf_xdp_load_bytes(context, at, to, length) == 0;
}

static __always_inline int is_gue_port(__be16 port) {
  __u32 only = 0;
  const struct DecapSettings* wanted = bpf_map_lookup_elem(&settings, &only);
  if (!wanted || port == 0) return 0;
#pragma unroll
  for (int i = 0; i < kMaxGuePorts; i++)
    if (wanted->gue_ports_be[i] == port) return 1;
  return 0;
}

static __always_inline int accepts_zero_checksum(const struct Outer* outer) {
  __u32 only = 0;
  const struct DecapSettings* wanted = bpf_map_lookup_elem(&settings, &only);
  return !outer->is_ipv6 || (wanted && !wanted->refuse_zero_checksum);
}

/* By its protocol, and in UDP by its port, which later fragments do not have. */
static __always_inline int is_tunnel(struct xdp_md* context, const struct Outer* outer) {
  switch (outer->protocol) {
    case IPPROTO_IPIP:
    case IPPROTO_IPV6:
    case IPPROTO_GRE:
      return 1;
    case IPPROTO_UDP: {
      struct udphdr udp;
      return !outer->is_later_fragment &&
             load(context, outer->inside, outer->end, &udp, sizeof(udp)) && is_gue_port(udp.dest);
    }
    default:
      return 0;
  }
}

static __always_inline int open_gre(struct xdp_md* context, struct Inner* inner) {
  struct GreHeader gre;
  if (!load(context, inner->at, inner->end, &gre, sizeof(gre))) return kDecapMalformed;
  if (gre.flags & bpf_htons(kGreRefused)) return kDecapUnsupported;
  if (gre.ethertype != bpf_htons(ETH_P_IP) && gre.ethertype != bpf_htons(ETH_P_IPV6))
    return kDecapUnsupported;
  inner->at += sizeof(gre);
  inner->is_ipv6 = gre.ethertype == bpf_htons(ETH_P_IPV6);
  return 0;
}

static __always_inline int udp_checksum_is_good(struct xdp_md* context, const struct Outer* outer) {
  /* The same sum for both families: zeros add nothing. */
  struct {
    __u32 addresses[8];
    __be32 length;
    __be32 protocol;
  } pseudo_header = {.length = bpf_htonl(outer->end - outer->inside),
                     .protocol = bpf_htonl(IPPROTO_UDP)};
  __builtin_memcpy(pseudo_header.addresses, outer->addresses, sizeof(pseudo_header.addresses));
  __u32 seed = (__u32)bpf_csum_diff(0, 0, (__be32*)&pseudo_header, sizeof(pseudo_header), 0);
  return sum_of(context, outer->inside, outer->end, seed) == kGoodSum;
}

static __always_inline int open_udp(struct xdp_md* context, const struct Outer* outer,
                                    struct Inner* inner) {
  struct udphdr udp;
  if (!load(context, inner->at, inner->end, &udp, sizeof(udp)) ||
      bpf_ntohs(udp.len) != inner->end - inner->at)
    return kDecapMalformed;
  if (udp.check == 0 ? !accepts_zero_checksum(outer) : !udp_checksum_is_good(context, outer))
    return kDecapBadChecksum;
  inner->at += sizeof(udp);
  return 0;
}

static __always_inline int open_gue(struct xdp_md* context, struct Inner* inner) {
  struct GueHeader gue;
  if (!load(context, inner->at, inner->end, &gue, sizeof(gue))) return kDecapMalformed;
  if (gue.kind >> kGueVariantShift == 1) {
    /* Variant 1 has no header: these are the inner packet's first bits, its version. */
    __u8 version = gue.kind >> 4;
    inner->is_ipv6 = version == 6;
    return version == 4 || version == 6 ? 0 : kDecapUnsupported;
  }
  if (gue.kind != 0 || gue.flags != 0) return kDecapUnsupported;
  if (gue.protocol != IPPROTO_IPIP && gue.protocol != IPPROTO_IPV6) return kDecapUnsupported;
  inner->at += sizeof(gue);
  inner->is_ipv6 = gue.protocol == IPPROTO_IPV6;
  return 0;
}

/* Finds the inner packet. 0, or why it is dropped. */
static __always_inline int open_tunnel(struct xdp_md* context, const struct Outer* outer,
                                       struct Inner* inner) {
  inner->at = outer->inside;
  inner->end = outer->end;
  inner->is_ipv6 = outer->protocol == IPPROTO_IPV6;
  if (outer->protocol == IPPROTO_GRE) return open_gre(context, inner);
  if (outer->protocol != IPPROTO_UDP) return 0;
  int cause = open_udp(context, outer, inner);
  return cause ? cause : open_gue(context, inner);
}
