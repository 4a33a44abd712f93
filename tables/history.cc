#include "tables/history.h"

#include <algorithm>

#include <fmt/format.h>

#include "tables/maglev.h"

namespace maglev {
namespace {

struct HistoryHead {
  BootId boot;
  uint64_t slot_count;
};
static_assert(sizeof(HistoryHead) % 8 == 0);

std::expected<void, std::string> check_slot(const SlotHistory& slot) {
  const auto bad = [&](std::string_view why) {
    return std::unexpected(fmt::format("slot {} {}", slot.slot, why));
  };
  if (slot.inherit_until_ns == 0 || slot.pending_until_ns > slot.inherit_until_ns) {
    return bad("has times that contradict each other");
  }
  if (slot.fallback == kNoOwner && slot.fallback_incarnation != 0) {
    return bad("has the incarnation of no fallback");
  }
  if (std::ranges::any_of(slot.zero, [](uint8_t byte) { return byte != 0; })) {
    return bad("has a field that must be 0 and is not");
  }
  return {};
}

}  // namespace

std::vector<std::byte> build_history_file(const BootId& boot, std::span<const SlotHistory> slots) {
  FileWriter writer(FileKind::kHistory);
  writer.append(HistoryHead{boot, slots.size()});
  writer.append_all(slots);
  return std::move(writer).finish();
}

std::expected<HistoryView, std::string> check_history_file(std::span<const std::byte> file) {
  const auto header = check_header(file, FileKind::kHistory);
  if (!header) return std::unexpected(header.error());
  FileReader reader(file);
  const auto* head = reader.take<HistoryHead>();
  if (head == nullptr) return std::unexpected("too short for a history");
  HistoryView view;
  view.checksum = (*header)->checksum;
  view.boot = head->boot;
  view.slots = reader.take_all<SlotHistory>(head->slot_count);
  if (!reader.at_end()) {
    return std::unexpected("the parts of the history do not add up to its length");
  }
  if (view.boot == BootId{}) return std::unexpected("a history of no boot");
  if (view.slots.empty()) return std::unexpected("a history of no slot");
  for (const SlotHistory& slot : view.slots) {
    if (const auto ok = check_slot(slot); !ok) return std::unexpected(ok.error());
  }
  const auto is_out_of_order = [](const SlotHistory& a, const SlotHistory& b) {
    return a.slot >= b.slot;
  };
  if (std::ranges::adjacent_find(view.slots, is_out_of_order) != view.slots.end()) {
    return std::unexpected("the slots are not sorted");
  }
  return view;
}

std::expected<void, std::string> check_history_fits(const HistoryView& history, uint32_t table_size,
                                                    size_t backend_places) {
  const uint32_t last_slot = history.slots.back().slot;
  if (last_slot >= table_size) {
    return std::unexpected(
        fmt::format("slot {} is none of the table, which has {}", last_slot, table_size));
  }
  const auto misses = [&](const SlotHistory& slot) {
    return slot.fallback != kNoOwner && slot.fallback >= backend_places;
  };
  const auto missing = std::ranges::find_if(history.slots, misses);
  if (missing == history.slots.end()) return {};
  return std::unexpected(
      fmt::format("the fallback of slot {} is no place of the pool", missing->slot));
}

}  // namespace maglev
