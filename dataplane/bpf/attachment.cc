#include "dataplane/bpf/attachment.h"

#include <bpf/bpf.h>
#include <fmt/format.h>
#include <linux/if_link.h>
#include <net/if.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <numeric>

namespace maglev {
namespace {

std::string captured_messages;

int capture(libbpf_print_level level, const char* format, va_list arguments) {
  if (level != LIBBPF_WARN) return 0;
  std::array<char, 512> line;
  int length = std::vsnprintf(line.data(), line.size(), format, arguments);
  // A rejected program comes with pages of the verifier's log.
  captured_messages +=
      std::string_view(line.data()).substr(0, std::string_view(line.data()).find('\n'));
  captured_messages += '\n';
  return length;
}

std::expected<ProgramMaps, std::string> open_maps(const std::string& interface,
                                                  std::span<const uint32_t> ids) {
  ProgramMaps maps;
  for (uint32_t id : ids) {
    FileDescriptor fd(bpf_map_get_fd_by_id(id));
    bpf_map_info info{};
    uint32_t length = sizeof(info);
    if (fd.get() < 0 || bpf_obj_get_info_by_fd(fd.get(), &info, &length) != 0)
      return std::unexpected(libbpf_error(interface, fmt::format("open BPF map {}", id), errno));
    maps.emplace(info.name, std::move(fd));
  }
  return maps;
}

}  // namespace

bool Program::is(std::string_view wanted_name,
                 std::span<const std::string_view> wanted_maps) const {
  return name == wanted_name &&
         std::ranges::all_of(wanted_maps, [&](auto map) { return maps.contains(map); });
}

std::expected<uint32_t, std::string> find_interface(const std::string& interface) {
  uint32_t index = if_nametoindex(interface.c_str());
  if (index == 0)
    return std::unexpected(
        fmt::format("{}: no such network interface in this network namespace; `ip link` lists them",
                    interface));
  return index;
}

std::expected<FileDescriptor, std::string> claim_interface(const std::string& interface,
                                                           uint32_t index) {
  FileDescriptor claim(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // The first byte stays zero: an abstract name.
  char* end = fmt::format_to(address.sun_path + 1, "maglev-xdp-{}", index);
  auto length = static_cast<socklen_t>(end - reinterpret_cast<char*>(&address));
  if (claim.get() < 0 || ::bind(claim.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) {
    if (errno == EADDRINUSE)
      return std::unexpected(fmt::format(
          "{}: a maglev-dataplane or maglev-decap already runs on this interface; stop it first",
          interface));
    return std::unexpected(libbpf_error(interface, "claim the interface", errno));
  }
  return claim;
}

std::expected<Program, std::string> open_program(const std::string& interface,
                                                 uint32_t program_id) {
  Program program;
  if (program_id == 0) return program;
  auto failed = [&] {
    return std::unexpected(
        libbpf_error(interface, fmt::format("open BPF program {}", program_id), errno));
  };
  program.id = program_id;
  program.fd = FileDescriptor(bpf_prog_get_fd_by_id(program_id));
  if (program.fd.get() < 0) return failed();

  std::array<uint32_t, 64> map_ids{};  // what the kernel allows per program
  bpf_prog_info info{};
  info.nr_map_ids = map_ids.size();
  info.map_ids = reinterpret_cast<uintptr_t>(map_ids.data());
  uint32_t length = sizeof(info);
  if (bpf_obj_get_info_by_fd(program.fd.get(), &info, &length) != 0) return failed();
  program.name = info.name;
  size_t map_count = std::min<size_t>(info.nr_map_ids, map_ids.size());
  auto maps = open_maps(interface, std::span(map_ids).first(map_count));
  if (!maps) return std::unexpected(maps.error());
  program.maps = std::move(*maps);
  return program;
}

std::expected<XdpAttachment, std::string> attached_xdp(const std::string& interface,
                                                       uint32_t index) {
  LIBBPF_OPTS(bpf_xdp_query_opts, query);
  if (int error = bpf_xdp_query(static_cast<int>(index), 0, &query); error != 0)
    return std::unexpected(libbpf_error(interface, "ask for the XDP program", -error));
  XdpAttachment attachment;
  uint32_t id = query.prog_id;
  switch (query.attach_mode) {
    case XDP_ATTACHED_DRV:
      attachment.mode_flags = XDP_FLAGS_DRV_MODE;
      break;
    case XDP_ATTACHED_SKB:
      attachment.mode_flags = XDP_FLAGS_SKB_MODE;
      break;
    case XDP_ATTACHED_HW:
    case XDP_ATTACHED_MULTI:
      // None of ours is ever loaded into a NIC.
      attachment.mode_flags = XDP_FLAGS_HW_MODE;
      id = query.hw_prog_id;
      break;
    default:
      break;
  }
  auto program = open_program(interface, id);
  if (!program) return std::unexpected(program.error());
  attachment.program = std::move(*program);
  return attachment;
}

std::expected<void, std::string> detach_xdp(const std::string& interface, uint32_t index,
                                            const XdpAttachment& attachment) {
  LIBBPF_OPTS(bpf_xdp_attach_opts, options, .old_prog_fd = attachment.program.fd.get());
  LibbpfMessages messages;
  int error = bpf_xdp_detach(static_cast<int>(index), attachment.mode_flags, &options);
  if (error != 0)
    return std::unexpected(libbpf_error(interface,
                                        fmt::format("detach XDP program {}", attachment.program.id),
                                        -error, messages.text()));
  return {};
}

std::string foreign_program_error(const std::string& interface, const Program& program) {
  return fmt::format(
      "{0}: XDP program \"{1}\" (id {2}) is attached and is not ours; remove it with `ip link set "
      "dev {0} xdp off` if nothing needs it, or use another interface",
      interface, program.name, program.id);
}

std::string libbpf_error(const std::string& interface, std::string_view what, int error,
                         std::string_view libbpf_said) {
  std::string text = fmt::format("{}: cannot {}: {}", interface, what, std::strerror(error));
  if (error == EPERM) text += "; run as root (CAP_SYS_ADMIN, CAP_NET_ADMIN and CAP_BPF are needed)";
  while (!libbpf_said.empty() && libbpf_said.back() == '\n') libbpf_said.remove_suffix(1);
  if (!libbpf_said.empty()) text += fmt::format(" ({})", libbpf_said);
  return text;
}

std::expected<std::vector<uint64_t>, std::string> read_counters(const std::string& interface,
                                                                int map_fd, uint32_t count) {
  int processors = libbpf_num_possible_cpus();
  if (processors < 0)
    return std::unexpected(libbpf_error(interface, "count processors", -processors));
  std::vector<uint64_t> sums;
  std::vector<uint64_t> values(static_cast<size_t>(processors));
  for (uint32_t key = 0; key < count; ++key) {
    if (bpf_map_lookup_elem(map_fd, &key, values.data()) != 0)
      return std::unexpected(libbpf_error(interface, "read the program's counters", errno));
    sums.push_back(std::reduce(values.begin(), values.end()));
  }
  return sums;
}

LibbpfMessages::LibbpfMessages() : previous_(libbpf_set_print(capture)) {
  captured_messages.clear();
}

LibbpfMessages::~LibbpfMessages() {
  libbpf_set_print(previous_);
}

const std::string& LibbpfMessages::text() const {
  return captured_messages;
}

}  // namespace maglev
