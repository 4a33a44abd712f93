#include "control/configuration.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/un.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <span>

#include "control/setting_readers.h"

namespace maglev {
namespace {

constexpr uint32_t kMinPathMtuExpiryS = 1;
constexpr uint32_t kMaxPathMtuExpiryS = 86400;
constexpr size_t kMaxSocketPath = sizeof(sockaddr_un::sun_path) - 1;

constexpr Choice<BackendState> kStates[] = {{"ready", BackendState::kReady},
                                            {"drain", BackendState::kDrain},
                                            {"maintenance", BackendState::kMaintenance}};
// What fills a pool's table.
constexpr Choice<PlacementKind> kPlacements[] = {{"maglev", PlacementKind::kMaglev},
                                                 {"ring", PlacementKind::kRing},
                                                 {"rendezvous", PlacementKind::kRendezvous},
                                                 {"bounded", PlacementKind::kBounded}};

uint64_t read_hash_seed(const YamlCursor& cursor) {
  const std::string text = cursor.text();
  uint64_t seed = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, seed, 16);
  if (cursor.exists() && (text.size() != 16 || error != std::errc() || stop != end)) {
    // What was found is not told: it may be the secret with one digit too many.
    cursor.fail("expected 16 hexadecimal digits in quotes");
  }
  return seed;
}

std::string read_path(const YamlCursor& cursor, std::string fallback) {
  std::string path = cursor.text(fallback);
  if (!path.starts_with('/')) {
    cursor.fail(fmt::format("expected an absolute path, found '{}'", path));
  }
  return path;
}

void read_pools(const YamlCursor& cursor, Configuration& configuration) {
  for (const YamlCursor& element : cursor.elements()) {
    Named<Pool> pool = read_pool(element);
    if (!configuration.pools.insert(pool).second) {
      element.fail(fmt::format("two pools are named '{}'", pool.first));
    }
  }
}

void check_counts(const YamlCursor& document, const Configuration& configuration) {
  size_t backends = 0;
  for (const auto& [name, pool] : configuration.pools) backends += pool.backends.size();
  if (backends > kMaxCountedBackends) {
    document.required("pools").fail(fmt::format("{} backends in all pools together: at most {}",
                                                backends, kMaxCountedBackends));
  }
  if (configuration.vips.size() > kMaxCountedVips) {
    document.required("vips").fail(
        fmt::format("{} VIPs: at most {}", configuration.vips.size(), kMaxCountedVips));
  }
}

void read_vips(const YamlCursor& cursor, Configuration& configuration) {
  VipSet vips;
  for (const YamlCursor& element : cursor.elements()) {
    const auto [name, vip] = read_vip(element);
    if (!configuration.vips.try_emplace(name, vip).second) {
      element.fail(fmt::format("two VIPs are named '{}'", name));
      continue;
    }
    if (!vip.prefix.address.is_unspecified()) {
      if (const auto clash = vips.find_clash(name, vip)) element.fail(clash->message);
      vips.put(name, vip);
    }
    if (vip.pool.empty()) continue;
    const auto pool = configuration.pools.find(vip.pool);
    if (pool == configuration.pools.end()) {
      element.required("pool").fail(fmt::format("no pool is named '{}'", vip.pool));
    } else if (const auto fits = check_families(vip, pool->second); !fits) {
      element.required("pool").fail(fits.error());
    }
  }
}

void read_outer_source_prefixes(const YamlCursor& cursor, Configuration& configuration) {
  std::vector<Prefix>& prefixes = configuration.outer_source_prefixes;
  for (const YamlCursor& element : cursor.elements()) {
    const Prefix prefix = read_prefix(element);
    for (const Prefix& other : prefixes) {
      if (other.address.is_v4() != prefix.address.is_v4()) continue;
      element.fail(fmt::format("expected at most one prefix of a family: {} is given already",
                               to_text(other)));
    }
    prefixes.push_back(prefix);
  }
}

UnixSocket read_socket(const YamlCursor& control, const std::string& name,
                       const std::string& fallback) {
  UnixSocket socket;
  const YamlCursor path = control.optional(name);
  socket.path = read_path(path, fallback);
  if (socket.path.size() > kMaxSocketPath) {
    path.fail(fmt::format("the socket's path is longer than the {} bytes that Unix sockets allow",
                          kMaxSocketPath));
  }
  const YamlCursor mode = control.optional(name + "_mode");
  if (mode.exists()) {
    const std::string text = mode.text();
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, socket.mode, 8);
    if (error != std::errc() || stop != end || socket.mode > 0777) {
      mode.fail(
          fmt::format("expected the rights of a file as octal digits, as in \"0660\", found "
                      "'{}'",
                      text));
    }
  }
  const YamlCursor group = control.optional(name + "_group");
  if (group.exists()) socket.group = group.text();
  return socket;
}

}  // namespace

