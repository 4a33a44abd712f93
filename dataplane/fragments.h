// Fragments of VIPs with `fragments: flow`: later ones follow the ports of the first.
//
// The table remembers the ports of first fragments; a later fragment that comes before its first
// waits in a hold of fixed size. Everything is bounded: kDatagrams remembered (the oldest of a set
// gives way), kHeld waiting, kHold_ns of waiting, kLifetime_ns of memory. All fragments of a
// datagram must come to one table: workers hand them to the one that the datagram's hash names.
//
// Owned and used by one worker. Frames waiting belong to the table until take_released() gives them
// back, each once. Nothing is allocated after construction. Invariant: held() frames wait or are
// released and not yet taken.
//
// Sources: RFC 791 (identification, per source, destination and protocol), RFC 8200 section 4.5
// (per source and destination).
#pragma once

#include <array>
#include <cstdint>
#include <memory_resource>
#include <optional>
#include <vector>

#include "dataplane/packet.h"
#include "dataplane/parse.h"
#include "tables/flow_hash.h"

namespace maglev {

// What all fragments of a datagram have in common. Zero where not used, so that it can be hashed
// and compared as bytes.
struct DatagramKey {
  std::array<uint8_t, 32> addresses{};
  uint32_t id = 0;
  uint32_t protocol = 0;  // of IPv4; IPv6 identifies datagrams by addresses alone
  bool operator==(const DatagramKey&) const = default;

  static DatagramKey of(const uint8_t* ip, const IpHeader& header) {
    DatagramKey key;
    const bool ipv6 = is_ipv6(ip);
    std::memcpy(key.addresses.data(), addresses_of(ip), ipv6 ? 32 : 8);
    key.id = header.fragment_id;
    key.protocol = ipv6 ? 0 : 256u + header.protocol;
    return key;
  }
  uint64_t hash(uint64_t seed) const { return XXH3_64bits_withSeed(this, sizeof *this, seed); }
};
static_assert(sizeof(DatagramKey) == 40);

// What a first fragment tells about the later ones: both ports as they stand in the packet.
struct TransportKey {
  uint32_t ports = 0;
  uint8_t protocol = 0;
};

// A frame that waits. `buffer` is the owner's handle for it.
struct HeldFrame {
  void* buffer = nullptr;
  uint8_t* frame = nullptr;
  uint32_t length = 0;
  Verdict verdict = Verdict::kForwarded;  // once released: go on with it, or what became of it
};

class FragmentTable {
 public:
  static constexpr uint32_t kWays = 4;
  static constexpr uint32_t kDatagrams = 4096;
  static constexpr uint32_t kHeld = 256;
  static constexpr uint64_t kHold_ns = 1'000'000'000;
  static constexpr uint64_t kLifetime_ns = 5'000'000'000;

  explicit FragmentTable(std::pmr::memory_resource* memory)
      : datagrams_(kDatagrams, memory), held_(kHeld, memory) {
    for (uint16_t i = 0; i < kHeld; ++i) release_place(i);
  }

  // A first fragment has come. Those that wait for it are released.
  void learn(const DatagramKey& key, uint64_t hash, TransportKey transport, uint64_t now_ns) {
    Datagram& datagram = find_or_replace(key, hash, now_ns);
    datagram.since_ns = now_ns;
    datagram.transport = transport;
    datagram.known = true;
    release(datagram, Verdict::kForwarded);
  }

  // What the first fragment of a datagram told, if it has come.
  std::optional<TransportKey> find_transport(const DatagramKey& key, uint64_t hash,
                                             uint64_t now_ns) {
    const Datagram* datagram = find(key, hash, now_ns);
    if (datagram == nullptr || !datagram->known) return std::nullopt;
    return datagram->transport;
  }

  // Keeps a later fragment until its first comes. False, and nothing kept, when there is no room.
  bool hold(const DatagramKey& key, uint64_t hash, const HeldFrame& frame, uint64_t now_ns) {
    if (free_count_ == 0) return false;
    Datagram& datagram = find_or_replace(key, hash, now_ns);
    if (datagram.first_held == kNone) datagram.since_ns = now_ns;
    const uint16_t place = free_[--free_count_];
    held_[place] = {frame, datagram.first_held};
    datagram.first_held = place;
    return true;
  }

  // Releases what has waited too long. Looks at the whole table, so call it every tenth of a second
  // or so, and only while something is held.
  void expire(uint64_t now_ns) {
    for (Datagram& datagram : datagrams_) {
      if (datagram.first_held != kNone && now_ns - datagram.since_ns > kHold_ns) {
        release(datagram, Verdict::kFragmentExpired);
      }
    }
  }

  uint32_t held() const { return kHeld - free_count_; }
  bool has_released() const { return released_count_ > 0; }

  // The frame released first.
  HeldFrame take_released() {
    const uint16_t place = released_[first_released_];
    first_released_ = (first_released_ + 1) % kHeld;
    --released_count_;
    const HeldFrame frame = held_[place].frame;
    release_place(place);
    return frame;
  }

 private:
  static constexpr uint16_t kNone = 0xffff;

  struct Datagram {
    DatagramKey key;
    uint64_t since_ns = 0;  // the first fragment came last, or the first of those that wait
    TransportKey transport;
    uint16_t first_held = kNone;  // a chain through Place::next
    bool used = false;
    bool known = false;  // the first fragment has come
  };
  static_assert(sizeof(Datagram) == 64);
  struct Place {
    HeldFrame frame;
    uint16_t next = kNone;
  };

  Datagram* set_of(uint64_t hash) { return &datagrams_[hash % (kDatagrams / kWays) * kWays]; }

  Datagram* find(const DatagramKey& key, uint64_t hash, uint64_t now_ns) {
    Datagram* set = set_of(hash);
    for (uint32_t way = 0; way < kWays; ++way) {
      Datagram& d = set[way];
      if (d.used && d.key == key && now_ns - d.since_ns <= kLifetime_ns) return &d;
    }
    return nullptr;
  }

  Datagram& find_or_replace(const DatagramKey& key, uint64_t hash, uint64_t now_ns) {
    if (Datagram* known = find(key, hash, now_ns)) return *known;
    Datagram* set = set_of(hash);
    Datagram* oldest = set;
    for (uint32_t way = 0; way < kWays; ++way) {
      if (!set[way].used) {
        oldest = &set[way];
        break;
      }
      if (set[way].since_ns < oldest->since_ns) oldest = &set[way];
    }
    release(*oldest, Verdict::kFragmentOverflow);
    *oldest = {};
    oldest->key = key;
    oldest->since_ns = now_ns;
    oldest->used = true;
    return *oldest;
  }

  // In the order they came: the chain holds the last one first.
  void release(Datagram& datagram, Verdict verdict) {
    uint32_t count = 0;
    for (uint16_t p = datagram.first_held; p != kNone; p = held_[p].next) ++count;
    released_count_ += count;
    uint32_t end = (first_released_ + released_count_) % kHeld;
    for (uint16_t p = datagram.first_held; p != kNone; p = held_[p].next) {
      end = (end + kHeld - 1) % kHeld;
      held_[p].frame.verdict = verdict;
      released_[end] = p;
    }
    datagram.first_held = kNone;
  }

  void release_place(uint16_t place) { free_[free_count_++] = place; }

  std::pmr::vector<Datagram> datagrams_;
  std::pmr::vector<Place> held_;
  std::array<uint16_t, kHeld> free_{};
  uint32_t free_count_ = 0;
  std::array<uint16_t, kHeld> released_{};  // a ring of places
  uint32_t first_released_ = 0;
  uint32_t released_count_ = 0;
};

}  // namespace maglev
