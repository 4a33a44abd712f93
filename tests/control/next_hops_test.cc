#include "control/next_hops.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace maglev {
namespace {

using namespace std::chrono_literals;
using boost::asio::ip::address;
using boost::asio::ip::address_v4;
using boost::asio::ip::make_address;
using Clock = std::chrono::steady_clock;

constexpr std::array<uint8_t, 6> kPeer0Mac{0x02, 0, 0, 0, 0x01, 0x00};
constexpr std::array<uint8_t, 6> kPeer1Mac{0x02, 0, 0, 0, 0x01, 0x01};
constexpr std::array<uint8_t, 6> kOtherMac{0x02, 0, 0, 0, 0x02, 0x00};
const address kDirect = make_address("198.18.0.2");
const address kBehindGateway = make_address("203.0.113.5");

// A process that does nothing but keep a network namespace of its own alive.
class Peer {
 public:
  Peer() {
    int ready[2];
    EXPECT_EQ(pipe(ready), 0);
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (unshare(CLONE_NEWNET) == 0 && write(ready[1], "x", 1) == 1) pause();
      _exit(1);
    }
    close(ready[1]);
    char byte;
    EXPECT_EQ(read(ready[0], &byte, 1), 1) << "the peer could not make its network namespace";
    close(ready[0]);
  }
  ~Peer() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

// The host under test has lb0 (198.18.0.1/24) and lb1 (198.18.1.1/24); the peer has the other ends,
// peer0 (.2) and peer1 (.2), with known MAC addresses.
class NextHopsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "needs root, to make network namespaces";
    ASSERT_EQ(unshare(CLONE_NEWNET), 0) << "cannot make a network namespace";
    peer_ = std::make_unique<Peer>();
    for (int i = 0; i < 2; ++i) {
      run(fmt::format("ip link add lb{0} type veth peer name peer{0} netns {1}", i, peer_->pid()));
      run(fmt::format("ip addr add 198.18.{0}.1/24 dev lb{0}", i));
      run(fmt::format("ip link set lb{} up", i));
      run_in_peer(fmt::format("ip link set peer{0} address 02:00:00:00:01:0{0}", i));
      run_in_peer(fmt::format("ip addr add 198.18.{0}.2/24 dev peer{0}", i));
      run_in_peer(fmt::format("ip link set peer{} up", i));
    }
    run("ip link set lo up");
    auto opened = NextHops::open(io_, [this](const std::vector<address>& changed) {
      changes_.insert(changes_.end(), changed.begin(), changed.end());
    });
    ASSERT_TRUE(opened) << opened.error();
    next_hops_ = std::move(*opened);
  }

  static void run(const std::string& command) {
    ASSERT_EQ(std::system(("timeout 20 " + command).c_str()), 0) << command;
  }
  void run_in_peer(const std::string& command) {
    run(fmt::format("nsenter --net=/proc/{}/ns/net {}", peer_->pid(), command));
  }
  // The peer asks for the host's MAC address and by that tells its own.
  void make_peer_ask() {
    run_in_peer("ip neigh flush dev peer0");
    run_in_peer("bash -c 'echo x > /dev/udp/198.18.0.1/9'");
  }

  template <typename Condition>
  bool run_until(Condition condition) {
    const Clock::time_point end = Clock::now() + 15s;
    while (!condition()) {
      if (Clock::now() > end) return false;
      io_.run_one_for(10ms);
    }
    return true;
  }
  bool run_until_mac(const address& target, const std::array<uint8_t, 6>& mac) {
    return run_until([&] {
      const NextHop hop = next_hops_->of(target);
      return hop.resolved && hop.mac == mac;
    });
  }
  bool run_until_reason(const address& target, const std::string& reason) {
    return run_until([&] { return next_hops_->of(target).reason == reason; });
  }
  NextHop direct_hop(const std::array<uint8_t, 6>& mac = kPeer0Mac) const {
    return {.resolved = true,
            .mac = mac,
            .outer_source = make_address("198.18.0.1"),
            .via = kDirect,
            .on_link = true,
            .mtu_bytes = 1500,
            .mtu_is_of_route = false,
            .interface = "lb0",
            .reason = ""};
  }

  std::unique_ptr<Peer> peer_;
  boost::asio::io_context io_;
  std::vector<address> changes_;
  std::unique_ptr<NextHops> next_hops_;
};

