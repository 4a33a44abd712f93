// From the published tree on disk to a snapshot in memory that no other process can touch.
//
// Files are read, never mapped, and checked whole: bounds, checksums, names against content, prime
// sizes, every index. What passes is copied into the memory resource. A root that fails, or that
// names a file that fails, is refused whole and counted; what is in use stays. A history of another
// boot of the machine tells nothing about this one: the pool is adopted without it. Main thread
// only.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <expected>
#include <map>
#include <memory>
#include <memory_resource>
#include <optional>
#include <string>
#include <vector>

#include "dataplane/counter_registry.h"
#include "dataplane/pool_numbers.h"
#include "dataplane/snapshot.h"
#include "tables/boot_id.h"
#include "tables/published.h"

namespace maglev {

class Adopter {
 public:
  // directory holds the tree (tables/published.h). The registries and the memory must outlive every
  // snapshot.
  Adopter(std::string directory, const BootId& boot, std::vector<PortFacts> ports,
          CounterRegistry& vip_counters, CounterRegistry& backend_counters,
          PoolNumbers& pool_numbers, std::pmr::memory_resource* memory)
      : directory_(std::move(directory)),
        boot_(boot),
        ports_(std::move(ports)),
        vip_counters_(vip_counters),
        backend_counters_(backend_counters),
        pool_numbers_(pool_numbers),
        memory_(memory) {}

  // Reads the root unless it is the very file last adopted, and what it names that is not in memory
  // yet. Returns a new snapshot, or null when there is nothing new or it was refused. Cheap where
  // nothing changed.
  std::shared_ptr<const Snapshot> poll();

  // Builds every later snapshot anew with these ports.
  void set_ports(std::vector<PortFacts> ports);

  uint64_t refused_roots() const { return refused_roots_; }
  const std::string& last_refusal() const { return last_refusal_; }

 private:
  using Pool = std::shared_ptr<const PoolImage>;

  std::expected<std::shared_ptr<const Snapshot>, std::string> adopt(const RootView& root);
  void retain_numbers(const Snapshot& snapshot);
  // With at least what is needed.
  std::expected<Pool, std::string> load_pool(const PoolReference& reference,
                                             const PoolNeeds& needs);
  template <typename View>
  std::expected<View, std::string> load_file(
      std::string_view folder, const Checksum& name,
      std::expected<View, std::string> (*check)(std::span<const std::byte>),
      std::vector<std::byte>& image) const;

  std::string directory_;
  BootId boot_;
  std::vector<PortFacts> ports_;
  CounterRegistry& vip_counters_;
  CounterRegistry& backend_counters_;
  PoolNumbers& pool_numbers_;
  std::pmr::memory_resource* memory_;
  std::map<PoolReference, std::weak_ptr<const PoolImage>> pools_;  // those that some snapshot holds
  struct stat last_status_ {};                                     // of the root file last adopted
  std::optional<Checksum> last_root_;                              // that of the last snapshot
  uint64_t generation_ = 0;                                        // likewise
  bool ports_changed_ = false;                                     // since the last snapshot
  std::optional<Checksum> refused_root_;  // counted once, tried again at each poll
  uint64_t refused_roots_ = 0;
  std::string last_refusal_;
};

}  // namespace maglev
