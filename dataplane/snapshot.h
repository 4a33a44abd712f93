// What workers look at: one immutable snapshot per generation, laid out for the pipeline.
//
// The main thread builds it from checked files; workers only read it, through a Publication. All of
// its memory comes from one memory resource (hugepages in the daemon, the heap in tests). A pool
// that did not change is shared between snapshots, whose lifetimes keep it alive.
#pragma once

#include <array>
#include <cstdint>
#include <expected>
#include <map>
#include <memory>
#include <memory_resource>
#include <span>
#include <string>
#include <vector>

#include "dataplane/counter_registry.h"
#include "dataplane/packet.h"
#include "tables/published.h"

namespace maglev {

inline constexpr uint32_t kOuterLength = kEthernetHeaderLength + kIpv4HeaderLength;

// What a worker needs to send a packet to a backend: one cache line.
struct alignas(64) BackendEntry {
  // Ethernet and outer IPv4 header, ready but for total length, TOS and checksum, which are zero.
  std::array<uint8_t, kOuterLength> header{};
  uint16_t checksum_base = 0;      // folded sum of the outer IPv4 header as it stands above
  uint32_t counter = 0;            // index into WorkerCounters::backends
  uint32_t max_packet_length = 0;  // longest IP packet that fits the port once encapsulated
  uint16_t port = 0;               // index of the port to send on
  bool resolved = false;
};
static_assert(sizeof(BackendEntry) == 64);

// The way out of the host, as the snapshot needs it.
struct PortFacts {
  std::array<uint8_t, 6> mac{};
  uint32_t mtu = 0;
  bool operator==(const PortFacts&) const = default;
};

// One pool: slots hold indices into backends; all ones where no backend owns the slot.
struct PoolImage {
  PoolImage(std::pmr::memory_resource* memory, std::string pool_name)
      : name(std::move(pool_name)), slots16(memory), slots32(memory), backends(memory) {}

  std::string name;
  std::pmr::vector<uint16_t> slots16;  // while backend indices fit 16 bits, else slots32
  std::pmr::vector<uint32_t> slots32;
  std::pmr::vector<BackendEntry> backends;
  std::vector<std::string> backend_names;  // parallel to backends
  std::vector<CounterHold> holds;          // keeps the backends' counters
};

inline constexpr uint16_t kNoBackend16 = 0xffff;
inline constexpr uint32_t kNoBackend32 = 0xffffffff;

struct alignas(64) VipEntry {
  const uint16_t* slots16 = nullptr;  // of its pool; null where the pool uses slots32
  const uint32_t* slots32 = nullptr;
  const BackendEntry* backends = nullptr;
  uint32_t size = 0;     // slots
  uint32_t counter = 0;  // index into WorkerCounters::vips
  HashPolicy hash_policy = HashPolicy::kFiveTuple;
};
static_assert(sizeof(VipEntry) == 64);

// Key of the VIP table: address, port and protocol as they stand in the packet. Never 0.
inline uint64_t vip_key(uint32_t address_be, uint16_t port_be, uint8_t protocol) {
  return address_be | uint64_t{port_be} << 32 | uint64_t{protocol} << 48;
}

class Snapshot {
 public:
  Snapshot(uint64_t generation, uint64_t hash_seed, std::pmr::memory_resource* memory)
      : generation_(generation), hash_seed_(hash_seed), vips_(memory), table_(memory) {}

  uint64_t generation() const { return generation_; }
  uint64_t hash_seed() const { return hash_seed_; }

  // The VIP of a packet, or null: the one of its port, else the one of any port.
  const VipEntry* find_vip(uint64_t key) const {
    const VipEntry* vip = find(key);
    return vip == nullptr && has_any_port_ ? find(key & kKeyWithoutPort) : vip;
  }
  void prefetch_vip(uint64_t key) const { __builtin_prefetch(&table_[bucket_of(key)]); }

  const std::vector<std::string>& vip_names() const { return vip_names_; }
  std::span<const VipEntry> vips() const { return vips_; }
  std::span<const VipRecord> vip_records() const { return vip_records_; }
  std::span<const std::shared_ptr<const PoolImage>> pools() const { return pools_; }

 private:
  friend std::expected<std::shared_ptr<const Snapshot>, std::string> build_snapshot(
      const RootView&, std::vector<std::shared_ptr<const PoolImage>>, std::vector<CounterHold>,
      std::pmr::memory_resource*);

  struct Bucket {
    uint64_t key = 0;  // 0: empty
    uint64_t vip = 0;  // index
  };
  static constexpr uint64_t kKeyWithoutPort = ~(uint64_t{0xffff} << 32);

  // Fibonacci hashing: the upper bits of the product are well mixed.
  size_t bucket_of(uint64_t key) const { return (key * 0x9e3779b97f4a7c15u) >> shift_; }
  const VipEntry* find(uint64_t key) const {
    for (size_t b = bucket_of(key);; b = (b + 1) & (table_.size() - 1)) {
      if (table_[b].key == key) return &vips_[table_[b].vip];
      if (table_[b].key == 0) return nullptr;
    }
  }
  void insert(uint64_t key, uint64_t vip);

  uint64_t generation_;
  uint64_t hash_seed_;
  std::pmr::vector<VipEntry> vips_;
  std::pmr::vector<Bucket> table_;  // open addressing, a power of two, at most half full
  uint32_t shift_ = 63;
  bool has_any_port_ = false;
  // For the main thread alone:
  std::vector<std::shared_ptr<const PoolImage>> pools_;
  std::vector<CounterHold> holds_;
  std::vector<std::string> vip_names_;
  std::vector<VipRecord> vip_records_;
};

// The pool must fit the table (check_pool_fits_table). Fails where a backend names a port that this
// dataplane does not have, where an address family is not supported, or where counters run out.
std::expected<std::shared_ptr<const PoolImage>, std::string> build_pool_image(
    const PoolView& pool, const TableView& table, std::span<const PortFacts> ports,
    CounterRegistry& backend_counters, std::pmr::memory_resource* memory);

// pools[i] is the image of the root's i-th pool, vip_counters[i] the counter of its i-th VIP.
// Fails where a VIP's address family is not supported.
std::expected<std::shared_ptr<const Snapshot>, std::string> build_snapshot(
    const RootView& root, std::vector<std::shared_ptr<const PoolImage>> pools,
    std::vector<CounterHold> vip_counters, std::pmr::memory_resource* memory);

}  // namespace maglev
