// Throws where something is not as it must be. Nobody catches it but who asks for one of several
// things to hold: the program ends where it was thrown, and libFuzzer keeps the input. Any thread.
#pragma once

#include <stdexcept>

namespace maglev::fuzz {

inline void require(bool holds, const char* complaint) {
  if (!holds) [[unlikely]]
    throw std::logic_error(complaint);
}

}  // namespace maglev::fuzz
