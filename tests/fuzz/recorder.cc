#include "tests/fuzz/recorder.h"

#include <algorithm>
#include <limits>

namespace maglev::fuzz {
namespace {

constexpr uint16_t kUnlimited16 = std::numeric_limits<uint16_t>::max();

uint8_t code_of(Kind kind) {
  return static_cast<uint8_t>(kind);
}

template <typename Number>
uint16_t at_most(Number number, uint16_t limit) {
  return static_cast<uint16_t>(std::min<Number>(number, limit));
}

}  // namespace

Recorder::Recorder(const ReplaySettings& settings) : settings_(settings) {
  add({0, static_cast<uint8_t>(settings.workers - 1), 0, 0,
       at_most(settings.answers_per_second, kUnlimited16), 0});
  add({code_of(Kind::kBuffers), 0, 0, 0, at_most(settings.own_buffers, kUnlimited16), 0});
}

void Recorder::publish(const RootView& root, std::span<const BackendRecord> backends) {
  const auto vips = root.vips.first(std::min<size_t>(root.vips.size(), kMaxRecords));
  backends = backends.first(std::min<size_t>(backends.size(), kMaxRecords));
  add({code_of(Kind::kRecords), static_cast<uint8_t>(vips.size()),
       static_cast<uint8_t>(backends.size()), 0, 0, static_cast<uint16_t>(root.hash_seed)});
  for (VipRecord vip : vips) {
    vip.pool = 0;
    add_bytes(&vip, sizeof vip);
  }
  add_bytes(backends.data(), backends.size_bytes());
  pad();
}

void Recorder::receive(uint32_t worker, uint16_t port, std::span<const ReceivedFrame> frames) {
  for (const ReceivedFrame& frame : frames) {
    const uint16_t length = at_most(frame.bytes.size(), kUnlimited16);
    add({code_of(Kind::kRaw), frame.segmented ? uint8_t{1} : uint8_t{0}, 0, 0, length, 0});
    add_bytes(frame.bytes.data(), length);
    pad();
  }
  const bool unlimited = settings_.transmit_room >= kUnlimited16;
  const auto room = static_cast<uint16_t>(unlimited ? 0 : settings_.transmit_room + 1);
  add({code_of(Kind::kBurst), static_cast<uint8_t>(worker), static_cast<uint8_t>(port),
       settings_.partial_checksums ? uint8_t{1} : uint8_t{0}, room, 0});
  look_after_what_waits();
}

void Recorder::wait(uint64_t ns) {
  constexpr uint64_t kLongest_ms = 1000;
  constexpr uint8_t kMilliseconds = 1;
  for (uint64_t left_ms = ns / 1'000'000; left_ms > 0;) {
    const uint64_t step_ms = std::min(left_ms, kLongest_ms);
    add({code_of(Kind::kClock), kMilliseconds, 0, 0, static_cast<uint16_t>(step_ms - 1), 0});
    left_ms -= step_ms;
  }
  look_after_what_waits();
}

void Recorder::add(const Step& step) {
  add_bytes(&step, sizeof step);
}

void Recorder::add_bytes(const void* bytes, size_t length) {
  const auto* first = static_cast<const uint8_t*>(bytes);
  input_.insert(input_.end(), first, first + length);
}

void Recorder::pad() {
  input_.resize((input_.size() + sizeof(Step) - 1) / sizeof(Step) * sizeof(Step));
}

void Recorder::look_after_what_waits() {
  for (uint32_t worker = 0; worker < settings_.workers; ++worker) {
    add({code_of(Kind::kWait), static_cast<uint8_t>(worker), 0, 0, 0, 0});
  }
}

}  // namespace maglev::fuzz
