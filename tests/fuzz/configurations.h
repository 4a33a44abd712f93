// What the fuzzer publishes. Every configuration goes through the published files: built, checked
// as a dataplane checks what it finds on disk, and made a snapshot. What the checks refuse changes
// nothing; what they accept must be safe for a worker, whatever it is.
//
// The number of a configuration is its settings, so that neighbours differ in one thing:
//   bits 0-1    backends: IPv4, IPv6, both, both with every other one unresolved
//   bits 2-4    encapsulation: IP in IP, GRE, GUE 0, GUE 1, layer 2; above: a different one per VIP
//   bit 5       fragments by address
//   bit 6       hash by source
//   bits 7-10   flags of the VIPs (VipFlag)
//   bits 11-12  path MTU of the backends: the port's, 1280 to 1400, 68 to 600, 1 to 60
//   bit 13      outer sources from a prefix
//   bit 14      no backend has a slot
//   bit 15      no next hop is the backend itself
// Single-threaded. A snapshot must be dropped before the registries.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "dataplane/counter_registry.h"
#include "dataplane/outer_header.h"
#include "dataplane/snapshot.h"
#include "tables/published.h"

namespace maglev::fuzz {

inline constexpr uint32_t kCountedVips = 64;
inline constexpr uint32_t kCountedBackends = 64;

struct Configuration {
  std::vector<VipRecord> vips;
  std::vector<BackendRecord> backends;
  bool owned = true;  // whether backends have slots
};

Configuration configuration_of(uint16_t number);

// One whose backends have indices beyond 16 bits.
Configuration configuration_with_wide_slots();

// Raw VipRecords and BackendRecords, one behind the other.
Configuration configuration_of_records(std::span<const uint8_t> vips,
                                       std::span<const uint8_t> backends);

// Two bytes of a record, anywhere.
void patch(Configuration& configuration, uint32_t record, uint32_t offset, uint16_t value);

struct Published {
  std::shared_ptr<const Snapshot> snapshot;  // null: refused
  // By BackendEntry::counter.
  std::vector<BackendRecord> records;
};

struct Registries {
  CounterRegistry vips{kCountedVips, [](uint32_t) {}};
  CounterRegistry backends{kCountedBackends, [](uint32_t) {}};
};

Published publish(const Configuration& configuration, uint64_t generation, uint64_t hash_seed,
                  std::span<const PortFacts> ports, Registries& registries);

}  // namespace maglev::fuzz
