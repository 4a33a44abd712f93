#include "control/configuration.h"

#include <fmt/format.h>
#include <sys/un.h>

#include <algorithm>
#include <boost/algorithm/string/join.hpp>
#include <charconv>
#include <span>
#include <tuple>
#include <type_traits>

namespace maglev {
namespace {

using boost::algorithm::join;

namespace ip = boost::asio::ip;

constexpr uint32_t kMaxIntervalMs = 3600000;
constexpr uint32_t kMaxInARow = 1000;
constexpr size_t kMaxSocketPath = sizeof(sockaddr_un::sun_path) - 1;

template <typename T>
using Choice = std::pair<std::string_view, T>;
template <typename T>
using Choices = std::span<const Choice<std::type_identity_t<T>>>;

constexpr Choice<BackendState> kStates[] = {{"ready", BackendState::kReady},
                                            {"drain", BackendState::kDrain},
                                            {"maintenance", BackendState::kMaintenance}};
constexpr Choice<VipProtocol> kProtocols[] = {{"tcp", VipProtocol::kTcp},
                                              {"udp", VipProtocol::kUdp}};
constexpr Choice<HashPolicy> kHashes[] = {{"five_tuple", HashPolicy::kFiveTuple},
                                          {"source", HashPolicy::kSource}};
constexpr Choice<Encapsulation> kEncapsulations[] = {{"ipip", Encapsulation::kIpInIp}};
constexpr Choice<HealthType> kHealthTypes[] = {{"tcp", HealthType::kTcp}};
// What fills a pool's table; one so far.
constexpr Choice<PlacementKind> kPlacements[] = {{"maglev", PlacementKind::kMaglev},
                                                 {"ring", PlacementKind::kRing},
                                                 {"rendezvous", PlacementKind::kRendezvous},
                                                 {"bounded", PlacementKind::kBounded}};

template <typename T>
std::string_view text_of(T value, Choices<T> choices) {
  for (const auto& [text, choice] : choices) {
    if (choice == value) return text;
  }
  return "unknown";
}

template <typename T>
T read_choice(const YamlCursor& cursor, Choices<T> choices, T fallback) {
  if (!cursor.exists()) return fallback;
  const std::string text = cursor.text();
  std::vector<std::string> allowed;
  for (const auto& [name, choice] : choices) {
    if (name == text) return choice;
    allowed.emplace_back(name);
  }
  cursor.fail(fmt::format("expected {}, found '{}'", join(allowed, " or "), text));
  return fallback;
}

uint32_t read_number(const YamlCursor& cursor, uint32_t min, uint32_t max, uint32_t fallback) {
  return static_cast<uint32_t>(cursor.integer(min, max, fallback));
}

uint16_t read_port(const YamlCursor& cursor) {
  return static_cast<uint16_t>(cursor.integer(1, 65535, 1));
}

bool is_name(std::string_view text) {
  const auto alphanumeric = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  };
  const auto allowed = [&](char c) {
    return alphanumeric(c) || c == '.' || c == '_' || c == '-' || c == ':';
  };
  return !text.empty() && text.size() <= kMaxNameLength && alphanumeric(text.front()) &&
         std::ranges::all_of(text, allowed);
}

// Names appear in URL paths, metrics and command lines, and must pass all of them unchanged.
std::string read_name(const YamlCursor& owner) {
  const YamlCursor cursor = owner.required("name");
  std::string name = cursor.text();
  if (cursor.exists() && !is_name(name)) {
    cursor.fail(
        fmt::format("expected a name of 1 to {} letters, digits and ._:- that starts with "
                    "a letter or digit, found '{}'",
                    kMaxNameLength, name.substr(0, 2 * kMaxNameLength)));
  }
  return name;
}

ip::address_v4 read_address(const YamlCursor& cursor) {
  if (!cursor.exists()) return {};
  const std::string text = cursor.text();
  boost::system::error_code error;
  const ip::address_v4 address = ip::make_address_v4(text, error);
  if (error) {
    boost::system::error_code not_v6;
    ip::make_address_v6(text, not_v6);
    if (!not_v6) {
      cursor.fail(
          fmt::format("IPv6 is not supported yet: expected an IPv4 address, found '{}'", text));
    } else if (text.find('/') != std::string::npos) {
      cursor.fail(
          fmt::format("prefixes are not supported yet: expected one IPv4 address, found "
                      "'{}'",
                      text));
    } else {
      cursor.fail(fmt::format("expected an IPv4 address such as 198.51.100.10, found '{}'", text));
    }
    return {};
  }
  constexpr uint32_t kFirstUnicast = 1u << 24;      // below: "this network"
  constexpr uint32_t kFirstMulticast = 0xe0000000;  // from here: multicast, reserved, broadcast
  if (address.to_uint() < kFirstUnicast || address.to_uint() >= kFirstMulticast) {
    cursor.fail(fmt::format("expected the address of one host, found '{}'", text));
  }
  return address;
}

HealthSettings read_health(const YamlCursor& cursor) {
  HealthSettings health;
  if (!cursor.exists()) return health;
  cursor.only_keys({"type", "port", "interval_ms", "timeout_ms", "rise", "fall"});
  health.type = read_choice(cursor.required("type"), kHealthTypes, HealthType::kTcp);
  health.port = read_port(cursor.required("port"));
  health.interval_ms =
      read_number(cursor.optional("interval_ms"), 10, kMaxIntervalMs, health.interval_ms);
  health.timeout_ms =
      read_number(cursor.optional("timeout_ms"), 10, kMaxIntervalMs, health.timeout_ms);
  health.rise = read_number(cursor.optional("rise"), 1, kMaxInARow, health.rise);
  health.fall = read_number(cursor.optional("fall"), 1, kMaxInARow, health.fall);
  return health;
}

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
  std::map<std::tuple<ip::address_v4, VipProtocol, uint16_t>, std::string> taken;
  for (const YamlCursor& element : cursor.elements()) {
    const auto [name, vip] = read_vip(element);
    if (!configuration.vips.try_emplace(name, vip).second) {
      element.fail(fmt::format("two VIPs are named '{}'", name));
    }
    const auto [other, is_new] = taken.try_emplace({vip.address, vip.protocol, vip.port}, name);
    if (!is_new && !vip.address.is_unspecified()) {
      element.fail(fmt::format("VIP '{}' has the address, protocol and port of VIP '{}'", name,
                               other->second));
    }
    if (!vip.pool.empty() && !configuration.pools.contains(vip.pool)) {
      element.required("pool").fail(fmt::format("no pool is named '{}'", vip.pool));
    }
  }
}

}  // namespace

