#include "tables/maglev.h"

#include <algorithm>

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

#include "tables/maglev_fill.h"
#include "tables/prime.h"

namespace maglev {
namespace {

std::vector<Contender> make_contenders(const std::vector<WeightedName>& owners, uint32_t size) {
  std::vector<Contender> contenders;
  contenders.reserve(owners.size());
  for (const WeightedName& owner : owners) {
    const uint64_t offset = XXH64(owner.name.data(), owner.name.size(), 0) % size;
    const uint64_t skip = XXH64(owner.name.data(), owner.name.size(), 1) % (size - 1) + 1;
    contenders.push_back(
        {static_cast<uint32_t>(offset), static_cast<uint32_t>(skip), owner.weight});
  }
  return contenders;
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
  fill_slots(make_contenders(table.owners, *checked_size), table.slots);
  return table;
}

}  // namespace maglev
