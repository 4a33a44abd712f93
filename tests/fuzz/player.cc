#include "tests/fuzz/player.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "dataplane/packet.h"

namespace maglev::fuzz {
namespace {

// What an input makes beyond these only makes it slow: a publication takes as long as hundreds of
// packets.
constexpr uint32_t kMaxPackets = 8192;
constexpr uint32_t kMaxPublications = 6;

constexpr uint64_t kClockUnits_ns[] = {1'000, 1'000'000, 100'000'000, 1'000'000'000};

}  // namespace

Player::Player(const Step& first, Steps steps)
    : steps_(steps), workers_(1 + first.a % kMaxWorkers), lab_(workers_, first.d) {}

void Player::play() {
  Step step;
  ByteView behind;
  while (packets_ < kMaxPackets && steps_.take(step, behind)) apply(step, behind);
  lab_.finish();
}

void Player::apply(const Step& step, ByteView behind) {
  switch (step.what()) {
    case Kind::kFrame:
      return add_template(step);
    case Kind::kRaw:
      return add_raw(behind, (step.a & 1) != 0);
    case Kind::kPatch:
      return patch(step);
    case Kind::kResize:
      return resize(step);
    case Kind::kRepeat:
      return repeat(step);
    case Kind::kBurst:
      return receive(step);
    case Kind::kWait:
      return lab_.wait(step.a % workers_);
    case Kind::kClock:
      return lab_.pass_time(kClockUnits_ns[step.a % 4] * (1 + step.d % 1000));
    case Kind::kPublish:
      // The wide one takes as long as hundreds of the others.
      return publish(step, step.a == 0xff && publications_ == 0 ? configuration_with_wide_slots()
                                                                : configuration_of(step.d));
    case Kind::kRecords: {
      const size_t vips =
          std::min<size_t>(behind.size(), step.a % (kMaxRecords + 1) * kVipRecordLength);
      return publish(step, configuration_of_records(behind.first(vips), behind.subspan(vips)));
    }
    case Kind::kPatchRecord:
      return record_patches_.push_back(step);
    case Kind::kBuffers:
      return lab_.set_free_buffers(step.d == 0xffff ? UINT32_MAX : step.d);
    case Kind::kCount:
      break;
  }
}

// Before another frame is added.
void Player::make_room() {
  if (lab_.pending() == kMaxBurst) lab_.receive(0, 0, false, UINT32_MAX);
  ++packets_;
}

void Player::add_template(const Step& step) {
  static uint8_t scratch[kLongestFrame];
  make_room();
  layout_ = make_frame(step, lab_.vips(), scratch);
  std::memcpy(lab_.add_frame(layout_.length, layout_.segmented), scratch, layout_.length);
}

void Player::add_raw(ByteView bytes, bool segmented) {
  make_room();
  layout_ = {static_cast<uint32_t>(bytes.size()), kEthernetHeaderLength,
             kEthernetHeaderLength + kIpv4HeaderLength, segmented};
  uint8_t* frame = lab_.add_frame(layout_.length, segmented);
  std::ranges::copy(bytes, frame);
}

// Two bytes of the last frame, or null.
uint8_t* Player::field(uint32_t base, uint32_t offset) {
  const uint32_t bases[] = {0, layout_.ip, layout_.transport};
  const uint32_t at = bases[base % 3] + offset;
  return at + 2 <= lab_.last_frame().size() ? lab_.patch_last_frame() + at : nullptr;
}

void Player::patch(const Step& step) {
  uint8_t* bytes = field(step.a, step.d);
  if (bytes == nullptr) return;
  switch (step.b % 3) {
    case 0:
      return store_be16(bytes, step.e);
    case 1:
      bytes[0] = static_cast<uint8_t>(step.e);
      return;
    case 2:
      return store_be16(bytes, static_cast<uint16_t>(load_be16(bytes) + step.e));
  }
}

// By up to 64 bytes, or to a length.
void Player::resize(const Step& step) {
  if (lab_.pending() == 0) return;
  const auto length = static_cast<uint32_t>(lab_.last_frame().size());
  constexpr uint32_t kLongest = 2048;
  uint32_t wanted = step.d % kLongest;
  if (step.a % 3 == 0) wanted = length + step.d % 64;
  if (step.a % 3 == 1) wanted = length - std::min<uint32_t>(length, step.d % 64);
  lab_.resize_last_frame(std::min(wanted, kLongestFrame));
}

void Player::repeat(const Step& step) {
  if (lab_.pending() == 0) return;
  const ByteView last = lab_.last_frame();
  const std::vector<uint8_t> model(last.begin(), last.end());
  const uint32_t times = 1 + step.a % kMaxBurst;
  for (uint32_t n = 1; n <= times; ++n) {
    make_room();
    std::ranges::copy(model,
                      lab_.add_frame(static_cast<uint32_t>(model.size()), layout_.segmented));
    if (uint8_t* bytes = field(step.b, step.d)) {
      store_be16(bytes, static_cast<uint16_t>(load_be16(bytes) + n * step.e));
    }
  }
}

void Player::receive(const Step& step) {
  const uint32_t transmit_room = step.d == 0 ? UINT32_MAX : step.d - 1u;
  lab_.receive(step.a % workers_, step.b % 3, (step.c & 1) != 0, transmit_room);
}

void Player::publish(const Step& step, Configuration configuration) {
  if (++publications_ > kMaxPublications) return;
  lab_.receive(0, 0, false, UINT32_MAX);
  for (const Step& change : record_patches_) {
    fuzz::patch(configuration, change.a, change.b, change.d);
  }
  record_patches_.clear();
  lab_.publish(configuration, step.e);
}

}  // namespace maglev::fuzz
