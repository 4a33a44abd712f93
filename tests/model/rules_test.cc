// What each rule is for: with all rules the flows of a scenario live, without the one some break.
//
// Rules that the model cannot miss are tested where they stand: that a reused port is scheduled
// afresh in tracking_test.cc, which generation a sweep must know in slot_history_test.cc.
#include <gtest/gtest.h>

#include "tests/model/model.h"

namespace maglev::model {
namespace {

uint64_t broken(Scenario scenario, Cause cause, Mode mode = Mode::kChanged) {
  uint64_t sum = 0;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    scenario.seed = seed;
    sum += run(scenario).of(mode).flows[static_cast<uint32_t>(cause)];
  }
  return sum;
}

template <typename Rules>
Scenario without(Scenario scenario) {
  scenario.host.track = &track<Rules, HostView>;
  return scenario;
}

// Planned changes only, often, so that many handshakes fall into one.
Scenario many_handshakes() {
  Scenario scenario;
  scenario.lossy = true;
  scenario.change_every_s = 6;
  scenario.flows_per_s = 20;
  scenario.duration_s = 200;
  scenario.failures = scenario.removals = 0;
  return scenario;
}

Scenario crowded(Flood flood, uint64_t entries) {
  Scenario scenario;
  scenario.flood = flood;
  scenario.host.entries_per_worker = entries;
  scenario.host.control.extend_when_crowded = false;  // else it makes good what is left out
  scenario.change_every_s = 100;
  scenario.duration_s = 300;
  scenario.failures = scenario.removals = 0;
  return scenario;
}

Scenario often_undone() {
  Scenario scenario;
  scenario.flap_back = true;
  scenario.change_every_s = 25;
  scenario.host.late_adoption = true;
  return scenario;
}

// --- b ---

struct NoInheritance : AllRules {
  static constexpr bool kInherit = false;
};
TEST(RuleB, WithoutAFallbackOlderFlowsMove) {
  EXPECT_EQ(broken({}, Cause::kSlotChanged), 0u);
  EXPECT_GT(broken(without<NoInheritance>({}), Cause::kSlotChanged), 100u);
}

struct NoEnd : AllRules {
  static constexpr bool kWindowEnds = false;
};
TEST(RuleB, WithoutAnEndOfTheWindowYoungFlowsMove) {
  EXPECT_GT(broken(without<NoEnd>({}), Cause::kSlotChanged), 100u);
}

struct NoMemoryOfOlder : AllRules {
  static constexpr bool kRememberInherited = false;
};
TEST(RuleB, WithoutMemoryOfOlderFlowsTheyMoveWhenTheWindowEnds) {
  EXPECT_GT(broken(without<NoMemoryOfOlder>({}), Cause::kSlotChanged), 100u);
}

struct NoCheckOfBackends : AllRules {
  static constexpr bool kCheckBackend = false;
};
TEST(RuleB, WithoutIncarnationsABackendGetsTheFlowsOfWhoHadItsIndex) {
  Scenario scenario;
  scenario.removals = 0.6;
  scenario.host.control.index_waits_for_sweep = false;
  EXPECT_EQ(broken(scenario, Cause::kReplaced), 0u);
  EXPECT_GT(broken(without<NoCheckOfBackends>(scenario), Cause::kReplaced), 20u);
}

TEST(RuleB, AnIndexThatWaitsForASweepIsSafeWithoutIncarnations) {
  Scenario scenario;
  scenario.removals = 0.6;
  scenario.host.control.new_incarnation = false;
  EXPECT_EQ(broken(scenario, Cause::kReplaced), 0u);
  scenario.host.control.index_waits_for_sweep = false;
  EXPECT_GT(broken(scenario, Cause::kReplaced), 20u);
}

// --- c ---

struct NoRetransmissions : AllRules {
  static constexpr bool kKeepRetransmissions = false;
};
TEST(RuleC, ARetransmittedSynThatIsScheduledAfreshBreaksItsFlow) {
  EXPECT_EQ(broken(many_handshakes(), Cause::kHandshake), 0u);
  EXPECT_GT(broken(without<NoRetransmissions>(many_handshakes()), Cause::kHandshake), 5u);
}

struct NoPending : AllRules {
  static constexpr bool kPend = false;
};
TEST(RuleC, WithoutAPendingPhaseARetransmittedSynLosesTheOneBeforeTheChange) {
  EXPECT_GT(broken(without<NoPending>(many_handshakes()), Cause::kHandshake), 3u);
}

struct NoSuccession : AllRules {
  static constexpr bool kSupersede = false;
};
TEST(RuleC, AReusedPortIsRememberedWhereAnotherTableKnowsTheFormerFlow) {
  Scenario scenario;
  scenario.port_reuse = scenario.queues = true;
  EXPECT_EQ(broken(scenario, Cause::kPortReuse), 0u);
  EXPECT_GT(broken(without<NoSuccession>(scenario), Cause::kPortReuse), 5u);
}

// --- d ---

struct NoReproduction : AllRules {
  static constexpr bool kReproducible = false;
};
TEST(RuleD, ASynThatCannotBeRememberedBreaksItsFlowAtTheOwner) {
  const Scenario scenario = crowded(Flood::kSyn, 1024);
  EXPECT_EQ(broken(scenario, Cause::kCrowded), 0u);
  EXPECT_GT(broken(without<NoReproduction>(scenario), Cause::kCrowded), 50u);
}

// --- e ---

struct NoLimit : AllRules {
  static constexpr bool kLimitHandshakes = false;
};
TEST(RuleE, AFloodOfSynsThatMayFillTheTableLeavesNoRoomForOlderFlows) {
  EXPECT_GT(broken(without<NoLimit>(crowded(Flood::kSyn, 1024)), Cause::kCrowded), 20u);
}

struct NoProtectedHandshakes : AllRules {
  static constexpr bool kProtectHandshakes = false;
};
TEST(RuleE, YoungHandshakesThatGiveWayBreak) {
  Scenario scenario = crowded(Flood::kSyn, 128);
  scenario.lossy = true;
  EXPECT_GT(broken(without<NoProtectedHandshakes>(scenario), Cause::kCrowded),
            broken(scenario, Cause::kCrowded) * 3 / 2);
}

struct NoProtection : AllRules {
  static constexpr bool kProtectNeeded = false;
};
TEST(RuleE, EstablishedFlowsThatGiveWayBreak) {
  const Scenario scenario = crowded(Flood::kNone, 64);
  EXPECT_GT(broken(without<NoProtection>(scenario), Cause::kCrowded, Mode::kFull),
            broken(scenario, Cause::kCrowded, Mode::kFull) * 6 / 5);
}

struct NoDoubt : AllRules {
  static constexpr bool kDoubtOnePacket = false;
};
TEST(RuleE, AFloodOfAcksThatIsTakenForFlowsLeavesNoRoomForThem) {
  const Scenario scenario = crowded(Flood::kAck, 1024);
  EXPECT_GT(broken(without<NoDoubt>(scenario), Cause::kCrowded),
            broken(scenario, Cause::kCrowded) * 3 / 2 + 20);
}

struct NoForgottenResets : AllRules {
  static constexpr bool kForgetResets = false;
};
TEST(RuleE, AFloodOfResetsThatIsRememberedLeavesNoRoomForFlows) {
  EXPECT_EQ(broken(crowded(Flood::kReset, 1024), Cause::kCrowded), 0u);
  EXPECT_GT(broken(without<NoForgottenResets>(crowded(Flood::kReset, 1024)), Cause::kCrowded), 5u);
}

// --- the second invariant of tracking.h ---

struct NoMemoryPastWindow : AllRules {
  static constexpr bool kRememberPastWindow = false;
};
TEST(LateChange, FlowsBegunJustAfterTheWindowLoseTheirBackendToAChangePlannedBefore) {
  Scenario scenario;
  scenario.change_every_s = 12;
  scenario.flows_per_s = 15;
  scenario.udp = scenario.host.late_adoption = true;
  EXPECT_EQ(broken(scenario, Cause::kSlotChanged), 0u);
  EXPECT_GT(broken(without<NoMemoryPastWindow>(scenario), Cause::kSlotChanged), 1u);
}

// --- a and f: control's ---

uint64_t broken_without(bool ControlRules::*rule) {
  Scenario scenario = often_undone();
  scenario.host.control.*rule = false;
  return broken(scenario, Cause::kSlotChanged);
}

TEST(RuleA, WithAllOfThemNoFlowBreaks) {
  EXPECT_EQ(broken(often_undone(), Cause::kSlotChanged), 0u);
}
TEST(RuleA, AChangeWithinTheWindowThatTakesTheFallbackAwayBreaksOlderFlows) {
  EXPECT_GT(broken_without(&ControlRules::window_outlives_changes), 100u);
}
TEST(RuleA, ALaterChangeThatKeepsTheFirstFallbackBreaksYoungerFlows) {
  EXPECT_GT(broken_without(&ControlRules::later_change_starts_again), 100u);
}
TEST(RuleA, ASlotThatSettlesWhenItsOwnerReturnsBreaksTheFlowsBetween) {
  EXPECT_GT(broken_without(&ControlRules::return_stays_unsettled), 100u);
}
TEST(RuleA, AWindowWithoutTimeForAdoptionBreaksFlows) {
  EXPECT_GT(broken_without(&ControlRules::window_covers_adoption), 1u);
}
TEST(RuleA, AWindowThatEndsWhileAFloodKeepsFlowsFromBeingRememberedBreaksThem) {
  Scenario scenario = crowded(Flood::kAck, 1024);
  EXPECT_GT(broken(scenario, Cause::kCrowded), 10u);
  scenario.host.control.extend_when_crowded = true;
  EXPECT_EQ(broken(scenario, Cause::kCrowded), 0u);
}
TEST(RuleF, ASlotThatSettlesUnseenBreaksFlows) {
  EXPECT_GT(broken_without(&ControlRules::settle_by_sweep), 100u);
}
TEST(RuleF, ASlotThatSettlesWithinTheWindowBreaksFlows) {
  EXPECT_GT(broken_without(&ControlRules::sweep_after_window), 100u);
}

}  // namespace
}  // namespace maglev::model
