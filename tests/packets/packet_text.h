// Frames written as lines of text, one header a line, outermost first: the language of the cases in
// tests/packets, which README.md there describes. Lengths, checksums and the kinds of what follows
// are worked out where a line does not say them, by code that shares nothing with the dataplane.
// Pure functions; mistakes are std::runtime_error with FILE:LINE.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace maglev::packets {

using Bytes = std::vector<uint8_t>;

struct Line {
  std::string where;  // FILE:LINE
  std::vector<std::string> words;
};

// `received` are the frames that "received N" and "quote N" speak of, from 1.
Bytes encode(std::span<const Line> lines, std::span<const Bytes> received);

[[noreturn]] void fail(const Line& line, const std::string& what);
uint64_t number(const Line& line, const std::string& word);

// The words of a line behind its first, taken out one by one.
class Words {
 public:
  explicit Words(const Line& line) : line_(line), left_(line.words.begin() + 1, line.words.end()) {}

  bool empty() const { return left_.empty(); }
  std::string next();
  uint64_t next_number() { return number(line_, next()); }
  // "KEY VALUE" wherever it stands.
  uint64_t value(const std::string& key, uint64_t otherwise);
  bool flag(const std::string& word);
  // "KEY AA BB .." up to the end of the line.
  Bytes hex_behind(const std::string& key);
  Bytes hex();
  // Nothing may be left.
  void finish() const;

 private:
  const Line& line_;
  std::vector<std::string> left_;
};

}  // namespace maglev::packets
