// What the tests of our BPF programs share: frames made of bytes, programs run on them by the
// kernel (BPF_PROG_TEST_RUN), and a network of two namespaces joined by a veth pair.
#pragma once

#include <bpf/libbpf.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dataplane/bpf/attachment.h"

namespace maglev {

// --- frames ------------------------------------------------------------------------------------

using Bytes = std::vector<uint8_t>;
using Ipv4Address = std::array<uint8_t, 4>;
using Ipv6Address = std::array<uint8_t, 16>;

// Fields left at -1 take the value that is right.
struct Ipv4Header {
  Ipv4Address source{};
  Ipv4Address destination{};
  uint8_t protocol = 17;
  uint8_t tos = 0;
  uint16_t fragment = 0;
  Bytes options = {};
  int version = 4;
  int header_words = -1;
  int total_length = -1;
  int checksum = -1;
};

struct Ipv6Header {
  Ipv6Address source = {0x20, 0x01, 0x0d, 0xb8, 0xff};
  Ipv6Address destination{};
  uint8_t next_header = 17;
  uint8_t traffic_class = 0;
  uint8_t hop_limit = 64;
  int version = 6;
  int payload_length = -1;
};

// Big-endian, as everything in these headers.
Bytes u16(size_t value);
Bytes operator+(Bytes left, const Bytes& right);

Bytes ipv4(const Ipv4Header& header, const Bytes& payload);
Bytes ipv6(const Ipv6Header& header, const Bytes& payload);
Bytes udp(uint16_t destination_port, const Bytes& payload);  // without a checksum
// The same packet, IPv4 or IPv6 with UDP directly behind the header, with its UDP checksum.
Bytes with_udp_checksum(Bytes packet);
// The same header, of any length, with its checksum.
void set_ipv4_checksum(std::span<uint8_t> header);
// From 02:00:00:00:00:02 to 00:00:00:00:00:00, the address of the interface that a frame of
// BPF_PROG_TEST_RUN seems to come in by. One tag per element of tag_types.
Bytes ethernet(const std::vector<uint16_t>& tag_types, uint16_t ethertype, const Bytes& payload);

enum class Family { kIpv4, kIpv6 };
inline constexpr Family kFamilies[] = {Family::kIpv4, Family::kIpv6};

std::string name_of(Family family);
uint16_t ethertype_of(Family family);
// Untagged.
Bytes frame(Family family, const Bytes& packet);

// --- programs ----------------------------------------------------------------------------------

struct RunResult {
  uint32_t verdict;
  Bytes frame;
};

// An object file, loaded: its first program and its maps.
class LoadedObject {
 public:
  explicit LoadedObject(const std::string& path);
  int program_fd() const { return program_fd_; }
  int map_fd(const char* name) const;
  void put(const char* map, const auto& key, const auto& value) const { update(map, &key, &value); }
  RunResult run(const Bytes& frame) const;
  std::vector<uint64_t> counters(uint32_t count) const;

 private:
  void update(const char* map, const void* key, const void* value) const;

  std::unique_ptr<bpf_object, decltype(&bpf_object__close)> object_;
  int program_fd_;
};

// A program that accepts everything, under a name that is not ours.
FileDescriptor load_foreign_program(bpf_prog_type type, const char* name, int verdict);

// --- network -----------------------------------------------------------------------------------

// This process is in a namespace of its own ("near") with interface lb0, 198.18.1.1, and the VIP
// 198.51.100.10 on its loopback. The other ("far") has cl0, 198.18.1.2, and its route to the VIP.
// Both end with the process.
class TestNetwork {
 public:
  TestNetwork();
  void in_far(const std::function<void()>& action) const;
  uint32_t index() const { return index_; }

 private:
  FileDescriptor far_;
  FileDescriptor near_;
  uint32_t index_;
};

// Runs a command that has to succeed.
void shell(const std::string& command);
std::string output_of(const std::string& command);

// Name of the XDP program on an interface; empty without one.
std::string xdp_name(const std::string& interface);

}  // namespace maglev