std::string_view to_text(Source source) {
  return source == Source::kFile ? "file" : "socket";
}
std::string_view to_text(BackendState state) {
  return text_of(state, kStates);
}
std::string_view to_text(VipProtocol protocol) {
  return text_of(protocol, kProtocols);
}
std::string_view to_text(HashPolicy hash) {
  return text_of(hash, kHashes);
}
std::string_view to_text(Encapsulation encapsulation) {
  return text_of(encapsulation, kEncapsulations);
}

Named<Backend> read_backend(const YamlCursor& cursor) {
  cursor.only_keys({"name", "address", "weight", "state"});
  Backend backend;
  std::string name = read_name(cursor);
  backend.address = read_address(cursor.required("address"));
  backend.weight = read_number(cursor.optional("weight"), 0, kMaxWeight, backend.weight);
  backend.state = read_choice(cursor.optional("state"), kStates, backend.state);
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
    if (!pool.backends.insert(backend).second) {
      element.fail(fmt::format("two backends are named '{}'", backend.first));
    }
  }
  if (const auto fits = check_pool_fits(pool); !fits) cursor.fail(fits.error());
  return {std::move(name), std::move(pool)};
}

Named<Vip> read_vip(const YamlCursor& cursor) {
  cursor.only_keys({"name", "address", "protocol", "port", "pool", "encapsulation", "hash"});
  Vip vip;
  std::string name = read_name(cursor);
  vip.address = read_address(cursor.required("address"));
  vip.protocol = read_choice(cursor.required("protocol"), kProtocols, vip.protocol);
  const YamlCursor port = cursor.required("port");
  if (port.exists() && port.text() != "any") {
    vip.port = static_cast<uint16_t>(port.integer(0, 65535, 0));
  }
  vip.pool = cursor.required("pool").text();
  vip.encapsulation =
      read_choice(cursor.optional("encapsulation"), kEncapsulations, vip.encapsulation);
  vip.hash = read_choice(cursor.optional("hash"), kHashes, vip.hash);
  return {std::move(name), std::move(vip)};
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

std::expected<Configuration, std::vector<std::string>> read_configuration(
    std::string_view text, const std::string& file_name) {
  std::vector<std::string> errors;
  const YamlCursor document = YamlCursor::parse_file(text, file_name, errors);
  document.only_keys({"directory", "state", "hash_seed", "control", "dataplane", "pools", "vips"});
  Configuration configuration;
  const DataplaneSettings dataplane = read_dataplane_settings(document);
  configuration.directory = dataplane.directory;
  configuration.ports = dataplane.ports;
  configuration.state_directory = read_path(document.optional("state"), "/var/lib/maglev");
  configuration.hash_seed = read_hash_seed(document.required("hash_seed"));
  const YamlCursor control = document.optional("control");
  control.only_keys({"socket"});
  const YamlCursor socket = control.optional("socket");
  configuration.socket = read_path(socket, configuration.directory + "/control.sock");
  if (configuration.socket.size() > kMaxSocketPath) {
    socket.fail(fmt::format("the socket's path is longer than the {} bytes that Unix sockets allow",
                            kMaxSocketPath));
  }
  read_pools(document.optional("pools"), configuration);
  read_vips(document.optional("vips"), configuration);
  check_counts(document, configuration);
  if (!errors.empty()) return std::unexpected(std::move(errors));
  return configuration;
}

}  // namespace maglev
