/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The maps of the decapsulation program as its loader sees them. C and C++.
 * `outer_sources`: the IPv4 addresses to accept, in network order; the value says nothing. */
#pragma once

enum { kMaxOuterSources = 1024 };

/* Places in the per-CPU array `counters`, in packets. */
enum DecapCounter {
  kDecapUnwrapped,
  kDecapRefusedSource,
  kDecapMalformed,
  kDecapFragment,
  kDecapEcnDropped,
  kDecapCounters
};
