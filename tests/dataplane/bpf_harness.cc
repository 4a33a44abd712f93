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

// RFC 1071. Unfolded, so that a further part can be added.
uint32_t add_up(std::span<const uint8_t> bytes, uint32_t sum = 0) {
  for (size_t i = 0; i < bytes.size(); ++i) sum += i % 2 == 0 ? bytes[i] << 8u : bytes[i];
  return sum;
}

uint16_t checksum_of(uint32_t sum) {
  while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<uint16_t>(~sum);
}

void store16(std::span<uint8_t> to, size_t value) {
  to[0] = static_cast<uint8_t>(value >> 8);
  to[1] = static_cast<uint8_t>(value);
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

Bytes u16(size_t value) {
  Bytes bytes(2);
  store16(bytes, value);
  return bytes;
}

Bytes operator+(Bytes left, const Bytes& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

Bytes ipv4(const Ipv4Header& header, const Bytes& payload) {
  const size_t length = 20 + header.options.size();
  const int words = header.header_words < 0 ? static_cast<int>(length / 4) : header.header_words;
  const size_t total =
      header.total_length < 0 ? length + payload.size() : static_cast<size_t>(header.total_length);
  Bytes bytes = Bytes{static_cast<uint8_t>(header.version << 4 | words), header.tos} + u16(total) +
                u16(0x1234) + u16(header.fragment) + Bytes{64, header.protocol, 0, 0};
  for (const Ipv4Address& address : {header.source, header.destination})
    bytes.insert(bytes.end(), address.begin(), address.end());
  bytes = bytes + header.options;
  if (header.checksum < 0)
    set_ipv4_checksum(bytes);
  else
    store16(std::span(bytes).subspan(10), static_cast<size_t>(header.checksum));
  return bytes + payload;
}

void set_ipv4_checksum(std::span<uint8_t> header) {
  store16(header.subspan(10), 0);
  store16(header.subspan(10), checksum_of(add_up(header)));
}

Bytes ipv6(const Ipv6Header& header, const Bytes& payload) {
  const size_t length =
      header.payload_length < 0 ? payload.size() : static_cast<size_t>(header.payload_length);
  Bytes bytes = u16(static_cast<size_t>(header.version << 12 | header.traffic_class << 4)) +
                Bytes{0, 0} + u16(length) + Bytes{header.next_header, header.hop_limit};
  for (const Ipv6Address& address : {header.source, header.destination})
    bytes.insert(bytes.end(), address.begin(), address.end());
  return bytes + payload;
}

Bytes udp(uint16_t destination_port, const Bytes& payload) {
  return u16(4000) + u16(destination_port) + u16(8 + payload.size()) + Bytes{0, 0} + payload;
}

Bytes with_udp_checksum(Bytes packet) {
  const bool is_ipv6 = packet[0] >> 4 == 6;
  const std::span<uint8_t> bytes(packet);
  const std::span<uint8_t> udp = bytes.subspan(is_ipv6 ? 40 : (packet[0] & 15u) * 4);
  uint32_t sum = add_up(is_ipv6 ? bytes.subspan(8, 32) : bytes.subspan(12, 8));
  sum = add_up(udp, sum + 17 + static_cast<uint32_t>(udp.size()));
  const uint16_t checksum = checksum_of(sum);
  store16(udp.subspan(6), checksum == 0 ? 0xffff : checksum);
  return packet;
}

Bytes ethernet(const std::vector<uint16_t>& tag_types, uint16_t ethertype, const Bytes& payload) {
  Bytes bytes{0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0, 0, 0x02};
  for (uint16_t type : tag_types) bytes = bytes + u16(type) + u16(0x2064);  // priority 1, VLAN 100
  return bytes + u16(ethertype) + payload;
}

std::string name_of(Family family) {
  return family == Family::kIpv4 ? "IPv4" : "IPv6";
}

uint16_t ethertype_of(Family family) {
  return family == Family::kIpv4 ? ETH_P_IP : ETH_P_IPV6;
}

Bytes frame(Family family, const Bytes& packet) {
  return ethernet({}, ethertype_of(family), packet);
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

void LoadedObject::update(const char* map, const void* key, const void* value) const {
  require(bpf_map_update_elem(map_fd(map), key, value, BPF_ANY) == 0, std::string("fill ") + map);
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
