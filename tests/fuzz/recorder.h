// Writes down, as an input for the fuzzer (steps.h), what a packet case does. Single-threaded.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dataplane/replay.h"
#include "tables/published.h"
#include "tests/fuzz/steps.h"

namespace maglev::fuzz {

class Recorder {
 public:
  explicit Recorder(const ReplaySettings& settings);

  // As many of them as a step takes, all of one pool, and of the seed what a step holds: the fuzzer
  // needs the case's packets and ways, not its outcome.
  void publish(const RootView& root, std::span<const BackendRecord> backends);
  void receive(uint32_t worker, uint16_t port, std::span<const ReceivedFrame> frames);
  void wait(uint64_t ns);

  const std::vector<uint8_t>& input() const { return input_; }

 private:
  void add(const Step& step);
  void add_bytes(const void* bytes, size_t length);
  void pad();
  void look_after_what_waits();

  const ReplaySettings settings_;
  std::vector<uint8_t> input_;
};

}  // namespace maglev::fuzz
