#include "tests/dataplane/bpf_harness.h"

#include <bpf/bpf.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <net/if.h>
#include <sched.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace maglev {
namespace {

void put16(Bytes& bytes, size_t value) {
  bytes.push_back(static_cast<uint8_t>(value >> 8));
  bytes.push_back(static_cast<uint8_t>(value));
}

void put(Bytes& bytes, const auto& more) {
  bytes.insert(bytes.end(), more.begin(), more.end());
}

// RFC 1071.
uint16_t internet_checksum(const Bytes& bytes) {
  uint32_t sum = 0;
  for (size_t i = 0; i + 1 < bytes.size(); i += 2)
    sum += static_cast<uint32_t>(bytes[i] << 8 | bytes[i + 1]);
  while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<uint16_t>(~sum);
}

void require(bool good, const std::string& what) {
  if (!good) throw std::runtime_error(what + ": " + std::strerror(errno));
}

FileDescriptor new_namespace() {
  require(unshare(CLONE_NEWNET) == 0, "unshare");
  FileDescriptor fd(open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
  require(fd.get() >= 0, "open namespace");
  // Its neighbour discovery would show in the counters.
  shell("echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6");
  shell("ip link set lo up");
  return fd;
}

}  // namespace

Bytes ipv4(const Ipv4Header& header, const Bytes& payload) {
  size_t length = 20 + header.options.size();
  int words = header.header_words < 0 ? static_cast<int>(length / 4) : header.header_words;
  Bytes bytes{static_cast<uint8_t>(header.version << 4 | words), header.tos};
  put16(bytes, header.total_length < 0 ? length + payload.size()
                                       : static_cast<size_t>(header.total_length));
  put16(bytes, 0x1234);  // identification
  put16(bytes, header.fragment);
  put(bytes, Bytes{64, header.protocol, 0, 0});
  put(bytes, header.source);
  put(bytes, header.destination);
  put(bytes, header.options);
  size_t checksum =
      header.checksum < 0 ? internet_checksum(bytes) : static_cast<size_t>(header.checksum);
  bytes[10] = static_cast<uint8_t>(checksum >> 8);
  bytes[11] = static_cast<uint8_t>(checksum);
  put(bytes, payload);
  return bytes;
}

Bytes ipv6(const Ipv6Address& destination, const Bytes& payload) {
  Bytes bytes{0x60, 0, 0, 0};
  put16(bytes, payload.size());
  put(bytes, Bytes{17, 64});
  put(bytes, Ipv6Address{0x20, 0x01, 0x0d, 0xb8, 0xff});
  put(bytes, destination);
  put(bytes, payload);
  return bytes;
}

Bytes udp(uint16_t destination_port, const Bytes& payload) {
  Bytes bytes;
  put16(bytes, 4000);
  put16(bytes, destination_port);
  put16(bytes, 8 + payload.size());
  put16(bytes, 0);  // no checksum
  put(bytes, payload);
  return bytes;
}

Bytes ethernet(const std::vector<uint16_t>& tag_types, uint16_t ethertype, const Bytes& payload) {
  Bytes bytes{0x02, 0, 0, 0, 0, 0x01, 0x02, 0, 0, 0, 0, 0x02};
  for (uint16_t type : tag_types) {
    put16(bytes, type);
    put16(bytes, 0x2064);  // priority 1, VLAN 100
  }
  put16(bytes, ethertype);
  put(bytes, payload);
  return bytes;
}

LoadedObject::LoadedObject(const std::string& path)
    : object_(bpf_object__open_file(path.c_str(), nullptr), bpf_object__close) {
  require(object_ != nullptr, "open " + path);
  require(bpf_object__load(object_.get()) == 0, "load " + path);
  program_fd_ = bpf_program__fd(bpf_object__next_program(object_.get(), nullptr));
}

int LoadedObject::map_fd(const char* name) const {
  int fd = bpf_object__find_map_fd_by_name(object_.get(), name);
  require(fd >= 0, std::string("find map ") + name);
  return fd;
}

void LoadedObject::add(const char* map, const void* key) const {
  uint8_t value = 1;
  require(bpf_map_update_elem(map_fd(map), key, &value, BPF_ANY) == 0, std::string("fill ") + map);
}

RunResult LoadedObject::run(const Bytes& frame) const {
  Bytes out(frame.size() + 256);
  LIBBPF_OPTS(bpf_test_run_opts, options, .data_in = frame.data(), .data_out = out.data(),
              .data_size_in = static_cast<uint32_t>(frame.size()),
              .data_size_out = static_cast<uint32_t>(out.size()), .repeat = 1);
  require(bpf_prog_test_run_opts(program_fd_, &options) == 0, "BPF_PROG_TEST_RUN");
  out.resize(options.data_size_out);
  return {.verdict = options.retval, .frame = out};
}

std::vector<uint64_t> LoadedObject::counters(uint32_t count) const {
  auto sums = read_counters("test", map_fd("counters"), count);
  require(sums.has_value(), "read counters");
  return *sums;
}

FileDescriptor load_foreign_program(bpf_prog_type type, const char* name, int verdict) {
  const std::array<bpf_insn, 2> program{
      bpf_insn{.code = BPF_ALU64 | BPF_MOV | BPF_K,
               .dst_reg = 0,
               .src_reg = 0,
               .off = 0,
               .imm = verdict},
      bpf_insn{.code = BPF_JMP | BPF_EXIT, .dst_reg = 0, .src_reg = 0, .off = 0, .imm = 0}};
  FileDescriptor fd(bpf_prog_load(type, name, "GPL", program.data(), program.size(), nullptr));
  require(fd.get() >= 0, "load a foreign program");
  return fd;
}

TestNetwork::TestNetwork() : far_(new_namespace()), near_(new_namespace()) {
  shell(
      fmt::format("ip link add lb0 address 02:00:00:00:00:01 type veth peer name cl0 address "
                  "02:00:00:00:00:02 netns /proc/{}/fd/{}",
                  getpid(), far_.get()));
  shell("ip link set lb0 up && ip address add 198.18.1.1/24 dev lb0");
  shell("ip address add 198.51.100.10/32 dev lo");
  in_far([] {
    shell("ip link set cl0 up && ip address add 198.18.1.2/24 dev cl0");
    shell("ip route add 198.51.100.10/32 via 198.18.1.1");
    // Nothing on a veth pair fills in the checksums that are left to hardware.
    shell("ethtool -K cl0 tx off > /dev/null");
  });
  index_ = if_nametoindex("lb0");
}

void TestNetwork::in_far(const std::function<void()>& action) const {
  require(setns(far_.get(), CLONE_NEWNET) == 0, "setns");
  action();
  require(setns(near_.get(), CLONE_NEWNET) == 0, "setns");
}

void shell(const std::string& command) {
  if (std::system(command.c_str()) != 0) throw std::runtime_error("failed: " + command);
}

std::string output_of(const std::string& command) {
  std::unique_ptr<FILE, decltype(&pclose)> pipe(popen(command.c_str(), "r"), pclose);
  std::string output;
  std::array<char, 4096> buffer;
  for (size_t length; (length = std::fread(buffer.data(), 1, buffer.size(), pipe.get())) > 0;)
    output.append(buffer.data(), length);
  return output;
}

std::string xdp_name(const std::string& interface) {
  auto attachment = attached_xdp(interface, if_nametoindex(interface.c_str()));
  if (!attachment) throw std::runtime_error(attachment.error());
  return attachment->program.name;
}

}  // namespace maglev
