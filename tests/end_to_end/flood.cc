// Packets from random sources to one address and port, as an attacker sends them.
//
//   flood ADDRESS:PORT [--kind syn|ack|rst|udp] [--rate N] [--seed N]     until SIGTERM or SIGINT
//
// Sources are all of 203.0.113.0/24 and all ports, 16 million flows. Checksums are right, so that a
// server takes a packet for real. Prints how many it sent.
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <time.h>

#include <CLI/CLI.hpp>
#include <array>
#include <chrono>
#include <map>
#include <random>
#include <stdexcept>
#include <system_error>

#include <arpa/inet.h>
#include <fmt/format.h>

#include "dataplane/packet.h"

namespace maglev {
namespace {

constexpr uint32_t kSourceNetwork = 0xcb007100;  // 203.0.113.0/24
constexpr long kTick_ns = 1'000'000;

enum class Kind { kSyn, kAck, kRst, kUdp };
const std::map<std::string, Kind> kKinds = {
    {"syn", Kind::kSyn}, {"ack", Kind::kAck}, {"rst", Kind::kRst}, {"udp", Kind::kUdp}};

struct Packet {
  std::array<uint8_t, kIpv4HeaderLength + kTcpHeaderLength> bytes{};
  uint32_t length = 0;
};

uint8_t tcp_flags(Kind kind) {
  return kind == Kind::kSyn ? 0x02 : kind == Kind::kRst ? 0x04 : 0x10;
}

Packet make_packet(Kind kind, const sockaddr_in& target, uint64_t chance) {
  Packet packet;
  const bool udp = kind == Kind::kUdp;
  const uint32_t transport_length = udp ? kUdpHeaderLength : kTcpHeaderLength;
  packet.length = kIpv4HeaderLength + transport_length;
  uint8_t* const ip = packet.bytes.data();
  ip[0] = 0x45;
  store_be16(ip + kIpv4TotalLengthOffset, static_cast<uint16_t>(packet.length));
  ip[kIpv4TtlOffset] = 64;
  ip[kIpv4ProtocolOffset] = udp ? kProtocolUdp : kProtocolTcp;
  store_be32(ip + kIpv4SourceOffset, kSourceNetwork | (chance & 0xff));
  store(ip + kIpv4DestinationOffset, target.sin_addr.s_addr);
  uint8_t* const transport = ip + kIpv4HeaderLength;
  store_be16(transport, static_cast<uint16_t>(chance >> 8));
  store(transport + 2, target.sin_port);
  uint8_t* checksum = transport + kUdpChecksumOffset;
  if (udp) {
    store_be16(transport + kUdpLengthOffset, kUdpHeaderLength);
  } else {
    store_be32(transport + 4, static_cast<uint32_t>(chance >> 24));
    transport[12] = kTcpHeaderLength / 4 << 4;
    transport[13] = tcp_flags(kind);
    store_be16(transport + 14, 65535);  // window
    checksum = transport + kTcpChecksumOffset;
  }
  const uint64_t sum = uint64_t{pseudo_header_sum(ip, ip[kIpv4ProtocolOffset], transport_length)} +
                       sum_words(transport, transport_length);
  store_be16(checksum, static_cast<uint16_t>(~fold_checksum(sum)));
  return packet;
}

int run(int argc, char** argv) {
  std::string target_text;
  Kind kind = Kind::kSyn;
  uint32_t rate = 10'000;
  uint64_t seed = 1;
  CLI::App app("Packets from random sources", "flood");
  app.add_option("ADDRESS:PORT", target_text)->required();
  app.add_option("--kind", kind)->transform(CLI::CheckedTransformer(kKinds));
  app.add_option("--rate", rate, "packets a second")->check(CLI::PositiveNumber);
  app.add_option("--seed", seed);
  CLI11_PARSE(app, argc, argv);

  const size_t colon = target_text.rfind(':');
  sockaddr_in target{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {}, .sin_zero = {}};
  if (colon == std::string::npos ||
      inet_pton(AF_INET, target_text.substr(0, colon).c_str(), &target.sin_addr) != 1) {
    throw std::runtime_error("'" + target_text + "' is not ADDRESS:PORT");
  }
  target.sin_port = htons(static_cast<uint16_t>(std::stoul(target_text.substr(colon + 1))));

  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  const int socket = ::socket(AF_INET, SOCK_RAW, IPPROTO_RAW);
  if (socket < 0)
    throw std::system_error(errno, std::generic_category(), "cannot open a raw socket");

  std::mt19937_64 random(seed);
  const auto start = std::chrono::steady_clock::now();
  uint64_t sent = 0;
  constexpr timespec kTick{0, kTick_ns};
  while (sigtimedwait(&signals, nullptr, &kTick) < 0) {
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    for (const auto due = static_cast<uint64_t>(elapsed.count() * rate); sent < due; ++sent) {
      const Packet packet = make_packet(kind, target, random());
      if (sendto(socket, packet.bytes.data(), packet.length, 0,
                 reinterpret_cast<const sockaddr*>(&target), sizeof target) < 0) {
        throw std::system_error(errno, std::generic_category(), "cannot send");
      }
    }
  }
  fmt::print("{{\"sent\": {}}}\n", sent);
  return 0;
}

}  // namespace
}  // namespace maglev

int main(int argc, char** argv) {
  try {
    return maglev::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "flood: {}\n", error.what());
    return 1;
  }
}
