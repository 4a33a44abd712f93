#include "dataplane/pool_numbers.h"

#include <algorithm>

#include "tables/flow_hash.h"
#include "tables/tracking_times.h"

namespace maglev {

PoolNumbers::PoolNumbers(std::span<PoolNumberRecord> records) : records_(records) {
  for (size_t i = 0; i < records.size(); ++i) {
    const PoolNumberRecord& record = records[i];
    const Name name{record.name_low, record.name_high};
    if (name != Name{} && record.rests_until_ns == 0) {
      by_name_.emplace(name, static_cast<uint16_t>(i));
    }
  }
}

std::optional<uint16_t> PoolNumbers::take(std::string_view pool, uint64_t now_ns) {
  const XXH128_hash_t hash = XXH3_128bits(pool.data(), pool.size());
  const Name name{hash.low64, hash.high64};
  if (const auto known = by_name_.find(name); known != by_name_.end()) return known->second;
  for (size_t looked = 0; looked < records_.size(); ++looked) {
    const size_t number = next_;
    next_ = (next_ + 1) % records_.size();
    PoolNumberRecord& record = records_[number];
    const bool named = record.name_low != 0 || record.name_high != 0;
    if (named && (record.rests_until_ns == 0 || now_ns < record.rests_until_ns)) continue;
    record = {name.first, name.second, 0, 0};
    by_name_.emplace(name, static_cast<uint16_t>(number));
    return static_cast<uint16_t>(number);
  }
  return std::nullopt;
}

void PoolNumbers::retain(std::span<const InUse> in_use, uint64_t now_ns) {
  std::set<uint16_t> used;
  for (const InUse& pool : in_use) {
    used.insert(pool.number);
    records_[pool.number].idle_ns = std::max(records_[pool.number].idle_ns, pool.idle_ns);
  }
  std::erase_if(by_name_, [&](const auto& entry) {
    if (used.contains(entry.second)) return false;
    PoolNumberRecord& record = records_[entry.second];
    // Entries live somewhat longer than asked for, see flow_idle().
    record.rests_until_ns = now_ns + record.idle_ns + 2 * kAdoptionGrace_ns;
    return true;
  });
}

}  // namespace maglev