TEST(FormatMac, HasTwoDigitsForEachByte) {
  EXPECT_EQ(format_mac({0x02, 0, 0, 0, 0, 0x11}), "02:00:00:00:00:11");
}

TEST_F(NextHopsTest, ADirectNeighbourIsAskedForAndResolved) {
  EXPECT_EQ(next_hops_->of(kDirect), NextHop{});
  next_hops_->watch({kDirect});
  EXPECT_EQ(next_hops_->of(kDirect).reason, "no answer yet from neighbour 198.18.0.2 on lb0");
  ASSERT_TRUE(run_until_mac(kDirect, kPeer0Mac));
  EXPECT_EQ(next_hops_->of(kDirect), direct_hop());
  EXPECT_EQ(changes_, std::vector{kDirect});
}

TEST_F(NextHopsTest, WhatTheKernelKnowsIsAnsweredAtOnceAndWithoutACallback) {
  next_hops_->watch({kDirect});
  ASSERT_TRUE(run_until_mac(kDirect, kPeer0Mac));
  changes_.clear();
  next_hops_->watch({});
  EXPECT_EQ(next_hops_->of(kDirect), NextHop{});
  next_hops_->watch({kDirect});
  EXPECT_EQ(next_hops_->of(kDirect), direct_hop());
  io_.run_for(50ms);
  EXPECT_TRUE(changes_.empty());
}

TEST_F(NextHopsTest, AnAddressBehindAGatewayGetsTheGatewaysMac) {
  run("ip route add 203.0.113.0/24 via 198.18.0.2");
  next_hops_->watch({kBehindGateway});
  ASSERT_TRUE(run_until_mac(kBehindGateway, kPeer0Mac));
  NextHop expected = direct_hop();
  expected.on_link = false;
  EXPECT_EQ(next_hops_->of(kBehindGateway), expected);
}

TEST_F(NextHopsTest, ThePreferredSourceOfTheRouteIsTheOuterSource) {
  run("ip addr add 198.18.0.77/32 dev lo");
  run("ip route add 203.0.113.0/24 via 198.18.0.2 src 198.18.0.77");
  next_hops_->watch({kBehindGateway});
  ASSERT_TRUE(run_until_mac(kBehindGateway, kPeer0Mac));
  EXPECT_EQ(next_hops_->of(kBehindGateway).outer_source, make_address("198.18.0.77"));
}

TEST_F(NextHopsTest, AMacAddressThatANeighbourTellsIsTakenAtOnce) {
  next_hops_->watch({kDirect});
  ASSERT_TRUE(run_until_mac(kDirect, kPeer0Mac));
  io_.run_for(1100ms);  // the kernel ignores a second answer within a second (locktime)
  run_in_peer("ip link set peer0 address 02:00:00:00:02:00");
  const Clock::time_point start = Clock::now();
  make_peer_ask();
  ASSERT_TRUE(run_until_mac(kDirect, kOtherMac));
  EXPECT_LT(Clock::now() - start, 2s);
}

TEST_F(NextHopsTest, AMacAddressThatChangesInSilenceIsFoundByVerifying) {
  // What takes the kernel a minute takes seconds here. Nobody sends a packet: without our marks the
  // entry would stay stale, with the old address, for good.
  run("sysctl -qw net.ipv4.neigh.lb0.base_reachable_time_ms=1000");
  run("sysctl -qw net.ipv4.neigh.lb0.delay_first_probe_time=1");
  run("sysctl -qw net.ipv4.neigh.lb0.retrans_time_ms=100");
  next_hops_->watch({kDirect});
  ASSERT_TRUE(run_until_mac(kDirect, kPeer0Mac));
  io_.run_for(5s);  // past what the first question started
  run_in_peer("ip link set peer0 address 02:00:00:00:02:00");
  EXPECT_TRUE(run_until_mac(kDirect, kOtherMac));
}

