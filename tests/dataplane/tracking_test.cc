#include "dataplane/track.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <optional>
#include <vector>

namespace maglev {
namespace {

constexpr uint64_t kSecond_ns = 1'000'000'000;
constexpr uint32_t kOld = 0, kNew = 1;

// A pool whose only slot went from kOld to kNew at second 100, with a window of 70 s.
struct OneSlotView {
  uint64_t now_ns = 104 * kSecond_ns;
  uint32_t tick = flow_tick(now_ns);
  SlotView only{.owner = kNew,
                .fallback = kOld,
                .pending_until_ns = 103 * kSecond_ns,
                .inherit_until_ns = 170 * kSecond_ns};
  FlowIdle idle_ = flow_idle(60, 10, 20);
  std::vector<uint8_t> incarnations{1, 1, 1};
  std::vector<bool> serving{true, true, true};
  std::map<uint64_t, FlowEntry> elsewhere;  // by FlowIdentity::hash

  void at(uint64_t second) {
    now_ns = second * kSecond_ns;
    tick = flow_tick(now_ns);
  }
  const FlowIdle& idle(uint16_t) const { return idle_; }
  bool serves(uint16_t, uint32_t backend, uint8_t incarnation) const {
    return serving[backend] && incarnations[backend] == incarnation;
  }
  uint8_t incarnation(uint16_t, uint32_t backend) const { return incarnations[backend]; }
  SlotView slot(uint16_t, uint32_t) const { return only; }
  bool looks_elsewhere() const { return !elsewhere.empty(); }
  std::optional<FlowEntry> known_elsewhere(const FlowIdentity& flow, uint16_t) const {
    const auto found = elsewhere.find(flow.hash);
    return found == elsewhere.end() ? std::nullopt : std::optional(found->second);
  }
};

// One pair of buckets.
class Tracking : public testing::Test {
 protected:
  uint32_t send(uint64_t flow, PacketKind kind, uint8_t opening = 0) {
    const FlowIdentity identity{flow << 32, flow};
    return track(table, {identity, table.position_of(identity), 0, kind, opening}, view.only,
                 view.idle_, view, counters);
  }
  FlowState state_of(uint64_t flow) const {
    const auto entry = table.peek({flow << 32, flow}, 0);
    return entry ? entry->state : FlowState::kNone;
  }
  uint64_t evicted() const {
    uint64_t sum = 0;
    for (const Counter& counter : table.counters().evicted) sum += counter.get();
    return sum;
  }

