// The clock of all times that outlive a process: CLOCK_BOOTTIME, which goes on through a suspend
// and starts anew with each boot of the machine. Any thread.
#pragma once

#include <time.h>

#include <cstdint>

namespace maglev {

inline uint64_t boot_time_ns() {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace maglev
