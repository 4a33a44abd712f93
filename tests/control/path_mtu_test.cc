#include "control/path_mtu.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <boost/asio/ip/icmp.hpp>
#include <cstdlib>
#include <random>

namespace maglev {
namespace {

using namespace std::chrono_literals;
using boost::asio::ip::icmp;
using boost::asio::ip::make_address;
using Message = std::vector<uint8_t>;
using Outcome = PathMtuMemory::Outcome;

std::span<const std::byte> bytes(const Message& message) {
  return std::as_bytes(std::span(message));
}

void put16(Message& message, size_t at, uint32_t value) {
  message[at] = static_cast<uint8_t>(value >> 8);
  message[at + 1] = static_cast<uint8_t>(value);
}

void append(Message& message, const Message& more) {
  message.insert(message.end(), more.begin(), more.end());
}

// Written apart from the code under test: one's complement addition, folded at each step.
void put_checksum(Message& message) {
  put16(message, 2, 0);
  uint32_t sum = 0;
  for (size_t i = 0; i < message.size(); ++i) {
    sum += i % 2 == 0 ? message[i] * 256u : message[i];
    sum = sum % 65536 + sum / 65536;
  }
  put16(message, 2, ~sum);
}

// From 198.18.0.1 to 198.18.2.11, of 1500 bytes; the first eight bytes of what it carries are those
// of UDP from port 50000 to port 6080.
Message quoted_ipv4(uint8_t protocol) {
  Message quote = {0x45, 0, 0x05, 0xdc, 0, 1, 0x40, 0,  64, protocol,
                   0,    0, 198,  18,   0, 1, 198,  18, 2,  11};
  append(quote, {0xc3, 0x50, 0x17, 0xc0, 0x05, 0xc8, 0x12, 0x34});
  return quote;
}

Message icmp_ipv4(uint16_t mtu_bytes, const Message& quote) {
  Message message = {3, 4, 0, 0, 0, 0, 0, 0};
  put16(message, 6, mtu_bytes);
  append(message, quote);
  put_checksum(message);
  return message;
}

// As a raw socket hands it over, here with an option in the outer header.
Message packet_ipv4(const Message& icmp_message) {
  Message packet = {0x46, 0,  0, 0,   0,   1,  0, 0, 64, 1, 0, 0,
                    198,  18, 2, 254, 198, 18, 0, 1, 1,  1, 1, 1};
  append(packet, icmp_message);
  return packet;
}

Message icmp_ipv6(uint32_t mtu_bytes, uint8_t protocol) {
  Message message = {2, 0, 0, 0, 0, 0, 0, 0};
  put16(message, 4, mtu_bytes >> 16);
  put16(message, 6, mtu_bytes);
  Message quote = {0x60, 0, 0, 0, 0x05, 0xb4, protocol, 64};  // 1460 bytes of payload
  for (const uint8_t last : {uint8_t{1}, uint8_t{2}}) {
    append(quote, {0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last});
  }
  append(quote, {0xc3, 0x50, 0x17, 0xc0, 0x05, 0xb4, 0, 0});
  append(message, quote);
  return message;
}

TEST(TooBig, AnIpv4MessageTellsWhatItQuotesAndWhatWouldFit) {
  const auto read = read_too_big_ipv4(bytes(packet_ipv4(icmp_ipv4(1400, quoted_ipv4(17)))));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->mtu_bytes, 1400u);
  EXPECT_EQ(read->quoted_bytes, 1500u);
  EXPECT_EQ(read->quoted.source.to_string(), "198.18.0.1");
  EXPECT_EQ(read->quoted.destination.to_string(), "198.18.2.11");
  EXPECT_EQ(read->quoted.protocol, 17);
  EXPECT_EQ(read->quoted.destination_port, 6080);
}

TEST(TooBig, AnIpv6MessageTellsWhatItQuotesAndWhatWouldFit) {
  const auto read = read_too_big_ipv6(bytes(icmp_ipv6(1400, 41)));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->mtu_bytes, 1400u);
  EXPECT_EQ(read->quoted_bytes, 1500u);
  EXPECT_EQ(read->quoted.source.to_string(), "2001:db8::1");
  EXPECT_EQ(read->quoted.destination.to_string(), "2001:db8::2");
  EXPECT_EQ(read->quoted.protocol, 41);
  EXPECT_EQ(read_too_big_ipv6(bytes(icmp_ipv6(1400, 17)))->quoted.destination_port, 6080);
}

TEST(TooBig, ARouterThatDoesNotSayWhatFitsMeansTheNextUsualMtu) {
  const auto read = read_too_big_ipv4(bytes(packet_ipv4(icmp_ipv4(0, quoted_ipv4(4)))));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->mtu_bytes, 1492u);
}