  OneSlotView view;
  alignas(128) std::array<std::byte, FlowTable::bytes_for(8)> memory{};
  FlowTable table{memory};
  TrackingCounters counters;
};

constexpr auto kSyn = PacketKind::kOpening;
constexpr auto kData = PacketKind::kData;

TEST(TcpKind, FollowsTheFlags) {
  EXPECT_EQ(kind_of_tcp(0x02), PacketKind::kOpening);
  EXPECT_EQ(kind_of_tcp(0xc2), PacketKind::kOpening) << "with ECN bits";
  EXPECT_EQ(kind_of_tcp(0x12), PacketKind::kData) << "SYN and ACK";
  EXPECT_EQ(kind_of_tcp(0x10), PacketKind::kData);
  EXPECT_EQ(kind_of_tcp(0x11), PacketKind::kFin);
  EXPECT_EQ(kind_of_tcp(0x03), PacketKind::kFin);
  EXPECT_EQ(kind_of_tcp(0x06), PacketKind::kReset);
  EXPECT_EQ(kind_of_tcp(0x00), PacketKind::kData);
}

TEST(UnsettledView, WhereTheOldOwnerCannotServeNothingIsPending) {
  const SlotView served = unsettled_view(kNew, kOld, true, 5, 9, 2);
  EXPECT_EQ(served.fallback, kOld);
  EXPECT_EQ(served.pending_until_ns, 5u);
  const SlotView failed = unsettled_view(kNew, kOld, false, 5, 9, 2);
  EXPECT_EQ(failed.fallback, kNew);
  EXPECT_EQ(failed.pending_until_ns, 0u);
  EXPECT_EQ(failed.inherit_until_ns, 9u);
}

TEST_F(Tracking, ASynTakesTheOwnerAndItsFlowStaysThere) {
  EXPECT_EQ(send(1, kSyn, 5), kNew);
  EXPECT_EQ(state_of(1), FlowState::kHalfOpen);
  EXPECT_EQ(send(1, kData), kNew);
  EXPECT_EQ(state_of(1), FlowState::kEstablished);
}

TEST_F(Tracking, AnOlderFlowTakesTheFallbackAndStaysThereBeyondTheWindow) {
  EXPECT_EQ(send(1, kData), kOld);
  EXPECT_EQ(state_of(1), FlowState::kOneTcp);
  view.at(150);
  EXPECT_EQ(send(1, kData), kOld);
  view.at(200);
  EXPECT_EQ(send(1, kData), kOld);
  EXPECT_EQ(send(2, kData), kNew) << "nobody else is older by now";
}

TEST_F(Tracking, WhilePendingSynsStayWithTheOldOwnerAndAreRemembered) {
  view.at(102);
  EXPECT_EQ(send(1, kSyn, 5), kOld);
  EXPECT_EQ(send(2, kData), kOld);
  EXPECT_EQ(state_of(2), FlowState::kNone);
  view.at(104);
  EXPECT_EQ(send(1, kSyn, 5), kOld) << "a retransmission";
}

TEST_F(Tracking, AnotherSynOfTheSamePortsIsScheduledAfresh) {
  EXPECT_EQ(send(1, kData), kOld);
  EXPECT_EQ(send(1, kSyn, 9), kNew);
  EXPECT_EQ(send(1, kData), kNew);
  EXPECT_EQ(counters.reused_ports.get(), 1u);
}

TEST_F(Tracking, APortReusedElsewhereStaysRememberedSoThatTheFormerFlowIsNotFoundAgain) {
  view.at(200);
  const FlowIdentity flow{1ull << 32, 1};
  view.elsewhere[flow.hash] = {.tag = table.position_of(flow).tag,
                               .backend = kOld,
                               .incarnation = 1,
                               .opening = 4,
                               .state = FlowState::kEstablished,
                               .seen_tick = view.tick};
  EXPECT_EQ(send(1, kSyn, 9), kNew);
  EXPECT_EQ(send(1, kData), kNew);
  EXPECT_EQ(send(1, kData), kNew);
}

TEST_F(Tracking, AFlowOfABackendThatServesNoMoreMovesAtItsNextPacket) {
  EXPECT_EQ(send(1, kData), kOld);
  view.serving[kOld] = false;
  view.only.fallback = view.only.owner;
  EXPECT_EQ(send(1, kData), kNew);
  EXPECT_EQ(counters.moved.get(), 1u);
  view.serving[kOld] = true;
  EXPECT_EQ(send(1, kData), kNew) << "and stays where it went";
}

TEST_F(Tracking, ABackendThatTakesAnIndexInheritsNothing) {
  EXPECT_EQ(send(1, kData), kOld);
  view.incarnations[kOld] = 2;
  view.only.fallback = view.only.owner;
  EXPECT_EQ(send(1, kData), kNew);
}

TEST_F(Tracking, AResetIsNeverRememberedAndEndsAFlowSoon) {
  EXPECT_EQ(send(1, PacketKind::kReset), kOld);
  EXPECT_EQ(state_of(1), FlowState::kNone);
  EXPECT_EQ(send(2, kData), kOld);
  EXPECT_EQ(send(2, PacketKind::kReset), kOld);
  EXPECT_EQ(state_of(2), FlowState::kClosing);
  view.at(140);
  EXPECT_EQ(table.peek({2ull << 32, 2}, 0)->state, FlowState::kClosing);
  EXPECT_TRUE(view.idle_.has_expired(*table.peek({2ull << 32, 2}, 0), view.tick));
}

TEST_F(Tracking, NewUdpFlowsTakeTheOwnerOnceAllOlderOnesMustBeKnown) {
  view.only.udp_lead_ns = 40 * kSecond_ns;
  EXPECT_EQ(send(1, PacketKind::kUdp), kOld);
  view.at(129);
  EXPECT_EQ(send(1, PacketKind::kUdp), kOld);
  EXPECT_EQ(send(2, PacketKind::kUdp), kOld);
  view.at(131);
  EXPECT_EQ(send(1, PacketKind::kUdp), kOld);
  EXPECT_EQ(send(3, PacketKind::kUdp), kNew);
  EXPECT_EQ(state_of(3), FlowState::kOneUdp);
  EXPECT_EQ(send(4, kData), kOld);
}

TEST_F(Tracking, WithoutAnOwnerNewFlowsHaveNoBackendAndOldOnesKeepTheirs) {
  view.only.owner = kNoBackendIndex;
  EXPECT_EQ(send(1, kSyn), kNoBackendIndex);
  EXPECT_EQ(state_of(1), FlowState::kNone);
  EXPECT_EQ(send(2, kData), kOld);
}

TEST_F(Tracking, AfterTheWindowAnEntryThatAgreesWithTheOwnerIsForgotten) {
  EXPECT_EQ(send(1, kSyn, 5), kNew);
  EXPECT_EQ(send(1, kData), kNew);
  view.at(172);
  EXPECT_EQ(send(1, kData), kNew);
  EXPECT_EQ(state_of(1), FlowState::kEstablished) << "a late change could still need it";
  view.at(181);
  EXPECT_EQ(send(1, kData), kNew);
  EXPECT_EQ(state_of(1), FlowState::kNone);
  EXPECT_EQ(send(3, kSyn, 5), kNew);
  EXPECT_EQ(state_of(3), FlowState::kNone);
}

TEST_F(Tracking, WhatTakesTheOwnerJustAfterTheWindowIsRememberedForALateChange) {
  view.at(171);
  EXPECT_EQ(send(1, kSyn, 5), kNew);
  EXPECT_EQ(state_of(1), FlowState::kHalfOpen);
  EXPECT_EQ(send(2, PacketKind::kUdp), kNew);
  EXPECT_EQ(state_of(2), FlowState::kOneUdp);
}

TEST_F(Tracking, AFloodOfSynsTakesTheFallbackAndLeavesRoomForOthers) {
  for (uint64_t flow = 1; flow <= 100; ++flow) send(flow, kSyn, 1);
  EXPECT_EQ(counters.openings_unstored.get(), 96u);
  EXPECT_EQ(send(101, kSyn, 1), kOld) << "as its next packet would";
  EXPECT_EQ(send(101, kData), kOld);
  EXPECT_EQ(state_of(101), FlowState::kOneTcp);
  EXPECT_EQ(evicted(), 0u);
  view.at(112);
  EXPECT_EQ(send(102, kSyn, 1), kNew) << "in the place of a handshake that came to nothing";
  EXPECT_EQ(evicted(), 1u);
}

TEST_F(Tracking, AFloodOfAnythingElseTakesOnlyItsOwnPlaces) {
  for (uint64_t flow = 1; flow <= 4; ++flow) {
    send(flow, kSyn, 1);
    send(flow, kData);
  }
  for (uint64_t flow = 5; flow <= 500; ++flow) {
    send(flow, flow % 2 == 0 ? kData : PacketKind::kUdp);
    send(flow + 1000, PacketKind::kReset);
  }
  for (uint64_t flow = 1; flow <= 4; ++flow) EXPECT_EQ(send(flow, kData), kNew);
  EXPECT_NE(state_of(500), FlowState::kNone);
}

TEST_F(Tracking, AnEstablishedFlowNeverGivesWayInTheWindow) {
  for (uint64_t flow = 1; flow <= 8; ++flow) {
    send(flow, kData);
    send(flow, kData);
  }
  EXPECT_EQ(send(9, kSyn, 1), kOld);
  EXPECT_EQ(send(10, kData), kOld);
  EXPECT_EQ(counters.openings_unstored.get(), 1u);
  EXPECT_EQ(counters.others_unstored.get(), 1u);
  EXPECT_EQ(evicted(), 0u);
}

TEST_F(Tracking, InFullEveryFlowIsRememberedAndUnknownOnesAreTheOwners) {
  view.only.full = true;
  EXPECT_EQ(send(1, kData), kNew);
  EXPECT_EQ(state_of(1), FlowState::kOneTcp);
  EXPECT_EQ(send(2, kSyn, 1), kNew);
  EXPECT_EQ(send(2, kData), kNew);
  view.only.owner = kOld;
  EXPECT_EQ(send(2, kData), kNew);
  for (uint64_t flow = 3; flow <= 100; ++flow) send(flow, kSyn, 1);
  EXPECT_EQ(send(2, kData), kNew) << "what disagrees with the slot outlives a flood";
}

TEST_F(Tracking, AFlowRememberedElsewhereGoesOnAndIsRememberedHere) {
  const FlowIdentity flow{1ull << 32, 1};
  view.elsewhere[flow.hash] = {.tag = table.position_of(flow).tag,
                               .backend = kNew,
                               .incarnation = 1,
                               .state = FlowState::kEstablished,
                               .seen_tick = view.tick};
  EXPECT_EQ(send(1, kData), kNew);
  EXPECT_EQ(counters.found_elsewhere.get(), 1u);
  view.elsewhere.clear();
  EXPECT_EQ(send(1, kData), kNew);
}

TEST_F(Tracking, WhatBelongsToAFlowFollowsItAndLeavesNoTrace) {
  send(1, kSyn, 1);
  const auto followed = [&](uint64_t flow) {
    return follow(table, {flow << 32, flow}, 0, view.only, view.idle_, view);
  };
  EXPECT_EQ(followed(1), kNew);
  EXPECT_EQ(followed(2), kOld);
  EXPECT_EQ(state_of(2), FlowState::kNone);
}

TEST_F(Tracking, AnExpiredFlowIsUnknownAndItsPlaceIsItsOwnAgain) {
  send(1, kData);
  send(1, kData);
  view.only.inherit_until_ns = 1000 * kSecond_ns;
  view.only.fallback = 2;
  view.at(150);
  EXPECT_EQ(send(1, kData), kOld);
  view.at(250);
  EXPECT_EQ(send(1, kData), 2u);
  EXPECT_EQ(table.counters().used.get(), 1u);
}

}  // namespace
}  // namespace maglev
