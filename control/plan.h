// Planning: from what the operator wants, what checks found and where packets would go, to the
// files that the dataplane reads.
//
// Pure functions of their arguments, any thread. Invariants:
// 1. The table depends on the pool's settings and its set of usable backends alone, never on
//    history, so two hosts with the same membership hold the same table file.
// 2. A backend keeps its index while it lives, whatever else comes and goes. Once it is gone the
//    index stays out of use until no flow is remembered by it; who takes it then has another
//    incarnation there.
#pragma once

#include <cstdint>
#include <expected>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "control/configuration.h"
#include "control/health.h"
#include "control/next_hops.h"
#include "control/path_mtu.h"
#include "control/slot_history.h"
#include "tables/movement.h"
#include "tables/published.h"

namespace maglev {

// Which index each backend of a pool has.
class Numbering {
 public:
  struct Place {
    std::string name;  // empty: free
    uint8_t incarnation = 0;
    uint64_t left_in = 0;  // the generation that took the backend out; 0: it lives
    bool lives() const { return !name.empty() && left_in == 0; }
    bool operator==(const Place&) const = default;
  };

  // More backends that are gone keep no place: the oldest of them is then reused at once. With so
  // many it takes kMostLeaving * 256 removals, while a single flow is remembered, until the
  // incarnation does not tell any more whose it was.
  static constexpr size_t kMostLeaving = 1024;

  Numbering() = default;
  explicit Numbering(std::vector<Place> places);

  // Takes out backends that are no more, then gives new ones the lowest free places, in order of
  // name. `generation` is the one that will publish it. Returns whether anything changed.
  bool update(const ByName<Backend>& backends, uint64_t generation);

  // Frees the places of backends gone, of which a look at all flows, begun when every worker used
  // `generation` or a later one, found none. is_named tells of a place whether it found one, or
  // anything else still speaks of it. Returns whether anything changed.
  bool free_swept(uint64_t generation, const std::function<bool(uint32_t place)>& is_named);

  const std::vector<Place>& places() const { return places_; }
  uint32_t index_of(std::string_view name) const { return indices_.find(name)->second; }
  size_t leaving() const;  // backends gone whose places are not free

 private:
  void free_oldest();

  std::vector<Place> places_;
  ByName<uint32_t> indices_;  // of those that live
};

// The largest outer packet that reaches a backend, as far as this host knows.
struct PathMtu {
  uint32_t bytes = 0;                                     // 0: nothing is known
  std::string reason;                                     // why no more
  std::optional<PathMtuMemory::Clock::time_point> until;  // of what a router said
};

// Where a backend's packets leave, seen from the dataplane: the next hop the kernel names, if its
// interface is one of the dataplane's ports; else unresolved, with the reason.
struct WayOut {
  NextHop next_hop;
  uint16_t port = 0;  // index into ports
  Prefix outer_source;
  PathMtu path_mtu;
};
WayOut find_way_out(NextHop next_hop, const std::optional<PathMtuMemory::Entry>& learnt,
                    const Configuration& configuration);

// The configured prefix of that family, or else the address alone.
Prefix choose_outer_source(const std::vector<Prefix>& prefixes,
                           const boost::asio::ip::address& preferred);

// What planning a pool asks about its backends.
struct PoolSenses {
  std::function<HealthVerdict(const std::string& backend)> verdict_of;
  std::function<WayOut(const boost::asio::ip::address& address)> way_out_of;
  // While the first checks of a new pool are under way, its backends not yet checked count as
  // healthy: else the first to answer would for a moment take all the traffic.
  std::function<bool(const std::string& backend)> is_settling;
};

// The backends that enter a pool's table.
struct Membership {
  std::vector<WeightedName> members;  // sorted by name; positive weights
  bool fail_open = false;  // fewer than min_healthy are healthy, so that all ready ones enter

  std::optional<size_t> place_of(std::string_view name) const;  // among the members
};
Membership choose_members(const Pool& pool, const PoolSenses& senses);

// What moves in the pool's table when its members become others.
std::expected<Change, std::string> plan_table_change(const PoolSettings& settings,
                                                     std::span<const WeightedName> before,
                                                     std::span<const WeightedName> after);

struct PlannedPool {
  Membership membership;
  PlacementKind placement = PlacementKind::kMaglev;
  uint32_t table_size = 0;
  std::vector<uint32_t> owned_slots;  // one per member
  std::vector<SlotOwner> owners;      // likewise: their places
  size_t unresolved = 0;              // backends without a next hop
  size_t off_link = 0;                // backends behind a gateway
  Checksum table;
  Checksum pool;
  Checksum history;  // of what plan_pool() knows nothing; all zeros: every slot is settled
  std::vector<std::byte> table_file;  // empty when the table is the previous plan's
  std::vector<std::byte> pool_file;

  uint32_t slots_of(std::string_view backend) const;  // 0 where it is no member
};

// Plans one pool. `previous`, when given, is an earlier plan of the same pool, whose table is taken
// over when it would come out the same. Fails only on what configuration checks refuse.
std::expected<PlannedPool, std::string> plan_pool(std::string_view name, const Pool& pool,
                                                  const Numbering& numbering,
                                                  const PoolSenses& senses,
                                                  const PlannedPool* previous);

// The root that names all pools. Every VIP's pool must be planned.
std::vector<std::byte> plan_root(uint64_t generation, uint64_t hash_seed,
                                 const ByName<PlannedPool>& pools, const ByName<Vip>& vips);

}  // namespace maglev