TEST(TooBig, OtherMessagesAreNone) {
  const auto is_read = [](Message message, bool with_checksum = true) {
    if (with_checksum) put_checksum(message);
    return read_too_big_ipv4(bytes(packet_ipv4(message))).has_value();
  };
  const Message good = icmp_ipv4(1400, quoted_ipv4(17));
  EXPECT_TRUE(is_read(good));
  const auto with = [&](size_t at, uint8_t value) {
    Message message = good;
    message[at] = value;
    return message;
  };
  EXPECT_FALSE(is_read(with(6, 4), false)) << "a wrong checksum";
  EXPECT_FALSE(is_read(with(0, 11))) << "time exceeded";
  EXPECT_FALSE(is_read(with(1, 3))) << "port unreachable";
  EXPECT_FALSE(is_read(with(8, 0x65))) << "a quote of IPv6";
  EXPECT_FALSE(is_read(with(8, 0x44))) << "a header of 16 bytes";
  EXPECT_FALSE(is_read(with(8 + 7, 1))) << "a later fragment";
  Message other = icmp_ipv6(1400, 41);
  other[0] = 3;
  EXPECT_FALSE(read_too_big_ipv6(bytes(other)));
}

TEST(TooBig, CutAnywhereItIsReadOrNotAndNeverBeyondItsEnd) {
  const Message ipv4 = packet_ipv4(icmp_ipv4(1400, quoted_ipv4(17)));
  for (size_t length = 0; length < ipv4.size(); ++length) {
    const Message cut(ipv4.begin(), ipv4.begin() + static_cast<ptrdiff_t>(length));
    EXPECT_FALSE(read_too_big_ipv4(bytes(cut))) << length;
  }
  const Message ipv6 = icmp_ipv6(1400, 17);
  for (size_t length = 0; length < ipv6.size(); ++length) {
    const Message cut(ipv6.begin(), ipv6.begin() + static_cast<ptrdiff_t>(length));
    EXPECT_EQ(read_too_big_ipv6(bytes(cut)).has_value(), length >= 8 + 40 + 4) << length;
  }
}

TooBig told(const char* destination, uint32_t mtu_bytes, uint32_t quoted_bytes = 9000) {
  return {{{}, make_address(destination), 4, 0}, quoted_bytes, mtu_bytes};
}

class PathMtuMemoryTest : public testing::Test {
 protected:
  Outcome take(const TooBig& message, PathMtuMemory::Clock::time_point until = {}) {
    return memory_.take(message, make_address("198.18.2.254"), until);
  }
  uint32_t mtu_of(const char* destination) const {
    const auto entry = memory_.of(make_address(destination));
    return entry ? entry->mtu_bytes : 0;
  }
  PathMtuMemory memory_;
};

TEST_F(PathMtuMemoryTest, AMessageLowersAndNeverRaises) {
  EXPECT_EQ(take(told("198.18.2.11", 1400)), Outcome::kLowered);
  EXPECT_EQ(take(told("198.18.2.11", 1450)), Outcome::kIgnored);
  EXPECT_EQ(mtu_of("198.18.2.11"), 1400u);
  EXPECT_EQ(take(told("198.18.2.11", 1300)), Outcome::kLowered);
  EXPECT_EQ(mtu_of("198.18.2.11"), 1300u);
  EXPECT_EQ(mtu_of("198.18.2.12"), 0u);
}

TEST_F(PathMtuMemoryTest, NothingIsBelievedBelowWhatEveryLinkMustCarry) {
  EXPECT_EQ(take(told("198.18.2.11", 68)), Outcome::kLowered);
  EXPECT_EQ(mtu_of("198.18.2.11"), 608u);
  EXPECT_EQ(take(told("2001:db8::2", 100)), Outcome::kLowered);
  EXPECT_EQ(mtu_of("2001:db8::2"), 1280u);
}

TEST_F(PathMtuMemoryTest, APacketThatWouldHaveFitIsNotBelieved) {
  EXPECT_EQ(take(told("198.18.2.11", 1400, 1400)), Outcome::kIgnored);
  EXPECT_EQ(take(told("198.18.2.11", 0, 1400)), Outcome::kIgnored);
  EXPECT_EQ(take(told("198.18.2.11", 1399, 1400)), Outcome::kLowered);
}

TEST_F(PathMtuMemoryTest, WhatIsToldAgainLastsLongerAndThenEnds) {
  const PathMtuMemory::Clock::time_point start{};
  take(told("198.18.2.11", 1400), start + 10s);
  EXPECT_EQ(take(told("198.18.2.11", 1400), start + 20s), Outcome::kRenewed);
  EXPECT_TRUE(memory_.expire(start + 19s).empty());
  EXPECT_EQ(memory_.expire(start + 20s), std::vector{make_address("198.18.2.11")});
  EXPECT_EQ(mtu_of("198.18.2.11"), 0u);
}

