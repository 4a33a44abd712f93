// What workers look at: one immutable snapshot per generation, laid out for the pipeline.
//
// The main thread builds it from checked files; workers only read it, through a Publication. All
// that workers read comes from one memory resource (hugepages in the daemon, the heap in tests). A
// pool that did not change is shared between snapshots, whose lifetimes keep it alive.
#pragma once

#include <cstdint>
#include <expected>
#include <map>
#include <memory>
#include <memory_resource>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "dataplane/counter_registry.h"
#include "dataplane/outer_header.h"
#include "dataplane/tracking.h"
#include "dataplane/vip_table.h"
#include "tables/history.h"
#include "tables/published.h"

namespace maglev {

// A slot with what tracking needs of it. Fallbacks that cannot serve are the owner.
struct UnsettledSlot {
  uint32_t slot;
  SlotView view;
};

// One pool: slots hold indices into its backends; all ones where no backend owns the slot.
struct PoolImage {
  PoolImage(std::pmr::memory_resource* memory, std::string pool_name)
      : name(std::move(pool_name)), slots16(memory), slots32(memory), unsettled(memory) {}

  std::string name;
  std::pmr::vector<uint16_t> slots16;  // while backend indices fit 16 bits, else slots32
  std::pmr::vector<uint32_t> slots32;
  std::pmr::vector<UnsettledSlot> unsettled;           // in order of their slots
  std::map<Way, std::pmr::vector<BackendEntry>> ways;  // each with all backends
  // Parallel to the backends:
  std::vector<std::string> backend_names;  // empty where there is none
  std::vector<CounterHold> counters;       // null where there is none
};

class Snapshot {
 public:
  Snapshot(uint64_t generation, uint64_t hash_seed, std::pmr::memory_resource* memory)
      : generation_(generation), hash_seed_(hash_seed), vip_table_(memory) {}

  uint64_t generation() const { return generation_; }
  uint64_t hash_seed() const { return hash_seed_; }
  const VipTable& vip_table() const { return vip_table_; }

  std::span<const VipEntry> vips() const { return vip_table_.vips(); }
  const std::vector<std::string>& vip_names() const { return vip_names_; }
  std::span<const VipRecord> vip_records() const { return vip_records_; }
  std::span<const std::shared_ptr<const PoolImage>> pools() const { return pools_; }

 private:
  friend std::shared_ptr<const Snapshot> build_snapshot(
      const RootView&, std::vector<std::shared_ptr<const PoolImage>>, std::vector<CounterHold>,
      std::pmr::memory_resource*);

  uint64_t generation_;
  uint64_t hash_seed_;
  VipTable vip_table_;
  // For the main thread alone:
  std::vector<std::shared_ptr<const PoolImage>> pools_;
  std::vector<CounterHold> holds_;
  std::vector<std::string> vip_names_;
  std::vector<VipRecord> vip_records_;
};

// The ways that the root's VIPs need of its pool with this index.
std::set<Way> ways_of_pool(const RootView& root, uint32_t pool);

// The pool must fit the table (check_pool_fits_table), and what is past both (check_history_fits).
// Fails where a backend names a port that this dataplane does not have, or where counters run out.
std::expected<std::shared_ptr<const PoolImage>, std::string> build_pool_image(
    const PoolView& pool, const TableView& table, std::span<const SlotHistory> past,
    const std::set<Way>& ways, std::span<const PortFacts> ports, CounterRegistry& backend_counters,
    std::pmr::memory_resource* memory);

// pools[i] is the image of the root's i-th pool, with the ways it needs; vip_counters[i] the
// counter of its i-th VIP.
std::shared_ptr<const Snapshot> build_snapshot(const RootView& root,
                                               std::vector<std::shared_ptr<const PoolImage>> pools,
                                               std::vector<CounterHold> vip_counters,
                                               std::pmr::memory_resource* memory);

}  // namespace maglev
