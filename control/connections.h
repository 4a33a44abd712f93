// What control keeps so that connections survive changes: which index each backend of a pool has,
// and whom the slots belonged to before, as long as the dataplane may remember flows by it.
//
// Thread: the controller's. No clock and no file of its own, but for tables that it asks for.
// Invariants:
// 1. A history follows from what workers may have used: the owners of the last root that was put in
//    place, not those of a plan that never was. So an attempt to publish may fail and be made
//    again.
// 2. What a publication says of the past is in the durable state before it is visible, so a process
//    that is killed at any instant leaves the next one the same histories, or one that holds a
//    change not published yet, which is harmless.
// 3. Nothing that the dataplane reports is believed further than it can be checked: see
//    take_report(). The worst that a false report can do is to end the protection of old flows.
// 4. A publication costs what changed: a history is built again only when its pool's slots changed
//    hands, or a window or a sweep changed it.
#pragma once

#include <cstdint>
#include <expected>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "control/plan.h"
#include "control/slot_history.h"
#include "tables/boot_id.h"
#include "tables/history.h"
#include "tables/report.h"

namespace maglev {

using FileImage = std::vector<std::byte>;
using Pools = std::set<std::string, std::less<>>;

class Connections {
 public:
  using ReadTable = std::function<std::expected<FileImage, std::string>(const Checksum& table)>;

  // `histories` are images of history files, checked, as changed_histories() gave them. Those of
  // another boot of the machine say nothing any more. `generation` is the least that can be
  // published next.
  Connections(const BootId& boot, ReadTable read_table, ByName<Numbering> numberings,
              const ByName<FileImage>& histories, uint64_t generation);

  // To be called first, for each pool of the root in place, of that generation. `history` is the
  // file of that name, empty where there is none. What the durable state does not know is taken
  // from these.
  void take_published(const PoolView& pool, std::span<const std::byte> history,
                      uint64_t generation);

  // Where a planned publication of that generation puts the backends.
  const Numbering& number(const std::string& pool, const ByName<Backend>& backends,
                          uint64_t generation);
  void forget(const std::string& pool);
  Pools known() const;  // names of pools that something is kept of

  // What a publication of these changes, whose tables can be read, all of them. Sets what
  // PlannedPool::history says.
  void change(ByName<PlannedPool>& planned, const ByName<Vip>& vips, uint64_t now_ns,
              uint64_t generation);
  // Of a pool whose history is not empty.
  FileImage history_file(std::string_view pool) const;

  // What is not in the durable state yet; null and empty: gone.
  std::map<std::string, const Numbering*> changed_numberings() const;
  std::map<std::string, FileImage> changed_histories() const;
  void saved();
  // The root that names these is in place.
  void published(const ByName<PlannedPool>& planned);

  // Takes in what a living dataplane reports of flows. Returns whether a history changed, so that
  // there is something to publish.
  bool take_report(const Report& report, uint64_t now_ns, uint64_t published_generation);

  // What is shown. Null where nothing is known of the pool.
  const Numbering* numbering(std::string_view pool) const;
  const PoolHistory* history(std::string_view pool) const;

 private:
  // Who owns a table's slots: parallel to its owners.
  struct Owners {
    Checksum table;
    std::vector<SlotOwner> places;
    bool operator==(const Owners&) const = default;
  };
  struct Past {
    PoolHistory history;
    Checksum file;                 // its name; all zeros: none
    std::optional<Owners> owners;  // that workers may use; nullopt: there are none, or not known
    uint32_t table_size = 0;
    uint64_t idle_ns = 0;  // the longest, that windows are made for; 0: nobody asks for any
    uint64_t lost_ns = 0;  // when workers had no room for flows, last
  };

  std::vector<PastOwner> entries_of(const std::string& pool, const HistoryView& file,
                                    uint64_t changed_in) const;
  void change_pool(const std::string& name, Past& past, const PlannedPool& plan,
                   uint64_t longest_idle_ns, uint64_t now_ns, uint64_t generation);
  bool change_owners(const std::string& name, Past& past, const Owners& next, uint64_t now_ns,
                     uint64_t generation);
  void renew_file(const std::string& name, Past& past);
  std::expected<std::vector<SlotOwner>, std::string> slot_owners(const Owners& owners) const;
  bool take_losses(const Report& report, uint64_t now_ns);
  bool is_new(const SweepReport& sweep, uint64_t now_ns, uint64_t published_generation);
  bool take_sweep(const SweepReport& sweep);
  bool take_pool(const SweepReport& sweep, const PoolFlows& flows);

  BootId boot_;
  ReadTable read_table_;
  ByName<Numbering> numberings_;
  ByName<Past> pasts_;
  Pools unsaved_numberings_;
  Pools unsaved_histories_;
  uint64_t last_sweep_ns_ = 0;  // when the last one that was taken began
  uint64_t reporter_ = 0;       // the process that reported losses
  uint64_t losses_ = 0;         // that it had reported
  bool warned_ = false;         // of a sweep that cannot be
};

}  // namespace maglev
