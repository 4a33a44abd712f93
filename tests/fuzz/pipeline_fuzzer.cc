// The libFuzzer target: an input is a sequence of packets, publications and clock steps (steps.h),
// played to a host of its own (lab.h) where everything is checked.
//
// Environment: MAGLEV_FUZZ_STATISTICS names a file that is written at the end, one line "name
// number" per figure; MAGLEV_FUZZ_PACKETS ends the fuzzing after so many packets.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include "tests/fuzz/mutate.h"
#include "tests/fuzz/player.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace maglev::fuzz {
namespace {

uint64_t executions = 0;

void write_statistics() {
  const char* path = std::getenv("MAGLEV_FUZZ_STATISTICS");
  if (path == nullptr) return;
  std::FILE* file = std::fopen(path, "w");
  if (file == nullptr) return std::perror(path);
  const auto write = [file](std::string_view name, uint64_t value) {
    std::fprintf(file, "%.*s %llu\n", static_cast<int>(name.size()), name.data(),
                 static_cast<unsigned long long>(value));
  };
  write("executions", executions);
  write("packets", statistics.packets);
  write("bursts", statistics.bursts);
  write("publications_adopted", statistics.adopted);
  write("publications_refused", statistics.refused);
  write("held", statistics.held);
  write("handed_over", statistics.handed_over);
  for (uint32_t o = 0; o < kOriginCount; ++o) {
    write(std::string("originated_") + std::string(kOriginNames[o]), statistics.originated[o]);
  }
  for (uint32_t v = 0; v < kVerdictCount; ++v) {
    write(std::string("verdict_") + std::string(kVerdictNames[v]), statistics.verdicts[v]);
  }
  std::fclose(file);
}

uint64_t packet_limit() {
  const char* text = std::getenv("MAGLEV_FUZZ_PACKETS");
  return text == nullptr ? UINT64_MAX : std::strtoull(text, nullptr, 10);
}

}  // namespace
}  // namespace maglev::fuzz

// For speed: short stack traces, no filling of new blocks, and freed ones kept from use only for a
// while, which finds most uses after the end.
extern "C" const char* __asan_default_options() {
  return "quarantine_size_mb=8:malloc_context_size=2:max_malloc_fill_size=0:detect_leaks=0";
}
extern "C" const char* __ubsan_default_options() {
  return "halt_on_error=1:print_stacktrace=1";
}

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  std::atexit(maglev::fuzz::write_statistics);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace maglev::fuzz;
  ++executions;
  Steps steps(data, size);
  Step first;
  ByteView behind;
  if (!steps.take(first, behind)) return 0;
  Player(first, steps).play();
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  using namespace maglev::fuzz;
  static const uint64_t limit = packet_limit();
  if (statistics.packets >= limit) std::exit(0);  // not within an input: there it were a failure
  std::minstd_rand random(seed);
  if (random() % 4 == 0) return LLVMFuzzerMutate(data, size, max_size);
  return mutate_steps(data, size, max_size, random);
}
