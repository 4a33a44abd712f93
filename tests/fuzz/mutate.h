// Changes an input step by step, so that what stands behind a change keeps its meaning. Any thread.
#pragma once

#include <cstdint>
#include <random>

namespace maglev::fuzz {

// Returns the new length, at most max_size.
size_t mutate_steps(uint8_t* data, size_t size, size_t max_size, std::minstd_rand& random);

}  // namespace maglev::fuzz
