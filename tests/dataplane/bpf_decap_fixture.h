// What the tests of the decapsulation program share: the tunnels that a load balancer makes, and
// the program, loaded, with the counters that each frame moved.
#pragma once

#include <gtest/gtest.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>

#include <string>
#include <vector>

#include "dataplane/bpf/decap_maps.h"
#include "tables/published.h"
#include "tests/dataplane/bpf_harness.h"

namespace maglev {

inline constexpr Ipv4Address kBalancer4 = {198, 18, 2, 2};
inline constexpr Ipv4Address kBackend4 = {198, 18, 2, 11};
inline constexpr Ipv6Address kBalancer6 = {0x20, 0x01, 0x0d, 0xb8, 2, 0, 0, 0,
                                           0,    0,    0,    0,    0, 0, 0, 2};
inline constexpr Ipv6Address kBackend6 = {0x20, 0x01, 0x0d, 0xb8, 2, 0, 0, 0,
                                          0,    0,    0,    0,    0, 0, 0, 11};

enum class Tunnel { kIpInIp, kGre, kGue0, kGue0Checksum, kGue1, kGue1Checksum };

inline constexpr Tunnel kTunnels[] = {Tunnel::kIpInIp,       Tunnel::kGre,  Tunnel::kGue0,
                                      Tunnel::kGue0Checksum, Tunnel::kGue1, Tunnel::kGue1Checksum};
inline const std::vector<std::vector<uint16_t>> kTagStacks = {
    {}, {ETH_P_8021Q}, {ETH_P_8021AD, ETH_P_8021Q}};

// Protocol numbers of the inner packet's family, directly in IP or in a GUE header.
inline constexpr uint8_t kIpv4InIp = 4;
inline constexpr uint8_t kIpv6InIp = 41;
inline constexpr uint8_t kGre = 47;
inline constexpr uint8_t kUdp = 17;

std::string name_of(Tunnel tunnel);

// A client's packet to the VIP.
Bytes inner(Family family, uint8_t traffic_class = 0, const Bytes& payload = Bytes(40, 0x55));

// From the load balancer to the backend.
Bytes outer(Family family, uint8_t protocol, const Bytes& payload, uint8_t traffic_class = 0);

Bytes gre(uint16_t flags, uint16_t ethertype);
Bytes gue(uint8_t first, uint8_t protocol, uint16_t flags = 0);

Bytes wrap(Tunnel tunnel, Family outer_family, Family inner_family, const Bytes& packet,
           uint8_t outer_class = 0);

class DecapProgram : public testing::Test {
 protected:
  void SetUp() override;

  // A configured source.
  void allow4(const Ipv4Address& address, uint32_t prefix_length);
  void allow6(const Ipv6Address& address, uint32_t prefix_length);
  void use(const DecapSettings& settings);

  // How many packets each counter counted since the last call.
  std::vector<uint64_t> counted();

  void expect_unwrapped(const Bytes& frame, const Bytes& expected);
  void expect_untouched_pass(const Bytes& frame);
  void expect_refused_source(const Bytes& frame);
  void expect_drop(const Bytes& frame, DecapCounter counter);

  std::unique_ptr<LoadedObject> object_;

 private:
  void expect_result(const Bytes& frame, const Bytes& expected, int counter);

  std::vector<uint64_t> counters_;
};

}  // namespace maglev