TEST_F(NextHopsTest, APermanentEntryIsUsedAndStaysPermanent) {
  run("ip neigh replace 198.18.0.2 lladdr 02:00:00:00:02:00 nud permanent dev lb0");
  next_hops_->watch({kDirect});
  ASSERT_TRUE(run_until_mac(kDirect, kOtherMac));
  io_.run_for(2500ms);
  EXPECT_EQ(next_hops_->of(kDirect), direct_hop(kOtherMac));
  run("ip neigh show nud permanent | grep -q '^198.18.0.2 '");
}

TEST_F(NextHopsTest, AFlushedEntryIsAskedForAgain) {
  next_hops_->watch({kDirect});
  ASSERT_TRUE(run_until_mac(kDirect, kPeer0Mac));
  changes_.clear();
  run("ip neigh flush dev lb0");
  ASSERT_TRUE(run_until([&] { return !changes_.empty(); }));
  const Clock::time_point start = Clock::now();
  EXPECT_TRUE(run_until_mac(kDirect, kPeer0Mac));
  EXPECT_LT(Clock::now() - start, 2s);
}

TEST_F(NextHopsTest, ALinkThatGoesDownAndUpTakesItsNeighboursWithIt) {
  next_hops_->watch({kDirect});
  ASSERT_TRUE(run_until_mac(kDirect, kPeer0Mac));
  run("ip link set lb0 down");
  EXPECT_TRUE(run_until_reason(kDirect, "no route (Network is unreachable)"));
  run("ip link set lb0 up");
  EXPECT_TRUE(run_until_mac(kDirect, kPeer0Mac));
}

TEST_F(NextHopsTest, ALinkWithoutCarrierHasNoNeighbours) {
  next_hops_->watch({kDirect});
  ASSERT_TRUE(run_until_mac(kDirect, kPeer0Mac));
  run_in_peer("ip link set peer0 down");
  EXPECT_TRUE(run_until_reason(kDirect, "interface lb0 is down or has no carrier"));
  run_in_peer("ip link set peer0 up");
  EXPECT_TRUE(run_until_mac(kDirect, kPeer0Mac));
}

TEST_F(NextHopsTest, ARenamedInterfaceIsTold) {
  next_hops_->watch({kDirect});
  ASSERT_TRUE(run_until_mac(kDirect, kPeer0Mac));
  run("ip link set lb0 name uplink");
  EXPECT_TRUE(run_until([&] { return next_hops_->of(kDirect).interface == "uplink"; }));
}

TEST_F(NextHopsTest, AMovedGatewayIsFollowed) {
  run("ip route add 203.0.113.0/24 via 198.18.0.2");
  next_hops_->watch({kBehindGateway});
  ASSERT_TRUE(run_until_mac(kBehindGateway, kPeer0Mac));
  run("ip route replace 203.0.113.0/24 via 198.18.1.2");
  ASSERT_TRUE(run_until_mac(kBehindGateway, kPeer1Mac));
  EXPECT_EQ(next_hops_->of(kBehindGateway).interface, "lb1");
  EXPECT_EQ(next_hops_->of(kBehindGateway).outer_source, make_address("198.18.1.1"));
  run("ip route del 203.0.113.0/24");
  EXPECT_TRUE(run_until_reason(kBehindGateway, "no route (Network is unreachable)"));
}

TEST_F(NextHopsTest, ASilentNeighbourStaysUnresolvedAndIsFoundWhenItComes) {
  const address late = make_address("198.18.0.99");
  next_hops_->watch({late, kDirect});
  ASSERT_TRUE(run_until_mac(kDirect, kPeer0Mac));
  io_.run_for(5s);  // past the kernel's own three questions
  EXPECT_EQ(next_hops_->of(late).reason, "no answer yet from neighbour 198.18.0.99 on lb0");
  EXPECT_EQ(changes_, std::vector{kDirect});
  run_in_peer("ip addr add 198.18.0.99/24 dev peer0");
  EXPECT_TRUE(run_until_mac(late, kPeer0Mac));
}

