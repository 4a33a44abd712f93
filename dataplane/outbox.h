// Frames that a worker sends on its own account, and how many of them it may.
//
// Each worker has one of each and only its own thread touches them. The pipeline fills the outbox
// while it handles a burst; the worker empties it after the burst: sends the frames, frees what
// found no room. Every frame in it has been counted by its origin; whatever could not be made is
// counted as a failure by the pipeline.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

#include "dataplane/verdict.h"

namespace maglev {

struct OutFrame {
  void* buffer = nullptr;    // what the allocator gave
  uint8_t* frame = nullptr;  // in it
  uint32_t length = 0;
  uint16_t port = 0;
  Origin origin = Origin::kEchoReply;
};

class Outbox {
 public:
  static constexpr uint32_t kCapacity = 128;  // frames per burst

  // A buffer of at least `room` bytes behind `frame`, which has the pipeline's headroom in front; a
  // null buffer when there is none.
  using Allocate = OutFrame (*)(void* context, uint32_t room);

  Outbox(Allocate allocate, void* context) : allocate_(allocate), context_(context) {}

  // Null when there is no buffer or no place. The caller sets the other fields.
  OutFrame* add(uint32_t room) {
    if (count_ == kCapacity) return nullptr;
    frames_[count_] = allocate_(context_, room);
    return frames_[count_].buffer == nullptr ? nullptr : &frames_[count_++];
  }

  uint32_t count() const { return count_; }
  const OutFrame& operator[](uint32_t i) const { return frames_[i]; }
  void clear() { count_ = 0; }

 private:
  Allocate allocate_;
  void* context_;
  uint32_t count_ = 0;
  std::array<OutFrame, kCapacity> frames_;
};

// A token bucket: `rate` a second on average, up to a tenth of that (at least one) at once.
class RateLimit {
 public:
  explicit RateLimit(uint64_t per_second)
      : interval_ns_(per_second == 0 ? 0 : static_cast<int64_t>(1'000'000'000 / per_second)) {}

  bool allows(uint64_t now_ns) {
    if (interval_ns_ == 0) return false;
    constexpr int64_t kBurst_ns = 100'000'000;
    const auto now = static_cast<int64_t>(now_ns);
    next_ns_ = std::max(next_ns_, now - std::max<int64_t>(0, kBurst_ns - interval_ns_));
    if (next_ns_ > now) return false;
    next_ns_ += interval_ns_;
    return true;
  }

 private:
  int64_t interval_ns_;
  // When the next one is due at the average rate: long ago.
  int64_t next_ns_ = std::numeric_limits<int64_t>::min();
};

}  // namespace maglev
