// Random numbers that are the same everywhere for a seed (splitmix64), cheap to begin anew per
// flow.
#pragma once

#include <cmath>
#include <cstdint>

namespace maglev::model {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
  }
  uint64_t below(uint64_t limit) { return next() % limit; }
  double uniform(double low, double high) {
    return low + (high - low) * static_cast<double>(next() >> 11) * 0x1p-53;
  }
  bool chance(double probability) { return uniform(0, 1) < probability; }
  double exponential(double mean) { return -mean * std::log(1 - uniform(0, 1)); }

 private:
  uint64_t state_;
};

inline uint64_t mix(uint64_t value) {
  return Random(value).next();
}

constexpr uint64_t to_ns(double seconds) {
  return static_cast<uint64_t>(seconds * 1e9);
}

}  // namespace maglev::model
