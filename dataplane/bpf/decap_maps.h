/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The maps of the decapsulation program as its loader sees them. C and C++.
 * `sources4` and `sources6`: the outer sources to accept (prefix_keys.h); the one byte of value
 * says nothing. `settings`: one struct DecapSettings. */
#pragma once

#include <linux/types.h>

#include "dataplane/bpf/prefix_keys.h"

enum { kMaxOuterSources = 1024, kMaxGuePorts = 8 };

struct DecapSettings {
  __be16 gue_ports_be[kMaxGuePorts]; /* 0: no port */
  __u8 refuse_zero_checksum;         /* UDP over IPv6 without a checksum is dropped */
};

/* Places in the per-CPU array `counters`, in packets. All but the first two say why a packet was
 * dropped. */
enum DecapCounter {
  kDecapUnwrapped,
  kDecapRefusedSource,
  kDecapMalformed,
  kDecapBadChecksum,
  kDecapFragment,
  kDecapUnsupported,
  kDecapEcnDropped,
  kDecapCounters
};
