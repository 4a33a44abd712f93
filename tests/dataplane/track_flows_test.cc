// Flows through whole bursts: what the slot decides, what is remembered, and what follows a flow.
#include "dataplane/track_flows.h"

#include <gtest/gtest.h>

#include "dataplane/icmp.h"
#include "tests/dataplane/fixture.h"

namespace maglev {
namespace {

using testing::BurstRunner;
using testing::Bytes;
using testing::make_frame;
using testing::make_tree;
using testing::make_vip;
using testing::PacketSpec;
using testing::TestBed;

constexpr uint8_t kFin = 1, kSyn = 2, kRst = 4, kAck = 16;
constexpr uint64_t kSecond_ns = 1'000'000'000;
constexpr uint64_t kChangedAt_ns = kSecond_ns;
constexpr uint64_t kWindow_ns = 100 * kSecond_ns;
constexpr uint32_t kSlots = 251;

RootVip tracked_vip(Tracking tracking, uint16_t port = 80,
                    VipProtocol protocol = VipProtocol::kTcp) {
  RootVip vip = make_vip("web" + std::to_string(port), "198.51.100.10", port, protocol);
  vip.record.tracking = tracking;
  if (tracking == Tracking::kNone) return vip;
  vip.record.tcp_idle_s = 60;
  vip.record.tcp_closing_idle_s = 10;
  vip.record.udp_idle_s = 20;
  return vip;
}

Bytes tcp(uint16_t client_port, uint8_t flags, uint32_t sequence = 1) {
  Bytes frame = make_frame({.source_port = client_port});
  uint8_t* const transport = frame.data() + kEthernetHeaderLength + kIpv4HeaderLength;
  store_be32(transport + kTcpSequenceOffset, sequence);
  transport[kTcpFlagsOffset] = flags;
  return frame;
}

// Every slot is unsettled and was backend 0's; the table gives them to backends 1 and 2 as well.
class TrackFlows : public ::testing::Test {
 protected:
  static std::vector<SlotHistory> past(uint32_t fallback = 0, uint64_t pending_ns = 0) {
    std::vector<SlotHistory> slots;
    for (uint32_t slot = 0; slot < kSlots; ++slot) {
      slots.push_back({.slot = slot,
                       .fallback = fallback,
                       .pending_until_ns = kChangedAt_ns + pending_ns,
                       .inherit_until_ns = kChangedAt_ns + kWindow_ns,
                       .fallback_incarnation = 0,
                       .zero = {}});
    }
    return slots;
  }

  void publish(const RootVip& vip, const std::vector<SlotHistory>& slots = past()) {
    snapshot_ = bed_.adopt(make_tree(++generation_, 3, kSlots, {vip}, 42, 0, slots));
  }

  uint32_t backend_of(const Bytes& frame) {
    runner_.run(std::span(&frame, 1), snapshot_.get());
    if (runner_.verdict(0) != Verdict::kForwarded) return kNoBackendIndex;
    return static_cast<uint32_t>(runner_.burst().backend[0] - snapshot_->vips()[0].backends);
  }

  // By the table alone.
  uint32_t owner_of(const Bytes& frame) {
    const auto tracking = std::exchange(
        snapshot_,
        bed_.adopt(make_tree(100 + generation_, 3, kSlots,
                             {make_vip("web80", "198.51.100.10", 80, VipProtocol::kTcpAndUdp)})));
    const uint32_t owner = backend_of(frame);
    snapshot_ = tracking;
    return owner;
  }

  // A client whose slot has another owner than the fallback.
  uint16_t moved_client(uint16_t from = 40000) {
    for (uint16_t port = from;; ++port) {
      if (owner_of(tcp(port, kAck)) != 0) return port;
    }
  }

  uint64_t lookups() const {
    return bed_.counters.tracking.known.get() + bed_.counters.tracking.unknown.get();
  }