std::string_view to_text(Source source) {
  return source == Source::kFile ? "file" : "socket";
}
std::string_view to_text(BackendState state) {
  return text_of(state, kStates);
}
std::string to_text(const QuicServerId& id) {
  return fmt::format("{:02x}", fmt::join(std::span(id.octets).first(id.length), ""));
}

// As the servers have it in their configuration.
QuicServerId read_server_id(const YamlCursor& cursor) {
  QuicServerId id;
  if (!cursor.exists()) return id;
  const std::string digits = cursor.text();
  const auto is_digit = [](char c) { return std::isxdigit(static_cast<unsigned char>(c)) != 0; };
  if (digits.empty() || digits.size() % 2 != 0 || digits.size() > 2 * kQuicMaxServerIdLength ||
      !std::ranges::all_of(digits, is_digit)) {
    cursor.fail(
        fmt::format("expected the 1 to {} octets of a QUIC server ID in hexadecimal digits, "
                    "in quotes where they are all decimal: \"350d28\"",
                    kQuicMaxServerIdLength));
    return id;
  }
  for (size_t i = 0; i < digits.size(); i += 2) {
    std::from_chars(digits.data() + i, digits.data() + i + 2, id.octets[id.length++], 16);
  }
  return id;
}

Named<Backend> read_backend(const YamlCursor& cursor) {
  cursor.only_keys({"name", "address", "weight", "state", "quic_server_id"});
  Backend backend;
  std::string name = read_name(cursor);
  backend.address = read_host(cursor.required("address"));
  backend.weight = read_number(cursor.optional("weight"), 0, kMaxWeight, backend.weight);
  backend.state = read_choice(cursor.optional("state"), kStates, backend.state);
  backend.quic_server_id = read_server_id(cursor.optional("quic_server_id"));
  return {std::move(name), backend};
}

BackendPatch read_backend_patch(const YamlCursor& cursor) {
  cursor.only_keys({"weight", "state"});
  BackendPatch patch;
  if (const YamlCursor weight = cursor.optional("weight"); weight.exists()) {
    patch.weight = read_number(weight, 0, kMaxWeight, 1);
  }
  if (const YamlCursor state = cursor.optional("state"); state.exists()) {
    patch.state = read_choice(state, kStates, BackendState::kReady);
  }
  if (cursor.exists() && !patch.weight && !patch.state) cursor.fail("expected weight or state");
  return patch;
}

Named<Pool> read_pool(const YamlCursor& cursor) {
  cursor.only_keys({"name", "table_size", "placement", "min_healthy", "health", "backends"});
  Pool pool;
  std::string name = read_name(cursor);
  const YamlCursor size = cursor.optional("table_size");
  const uint64_t wanted_size = size.integer(0, UINT64_MAX, kDefaultTableSize);
  if (const auto table_size = check_table_size(wanted_size)) {
    pool.settings.table_size = *table_size;
  } else {
    size.fail(table_size.error());
  }
  pool.settings.placement =
      read_choice(cursor.optional("placement"), kPlacements, pool.settings.placement);
  pool.settings.min_healthy = read_number(cursor.optional("min_healthy"), 0, kMaxBackends, 1);
  pool.settings.health = read_health(cursor.optional("health"));
  for (const YamlCursor& element : cursor.optional("backends").elements()) {
    Named<Backend> backend = read_backend(element);
    if (const auto ok = check_server_id(pool, backend); !ok) element.fail(ok.error());
    if (!pool.backends.insert(backend).second) {
      element.fail(fmt::format("two backends are named '{}'", backend.first));
    }
  }
  if (const auto fits = check_pool_fits(pool); !fits) cursor.fail(fits.error());
  return {std::move(name), std::move(pool)};
}

