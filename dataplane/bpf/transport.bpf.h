/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Where the transport header of an IP packet lies. */
#pragma once

#include <linux/bpf.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>

#include "dataplane/bpf/fragment.bpf.h"

enum { kMaxExtensionHeaders = 8 };

struct Transport {
  __u32 at; /* from the start of the frame; meaningless in a later fragment */
  __u8 protocol;
  __u8 is_later_fragment;
};

/* 0 when the header length cannot be. */
static __always_inline int find_transport4(const struct iphdr* ip, __u32 at,
                                           struct Transport* transport) {
  transport->at = at + ip->ihl * 4;
  transport->protocol = ip->protocol;
  transport->is_later_fragment = (bpf_ntohs(ip->frag_off) & kOffsetMask4) != 0;
  return ip->ihl * 4u >= sizeof(*ip);
}

static __always_inline int is_extension_header(__u8 protocol) {
  return protocol == IPPROTO_HOPOPTS || protocol == IPPROTO_ROUTING ||
         protocol == IPPROTO_DSTOPTS || protocol == IPPROTO_AH || protocol == IPPROTO_FRAGMENT;
}

/* In bytes. RFC 8200 and, for the authentication header, RFC 4302. */
static __always_inline __u32 extension_length(__u8 protocol, __u8 length_field) {
  if (protocol == IPPROTO_FRAGMENT) return sizeof(struct FragmentHeader);
  return protocol == IPPROTO_AH ? (length_field + 2u) * 4 : (length_field + 1u) * 8;
}

/* 0 when the headers are cut short or too many. */
static __always_inline int find_transport6(const struct ipv6hdr* ip, __u32 at, const void* data,
                                           const void* end, struct Transport* transport) {
  transport->at = at + sizeof(*ip);
  transport->protocol = ip->nexthdr;
#pragma unroll
  for (int i = 0; i < kMaxExtensionHeaders; i++) {
    /* Each is at least 8 bytes long and begins as a fragment header does. */
    const struct FragmentHeader* header = data + transport->at;
    __u8 protocol = transport->protocol;
    if (!is_extension_header(protocol)) return 1;
    if ((const void*)(header + 1) > end) return 0;
    transport->protocol = header->next_header;
    if (protocol == IPPROTO_FRAGMENT && (header->offset & bpf_htons(kOffsetMask6))) {
      transport->is_later_fragment = 1;
      return 1;
    }
    transport->at += extension_length(protocol, header->length);
  }
  return !is_extension_header(transport->protocol);
}
