// The configuration file: what the operator wants, read whole and checked whole.
//
// The same rules serve the bodies of the control socket: JSON is a subset of YAML, so a body goes
// through the same readers. Readers note mistakes at the cursor, with their place; what they return
// is good only when no mistake was noted. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <expected>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "control/health_settings.h"
#include "control/listen_on.h"
#include "control/prefix.h"
#include "control/vip.h"
#include "tables/placement.h"
#include "tables/prime.h"
#include "tables/published.h"
#include "tables/settings.h"
#include "tables/yaml_cursor.h"

namespace maglev {

// What the operator wants of a backend; what checks find is kept apart from it.
enum class BackendState : uint8_t {
  kReady,
  kDrain,        // no slots; meant to come back or to be removed
  kMaintenance,  // no slots; meant to come back
};

inline constexpr uint32_t kMaxWeight = 1000000;

struct Backend {
  boost::asio::ip::address address;
  uint32_t weight = 1;  // 0: owns no slot
  BackendState state = BackendState::kReady;
  Source source = Source::kFile;
  QuicServerId quic_server_id{};
  bool operator==(const Backend&) const = default;
};

struct BackendPatch {
  std::optional<uint32_t> weight;
  std::optional<BackendState> state;
  bool operator==(const BackendPatch&) const = default;
};

struct PoolSettings {
  uint32_t table_size = kDefaultTableSize;
  PlacementKind placement = PlacementKind::kMaglev;  // one that fills a table
  uint32_t min_healthy = 1;
  HealthSettings health;
  Source source = Source::kFile;
  bool operator==(const PoolSettings&) const = default;
};

struct Pool {
  PoolSettings settings;
  ByName<Backend> backends;
  bool operator==(const Pool&) const = default;
};

template <typename T>
T by_socket(T value) {
  value.source = Source::kSocket;
  return value;
}

struct Configuration {
  std::string state_directory;  // control's own
  UnixSocket socket;
  std::optional<UnixSocket> read_only_socket;
  std::optional<boost::asio::ip::tcp::endpoint> read_only_address;
  uint32_t path_mtu_expiry_s = 600;           // of what routers tell
  uint64_t hash_seed = 0;                     // secret: never logged, never shown
  std::vector<Prefix> outer_source_prefixes;  // at most one of a family
  DataplaneSettings dataplane;                // with the directory shared with it
  ByName<Pool> pools;
  ByName<Vip> vips;
};

// All mistakes, each "FILE:LINE:COLUMN: what is wrong", or the configuration.
std::expected<Configuration, std::vector<std::string>> read_configuration(
    std::string_view text, const std::string& file_name);

Named<Pool> read_pool(const YamlCursor& cursor);
Named<Backend> read_backend(const YamlCursor& cursor);
BackendPatch read_backend_patch(const YamlCursor& cursor);

// That a pool's table has a slot for each backend that could own one; else a sentence. For a change
// still to come, owners_more tells by how much it alters the number of such backends.
std::expected<void, std::string> check_pool_fits(const Pool& pool, int owners_more = 0);

// That no other backend of the pool has this one's QUIC server ID; else a sentence.
std::expected<void, std::string> check_server_id(const Pool& pool, const Named<Backend>& backend);

// That the backends' families are those that a VIP of encapsulation l2 can serve; else a sentence.
std::expected<void, std::string> check_families(const Vip& vip, const Pool& pool);

std::string_view to_text(Source source);
std::string_view to_text(BackendState state);
std::string to_text(const QuicServerId& id);  // hexadecimal digits

}  // namespace maglev
