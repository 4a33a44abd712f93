/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The Internet checksum (RFC 1071) over part of a frame, however many buffers it lies in. */
#pragma once

#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>
#include <linux/types.h>

enum {
  kGoodSum = 0xffff,
  kSumStep = 128, /* bytes, on the stack: a program has 512 */
  kMaxSumSteps = 65536 / kSumStep,
};

static __always_inline __u16 fold(__u32 sum) {
  sum = (sum & 0xffff) + (sum >> 16);
  return (__u16)(sum + (sum >> 16));
}

struct RunningSum {
  struct xdp_md* context;
  __u32 at;
  __u32 end;
  __u32 sum;
};

static long add_step(__u32 step, struct RunningSum* running) {
  __u8 bytes[kSumStep] = {};
  __u32 length = running->end - running->at;
  (void)step;
  if (length == 0) return 1;
  if (length > sizeof(bytes)) length = sizeof(bytes);
  if (bpf_xdp_load_bytes(running->context, running->at, bytes, length)) return 1;
  running->sum = (__u32)bpf_csum_diff(0, 0, (__be32*)bytes, sizeof(bytes), running->sum);
  running->at += length;
  return 0;
}

/* Of the bytes from `at` to `end` and `seed`; kGoodSum where a checksum among them is right.
 * Precondition: at <= end <= the frame's length. */
static __always_inline __u16 sum_of(struct xdp_md* context, __u32 at, __u32 end, __u32 seed) {
  struct RunningSum running = {.context = context, .at = at, .end = end, .sum = seed};
  bpf_loop(kMaxSumSteps, add_step, &running, 0);
  return fold(running.sum);
}
