// Preloaded into any DPDK program (LD_PRELOAD): gives every IPv4 packet that port 0 receives a new
// source address and port, so that no two packets are of one flow. Packet n becomes flow n of
// bench/numbered_flow.h; checksums follow (RFC 1624).
//
// The RX callback is added when the program starts the port, and runs in the thread that polls it:
// one RX queue.
#include <dlfcn.h>
#include <rte_ethdev.h>

#include <cstring>

#include "bench/numbered_flow.h"

namespace {

constexpr uint32_t kIp = 14;
constexpr uint32_t kIpChecksum = kIp + 10;
constexpr uint32_t kSource = kIp + 12;
constexpr uint32_t kTcp = kIp + 20;  // no options in the bench's frames
constexpr uint32_t kTcpChecksum = kTcp + 16;

uint32_t add_words(const uint8_t* bytes, uint32_t count) {
  uint32_t sum = 0;
  for (uint32_t i = 0; i < count; ++i) {
    uint16_t word;
    std::memcpy(&word, bytes + 2 * i, 2);
    sum += word;
  }
  return sum;
}

// What is summed is in network order, as is the checksum: a byte order sums like the other.
void update_checksum(uint8_t* checksum, uint32_t old_words_inverted, uint32_t new_words) {
  uint16_t value;
  std::memcpy(&value, checksum, 2);
  uint32_t sum = uint32_t(uint16_t(~value)) + old_words_inverted + new_words;
  sum = (sum & 0xffff) + (sum >> 16);
  value = uint16_t(~((sum & 0xffff) + (sum >> 16)));
  std::memcpy(checksum, &value, 2);
}

void become_flow(uint8_t* frame, uint32_t number) {
  const maglev::NumberedFlow flow(number);
  const uint32_t old_address = 2 * 0xffff - add_words(frame + kSource, 2);
  const uint32_t old_port = 0xffff - add_words(frame + kTcp, 1);
  const uint32_t source_be = __builtin_bswap32(maglev::kFlowNetwork + flow.address_bits);
  const uint16_t port_be = __builtin_bswap16(flow.source_port);
  std::memcpy(frame + kSource, &source_be, 4);
  std::memcpy(frame + kTcp, &port_be, 2);
  const uint32_t new_address = (source_be & 0xffff) + (source_be >> 16);
  update_checksum(frame + kIpChecksum, old_address, new_address);
  update_checksum(frame + kTcpChecksum, old_address + old_port, new_address + port_be);
}

uint16_t renew(uint16_t, uint16_t, rte_mbuf** buffers, uint16_t count, uint16_t, void*) {
  static uint32_t number = 0;
  for (uint16_t i = 0; i < count; ++i) {
    become_flow(rte_pktmbuf_mtod(buffers[i], uint8_t*), number++);
  }
  return count;
}

}  // namespace

extern "C" int rte_eth_dev_start(uint16_t port) {
  using Start = int(uint16_t);
  const auto start = reinterpret_cast<Start*>(dlsym(RTLD_NEXT, "rte_eth_dev_start"));
  if (port == 0 && rte_eth_add_rx_callback(port, 0, renew, nullptr) == nullptr) return -rte_errno;
  return start(port);
}
