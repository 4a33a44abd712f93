// histories/<checksum> of the published tree: whose flows may still be in a pool's slots beside
// their owners'. A file that never changes, named by its checksum, as tables and pools are
// (tables/published.h); unlike tables it says what has passed on this host, so it stands apart.
//
// The checker trusts nothing; what it returns points into the image, which must outlive it. Pure
// functions, any thread.
#pragma once

#include <cstdint>
#include <expected>
#include <span>
#include <string>
#include <vector>

#include "tables/boot_id.h"
#include "tables/file_format.h"

namespace maglev {

// A slot that is not settled. Until inherit_until_ns a packet of an unknown flow that does not open
// one belongs to the fallback; until pending_until_ns so does one that does. Afterwards only flows
// that are remembered may have another backend than the owner. Times are of CLOCK_BOOTTIME.
struct SlotHistory {
  uint32_t slot;
  uint32_t fallback;             // index into the pool's backends; kNoOwner: none
  uint64_t pending_until_ns;     // at most inherit_until_ns
  uint64_t inherit_until_ns;     // at least 1
  uint8_t fallback_incarnation;  // 0 where there is no fallback
  uint8_t zero[7];
};
static_assert(sizeof(SlotHistory) == 32);

struct HistoryView {
  Checksum checksum;
  BootId boot;
  std::span<const SlotHistory> slots;  // at least one; sorted by slot, distinct
};

std::vector<std::byte> build_history_file(const BootId& boot, std::span<const SlotHistory> slots);
std::expected<HistoryView, std::string> check_history_file(std::span<const std::byte> file);

// That the history speaks of slots and places that the pool has. A fallback's place may be empty by
// now, or have another backend: its flows have moved then.
std::expected<void, std::string> check_history_fits(const HistoryView& history, uint32_t table_size,
                                                    size_t backend_places);

}  // namespace maglev
