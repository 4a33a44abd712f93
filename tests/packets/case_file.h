// One case of tests/packets, read from its file: what is set up, what happens in turn, and what
// must come of it. README.md there describes the language. Pure but for reading the file; mistakes
// are std::runtime_error with FILE:LINE.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "dataplane/replay.h"
#include "tests/packets/packet_text.h"

namespace maglev::packets {

// What is known of the way to a backend, where it is not what `maglev-control --render` assumes.
struct WayOut {
  bool resolved = true;
  bool on_link = true;
  uint16_t path_mtu_bytes = 0;
  uint16_t port = 0;
};

struct Publish {
  std::string configuration;           // YAML
  std::map<std::string, WayOut> ways;  // by backend
};
struct Wait {
  uint64_t ns = 0;
};
struct Receive {
  uint32_t worker = 0;
  uint16_t port = 0;
  bool segmented = false;
  Bytes frame;
};
// The line as Outcome prints (describe() below), and the frame sent.
struct Expect {
  std::string outcome;
  Bytes frame;
};

struct Step {
  std::string where;  // FILE:LINE
  std::variant<Publish, Wait, Receive, Expect> what;
};

struct PacketCase {
  std::string sentence;
  ReplaySettings settings;
  std::vector<Step> steps;
  std::map<std::string, uint64_t> counters;  // all that are not zero at the end
};

PacketCase read_case(const std::filesystem::path& file);

// "1 forwarded for VIP at POOL/BACKEND on port 0"; the worker is named where there are several.
std::string describe(const Outcome& outcome, uint32_t workers);

}  // namespace maglev::packets
