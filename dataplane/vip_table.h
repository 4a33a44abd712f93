// Which VIP a packet is for.
//
// An address belongs to the longest VIP prefix that holds it; shorter ones do not apply to it.
// Within the prefix the VIP of the packet's port comes before the one of any port. Exact services
// (one address and port) are found by one look into a hash table; prefixes and VIPs of any port
// take one more for each prefix length in use.
//
// Built by the main thread; immutable afterwards, any thread. Memory: the resource given.
#pragma once

#include <array>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <vector>

#include "dataplane/outer_header.h"
#include "dataplane/packet.h"
#include "tables/flow_hash.h"
#include "tables/published.h"

namespace maglev {

enum class FlowHash : uint8_t { kFiveTuple, kSource, kAddresses };

// The word of a slot that no backend owns.
inline constexpr uint16_t kNoBackend16 = 0xffff;
inline constexpr uint32_t kNoBackend32 = 0xffffffff;

struct VipTracking;

// What a worker needs of a VIP: one cache line.
//
// A slot is a word. Where it is settled that is the index of its owner among the backends; other
// words, all of them greater, are left to dataplane/track_flows.h. So are all where the VIP tracks
// every flow or looks at connection IDs: settled_below is 0 there.
struct alignas(64) VipEntry {
  const uint8_t* slots = nullptr;          // of its pool: words of slot_bytes
  const BackendEntry* backends = nullptr;  // of its pool and encapsulation
  uint32_t size = 0;                       // slots
  uint32_t slot_bytes = 0;                 // 2 or 4
  uint32_t settled_below = 0;              // words below are indices of backends
  uint32_t counter = 0;                    // index into WorkerCounters::vips
  const VipTracking* tracking = nullptr;
  FlowHash flow_hash = FlowHash::kFiveTuple;
  bool cut_too_big = false;  // whatever the packet says
};
static_assert(sizeof(VipEntry) == 64);

inline const uint8_t* slot_address(const VipEntry& vip, uint64_t hash) {
  return vip.slots + size_t{slot_of(hash, vip.size)} * vip.slot_bytes;
}

inline uint32_t slot_word(uint32_t slot_bytes, const uint8_t* slot) {
  return slot_bytes == sizeof(uint16_t) ? load<uint16_t>(slot) : load<uint32_t>(slot);
}

// What the VIPs of one prefix do with packets that have no port.
struct AddressEntry {
  bool echo_to_kernel = false;
  bool unserved_to_kernel = false;
  bool fragments_by_flow = false;
  // Where a later fragment goes without a look at its first one, or null.
  const VipEntry* tcp_fragments = nullptr;
  const VipEntry* udp_fragments = nullptr;
};

struct Service {
  const VipEntry* vip = nullptr;          // null: no VIP has this port
  const AddressEntry* address = nullptr;  // null: no VIP has this address
};

class VipTable {
 public:
  explicit VipTable(std::pmr::memory_resource* memory)
      : vips_(memory), addresses_(memory), table4_(memory), table6_(memory) {}

  // entries[i] belongs to records[i]. Call once.
  void build(std::span<const VipRecord> records, std::span<const VipEntry> entries);

  std::span<const VipEntry> vips() const { return vips_; }

  // Key of an exact IPv4 service, from the bytes of a plain packet that hold its destination
  // address, source port and destination port. Never 0.
  static uint64_t key4(uint64_t destination, uint64_t protocol) {
    constexpr uint64_t kSourcePort = 0x0000ffff00000000;
    return (destination & ~kSourcePort) | protocol << 32;
  }
  // Key of an exact IPv6 service beside the address. Never 0.
  static uint64_t key6(uint16_t port_be, uint8_t protocol) {
    return uint64_t{port_be} | uint64_t{protocol} << 16;
  }

  // What places an IPv6 service. Of its own for each of a block of addresses by a range of ports,
  // wherever in the address the block counts: the key is spread before it is added.
  static uint64_t mix6(uint64_t high, uint64_t low, uint64_t key) {
    const uint64_t mixed = high * 0xc2b2ae3d27d4eb4fu ^ (low + key * kFibonacci);
    return mixed ^ mixed >> 32;
  }

