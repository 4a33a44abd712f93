// maglev-decap, the program: what it accepts, attaches, replaces, refuses and removes.
#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/bpf.h>
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

#include "tests/dataplane/bpf_harness.h"

namespace maglev {
namespace {

constexpr Ipv4Address kVip = {198, 51, 100, 10};

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
  explicit DecapProcess(const std::string& from)
      : DecapProcess(std::vector<std::string>{"--from", from}) {}
  explicit DecapProcess(std::vector<std::string> options) {
    options.insert(options.begin(), {MAGLEV_DECAP, "--interface", "lb0"});
    std::vector<char*> arguments;
    for (std::string& option : options) arguments.push_back(option.data());
    arguments.push_back(nullptr);
    int pipe_ends[2];
    if (pipe2(pipe_ends, O_CLOEXEC) != 0) std::abort();
    pid_ = fork();
    if (pid_ == 0) {
      dup2(pipe_ends[1], STDOUT_FILENO);
      dup2(pipe_ends[1], STDERR_FILENO);
      execv(MAGLEV_DECAP, arguments.data());
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

constexpr char kReady[] =
    "ready: lb0 unwraps IP-in-IP, GRE and GUE on UDP port 6080 from 198.18.1.2\n";

std::string counters_line(int unwrapped, int refused_source) {
  return "unwrapped=" + std::to_string(unwrapped) +
         " refused_source=" + std::to_string(refused_source) +
         " malformed=0 bad_checksum=0 fragment=0 unsupported=0 ecn_dropped=0\n";
}

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
    EXPECT_EQ(output_of(MAGLEV_DECAP " --interface lb0 --stats"), counters_line(1, 0));
    EXPECT_EQ(decap.end(signal), 0);
    EXPECT_EQ(decap.line(), counters_line(1, 0));
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

TEST_F(Decap, SaysWhatIsWrongWithItsOptions) {
  const std::vector<std::pair<std::vector<std::string>, const char*>> cases = {
      {{"--from", "198.18.1.0x2"}, "198.18.1.0x2 is no IPv4 or IPv6 address"},
      {{"--from", "198.18.01.2"}, "is no IPv4 or IPv6 address"},
      {{"--from", "198.18.1"}, "is no IPv4 or IPv6 address"},
      {{"--from", ""}, "is no IPv4 or IPv6 address"},
      {{"--from", "2001:db8::g"}, "is no IPv4 or IPv6 address"},
      {{"--from", "198.18.1.0/33"}, "198.18.1.0/33: a prefix length is from 0 to 32"},
      {{"--from", "198.18.1.0/"}, "a prefix length is from 0 to 32"},
      {{"--from", "198.18.1.0/24x"}, "a prefix length is from 0 to 32"},
      {{"--from", "198.18.1.0/256"}, "a prefix length is from 0 to 32"},
      {{"--from", "2001:db8::/129"}, "a prefix length is from 0 to 128"},
      {{"--from", "198.18.1.2/24"}, "198.18.1.2/24: the address has bits beyond its prefix"},
      {{"--from", "2001:db8::1/64"}, "the address has bits beyond its prefix"},
      {{}, "name each load balancer's outer source with --from"},
      {{"--from", "198.18.1.2", "--gue-port", "0"}, "--gue-port"},
      {{"--from", "198.18.1.2", "--gue-port", "65536"}, "--gue-port"},
      {{"--from", "198.18.1.2", "--gue-port", "1", "2", "3", "4", "5", "6", "7", "8", "9"},
       "--gue-port"}};
  for (const auto& [options, message] : cases) {
    DecapProcess decap(options);
    EXPECT_NE(decap.line().find(message), std::string::npos) << message;
    EXPECT_GT(decap.end(0), 0);
  }
}

TEST_F(Decap, TakesAddressesPrefixesAndPorts) {
  DecapProcess decap({"--from", "198.18.1.0/24", "--from", "2001:db8::/32", "--from",
                      "2001:db8:1::2", "--gue-port", "6080", "--gue-port", "9999",
                      "--require-udp-checksum"});
  EXPECT_EQ(decap.line(),
            "ready: lb0 unwraps IP-in-IP, GRE and GUE on UDP port 6080, 9999 from 198.18.1.0/24, "
            "2001:db8::/32, 2001:db8:1::2\n");
  EXPECT_TRUE(wrapped_datagram_arrives(*network_));
}

TEST_F(Decap, RefusesOtherSources) {
  DecapProcess decap("198.18.1.3");
  ASSERT_NE(decap.line(), "");
  EXPECT_FALSE(wrapped_datagram_arrives(*network_));
  EXPECT_EQ(decap.end(SIGTERM), 0);
  EXPECT_EQ(decap.line(), counters_line(0, 1));
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
