// maglev-decap: what its XDP program makes of a frame, byte by byte, and the life of the program.
#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_link.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "dataplane/bpf/decap_maps.h"
#include "tests/dataplane/bpf_harness.h"

namespace maglev {
namespace {

constexpr Ipv4Address kBalancer = {198, 18, 2, 2};
constexpr Ipv4Address kStranger = {198, 18, 2, 3};
constexpr Ipv4Address kBackend = {198, 18, 2, 11};
constexpr Ipv4Address kClient = {203, 0, 113, 1};
constexpr Ipv4Address kVip = {198, 51, 100, 10};
constexpr uint8_t kIpInIp = 4;

Bytes inner(uint8_t tos = 0, const Bytes& options = {}) {
  return ipv4({.source = kClient, .destination = kVip, .tos = tos, .options = options},
              udp(80, {'h', 'e', 'l', 'l', 'o'}));
}

Ipv4Header outer(uint8_t tos = 0) {
  return {.source = kBalancer, .destination = kBackend, .protocol = kIpInIp, .tos = tos};
}

class DecapProgram : public testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "needs root: loads BPF programs";
    object_ = std::make_unique<LoadedObject>(MAGLEV_DECAP_OBJECT);
    object_->add("outer_sources", &kBalancer);
  }

  // Of these alone, once.
  void expect_counted(int counter) {
    std::vector<uint64_t> expected(kDecapCounters);
    if (counter >= 0) expected[static_cast<size_t>(counter)] = 1;
    auto now = object_->counters(kDecapCounters);
    auto before = std::exchange(counters_, now);
    for (size_t i = 0; i < now.size(); ++i) now[i] -= before[i];
    EXPECT_EQ(now, expected);
  }

  void expect_unwrapped(const Bytes& frame, const Bytes& expected) {
    RunResult result = object_->run(frame);
    EXPECT_EQ(result.verdict, static_cast<uint32_t>(XDP_PASS));
    EXPECT_EQ(result.frame, expected);
    expect_counted(kDecapUnwrapped);
  }

  void expect_pass(const Bytes& frame, int counter) {
    RunResult result = object_->run(frame);
    EXPECT_EQ(result.verdict, static_cast<uint32_t>(XDP_PASS));
    EXPECT_EQ(result.frame, frame);
    expect_counted(counter);
  }

  void expect_drop(const Bytes& frame, int counter) {
    EXPECT_EQ(object_->run(frame).verdict, static_cast<uint32_t>(XDP_DROP));
    expect_counted(counter);
  }

  std::unique_ptr<LoadedObject> object_;
  std::vector<uint64_t> counters_ = std::vector<uint64_t>(kDecapCounters);
};

TEST_F(DecapProgram, TakesTheOuterHeaderOffUnderUpToTwoTags) {
  const std::vector<std::vector<uint16_t>> tag_types = {
      {}, {ETH_P_8021Q}, {ETH_P_8021AD, ETH_P_8021Q}};
  for (const auto& tags : tag_types)
    expect_unwrapped(ethernet(tags, ETH_P_IP, ipv4(outer(), inner())),
                     ethernet(tags, ETH_P_IP, inner()));
}

TEST_F(DecapProgram, TakesOuterOptionsOffAndLeavesInnerOnes) {
  for (size_t length = 0; length <= 40; length += 4) {
    Ipv4Header header = outer();
    header.options = Bytes(length, 1);
    expect_unwrapped(ethernet({}, ETH_P_IP, ipv4(header, inner(0, Bytes(40 - length, 1)))),
                     ethernet({}, ETH_P_IP, inner(0, Bytes(40 - length, 1))));
  }
}

TEST_F(DecapProgram, LeavesPaddingToTheKernel) {
  Bytes padded = ipv4(outer(), inner());
  padded.resize(padded.size() + 6);
  Bytes expected = inner();
  expected.resize(expected.size() + 6);
  expect_unwrapped(ethernet({}, ETH_P_IP, padded), ethernet({}, ETH_P_IP, expected));
}

TEST_F(DecapProgram, UnwrapsInnerFragments) {
  Bytes fragment = ipv4({.source = kClient, .destination = kVip, .fragment = 0x2005}, Bytes(16));
  expect_unwrapped(ethernet({}, ETH_P_IP, ipv4(outer(), fragment)),
                   ethernet({}, ETH_P_IP, fragment));
}

