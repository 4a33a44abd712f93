// One load balancer of the model: a control that remembers the past of slots and publishes, and
// workers that track flows. History, flow table and rules are the product's own code.
//
// Every host keeps the tables of two modes side by side, `full` and `changed`, and is asked for the
// backend of each packet in each mode; `none` needs no table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "control/slot_history.h"
#include "dataplane/sweep.h"
#include "dataplane/track.h"
#include "tests/model/random.h"

namespace maglev::model {

enum class Mode : uint8_t { kNone, kFull, kChanged };
inline constexpr uint32_t kModeCount = 3;

// A backend's number in the model: never used again.
inline constexpr uint32_t kNobody = 0xffffffff;

struct Idle {
  uint32_t tcp_s = 60;
  uint32_t tcp_closing_s = 10;
  uint32_t udp_s = 20;
};

// What control does, each part of which a test may leave out to show what it is for.
struct ControlRules {
  bool window_outlives_changes = true;    // a: a change within the window leaves the fallback
  bool later_change_starts_again = true;  // a
  bool return_stays_unsettled = true;     // a
  bool settle_by_sweep = true;            // f
  bool sweep_after_window = true;         // f
  bool sweep_knows_last_change = true;    // f
  bool window_covers_adoption = true;     // kAdoptionGrace_ns
  bool extend_when_crowded = true;
  bool index_waits_for_sweep = true;
  bool new_incarnation = true;
};

// The backends as the operator and checks would have them, by number.
struct Membership {
  std::vector<uint32_t> owners;  // per slot: a backend, or kNobody
  std::vector<uint32_t> pool;    // those in the pool
  std::vector<bool> serves;      // by number: flows may stay with it
};

// One generation, as workers see it. Indices are this host's own.
struct Published {
  uint64_t generation = 0;
  std::vector<SlotView> slots;
  std::vector<uint8_t> incarnations;  // by index, like the two below
  std::vector<bool> serves;
  std::vector<uint32_t> backends;  // the model's numbers
};

struct Packet {
  FlowIdentity flow;
  PacketKind kind = PacketKind::kData;
  uint8_t opening = 0;
};

struct Chosen {
  uint32_t backend = kNobody;  // as the model numbers it
  uint32_t index = kNoBackendIndex;
  bool neither = false;  // neither the slot's owner nor its fallback
};

class Host;

// What track() asks, see track.h.
struct HostView {
  uint64_t now_ns;
  uint32_t tick;
  const Published& published;
  const Host& host;
  bool full;
  const FlowTable* own;

  const FlowIdle& idle(uint16_t pool) const;
  bool serves(uint16_t pool, uint32_t backend, uint8_t incarnation) const;
  uint8_t incarnation(uint16_t pool, uint32_t backend) const;
  SlotView slot(uint16_t pool, uint32_t hash_upper) const;
  bool looks_elsewhere() const;
  std::optional<FlowEntry> known_elsewhere(const FlowIdentity& flow, uint16_t pool) const;
};

// The product's track() with all rules, or without one.
using Track = uint32_t (*)(FlowTable&, const TrackedPacket&, const SlotView&, const FlowIdle&,
                           const HostView&, TrackingCounters&);

struct HostSettings {
  uint32_t slots = 211;
  uint32_t workers = 2;
  uint64_t entries_per_worker = 4096;
  Idle idle;
  ControlRules control;
  Track track = &maglev::track<AllRules, HostView>;
  bool late_adoption = false;  // workers take seconds to use a generation, not tenths
};

struct TableShare {
  uint64_t entries_full = 0;  // live ones
  uint64_t entries_changed = 0;
};

class Host {
 public:
  Host(const HostSettings& settings, uint64_t seed);

  // The backend of a packet that the worker got.
  Chosen choose(Mode mode, const Packet& packet, uint32_t worker, uint64_t now_ns);

  uint32_t workers() const { return static_cast<uint32_t>(workers_.size()); }

  // --- control ---
  void change(const Membership& membership, uint64_t now_ns);
  void restart_control();  // what it remembers comes from its own store
  void begin_sweep(uint64_t now_ns);
  void end_sweep(uint64_t now_ns);

  // --- the dataplane's life ---
  void set_worker_count(uint32_t workers, uint64_t now_ns);  // starts again, with other workers
  void restart_dataplane(uint64_t now_ns);                   // with the same
  void reassign_queues(uint64_t now_ns) { look_elsewhere(now_ns); }

  // Whether some worker may have known the backend as serving no more, since then.
  bool was_down(uint32_t backend, uint64_t since_ns) const;

  TableShare count_entries(uint64_t now_ns) const;
  // Packets in slots that are settled, all of mode kChanged, and in others.
  uint64_t settled_packets() const { return settled_packets_; }
  uint64_t unsettled_packets() const { return unsettled_packets_; }
  // Packets that looked into a table in mode kChanged.
  uint64_t lookups_changed() const;
  size_t unsettled_slots() const { return history_.entries().size(); }

 private:
  friend struct HostView;

  struct Table {
    explicit Table(uint64_t entries);
    void reopen() { table = std::make_unique<FlowTable>(bytes()); }
    std::span<std::byte> bytes() const { return {memory.get(), size}; }

    size_t size;
    std::unique_ptr<std::byte, decltype(&std::free)> memory;
    std::unique_ptr<FlowTable> table;
  };
  struct Worker {
    explicit Worker(uint64_t entries) : full(entries), changed(entries) {}
    Table full;
    Table changed;
    TrackingCounters full_counters;
    TrackingCounters changed_counters;
    std::shared_ptr<const Published> current;
    std::deque<std::pair<uint64_t, std::shared_ptr<const Published>>> coming;
  };
  struct Place {
    uint32_t backend = kNobody;
    uint8_t incarnation = 0;
    uint64_t left_in = 0;  // the generation that took it out of the pool; 0: it is in
  };

  double latest_adoption_s() const { return settings_.late_adoption ? 9 : 0.2; }
  uint32_t index_of(uint32_t backend) const;
  void number(const std::vector<uint32_t>& pool);
  void remember_change(std::span<const SlotOwner> before, std::span<const SlotOwner> after,
                       uint64_t now_ns);
  void publish(uint64_t now_ns);
  SlotView view_of(uint32_t slot, const PastOwner* past) const;
  const Published& published(Worker& worker, uint64_t now_ns);
  void look_elsewhere(uint64_t now_ns);
  std::vector<SweptPool> sweep(bool full, uint64_t now_ns) const;
  uint64_t flows_lost() const;

  HostSettings settings_;
  Random random_;
  FlowIdle idle_;
  // Control:
  PoolHistory history_;
  std::vector<Place> places_;
  std::vector<SlotOwner> owners_;
  std::vector<bool> serves_;             // by place
  std::vector<uint64_t> down_until_ns_;  // by the model's number
  uint64_t generation_ = 0;
  std::shared_ptr<const Published> latest_;
  uint64_t sweep_began_ns_ = 0;
  uint64_t sweep_generation_ = 0;
  uint64_t flows_lost_ = 0;
  // Dataplane:
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<std::unique_ptr<Worker>> retired_;  // of another worker count: only read
  uint64_t elsewhere_until_ns_ = 0;
  uint64_t retired_lookups_ = 0;
  uint64_t settled_packets_ = 0;
  uint64_t unsettled_packets_ = 0;
};

}  // namespace maglev::model
