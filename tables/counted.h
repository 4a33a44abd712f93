// Numbers of things in messages. Pure, any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <fmt/format.h>

namespace maglev {

// "1 pool", "2 pools".
inline std::string counted(uint64_t number, std::string_view noun) {
  return fmt::format("{} {}{}", number, noun, number == 1 ? "" : "s");
}

}  // namespace maglev