  TestBed bed_;
  BurstRunner runner_{bed_.counters};
  std::shared_ptr<const Snapshot> snapshot_;
  uint64_t generation_ = 0;
};

TEST_F(TrackFlows, APacketInASettledSlotLooksIntoNoTable) {
  publish(tracked_vip(Tracking::kChanged), {});
  for (uint16_t port = 40000; port < 40100; ++port) {
    EXPECT_EQ(backend_of(tcp(port, kSyn)), owner_of(tcp(port, kSyn)));
  }
  EXPECT_EQ(lookups(), 0u);
  EXPECT_EQ(runner_.burst().tracked_count, 0u);
}

TEST_F(TrackFlows, AnOlderFlowStaysAndANewOneTakesTheOwnerAndBothGoOn) {
  const uint16_t old_client = moved_client();
  const uint16_t new_client = moved_client(static_cast<uint16_t>(old_client + 1));
  publish(tracked_vip(Tracking::kChanged));
  runner_.advance(kChangedAt_ns);
  EXPECT_EQ(backend_of(tcp(old_client, kAck)), 0u);
  const uint32_t owner = backend_of(tcp(new_client, kSyn));
  EXPECT_EQ(owner, owner_of(tcp(new_client, kSyn)));
  EXPECT_EQ(backend_of(tcp(new_client, kAck)), owner);
  EXPECT_EQ(bed_.counters.tracking.inherited.get(), 1u);
  for (int i = 0; i < 4; ++i) {  // beyond the window, kept alive all the while
    runner_.advance(50 * kSecond_ns);
    EXPECT_EQ(backend_of(tcp(old_client, kAck)), 0u);
    EXPECT_EQ(backend_of(tcp(new_client, kAck)), owner);
  }
  runner_.advance(200 * kSecond_ns);
  EXPECT_NE(backend_of(tcp(old_client, kAck)), 0u) << "it was idle for too long";
}

TEST_F(TrackFlows, WithoutTrackingTheSlotsOwnerGetsEveryPacketAtOnce) {
  const uint16_t client = moved_client();
  publish(tracked_vip(Tracking::kNone));
  runner_.advance(kChangedAt_ns);
  EXPECT_EQ(backend_of(tcp(client, kAck)), owner_of(tcp(client, kAck)));
  EXPECT_EQ(lookups(), 0u);
}

TEST_F(TrackFlows, WhereEveryFlowIsRememberedItKeepsItsBackendWithoutAHistory) {
  const uint16_t client = moved_client();
  publish(tracked_vip(Tracking::kFull), {});
  const uint32_t first = backend_of(tcp(client, kSyn));
  EXPECT_EQ(lookups(), 1u);
  snapshot_ = bed_.adopt(make_tree(++generation_, 40, kSlots, {tracked_vip(Tracking::kFull)}));
  EXPECT_EQ(backend_of(tcp(client, kAck)), first);
}

TEST_F(TrackFlows, WhileAChangeIsPendingNewFlowsStayWithTheOldOwner) {
  const uint16_t client = moved_client();
  publish(tracked_vip(Tracking::kChanged), past(0, 3 * kSecond_ns));
  runner_.advance(kChangedAt_ns);
  EXPECT_EQ(backend_of(tcp(client, kSyn)), 0u);
  runner_.advance(4 * kSecond_ns);
  EXPECT_EQ(backend_of(tcp(client, kAck)), 0u);
  EXPECT_EQ(backend_of(tcp(client, kSyn, 1)), 0u) << "sent again";
  EXPECT_NE(backend_of(tcp(client, kSyn, 2)), 0u) << "the ports are used again";
}

TEST_F(TrackFlows, AResetIsForwardedLikeItsFlowAndRemembersNothing) {
  const uint16_t client = moved_client();
  publish(tracked_vip(Tracking::kChanged));
  runner_.advance(kChangedAt_ns);
  EXPECT_EQ(backend_of(tcp(client, kRst)), 0u);
  EXPECT_EQ(runner_.flows.table().counters().used.get(), 0u);
  backend_of(tcp(client, kAck));
  EXPECT_EQ(backend_of(tcp(client, kFin | kAck)), 0u);
  EXPECT_EQ(runner_.flows.table().counters().used.get(), 1u);
}

Bytes with_options(Bytes frame) {
  frame.insert(frame.begin() + kEthernetHeaderLength + kIpv4HeaderLength, 4, uint8_t{1});
  uint8_t* const ip = frame.data() + kEthernetHeaderLength;
  ip[0] = 0x46;
  store_be16(ip + kIpv4TotalLengthOffset,
             static_cast<uint16_t>(frame.size() - kEthernetHeaderLength));
  set_ipv4_checksum(ip);
  return frame;
}

TEST_F(TrackFlows, PacketsWithOptionsAreOfTheSameFlow) {
  const uint16_t client = moved_client();
  publish(tracked_vip(Tracking::kChanged));
  runner_.advance(kChangedAt_ns);
  const uint32_t owner = backend_of(with_options(tcp(client, kSyn)));
  EXPECT_NE(owner, 0u);
  EXPECT_EQ(backend_of(tcp(client, kAck)), owner);
  EXPECT_EQ(bed_.counters.tracking.known.get(), 1u);
}

// "Fragmentation needed" about a packet that the VIP sent to the client.
Bytes error_about(uint16_t client_port) {
  Bytes quoted = make_frame({.source = "198.51.100.10",
                             .destination = "198.18.0.2",
                             .source_port = 80,
                             .destination_port = client_port});
  constexpr uint32_t kQuoted = kIpv4HeaderLength + 8;
  Bytes error = make_frame({.source = "198.18.0.9", .payload_bytes = 8 + kQuoted});
  error.resize(kEthernetHeaderLength + kIpv4HeaderLength + 8 + kQuoted);
  uint8_t* const ip = error.data() + kEthernetHeaderLength;
  store_be16(ip + kIpv4TotalLengthOffset, static_cast<uint16_t>(kIpv4HeaderLength + 8 + kQuoted));
  ip[kIpv4ProtocolOffset] = kProtocolIcmp;
  set_ipv4_checksum(ip);
  uint8_t* const message = ip + kIpv4HeaderLength;
  std::fill_n(message, 8, uint8_t{0});
  message[0] = 3;
  message[1] = 4;
  std::copy_n(quoted.data() + kEthernetHeaderLength, kQuoted, message + 8);
  return error;
}

TEST_F(TrackFlows, AnIcmpErrorFollowsItsFlowWhicheverWorkerRemembersIt) {
  const uint16_t client = moved_client();
  publish(tracked_vip(Tracking::kChanged));
  runner_.advance(kChangedAt_ns);
  const uint32_t owner = backend_of(tcp(client, kSyn));
  ASSERT_NE(owner, 0u);
  EXPECT_EQ(backend_of(error_about(client)), owner);

  WorkerCounters& counters = bed_.counters;
  BurstRunner other(counters);
  other.shared_flows.tables.push_back(&runner_.flows.table());
  other.advance(2 * kChangedAt_ns);
  const Bytes error = error_about(client);
  other.run(std::span(&error, 1), snapshot_.get());
  EXPECT_EQ(other.burst().backend[0], snapshot_->vips()[0].backends + owner);
  EXPECT_EQ(other.flows.table().counters().used.get(), 0u) << "it is no packet of the flow";
  EXPECT_EQ(backend_of(error_about(static_cast<uint16_t>(client + 1000))), 0u)
      << "of an unknown flow: as an older one";
}

Bytes fragment_of(Bytes frame, uint16_t offset_and_flags) {
  uint8_t* const ip = frame.data() + kEthernetHeaderLength;
  store_be16(ip + kIpv4IdOffset, 7);
  store_be16(ip + kIpv4FragmentOffset, offset_and_flags);
  set_ipv4_checksum(ip);
  return frame;
}

TEST_F(TrackFlows, LaterFragmentsFollowTheirFlow) {
  const uint16_t client = moved_client();
  publish(tracked_vip(Tracking::kChanged));
  runner_.advance(kChangedAt_ns);
  const uint32_t owner = backend_of(tcp(client, kSyn));
  ASSERT_NE(owner, 0u);
  EXPECT_EQ(backend_of(fragment_of(tcp(client, kAck), kIpv4MoreFragments)), owner);
  EXPECT_EQ(backend_of(fragment_of(tcp(client, kAck), 3)), owner);
}

TEST_F(TrackFlows, WhereFragmentsGoByAddressAllPacketsOfAHostAreOneFlow) {
  RootVip vip = tracked_vip(Tracking::kChanged);
  vip.record.fragment_policy = FragmentPolicy::kAddress;
  publish(vip);
  runner_.advance(kChangedAt_ns);
  EXPECT_EQ(backend_of(tcp(40000, kAck)), 0u);
  EXPECT_EQ(backend_of(tcp(40001, kSyn)), 0u) << "it opens no flow of its own";
  EXPECT_EQ(backend_of(fragment_of(tcp(40001, kAck), 3)), 0u);
  EXPECT_EQ(runner_.flows.table().counters().used.get(), 1u);
}

TEST_F(TrackFlows, WithoutMemoryEveryPacketOfTheWindowIsTakenForAnOlderFlows) {
  const uint16_t client = moved_client();
  publish(tracked_vip(Tracking::kChanged));
  Burst burst{};
  PathState state(
      0, 1, 0, [](void*, uint32_t) { return OutFrame{}; }, nullptr,
      std::pmr::new_delete_resource());
  Bytes frame(kRequiredHeadroom);
  const Bytes packet = tcp(client, kSyn);
  frame.insert(frame.end(), packet.begin(), packet.end());
  burst.count = 1;
  burst.now_ns = 2 * kChangedAt_ns;
  burst.frame[0] = frame.data() + kRequiredHeadroom;
  burst.length[0] = static_cast<uint32_t>(packet.size());
  burst.verdict[0] = Verdict::kForwarded;
  forward_burst(burst, snapshot_.get(), state);
  EXPECT_EQ(burst.backend[0], snapshot_->vips()[0].backends);
}

TEST_F(TrackFlows, AnOldOwnerThatIsGoneGivesItsFlowsToTheOwnerAndTheyAreRemembered) {
  const uint16_t client = moved_client();
  publish(tracked_vip(Tracking::kChanged), past(kNoOwner));
  runner_.advance(kChangedAt_ns);
  const uint32_t owner = backend_of(tcp(client, kAck));
  EXPECT_EQ(owner, owner_of(tcp(client, kAck)));
  EXPECT_EQ(runner_.flows.table().counters().used.get(), 1u);
}

TEST_F(TrackFlows, NewUdpFlowsTakeTheOwnerOnceOlderOnesMustBeKnown) {
  Bytes frame;
  uint16_t port = 40000;
  do {
    frame = make_frame({.source_port = port++, .protocol = kProtocolUdp});
  } while (owner_of(frame) == 0);
  publish(tracked_vip(Tracking::kChanged, 80, VipProtocol::kTcpAndUdp));
  runner_.advance(kChangedAt_ns + 10 * kSecond_ns);
  EXPECT_EQ(backend_of(frame), 0u);
  // The window is for 60 s, 40 s more than UDP's idle time.
  runner_.advance(kWindow_ns - 45 * kSecond_ns);
  EXPECT_EQ(backend_of(frame), owner_of(frame));
}

}  // namespace
}  // namespace maglev
