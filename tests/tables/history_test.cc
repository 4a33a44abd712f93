#include "tables/history.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tables/maglev.h"

namespace maglev {
namespace {

using Image = std::vector<std::byte>;

const BootId kBoot = *parse_boot_id("3f0c3a5e-8d5b-4f0e-9a57-2b1e4d6c7f80");

std::vector<SlotHistory> sample_slots() {
  return {{.slot = 0,
           .fallback = 2,
           .pending_until_ns = 5,
           .inherit_until_ns = 5,
           .fallback_incarnation = 9,
           .zero = {}},
          {.slot = 3,
           .fallback = kNoOwner,
           .pending_until_ns = 0,
           .inherit_until_ns = 70,
           .fallback_incarnation = 0,
           .zero = {}},
          {.slot = 250,
           .fallback = 5,
           .pending_until_ns = 8,
           .inherit_until_ns = 90,
           .fallback_incarnation = 0,
           .zero = {}}};
}

TEST(History, WhatIsWrittenIsRead) {
  const Image file = build_history_file(kBoot, sample_slots());
  const auto view = check_history_file(file);
  ASSERT_TRUE(view) << view.error();
  EXPECT_EQ(view->boot, kBoot);
  ASSERT_EQ(view->slots.size(), 3u);
  EXPECT_EQ(view->slots[0].fallback_incarnation, 9);
  EXPECT_EQ(view->slots[1].fallback, kNoOwner);
  EXPECT_EQ(view->slots[2].slot, 250u);
  EXPECT_EQ(view->slots[2].inherit_until_ns, 90u);
}

TEST(History, StructuralFaultsAreRefusedThoughTheChecksumIsRight) {
  const auto refused = [](auto change) {
    auto slots = sample_slots();
    change(slots);
    return !check_history_file(build_history_file(kBoot, slots));
  };
  EXPECT_FALSE(refused([](auto&) {}));
  EXPECT_TRUE(refused([](auto& s) { s.clear(); })) << "no slot";
  EXPECT_TRUE(refused([](auto& s) { s[1].slot = 0; })) << "a slot twice";
  EXPECT_TRUE(refused([](auto& s) { std::swap(s[0], s[1]); })) << "not sorted";
  EXPECT_TRUE(refused([](auto& s) { s[0].pending_until_ns = 6; })) << "pending for too long";
  EXPECT_TRUE(refused([](auto& s) { s[0].pending_until_ns = s[0].inherit_until_ns = 0; }));
  EXPECT_TRUE(refused([](auto& s) { s[1].fallback_incarnation = 1; })) << "of no fallback";
  EXPECT_TRUE(refused([](auto& s) { s[2].zero[6] = 1; }));
  EXPECT_FALSE(check_history_file(build_history_file(BootId{}, sample_slots()))) << "no boot";
}

TEST(History, ItSpeaksOnlyOfSlotsAndPlacesThatThePoolHas) {
  const Image file = build_history_file(kBoot, sample_slots());
  const HistoryView view = *check_history_file(file);
  EXPECT_TRUE(check_history_fits(view, 251, 6));
  EXPECT_FALSE(check_history_fits(view, 250, 6)) << "slot 250 of 250";
  EXPECT_FALSE(check_history_fits(view, 251, 5)) << "place 5 of 5";
}

TEST(History, NoByteMayChangeAndNoTruncationPasses) {
  Image file = build_history_file(kBoot, sample_slots());
  for (size_t i = 0; i < file.size(); ++i) {
    file[i] ^= std::byte{1};
    EXPECT_FALSE(check_history_file(file)) << "byte " << i;
    file[i] ^= std::byte{1};
  }
  while (!file.empty()) {
    file.pop_back();
    EXPECT_FALSE(check_history_file(file)) << file.size() << " bytes";
  }
}

TEST(History, ACountBeyondTheFileIsRefused) {
  for (const uint64_t count : {uint64_t{2}, uint64_t{4}, uint64_t{1} << 59, ~uint64_t{0}}) {
    Image file = build_history_file(kBoot, sample_slots());
    std::memcpy(file.data() + sizeof(FileHeader) + sizeof(BootId), &count, sizeof count);
    seal(file);
    EXPECT_FALSE(check_history_file(file)) << count;
  }
}

TEST(BootId, OnlyTheKernelsFormIsRead) {
  EXPECT_TRUE(read_boot_id());
  EXPECT_EQ((*parse_boot_id("00000000-0000-0000-0000-0000000000ff"))[15], 0xff);
  for (const char* text :
       {"", "00000000-0000-0000-0000-000000000000", "3f0c3a5e-8d5b-4f0e-9a57-2b1e4d6c7f8",
        "3f0c3a5e-8d5b-4f0e-9a57-2b1e4d6c7f8g", "3f0c3a5e-8d5b-4f0e-9a57-2b1e4d6c-f80",
        "3f0c3a5e08d5b04f0e09a5702b1e4d6c7f80", "3f0c3a5e-8d5b-4f0e-9a57-2b1e4d6c7f 0"}) {
    EXPECT_EQ(parse_boot_id(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace maglev