TEST_F(DecapProgram, PassesAllElseUntouched) {
  expect_pass(ethernet({}, ETH_P_IP, inner()), -1);
  expect_pass(ethernet({}, ETH_P_ARP, Bytes(28)), -1);
  expect_pass(ethernet({}, ETH_P_IPV6, ipv6({}, ipv4(outer(), inner()))), -1);
  Ipv4Header six_in_four = outer();
  six_in_four.protocol = 41;
  expect_pass(ethernet({}, ETH_P_IP, ipv4(six_in_four, ipv6({}, Bytes(20)))), -1);
  Bytes whole = ethernet({}, ETH_P_IP, ipv4(outer(), inner()));
  for (ptrdiff_t length = 14; length < 34; ++length)
    expect_pass(Bytes(whole.begin(), whole.begin() + length), -1);
}

TEST_F(DecapProgram, PassesAndCountsOtherSources) {
  Ipv4Header header = outer();
  header.source = kStranger;
  expect_pass(ethernet({}, ETH_P_IP, ipv4(header, inner())), kDecapRefusedSource);
}

TEST_F(DecapProgram, DropsOuterFragments) {
  for (uint16_t fragment : std::vector<uint16_t>{0x2000, 0x2001, 0x0001, 0x1fff}) {
    Ipv4Header header = outer();
    header.fragment = fragment;
    expect_drop(ethernet({}, ETH_P_IP, ipv4(header, inner())), kDecapFragment);
  }
  Ipv4Header dont_fragment = outer();
  dont_fragment.fragment = 0x4000;
  expect_unwrapped(ethernet({}, ETH_P_IP, ipv4(dont_fragment, inner())),
                   ethernet({}, ETH_P_IP, inner()));
}

TEST_F(DecapProgram, DropsOuterHeadersThatLie) {
  auto expect_malformed = [&](auto change) {
    Ipv4Header header = outer();
    change(header);
    expect_drop(ethernet({}, ETH_P_IP, ipv4(header, inner())), kDecapMalformed);
  };
  int right_length = static_cast<int>(20 + inner().size());
  for (int length : {0, 19, 20, 39, right_length - 1, right_length + 1, 65535}) {
    SCOPED_TRACE(length);
    expect_malformed([&](Ipv4Header& header) { header.total_length = length; });
  }
  for (int words = 0; words < 5; ++words)
    expect_malformed([&](Ipv4Header& header) { header.header_words = words; });
  for (int words = 6; words < 16; ++words)
    expect_malformed([&](Ipv4Header& header) { header.header_words = words; });
  expect_malformed([](Ipv4Header& header) { header.version = 5; });
  expect_malformed([](Ipv4Header& header) { header.checksum = 0x1234; });
}

TEST_F(DecapProgram, DropsInnerHeadersThatLie) {
  auto expect_malformed = [&](auto change) {
    Ipv4Header header{.source = kClient, .destination = kVip};
    change(header);
    expect_drop(ethernet({}, ETH_P_IP, ipv4(outer(), ipv4(header, Bytes(8)))), kDecapMalformed);
  };
  for (int length : {0, 19, 29, 65535})
    expect_malformed([&](Ipv4Header& header) { header.total_length = length; });
  for (int words : {0, 4, 8, 15})
    expect_malformed([&](Ipv4Header& header) { header.header_words = words; });
  expect_malformed([](Ipv4Header& header) { header.version = 6; });
}

TEST_F(DecapProgram, DropsFramesCutInsideTheOuterPacket) {
  Bytes whole = ethernet({}, ETH_P_IP, ipv4(outer(), inner()));
  for (size_t length = 34; length < whole.size(); ++length)
    expect_drop(Bytes(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(length)),
                kDecapMalformed);
}

// RFC 6040, figure 4; the two bits: 0 not ECT, 1 ECT(1), 2 ECT(0), 3 congestion. -1: drop.
constexpr int kEcnResult[4][4] = {
    // outer 0, 1, 2, 3
    {0, 0, 0, -1},  // inner not ECT
    {1, 1, 1, 3},   // inner ECT(1)
    {2, 1, 2, 3},   // inner ECT(0)
    {3, 3, 3, 3},   // inner congestion
};

