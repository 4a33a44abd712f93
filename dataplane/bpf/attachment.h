// What every loader of ours needs to know about programs on a network interface: which one is
// there, whose it is, which maps it has, and that no other process of ours is in charge of it.
//
// Main thread only. Errors are whole sentences that begin with the interface's name.
#pragma once

#include <bpf/libbpf.h>

#include <cstdint>
#include <expected>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dataplane/file_descriptor.h"

namespace maglev {

// The maps of one loaded program by name.
using ProgramMaps = std::map<std::string, FileDescriptor, std::less<>>;

// A loaded program; id 0 says that there is none.
struct Program {
  uint32_t id = 0;
  std::string name;  // the kernel keeps 15 characters
  FileDescriptor fd;
  ProgramMaps maps;

  // Loaded from an object of ours: this name, and all these maps.
  bool is(std::string_view wanted_name, std::span<const std::string_view> wanted_maps) const;
};

struct XdpAttachment {
  Program program;
  uint32_t mode_flags = 0;  // XDP_FLAGS_*_MODE it was attached with
};

std::expected<uint32_t, std::string> find_interface(const std::string& interface);

// Makes this process the only one of ours in charge of the interface until the result is closed;
// the kernel releases it whatever the cause of death. (A Unix socket with an abstract name: those
// exist per network namespace, as interfaces do.)
std::expected<FileDescriptor, std::string> claim_interface(const std::string& interface,
                                                           uint32_t index);

std::expected<Program, std::string> open_program(const std::string& interface, uint32_t program_id);
std::expected<XdpAttachment, std::string> attached_xdp(const std::string& interface,
                                                       uint32_t index);

// Only if this very program is still the one attached.
std::expected<void, std::string> detach_xdp(const std::string& interface, uint32_t index,
                                            const XdpAttachment& attachment);

std::string foreign_program_error(const std::string& interface, const Program& program);

// "INTERFACE: cannot WHAT: cause", with advice where the cause is missing privileges, and with what
// libbpf had to say.
std::string libbpf_error(const std::string& interface, std::string_view what, int error,
                         std::string_view libbpf_said = {});

// The sum over all processors of each of the first `count` values.
std::expected<std::vector<uint64_t>, std::string> read_counters(const std::string& interface,
                                                                int map_fd, uint32_t count);

// While it lives, libbpf's warnings are kept here instead of going to stderr.
class LibbpfMessages {
 public:
  LibbpfMessages();
  ~LibbpfMessages();
  LibbpfMessages(const LibbpfMessages&) = delete;
  LibbpfMessages& operator=(const LibbpfMessages&) = delete;
  const std::string& text() const;

 private:
  libbpf_print_fn_t previous_;
};

}  // namespace maglev
