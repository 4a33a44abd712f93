/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Keys of longest-prefix maps, for programs and their owners in user space. C and C++. */
#pragma once

#include <linux/types.h>

struct Prefix4Key {
  __u32 prefix_length;
  __u8 address[4];
};

struct Prefix6Key {
  __u32 prefix_length;
  __u8 address[16];
};
