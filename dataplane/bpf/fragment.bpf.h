/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* How IPv4 (RFC 791) and IPv6 (RFC 8200) say that a packet is a fragment. */
#pragma once

#include <linux/types.h>

/* Of the IPv4 header's and the fragment header's 16 bits, in host order. */
enum { kOffsetMask4 = 0x1fff, kMoreFragments4 = 0x2000, kOffsetMask6 = 0xfff8 };

struct FragmentHeader {
  __u8 next_header;
  __u8 length; /* of other extension headers; here reserved */
  __be16 offset;
  __be32 id;
};