TEST_F(DecapProgram, CombinesEcnAndKeepsTheInnerCodePoint) {
  // Code points chosen so that the inner checksum passes through its whole range.
  for (int dscp = 0; dscp < 64; ++dscp)
    for (int in = 0; in < 4; ++in)
      for (int out = 0; out < 4; ++out) {
        SCOPED_TRACE(testing::Message() << "dscp " << dscp << " inner " << in << " outer " << out);
        auto code_point = static_cast<uint8_t>(dscp << 2);
        Bytes frame = ethernet({}, ETH_P_IP,
                               ipv4(outer(static_cast<uint8_t>(0xb8 | out)),
                                    inner(static_cast<uint8_t>(code_point | in))));
        int result = kEcnResult[in][out];
        if (result < 0)
          expect_drop(frame, kDecapEcnDropped);
        else
          expect_unwrapped(
              frame, ethernet({}, ETH_P_IP, inner(static_cast<uint8_t>(code_point | result))));
      }
}

TEST_F(DecapProgram, DoesNotRepairAWrongInnerChecksum) {
  // The kernel behind must still see that the packet is damaged.
  Ipv4Header header{.source = kClient, .destination = kVip, .tos = 2, .checksum = 0x1234};
  Bytes damaged = ipv4(header, Bytes(8));
  Ipv4Header marked = header;
  marked.tos = 3;
  marked.checksum = 0x1233;  // RFC 1624: one more in the word, one less in the checksum
  expect_unwrapped(ethernet({}, ETH_P_IP, ipv4(outer(3), damaged)),
                   ethernet({}, ETH_P_IP, ipv4(marked, Bytes(8))));
}

// --- the program's life --------------------------------------------------------------------------

class Decap : public testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "needs root: makes network namespaces";
    network_ = std::make_unique<TestNetwork>();
  }

  std::unique_ptr<TestNetwork> network_;
};

// maglev-decap running; what it prints is read line by line.
class DecapProcess {
 public:
  explicit DecapProcess(const std::string& from) {
    int pipe_ends[2];
    if (pipe2(pipe_ends, O_CLOEXEC) != 0) std::abort();
    pid_ = fork();
    if (pid_ == 0) {
      dup2(pipe_ends[1], STDOUT_FILENO);
      dup2(pipe_ends[1], STDERR_FILENO);
      execl(MAGLEV_DECAP, MAGLEV_DECAP, "--interface", "lb0", "--from", from.c_str(), nullptr);
      _exit(127);
    }
    close(pipe_ends[1]);
    output_ = fdopen(pipe_ends[0], "r");
  }
  ~DecapProcess() {
    if (pid_ > 0) end(SIGKILL);
    if (output_ != nullptr) fclose(output_);
  }
  DecapProcess(const DecapProcess&) = delete;
  DecapProcess& operator=(const DecapProcess&) = delete;

  // From here on nobody reads what it prints.
  void stop_reading() { fclose(std::exchange(output_, nullptr)); }

  std::string line() {
    char text[512] = "";
    return fgets(text, sizeof(text), output_) == nullptr ? "" : text;
  }

