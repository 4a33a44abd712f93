// The numbers by which flow tables call pools.
//
// A pool has a number as long as it is published without a break, also across restarts of the
// dataplane. Afterwards the number rests until no entry that names it can be live: a pool that
// comes again under the same name may mean other backends by the same indices, and inherits
// nothing. The records lie in memory of the owner's that outlives the process. Main thread only.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "dataplane/flow_table.h"

namespace maglev {

// All zeros: free.
struct PoolNumberRecord {
  uint64_t name_low = 0;  // XXH3 with 128 bits
  uint64_t name_high = 0;
  uint64_t rests_until_ns = 0;  // CLOCK_BOOTTIME; 0: in use
  uint64_t idle_ns = 0;         // the pool's longest idle time when it was in use last
};

class PoolNumbers {
 public:
  // One record for each number, kMaxTrackedPools or fewer.
  explicit PoolNumbers(std::span<PoolNumberRecord> records);

  // Of a pool that is being published; the same until it was missing in retain(). Null: none is
  // free.
  std::optional<uint16_t> take(std::string_view pool, uint64_t now_ns);

  struct InUse {
    uint16_t number;
    uint64_t idle_ns;
  };
  // All that are published from now on. Others go out of use: their entries may be written until
  // every worker has left the last snapshot.
  void retain(std::span<const InUse> in_use, uint64_t now_ns);

 private:
  using Name = std::pair<uint64_t, uint64_t>;

  std::span<PoolNumberRecord> records_;
  std::map<Name, uint16_t> by_name_;  // those in use
  size_t next_ = 0;                   // where to look for a free one
};

}  // namespace maglev