  // The VIPs of exactly one IPv4 address and port.
  class Exact4;
  Exact4 exact4() const;
  // The VIP of exactly this address, port and protocol, or null.
  const VipEntry* find6(uint64_t high, uint64_t low, uint64_t key) const {
    const uint32_t index = find6_index(high, low, key);
    return index == kNone ? nullptr : &vips_[index];
  }

  // The whole rule. The address has 4 or 16 bytes.
  Service find(bool ipv6, const uint8_t* address, uint16_t port_be, uint8_t protocol) const;

 private:
  static constexpr uint32_t kNone = 0xffffffff;
  // Stands for the protocol in the keys of AddressEntry.
  static constexpr uint8_t kAddressMark = 0xff;

  struct Bucket4 {
    uint64_t key = 0;  // 0: empty
    uint64_t index = 0;
  };
  struct Bucket6 {
    uint64_t high = 0;
    uint64_t low = 0;
    uint64_t key = 0;  // 0: empty
    uint64_t index = 0;
  };

  // Fibonacci hashing: the upper bits of the product are well mixed.
  static constexpr uint64_t kFibonacci = 0x9e3779b97f4a7c15;
  static size_t bucket4(uint64_t key, uint32_t shift) { return (key * kFibonacci) >> shift; }
  size_t bucket4(uint64_t key) const { return bucket4(key, shift4_); }
  size_t bucket6(uint64_t high, uint64_t low, uint64_t key) const {
    return (mix6(high, low, key) * kFibonacci) >> shift6_;
  }
  uint32_t find4_index(uint64_t key) const;
  uint32_t find6_index(uint64_t high, uint64_t low, uint64_t key) const {
    for (size_t b = bucket6(high, low, key);; b = (b + 1) & (table6_.size() - 1)) {
      const Bucket6& bucket = table6_[b];
      if (bucket.key == key && bucket.high == high && bucket.low == low) {
        return static_cast<uint32_t>(bucket.index);
      }
      if (bucket.key == 0) return kNone;
    }
  }
  uint32_t find_in_prefix(bool ipv6, const uint8_t* address, uint32_t length, uint16_t port_be,
                          uint8_t protocol) const;
  void insert(const VipRecord& record, uint16_t port_be, uint8_t protocol, uint32_t index);
  void add_address(const VipRecord& record, const VipEntry& vip);

  std::pmr::vector<VipEntry> vips_;
  std::pmr::vector<AddressEntry> addresses_;
  std::pmr::vector<Bucket4> table4_;  // open addressing, powers of two, at most half full
  std::pmr::vector<Bucket6> table6_;
  uint32_t shift4_ = 63;
  uint32_t shift6_ = 63;
  // Prefix lengths in use, longest first.
  std::array<uint8_t, 32> lengths4_{};
  std::array<uint8_t, 128> lengths6_{};
  uint32_t length_count4_ = 0;
  uint32_t length_count6_ = 0;
};

// By value, so that a loop keeps it in registers.
class VipTable::Exact4 {
 public:
  // Null where no VIP has this key.
  const VipEntry* find(uint64_t key) const {
    for (size_t b = bucket4(key, shift_);; b = (b + 1) & mask_) {
      if (buckets_[b].key == key) return vips_ + buckets_[b].index;
      if (buckets_[b].key == 0) return nullptr;
    }
  }

 private:
  friend class VipTable;
  explicit Exact4(const VipTable& table)
      : buckets_(table.table4_.data()),
        vips_(table.vips_.data()),
        mask_(table.table4_.size() - 1),
        shift_(table.shift4_) {}

  const Bucket4* buckets_;
  const VipEntry* vips_;
  size_t mask_;
  uint32_t shift_;
};

inline VipTable::Exact4 VipTable::exact4() const {
  return Exact4(*this);
}

}  // namespace maglev