// The same links with IPv6 addresses: 2001:db8:0::1 here, 2001:db8:0::2 and fe80::2 at the peer.
class NextHopsIpv6Test : public NextHopsTest {
 protected:
  void SetUp() override {
    NextHopsTest::SetUp();
    if (IsSkipped()) return;
    run("ip addr add 2001:db8::1/64 dev lb0 nodad");
    run_in_peer("ip addr add 2001:db8::2/64 dev peer0 nodad");
    run_in_peer("ip addr add fe80::2/64 dev peer0 nodad");
  }
  const address direct_ = make_address("2001:db8::2");
  const address behind_gateway_ = make_address("2001:db8:5::5");
};

TEST_F(NextHopsIpv6Test, ADirectNeighbourIsAskedForAndResolved) {
  next_hops_->watch({direct_, kDirect});
  ASSERT_TRUE(run_until_mac(direct_, kPeer0Mac));
  ASSERT_TRUE(run_until_mac(kDirect, kPeer0Mac));
  NextHop expected = direct_hop();
  expected.outer_source = make_address("2001:db8::1");
  expected.via = direct_;
  EXPECT_EQ(next_hops_->of(direct_), expected);
}

TEST_F(NextHopsIpv6Test, AGatewayMayHaveAnAddressOfItsLinkAlone) {
  run("ip -6 route add 2001:db8:5::/64 via fe80::2 dev lb0");
  next_hops_->watch({behind_gateway_});
  ASSERT_TRUE(run_until_mac(behind_gateway_, kPeer0Mac));
  const NextHop hop = next_hops_->of(behind_gateway_);
  EXPECT_EQ(hop.via, make_address("fe80::2"));
  EXPECT_FALSE(hop.on_link);
  EXPECT_EQ(hop.outer_source, make_address("2001:db8::1"));
  run("ip -6 route replace 2001:db8:5::/64 via 2001:db8::2 mtu 1400");
  ASSERT_TRUE(run_until([&] { return next_hops_->of(behind_gateway_).mtu_bytes == 1400; }));
  EXPECT_EQ(next_hops_->of(behind_gateway_).via, direct_);
  run("ip -6 route del 2001:db8:5::/64");
  EXPECT_TRUE(run_until_reason(behind_gateway_, "no route (Network is unreachable)"));
}

TEST_F(NextHopsIpv6Test, AMacAddressThatANeighbourTellsIsTaken) {
  next_hops_->watch({direct_});
  ASSERT_TRUE(run_until_mac(direct_, kPeer0Mac));
  run_in_peer("ip link set peer0 address 02:00:00:00:02:00");
  run_in_peer("ip -6 neigh flush dev peer0");
  run_in_peer("bash -c 'echo x > /dev/udp/2001:db8::1/9'");
  EXPECT_TRUE(run_until_mac(direct_, kOtherMac));
}

TEST_F(NextHopsIpv6Test, AnAddressOfOneLinkAloneIsNoSource) {
  run("ip addr flush dev lb0 scope global");
  run("ip -6 route add 2001:db8:5::/64 dev lb0");
  next_hops_->watch({behind_gateway_});
  EXPECT_EQ(next_hops_->of(behind_gateway_).reason,
            "interface lb0 has no global IPv6 address to send from");
  run("ip addr add 2001:db8:5::1/64 dev lb0");
  EXPECT_TRUE(
      run_until_reason(behind_gateway_, "no answer yet from neighbour 2001:db8:5::5 on lb0"))
      << "once it is known that nobody else has it";
}