// On the loopback interface of a network namespace of its own, where the test is the router.
class PathMtusTest : public testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "needs root, to make network namespaces";
    ASSERT_EQ(unshare(CLONE_NEWNET), 0) << "cannot make a network namespace";
    for (const char* command :
         {"ip link set lo up", "ip addr add 198.18.0.1/32 dev lo",
          "ip route add local 198.18.64.0/24 dev lo", "ip addr add 2001:db8::1/128 dev lo nodad"}) {
      ASSERT_EQ(std::system(command), 0) << command;
    }
    auto opened = PathMtus::open(
        io_, 2s,
        [this](const OuterPacket& packet) {
          asked_.push_back(packet);
          return packet.destination == ours_;
        },
        [this](const auto& destinations) { news_.push_back(destinations); });
    ASSERT_TRUE(opened) << opened.error();
    path_mtus_ = std::move(*opened);
  }

  void send(const char* to, const Message& message) {
    const auto address = make_address(to);
    icmp::socket socket(io_, address.is_v4() ? icmp::v4() : icmp::v6());
    socket.send_to(boost::asio::buffer(message), icmp::endpoint(address, 0));
  }

  bool run_until_seen(uint64_t messages) {
    const auto end = std::chrono::steady_clock::now() + 10s;
    while (path_mtus_->counts().taken + path_mtus_->counts().ignored < messages) {
      if (std::chrono::steady_clock::now() > end) return false;
      io_.run_one_for(10ms);
    }
    return true;
  }

  boost::asio::io_context io_;
  boost::asio::ip::address ours_ = make_address("198.18.2.11");
  std::vector<OuterPacket> asked_;
  std::vector<std::vector<boost::asio::ip::address>> news_;
  std::unique_ptr<PathMtus> path_mtus_;
};

TEST_F(PathMtusTest, AMessageIsTakenToldAndEnds) {
  send("198.18.0.1", icmp_ipv4(1400, quoted_ipv4(4)));
  ASSERT_TRUE(run_until_seen(1));
  const auto learnt = path_mtus_->of(ours_);
  ASSERT_TRUE(learnt);
  EXPECT_EQ(learnt->mtu_bytes, 1400u);
  EXPECT_EQ(learnt->router.to_string(), "198.18.0.1");
  ASSERT_EQ(news_.size(), 1u);
  EXPECT_EQ(news_[0], std::vector{ours_});
  io_.run_for(3500ms);
  EXPECT_FALSE(path_mtus_->of(ours_));
  EXPECT_EQ(news_.size(), 2u) << "the end is news";
}

TEST_F(PathMtusTest, AnIpv6MessageIsTaken) {
  ours_ = make_address("2001:db8::2");
  send("2001:db8::1", icmp_ipv6(1400, 41));
  ASSERT_TRUE(run_until_seen(1));
  ASSERT_TRUE(path_mtus_->of(ours_));
  EXPECT_EQ(path_mtus_->of(ours_)->mtu_bytes, 1400u);
}

TEST_F(PathMtusTest, MessagesToAPrefixThatIsRoutedLocallyArrive) {
  send("198.18.64.77", icmp_ipv4(1400, quoted_ipv4(4)));
  ASSERT_TRUE(run_until_seen(1));
  EXPECT_TRUE(path_mtus_->of(ours_));
}

TEST_F(PathMtusTest, WhatQuotesNoPacketOfOursIsIgnoredAndCounted) {
  ours_ = make_address("198.18.2.99");
  send("198.18.0.1", icmp_ipv4(1400, quoted_ipv4(17)));
  ASSERT_TRUE(run_until_seen(1));
  EXPECT_EQ(path_mtus_->counts().ignored, 1u);
  ASSERT_EQ(asked_.size(), 1u);
  EXPECT_EQ(asked_[0].destination_port, 6080);
  EXPECT_FALSE(path_mtus_->of(make_address("198.18.2.11")));
  EXPECT_TRUE(news_.empty());
}

TEST_F(PathMtusTest, ManyMessagesAreFewNews) {
  constexpr int kMessages = 100;
  for (int i = 0; i < kMessages; ++i) {
    send("198.18.0.1", icmp_ipv4(static_cast<uint16_t>(1400 - i), quoted_ipv4(4)));
  }
  const auto start = std::chrono::steady_clock::now();
  ASSERT_TRUE(run_until_seen(kMessages));
  EXPECT_EQ(path_mtus_->of(ours_)->mtu_bytes, 1301u);
  const auto seconds = (std::chrono::steady_clock::now() - start) / 1s;
  EXPECT_LE(news_.size(), static_cast<size_t>(seconds) + 1);
  io_.run_for(1500ms);
  EXPECT_GE(news_.size(), 2u) << "the last is told too, later";
}

TEST_F(PathMtusTest, NothingIsCalledAfterItIsGone) {
  send("198.18.0.1", icmp_ipv4(1400, quoted_ipv4(4)));
  path_mtus_.reset();
  io_.run_for(50ms);
  EXPECT_TRUE(news_.empty());
}

}  // namespace
}  // namespace maglev
