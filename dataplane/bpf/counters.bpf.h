/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Per-CPU packet counters. The including program defines kCounters first. */
#pragma once

#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>
#include <linux/types.h>

struct {
  __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
  __uint(max_entries, kCounters);
  __type(key, __u32);
  __type(value, __u64);
} counters SEC(".maps");

static __always_inline void count(__u32 counter) {
  __u64* packets = bpf_map_lookup_elem(&counters, &counter);
  if (packets) ++*packets;
}
