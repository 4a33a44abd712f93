/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The maps that the steering program and the guard share with their owner in user space: names,
 * keys and counters. C and C++. */
#pragma once

#include <linux/types.h>

/* Keys of the longest-prefix maps `vips4` and `vips6`; the value is one byte that says nothing. */
struct Vip4Key {
  __u32 prefix_length;
  __u8 address[4];
};

struct Vip6Key {
  __u32 prefix_length;
  __u8 address[16];
};

/* Places in the per-CPU array `counters`, in packets. */
enum SteeringCounter { kSteeringRedirected, kSteeringDropped, kSteeringPassed, kSteeringCounters };
enum GuardCounter { kGuardDropped, kGuardCounters };
