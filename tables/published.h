// The published tree: what the control process hands to the dataplane, as files in one directory.
//
//   root                      the only file that is ever replaced (by rename): generation, VIPs,
//                             and which pools they use
//   pools/<checksum>          one pool: its backends with addresses and next hops, and its table
//   tables/<checksum>         one lookup table: owners by name and the owner of each slot
//   histories/<checksum>      whose flows may still be in a pool's slots beside their owners'
//
// All but the root never change: their name is their checksum. The owners in a table are a pure
// function of the pool's settings and its set of usable backends, so two hosts with the same
// membership hold the same table file. Everything that differs between hosts (addresses of next
// hops, numbering of backends) is in the pool file, and what has passed on this one in the history.
//
// Builders trust their input (control validated it). Checkers trust nothing: a view they return has
// every count, index, enum and name checked, and points into the image, which must outlive it.
// Pure functions, any thread.
#pragma once

#include <cstdint>
#include <expected>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tables/file_format.h"
#include "tables/maglev.h"
#include "tables/quic_cid.h"

namespace maglev {

// --- tables/<checksum> -----------------------------------------------------------------------

// Up to this many owners a slot is 16 bits wide, beyond it 32. All ones means "no owner".
inline constexpr uint32_t kMaxOwners16 = 65534;
inline constexpr uint32_t kMaxBackends = 1u << 20;

// What a dataplane has counters for, in all: control accepts no more, so no root is refused for it.
inline constexpr uint32_t kMaxCountedVips = 16384;
inline constexpr uint32_t kMaxCountedBackends = 131072;

struct TableView {
  Checksum checksum;
  std::vector<std::string_view> owners;  // sorted, distinct
  std::span<const uint32_t> weights;     // one per owner, positive
  // One of the two is used, the other is empty. Each slot is below owners.size(); when there is no
  // owner every slot is all ones.
  std::span<const uint16_t> slots16;
  std::span<const uint32_t> slots32;