  // Exit code, or -1 when it died of the signal; signal 0 waits for it to end by itself.
  int end(int signal) {
    if (signal != 0) kill(pid_, signal);
    int status = 0;
    waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_;
  FILE* output_;
};

constexpr char kReady[] = "ready: lb0 unwraps IPv4-in-IPv4 from 198.18.1.2\n";

// Sends one wrapped datagram to port 7777 of the VIP from the far side; whether it arrived.
bool wrapped_datagram_arrives(const TestNetwork& network) {
  FileDescriptor receiver(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in vip{.sin_family = AF_INET, .sin_port = htons(7777), .sin_addr = {}, .sin_zero = {}};
  std::memcpy(&vip.sin_addr, kVip.data(), kVip.size());
  if (bind(receiver.get(), reinterpret_cast<sockaddr*>(&vip), sizeof(vip)) != 0) std::abort();
  network.in_far([] {
    FileDescriptor sender(socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_IPIP));
    sockaddr_in near{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {}, .sin_zero = {}};
    inet_pton(AF_INET, "198.18.1.1", &near.sin_addr);
    Bytes packet = ipv4({.source = {198, 18, 1, 2}, .destination = kVip}, udp(7777, {'x'}));
    EXPECT_EQ(sendto(sender.get(), packet.data(), packet.size(), 0,
                     reinterpret_cast<sockaddr*>(&near), sizeof(near)),
              static_cast<ssize_t>(packet.size()));
  });
  pollfd wait{.fd = receiver.get(), .events = POLLIN, .revents = 0};
  return poll(&wait, 1, 300) == 1;
}

TEST_F(Decap, UnwrapsWhileItRunsAndDetachesAtTheEnd) {
  EXPECT_FALSE(wrapped_datagram_arrives(*network_));
  for (int signal : {SIGTERM, SIGINT}) {
    DecapProcess decap("198.18.1.2");
    ASSERT_EQ(decap.line(), kReady);
    EXPECT_EQ(xdp_name("lb0"), "maglev_decap");
    EXPECT_TRUE(wrapped_datagram_arrives(*network_));
    const std::string counters =
        "unwrapped=1 refused_source=0 malformed=0 fragment=0 ecn_dropped=0\n";
    EXPECT_EQ(output_of(MAGLEV_DECAP " --interface lb0 --stats"), counters);
    EXPECT_EQ(decap.end(signal), 0);
    EXPECT_EQ(decap.line(), counters);
    EXPECT_EQ(xdp_name("lb0"), "");
  }
  EXPECT_FALSE(wrapped_datagram_arrives(*network_));
}

TEST_F(Decap, DetachesAtTheEndThoughNobodyReadsItsCounters) {
  DecapProcess decap("198.18.1.2");
  ASSERT_EQ(decap.line(), kReady);
  decap.stop_reading();
  EXPECT_EQ(decap.end(SIGTERM), 0);
  EXPECT_EQ(xdp_name("lb0"), "");
}

TEST_F(Decap, RefusesWhatIsNoAddress) {
  for (const char* from : {"198.18.1.0x2", "198.18.01.2", "198.18.1", "2001:db8::1", ""}) {
    DecapProcess decap(from);
    EXPECT_NE(decap.line().find("is not an IPv4 address"), std::string::npos) << from;
    EXPECT_GT(decap.end(0), 0);
  }
}

TEST_F(Decap, RefusesOtherSources) {
  DecapProcess decap("198.18.1.3");
  ASSERT_NE(decap.line(), "");
  EXPECT_FALSE(wrapped_datagram_arrives(*network_));
  EXPECT_EQ(decap.end(SIGTERM), 0);
  EXPECT_EQ(decap.line(), "unwrapped=0 refused_source=1 malformed=0 fragment=0 ecn_dropped=0\n");
}

TEST_F(Decap, GoesOnAfterAKillAndIsReplacedByTheNextStart) {
  DecapProcess killed("198.18.1.2");
  ASSERT_EQ(killed.line(), kReady);
  EXPECT_EQ(killed.end(SIGKILL), -1);
  EXPECT_TRUE(wrapped_datagram_arrives(*network_));
  DecapProcess next("198.18.1.2");
  ASSERT_EQ(next.line(), kReady);
  EXPECT_TRUE(wrapped_datagram_arrives(*network_));
  EXPECT_EQ(next.end(SIGTERM), 0);
  EXPECT_EQ(xdp_name("lb0"), "");
}

TEST_F(Decap, RefusesASecondStartAndHarmsNothing) {
  DecapProcess first("198.18.1.2");
  ASSERT_EQ(first.line(), kReady);
  DecapProcess second("198.18.1.2");
  EXPECT_NE(second.line().find("already runs on this interface; stop it first"), std::string::npos);
  EXPECT_EQ(second.end(0), 1);
  EXPECT_TRUE(wrapped_datagram_arrives(*network_));
}

TEST_F(Decap, RefusesAForeignProgramByName) {
  FileDescriptor foreign = load_foreign_program(BPF_PROG_TYPE_XDP, "someone_else", XDP_PASS);
  ASSERT_EQ(bpf_xdp_attach(static_cast<int>(network_->index()), foreign.get(), 0, nullptr), 0);
  DecapProcess decap("198.18.1.2");
  EXPECT_NE(decap.line().find("lb0: XDP program \"someone_else\""), std::string::npos);
  EXPECT_EQ(decap.end(0), 1);
  EXPECT_EQ(xdp_name("lb0"), "someone_else");
}

TEST_F(Decap, LeavesAForeignProgramThatTookItsPlace) {
  DecapProcess decap("198.18.1.2");
  ASSERT_EQ(decap.line(), kReady);
  FileDescriptor foreign = load_foreign_program(BPF_PROG_TYPE_XDP, "someone_else", XDP_PASS);
  ASSERT_EQ(bpf_xdp_attach(static_cast<int>(network_->index()), foreign.get(), 0, nullptr), 0);
  EXPECT_EQ(decap.end(SIGTERM), 0);
  EXPECT_EQ(xdp_name("lb0"), "someone_else");
}

}  // namespace
}  // namespace maglev