// So that a table takes no more than a second or so.
constexpr uint64_t kMaxScores = 100'000'000;

std::expected<void, std::string> check_pool_fits(const Pool& pool, int owners_more) {
  const auto owners = owners_more + std::ranges::count_if(pool.backends, [](const auto& backend) {
                        return backend.second.weight > 0;
                      });
  const uint32_t most = std::min(pool.settings.table_size, kMaxBackends);
  const uint64_t scores = uint64_t{pool.settings.table_size} * static_cast<uint64_t>(owners);
  if (pool.settings.placement == PlacementKind::kRendezvous && scores > kMaxScores) {
    return std::unexpected(
        fmt::format("rendezvous scores each of {} backends for each of {} slots, more than the {} "
                    "scores it may take: choose a smaller table_size or another placement",
                    owners, pool.settings.table_size, kMaxScores));
  }
  if (owners <= most) return {};
  return std::unexpected(
      fmt::format("{} backends of positive weight are more than {}, the most for a table_size of "
                  "{}: choose a larger one",
                  owners, most, pool.settings.table_size));
}

std::expected<void, std::string> check_server_id(const Pool& pool, const Named<Backend>& backend) {
  const QuicServerId& id = backend.second.quic_server_id;
  if (id.length == 0) return {};
  for (const auto& [name, other] : pool.backends) {
    if (name == backend.first || other.quic_server_id != id) continue;
    return std::unexpected(
        fmt::format("backend '{}' has quic_server_id {} already: give '{}' one of its own", name,
                    to_text(id), backend.first));
  }
  return {};
}

std::expected<void, std::string> check_families(const Vip& vip, const Pool& pool) {
  if (vip.encapsulation != Encapsulation::kLayer2) return {};
  const AddressFamily family = family_of(vip.prefix.address);
  for (const auto& [name, backend] : pool.backends) {
    if (family_of(backend.address) == family) continue;
    return std::unexpected(fmt::format(
        "backend '{}' has address {}, but encapsulation l2 keeps the packet's own IP header, so "
        "that VIP and backends must be of one family: choose another encapsulation or pool",
        name, backend.address.to_string()));
  }
  return {};
}

std::expected<Configuration, std::vector<std::string>> read_configuration(
    std::string_view text, const std::string& file_name) {
  std::vector<std::string> errors;
  const YamlCursor document = YamlCursor::parse_file(text, file_name, errors);
  document.only_keys({"directory", "state", "hash_seed", "outer_source_prefixes", "control",
                      "dataplane", "pools", "vips"});
  Configuration configuration;
  configuration.dataplane = read_dataplane_settings(document);
  configuration.state_directory = read_path(document.optional("state"), "/var/lib/maglev");
  configuration.hash_seed = read_hash_seed(document.required("hash_seed"));
  read_outer_source_prefixes(document.optional("outer_source_prefixes"), configuration);
  const YamlCursor control = document.optional("control");
  control.only_keys({"socket", "socket_mode", "socket_group", "read_only_socket",
                     "read_only_socket_mode", "read_only_socket_group", "read_only_address",
                     "path_mtu_expiry_s"});
  configuration.path_mtu_expiry_s =
      read_number(control.optional("path_mtu_expiry_s"), kMinPathMtuExpiryS, kMaxPathMtuExpiryS,
                  configuration.path_mtu_expiry_s);
  configuration.socket =
      read_socket(control, "socket", configuration.dataplane.directory + "/control.sock");
  if (control.optional("read_only_socket").exists()) {
    configuration.read_only_socket = read_socket(control, "read_only_socket", "");
    if (configuration.read_only_socket->path == configuration.socket.path) {
      control.optional("read_only_socket").fail("it has the path of the control socket");
    }
  }
  const YamlCursor address = control.optional("read_only_address");
  if (address.exists()) configuration.read_only_address = read_endpoint(address);
  read_pools(document.optional("pools"), configuration);
  read_vips(document.optional("vips"), configuration);
  check_counts(document, configuration);
  if (!errors.empty()) return std::unexpected(std::move(errors));
  return configuration;
}

}  // namespace maglev