  uint32_t size() const {
    return static_cast<uint32_t>(slots16.empty() ? slots32.size() : slots16.size());
  }
  // Index into owners, or kNoOwner.
  uint32_t owner_of(uint32_t slot) const;
};

std::vector<std::byte> build_table_file(const MaglevTable& table);
std::expected<TableView, std::string> check_table_file(std::span<const std::byte> file);

// --- pools/<checksum> ------------------------------------------------------------------------

enum class AddressFamily : uint8_t { kNone = 0, kIpv4 = 4, kIpv6 = 6 };

// IPv4: the first four bytes, the rest zero. Network order.
struct Address {
  std::array<uint8_t, 16> bytes{};
  auto operator<=>(const Address&) const = default;
};

enum BackendFlag : uint8_t {
  // Flows that are remembered may stay with it. Every owner of a slot serves; so does who owns none
  // but is only drained.
  kBackendServes = 1,
  kBackendOnLink = 2,  // next_hop_mac is the backend's own, as layer-2 rewriting needs
  kBackendAllFlags = 3
};

// A backend's place in this array is its index: it stays while the backend lives, whatever else
// comes and goes. A place without a backend has family kNone and is all zeros. What is known of the
// way to it (outer_source with its prefix length, next_hop_mac, port, path_mtu_bytes and
// kBackendOnLink) is zero while it is not resolved.
struct BackendRecord {
  Address address;
  // Source of encapsulating headers; same family as address. Of an address in a prefix that is
  // routed to this host, the bits beyond the prefix are chosen per flow (and are zero here).
  Address outer_source;
  uint8_t next_hop_mac[6];
  AddressFamily family;
  uint8_t incarnation;  // grows with each new backend at this index
  uint16_t port;        // index into the dataplane's ports: the way out
  uint8_t resolved;     // 1 when the way to the backend is known, else 0
  uint8_t name_length;
  uint16_t path_mtu_bytes;  // of the route and what ICMP taught; 0: the port's alone counts
  uint8_t outer_source_prefix_length;  // 32 or 128: the address itself
  uint8_t flags;                       // BackendFlag
};
static_assert(sizeof(BackendRecord) == 48);

struct PoolBackend {
  std::string name;  // empty: no backend at this index
  BackendRecord record{};
  QuicServerId quic_server_id{};
};

struct PoolView {
  Checksum checksum;
  Checksum table;
  std::string_view name;
  std::span<const BackendRecord> backends;
  std::vector<std::string_view> backend_names;  // parallel to backends; empty where none
  std::span<const uint32_t> owner_backends;     // table owner -> index into backends
  // Parallel to backends, or empty where none has one; those of one length are distinct.
  std::span<const QuicServerId> quic_server_ids;
};

// owner_backends[i] is the index in backends of the table's i-th owner.
std::vector<std::byte> build_pool_file(std::string_view pool_name, const Checksum& table,
                                       std::span<const PoolBackend> backends,
                                       std::span<const uint32_t> owner_backends);
std::expected<PoolView, std::string> check_pool_file(std::span<const std::byte> file);

// That the pool's owner list fits the table: same count, and the same names in the same order.
std::expected<void, std::string> check_pool_fits_table(const PoolView& pool,
                                                       const TableView& table);

// --- root ------------------------------------------------------------------------------------

enum class VipProtocol : uint8_t { kTcp = 6, kUdp = 17, kTcpAndUdp = 0xff };
// GRE: RFC 2784. GUE: draft-ietf-intarea-gue-09, with a header of its own (variant 0) or the IP
// packet directly behind UDP (variant 1). Layer 2: the packet keeps its IP destination.
enum class Encapsulation : uint8_t {
  kIpInIp = 1,
  kGre = 2,
  kGueVariant0 = 3,
  kGueVariant1 = 4,
  kLayer2 = 5
};
enum class HashPolicy : uint8_t { kFiveTuple = 1, kSource = 2 };
// kFlow: a fragment follows its datagram's first one, by the ports there; every fragment must reach
// the same host. kAddress: whole packets and fragments alike are hashed by source, destination and
// protocol, ports taken as 0.
enum class FragmentPolicy : uint8_t { kFlow = 1, kAddress = 2 };

// What is remembered of flows: nothing; all; or those in slots that are not settled.
enum class Tracking : uint8_t { kNone = 1, kFull = 2, kChanged = 3 };
inline constexpr uint32_t kMaxFlowIdle_s = 7 * 24 * 3600;

enum VipFlag : uint8_t {
  kVipEchoToKernel = 1,       // echo requests are the kernel's; else they are answered
  kVipUnservedToKernel = 2,   // so are ports that no VIP serves; else they are dropped
  kVipFragmentTooBig = 4,     // what is too big is cut though it says "don't fragment"
  kVipOuterChecksumZero = 8,  // GUE over IPv6 without UDP checksum (RFC 6935)
  kVipAllFlags = 15
};

inline constexpr uint16_t kAnyPort = 0;
inline constexpr uint16_t kGuePort = 6080;  // IANA

// Of all VIPs with one address and prefix length, kVipEchoToKernel and kVipUnservedToKernel are the
// same; of those that share the protocol too, fragment_policy, and where it is kAddress also pool,
// encapsulation, hash_policy, gue_port, tracking and idle times: a later fragment has no port to
// tell them apart.
struct VipRecord {
  Address address;  // bits beyond the prefix are zero
  AddressFamily family;
  uint8_t prefix_length;  // 32 or 128: one address
  VipProtocol protocol;
  Encapsulation encapsulation;
  HashPolicy hash_policy;
  FragmentPolicy fragment_policy;
  uint8_t flags;  // VipFlag
  uint8_t name_length;
  uint16_t port;      // host order; kAnyPort: every port that no other VIP of this prefix names
  uint16_t gue_port;  // host order, UDP destination port; 0 unless the encapsulation is GUE
  uint32_t pool;      // index into the root's pools
  // A flow that has sent nothing for so long is forgotten; of TCP after a FIN or RST
  // tcp_closing_idle_s. 1 to kMaxFlowIdle_s, 0 where nothing is tracked.
  uint32_t tcp_idle_s;
  uint32_t tcp_closing_idle_s;
  uint32_t udp_idle_s;
  Tracking tracking;
  QuicCidFormat quic;  // UDP only, and not where fragments go by address
};
static_assert(sizeof(VipRecord) == 48);

struct PoolReference {
  Checksum pool;
  Checksum history;  // all zeros: every slot is settled
  auto operator<=>(const PoolReference&) const = default;
};

struct RootVip {
  std::string name;
  VipRecord record{};
};

struct RootView {
  Checksum checksum;
  uint64_t generation;                   // at least 1
  uint64_t hash_seed;                    // secret: never logged, never shown
  std::span<const PoolReference> pools;  // distinct by pool
  std::span<const VipRecord> vips;       // distinct by name and by (prefix, protocol, port)
  std::vector<std::string_view> vip_names;
};

std::vector<std::byte> build_root_file(uint64_t generation, uint64_t hash_seed,
                                       std::span<const PoolReference> pools,
                                       std::span<const RootVip> vips);
std::expected<RootView, std::string> check_root_file(std::span<const std::byte> file);

// --- places ----------------------------------------------------------------------------------

// Where the files lie below the directory that both daemons share.
inline constexpr std::string_view kRootFileName = "root";
inline constexpr std::string_view kTableDirectory = "tables";
inline constexpr std::string_view kPoolDirectory = "pools";
inline constexpr std::string_view kHistoryDirectory = "histories";
inline constexpr std::string_view kReportFileName = "report";
// Each daemon holds an exclusive open-file-description lock (fcntl F_OFD_SETLK) on the whole of its
// lock file while it lives: the kernel releases it whatever the cause of death.
inline constexpr std::string_view kControlLockFileName = "control.lock";
inline constexpr std::string_view kDataplaneLockFileName = "dataplane.lock";

}  // namespace maglev
