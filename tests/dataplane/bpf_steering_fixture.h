// What the tests of Steering share: VIPs, the two namespaces, and a client in the far one that
// finds out whether the kernel answers for a VIP.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "dataplane/bpf/steering.h"
#include "tests/dataplane/bpf_harness.h"

namespace maglev {

SteeredVip vip4(const char* text, uint8_t prefix_length = 32);
SteeredVip vip6(const char* text, uint8_t prefix_length = 128);

// A port of the VIP in the namespaces, 198.51.100.10.
SteeredVip tcp_vip(uint16_t port, uint8_t flags = kVipUnservedToKernel);

// What DPDK's driver does when the port's first queue is set up.
std::unique_ptr<LoadedObject> attach_as_the_driver(uint32_t index);

enum class Answer { kReset, kSilence };

// What a TCP SYN to the VIP earns, where nobody listens.
Answer try_to_connect(int timeout_ms, uint16_t port);

class SteeringOwner : public testing::Test {
 protected:
  void SetUp() override;

  static std::expected<Steering, std::string> prepare(const std::vector<SteeredVip>& vips);
  // With steering attached and bound.
  Steering ready(const std::vector<SteeredVip>& vips) const;

  Answer answer_from_far(uint16_t port = 80) const;
  bool ping_is_answered() const;

  std::unique_ptr<TestNetwork> network_;
};

// Tries to connect to port 80 of the VIP again and again, from the far side.
class Prober {
 public:
  explicit Prober(const TestNetwork& network);
  int attempts() const { return attempts_; }
  int resets();  // ends it

 private:
  std::atomic<bool> stop_ = false;
  std::atomic<int> resets_ = 0;
  std::atomic<int> attempts_ = 0;
  std::jthread client_;
};

}  // namespace maglev
