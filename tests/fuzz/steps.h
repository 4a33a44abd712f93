// What the fuzzer's input means: a sequence of steps of 8 bytes, some with bytes behind them. Every
// input means something, so that mutations are never wasted.
//
//   first step      number of workers, rate of answers
//   kFrame          one frame by template (frames.h)
//   kRaw            one frame as it stands in the input, padded to whole steps
//   kPatch          two bytes of the last frame, counted from its start, IP or transport header
//   kResize         the last frame's end moves
//   kRepeat         the last frame again and again, a 16-bit field of it growing
//   kBurst          a worker receives all frames since the last burst
//   kWait           a worker looks at its inbox and hold, with nothing received
//   kClock          time passes
//   kPublish        a configuration by number (configurations.h)
//   kRecords        one spelled out as records of the published format
//   kPatchRecord    two bytes of a record of the next configuration
//   kBuffers        how many packet buffers are left for frames of the workers' own
//
// Pure; the input outlives the reader.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>

namespace maglev::fuzz {

enum class Kind : uint8_t {
  kFrame,
  kRaw,
  kPatch,
  kResize,
  kRepeat,
  kBurst,
  kWait,
  kClock,
  kPublish,
  kRecords,
  kPatchRecord,
  kBuffers,
  kCount
};

struct Step {
  uint8_t kind;  // modulo Kind::kCount
  uint8_t a, b, c;
  uint16_t d, e;

  Kind what() const { return static_cast<Kind>(kind % static_cast<uint8_t>(Kind::kCount)); }
};
static_assert(sizeof(Step) == 8);

inline constexpr uint32_t kMaxRecords = 16;
inline constexpr uint32_t kVipRecordLength = 48;
inline constexpr uint32_t kBackendRecordLength = 48;

// Bytes that belong to a step and stand behind it.
inline size_t bytes_behind(const Step& step) {
  if (step.what() == Kind::kRaw) return step.d;
  if (step.what() != Kind::kRecords) return 0;
  return step.a % (kMaxRecords + 1) * kVipRecordLength +
         step.b % (kMaxRecords + 1) * kBackendRecordLength;
}

class Steps {
 public:
  Steps(const uint8_t* data, size_t size) : rest_(data, size) {}

  // The next step, or false at the end. `behind` is cut short where the input ends.
  bool take(Step& step, std::span<const uint8_t>& behind) {
    if (rest_.size() < sizeof step) return false;
    std::memcpy(&step, rest_.data(), sizeof step);
    rest_ = rest_.subspan(sizeof step);
    const size_t length = std::min(bytes_behind(step), rest_.size());
    behind = rest_.first(length);
    rest_ = rest_.subspan(std::min((length + 7) / 8 * 8, rest_.size()));
    return true;
  }

  size_t left() const { return rest_.size(); }

 private:
  std::span<const uint8_t> rest_;
};

}  // namespace maglev::fuzz