TEST_F(NextHopsTest, TheMtuIsThatOfTheRouteOrElseOfItsInterface) {
  run("ip route add 203.0.113.0/24 via 198.18.0.2 mtu 1400");
  next_hops_->watch({kDirect, kBehindGateway});
  ASSERT_TRUE(run_until_mac(kBehindGateway, kPeer0Mac));
  EXPECT_EQ(next_hops_->of(kBehindGateway).mtu_bytes, 1400u);
  EXPECT_TRUE(next_hops_->of(kBehindGateway).mtu_is_of_route);
  EXPECT_EQ(next_hops_->of(kDirect).mtu_bytes, 1500u);
  EXPECT_FALSE(next_hops_->of(kDirect).mtu_is_of_route);
  run("ip link set lb0 mtu 1450");
  EXPECT_TRUE(run_until([&] { return next_hops_->of(kDirect).mtu_bytes == 1450; }));
  run("ip route replace 203.0.113.0/24 via 198.18.0.2 mtu 1300");
  EXPECT_TRUE(run_until([&] { return next_hops_->of(kBehindGateway).mtu_bytes == 1300; }));
}

TEST_F(NextHopsTest, WhatTheKernelItselfLearntIsNoMtuOfTheRoute) {
  run("ip route add 203.0.113.0/24 via 198.18.0.2 mtu 1450");
  // The peer's next link takes 1300 bytes, so the kernel learns that from a ping.
  run_in_peer("sysctl -qw net.ipv4.ip_forward=1");
  run_in_peer("ip link add far0 type veth peer name far1");
  run_in_peer("ip link set far0 mtu 1300");
  run_in_peer("ip link set far0 up");
  run_in_peer("ip link set far1 up");
  run_in_peer("ip route add 203.0.113.0/24 dev far0");
  run("bash -c 'ping -c 1 -W 1 -M do -s 1400 203.0.113.5 > /dev/null; true'");
  run("ip route get 203.0.113.5 | grep -q 'expires'");
  next_hops_->watch({kBehindGateway});
  EXPECT_EQ(next_hops_->of(kBehindGateway).mtu_bytes, 1450u);
}

TEST_F(NextHopsTest, WhatCannotBeReachedOverEthernetIsToldWithItsReason) {
  run("ip tuntap add tun0 mode tun");
  run("ip link set tun0 up");
  run("ip route add 203.0.113.32/28 dev tun0");
  run("ip route add blackhole 203.0.113.48/28");
  run("ip route add 203.0.113.64/28 via inet6 fe80::1 dev lb0");
  run("ip neigh add 198.18.0.88 lladdr 01:00:5e:00:00:58 dev lb0 nud permanent");
  const std::map<std::string, std::string> expected{
      {"127.0.0.1", "it is an address of this host"},
      {"198.18.0.1", "it is an address of this host"},
      {"198.18.0.255", "it is a broadcast or multicast address"},
      {"198.18.0.88",
       "neighbour 198.18.0.88 on lb0 has the MAC address of a group, 01:00:5e:00:00:58"},
      {"203.0.113.1", "no route (Network is unreachable)"},
      {"203.0.113.33", "interface tun0 is not Ethernet"},
      {"203.0.113.49", "no route (Invalid argument)"},
      {"203.0.113.65",
       "its route has a gateway of the other family or an encapsulation, which is not supported"}};
  std::set<address> addresses;
  for (const auto& [target, reason] : expected) addresses.insert(make_address(target));
  io_.run_for(200ms);
  next_hops_->watch(addresses);
  for (const auto& [target, reason] : expected) {
    const NextHop hop = next_hops_->of(make_address(target));
    EXPECT_FALSE(hop.resolved) << target;
    EXPECT_EQ(hop.reason, reason) << target;
    EXPECT_EQ(hop.mac, (std::array<uint8_t, 6>{})) << target;
  }
}

TEST_F(NextHopsTest, WhereThereIsNoAddressToSendFromItIsTold) {
  for (const char* link : {"lb0", "lb1"}) run(fmt::format("ip addr flush dev {}", link));
  run("ip route add 203.0.113.0/24 dev lb0");
  run("ip neigh add 203.0.113.1 lladdr 02:00:00:00:00:01 dev lb0 nud permanent");
  const address target = make_address("203.0.113.1");
  next_hops_->watch({target});
  EXPECT_EQ(next_hops_->of(target).reason, "interface lb0 has no IPv4 address to send from");
  run("ip addr add 198.18.0.1/24 dev lb0");
  EXPECT_TRUE(run_until_mac(target, {2, 0, 0, 0, 0, 1}));
}

