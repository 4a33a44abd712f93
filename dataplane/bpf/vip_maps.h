/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The maps that the steering program and the guard share with their owner in user space: names,
 * keys, values and counters. C and C++.
 * `vips4` and `vips6`: prefixes of VIPs (prefix_keys.h) and the VipRule of each.
 * `services`: the VIPs of each prefix; the one byte of value says nothing.
 * `interface_mac`, of steering alone: one struct InterfaceMac. */
#pragma once

#include <linux/types.h>

#include "dataplane/bpf/prefix_keys.h"

/* Without any of these all traffic to a prefix is the workers'. */
enum VipRuleFlag { kRuleEchoToKernel = 1, kRuleUnservedToKernel = 2 };

struct VipRule {
  __u32 prefix_id; /* in the keys of `services` */
  __u32 flags;
};

struct ServiceKey {
  __u32 prefix_id;
  __be16 port_be; /* 0: any */
  __u8 protocol;
  __u8 zero;
};

struct InterfaceMac {
  __u8 bytes[6];
};

/* Places in the per-CPU array `counters`, in packets. */
enum SteeringCounter { kSteeringRedirected, kSteeringDropped, kSteeringPassed, kSteeringCounters };
enum GuardCounter { kGuardDropped, kGuardCounters };
