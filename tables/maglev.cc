#include "tables/maglev.h"

#include <algorithm>

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

#include "tables/prime.h"

namespace maglev {
namespace {

struct Cursor {
  uint32_t next;  // the slot this backend prefers next
  uint32_t skip;
  uint64_t target;
  uint64_t weight;
};

std::vector<Cursor> make_cursors(const std::vector<WeightedName>& owners, uint32_t size) {
  std::vector<Cursor> cursors;
  cursors.reserve(owners.size());
  for (const WeightedName& owner : owners) {
    const uint64_t offset = XXH64(owner.name.data(), owner.name.size(), 0) % size;
    const uint64_t skip = XXH64(owner.name.data(), owner.name.size(), 1) % (size - 1) + 1;
    cursors.push_back(
        {static_cast<uint32_t>(offset), static_cast<uint32_t>(skip), 0, owner.weight});
  }
  return cursors;
}

void populate(std::vector<Cursor>& cursors, std::vector<uint32_t>& slots) {
  const uint32_t size = static_cast<uint32_t>(slots.size());
  uint64_t max_weight = 0;
  for (const Cursor& c : cursors) max_weight = std::max(max_weight, c.weight);

  uint32_t filled = 0;
  for (uint64_t round = 1;; ++round) {
    for (uint32_t i = 0; i < cursors.size(); ++i) {
      Cursor& c = cursors[i];
      if (round * c.weight < c.target) continue;
      c.target += max_weight;
      uint32_t slot = c.next;
      while (slots[slot] != kNoOwner) {
        slot += c.skip;
        if (slot >= size) slot -= size;
      }
      slots[slot] = i;
      c.next = slot;
      if (++filled == size) return;
    }
  }
}

}  // namespace

std::expected<MaglevTable, std::string> build_maglev(std::span<const WeightedName> backends,
                                                     uint64_t size) {
  const auto checked_size = check_table_size(size);
  if (!checked_size) return std::unexpected(checked_size.error());

  MaglevTable table;
  table.owners.assign(backends.begin(), backends.end());
  std::ranges::sort(table.owners, {}, &WeightedName::name);
  const auto twin = std::ranges::adjacent_find(table.owners, {}, &WeightedName::name);
  if (twin != table.owners.end()) {
    return std::unexpected(
        fmt::format("two backends are named '{}': names must differ", twin->name));
  }
  if (!table.owners.empty() && table.owners.front().name.empty()) {
    return std::unexpected("a backend has an empty name: give each one a name");
  }
  std::erase_if(table.owners, [](const WeightedName& b) { return b.weight == 0; });
  if (table.owners.size() > *checked_size) {
    return std::unexpected(
        fmt::format("{} backends cannot each own a slot of {}: take a larger "
                    "prime table size",
                    table.owners.size(), *checked_size));
  }

  table.slots.assign(*checked_size, kNoOwner);
  if (table.owners.empty()) return table;
  std::vector<Cursor> cursors = make_cursors(table.owners, *checked_size);
  populate(cursors, table.slots);
  return table;
}

}  // namespace maglev