// Events lost to full buffers, summed over the netlink sockets of this network namespace.
uint64_t lost_events() {
  std::ifstream table("/proc/thread-self/net/netlink");
  std::string line;
  std::getline(table, line);
  uint64_t sum = 0;
  while (std::getline(table, line)) {
    std::istringstream columns(line);
    std::string column;
    for (int i = 0; i < 8; ++i) columns >> column;
    uint64_t drops = 0;
    columns >> drops;
    sum += drops;
  }
  return sum;
}

TEST_F(NextHopsTest, NothingIsMissedWhenEventsAreLost) {
  run("ip route add 203.0.113.0/24 via 198.18.0.2");
  next_hops_->watch({kDirect, kBehindGateway});
  ASSERT_TRUE(run_until_mac(kDirect, kPeer0Mac));
  const std::string batch = ::testing::TempDir() + fmt::format("neighbours.{}", getpid());
  std::ofstream commands(batch);
  for (int i = 0; i < 20000; ++i) {
    commands << fmt::format(
        "neigh replace 198.18.1.{} lladdr 02:00:00:00:{:02x}:{:02x} nud "
        "permanent dev lb1\n",
        3 + i % 250, i >> 8, i & 255);
  }
  commands << "neigh replace 198.18.0.2 lladdr 02:00:00:00:02:00 nud permanent dev lb0\n"
           << "route replace 203.0.113.0/24 via 198.18.1.2\n"
           << "neigh replace 198.18.1.2 lladdr 02:00:00:00:02:00 nud permanent dev lb1\n";
  commands.close();
  run("ip -batch " + batch);
  std::remove(batch.c_str());
  ASSERT_GT(lost_events(), 0u);
  EXPECT_TRUE(run_until_mac(kDirect, kOtherMac));
  EXPECT_TRUE(run_until([&] {
    const NextHop hop = next_hops_->of(kBehindGateway);
    return hop.interface == "lb1" && hop.mac == kOtherMac;
  }));
}

// Takes the right to change the network from this thread while it lives.
class WithoutNetAdmin {
 public:
  WithoutNetAdmin() {
    syscall(SYS_capget, &header_, saved_);
    __user_cap_data_struct less[2] = {saved_[0], saved_[1]};
    less[0].effective &= ~(1u << CAP_NET_ADMIN);
    syscall(SYS_capset, &header_, less);
  }
  ~WithoutNetAdmin() { syscall(SYS_capset, &header_, saved_); }
  WithoutNetAdmin(const WithoutNetAdmin&) = delete;
  WithoutNetAdmin& operator=(const WithoutNetAdmin&) = delete;

 private:
  __user_cap_header_struct header_{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct saved_[2];
};

TEST_F(NextHopsTest, AMissingRightIsNamed) {
  {
    const WithoutNetAdmin weak;
    next_hops_->watch({kDirect});
    EXPECT_TRUE(run_until_reason(
        kDirect, "cannot ask for neighbour 198.18.0.2 on lb0: Operation not permitted"));
  }
  EXPECT_TRUE(run_until_mac(kDirect, kPeer0Mac));
}

TEST_F(NextHopsTest, ManyAddressesBehindOneGatewayShareItsNeighbour) {
  run("ip route add 203.0.113.0/24 via 198.18.0.2");
  std::set<address> many;
  for (uint32_t i = 1; i < 255; ++i) many.insert(address_v4(0xcb007100u + i));
  next_hops_->watch(many);
  ASSERT_TRUE(run_until([&] { return changes_.size() >= many.size(); }));
  EXPECT_EQ(changes_.size(), many.size());
  for (const address& target : many) EXPECT_EQ(next_hops_->of(target).mac, kPeer0Mac);
}

TEST_F(NextHopsTest, NothingIsCalledAfterItIsGone) {
  next_hops_->watch({kDirect});
  next_hops_.reset();
  io_.run_for(300ms);
  EXPECT_TRUE(changes_.empty());
}

}  // namespace
}  // namespace maglev
