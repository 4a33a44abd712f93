#include "tests/fuzz/mutate.h"

#include <algorithm>
#include <vector>

#include "tests/fuzz/steps.h"

namespace maglev::fuzz {
namespace {

// One step with the bytes behind it.
using Chunk = std::vector<uint8_t>;

std::vector<Chunk> split(const uint8_t* data, size_t size) {
  std::vector<Chunk> chunks;
  Steps steps(data, size);
  Step step;
  std::span<const uint8_t> behind;
  for (size_t start = 0; steps.take(step, behind); start = size - steps.left()) {
    chunks.emplace_back(data + start, data + (size - steps.left()));
  }
  return chunks;
}

Step step_of(const Chunk& chunk) {
  Step step;
  std::memcpy(&step, chunk.data(), sizeof step);
  return step;
}

Chunk chunk_of(const Step& step) {
  Chunk chunk(sizeof step);
  std::memcpy(chunk.data(), &step, sizeof step);
  return chunk;
}

Step random_step(std::minstd_rand& random) {
  // Packets most of the time, publications seldom.
  constexpr Kind kKinds[] = {Kind::kFrame,   Kind::kFrame,      Kind::kFrame, Kind::kFrame,
                             Kind::kPatch,   Kind::kPatch,      Kind::kPatch, Kind::kResize,
                             Kind::kRepeat,  Kind::kRepeat,     Kind::kBurst, Kind::kBurst,
                             Kind::kWait,    Kind::kClock,      Kind::kClock, Kind::kPublish,
                             Kind::kBuffers, Kind::kPatchRecord};
  const auto byte = [&random] { return static_cast<uint8_t>(random() >> 8); };
  const auto small = [&random, &byte] {
    return static_cast<uint16_t>(random() % 4 ? byte() % 64u : random() >> 4);
  };
  Step step{static_cast<uint8_t>(kKinds[random() % std::size(kKinds)]),
            byte(),
            byte(),
            byte(),
            small(),
            small()};
  if (step.what() == Kind::kFrame && random() % 2 == 0) step.e = 0;
  if (step.what() == Kind::kPublish) step.d = static_cast<uint16_t>(random() >> 4);
  if (step.what() == Kind::kBuffers && random() % 2 == 0) step.d = 0xffff;
  return step;
}

void change_field(Chunk& chunk, std::minstd_rand& random) {
  Step step = step_of(chunk);
  const auto value = static_cast<uint16_t>(random() >> 4);
  const auto bit = static_cast<uint16_t>(1u << random() % 16);
  switch (random() % 6) {
    case 0:
      step.a ^= static_cast<uint8_t>(bit);
      break;
    case 1:
      step.b ^= static_cast<uint8_t>(bit);
      break;
    case 2:
      step.c = static_cast<uint8_t>(value);
      break;
    case 3:
      step.d = random() % 2 ? value : static_cast<uint16_t>(step.d ^ bit);
      break;
    case 4:
      step.e ^= bit;
      break;
    case 5:
      step.e = static_cast<uint16_t>(step.e + random() % 3 - 1);
      break;
  }
  // The bytes behind stay what they are.
  if (bytes_behind(step) == bytes_behind(step_of(chunk))) {
    std::memcpy(chunk.data(), &step, sizeof step);
  }
}

void change_byte_behind(Chunk& chunk, std::minstd_rand& random) {
  const size_t behind = chunk.size() - sizeof(Step);
  chunk[sizeof(Step) + random() % behind] = static_cast<uint8_t>(random() >> 8);
}

void change(std::vector<Chunk>& chunks, std::minstd_rand& random) {
  const size_t at = random() % chunks.size();
  const auto place = chunks.begin() + static_cast<ptrdiff_t>(at);
  switch (random() % 8) {
    case 0:
    case 1:
      chunks.insert(place + 1, chunk_of(random_step(random)));
      break;
    case 2:
      if (chunks.size() > 2) chunks.erase(place);
      break;
    case 3: {
      const Chunk copy = chunks[at];
      chunks.insert(chunks.begin() + static_cast<ptrdiff_t>(random() % (chunks.size() + 1)), copy);
      break;
    }
    case 4:
      std::swap(chunks[at], chunks[random() % chunks.size()]);
      break;
    case 5:
      if (chunks[at].size() > sizeof(Step)) {
        change_byte_behind(chunks[at], random);
        break;
      }
      [[fallthrough]];
    default:
      change_field(chunks[at], random);
  }
}

}  // namespace

size_t mutate_steps(uint8_t* data, size_t size, size_t max_size, std::minstd_rand& random) {
  std::vector<Chunk> chunks = split(data, size);
  if (chunks.empty()) chunks.push_back(chunk_of(random_step(random)));
  for (uint32_t changes = 1 + random() % 4; changes > 0; --changes) change(chunks, random);
  size_t length = 0;
  for (const Chunk& chunk : chunks) {
    if (length + chunk.size() > max_size) break;
    std::memcpy(data + length, chunk.data(), chunk.size());
    length += chunk.size();
  }
  return length;
}

}  // namespace maglev::fuzz
