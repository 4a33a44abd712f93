#include "control/explain.h"

#include <fmt/format.h>

#include <cstring>

#include "control/setting_readers.h"
#include "tables/flow_hash.h"

namespace maglev {
namespace {

constexpr uint8_t kTcp = 6;
constexpr uint8_t kUdp = 17;

bool serves(const Vip& vip, uint8_t protocol) {
  return vip.protocol == VipProtocol::kTcpAndUdp ||
         vip.protocol == (protocol == kTcp ? VipProtocol::kTcp : VipProtocol::kUdp);
}

template <typename Key>
uint64_t hash_key(const Key& key, const Vip& vip, uint64_t seed) {
  return vip.hash == HashPolicy::kSource ? hash_source(key, seed) : hash_flow(key, seed);
}

}  // namespace

std::expected<Flow, std::string> parse_flow(std::string_view protocol, std::string_view source,
                                            std::string_view destination) {
  if (protocol != "tcp" && protocol != "udp") {
    return std::unexpected(fmt::format("expected tcp or udp, found '{}'", protocol));
  }
  const auto from = parse_endpoint(source);
  if (!from) return std::unexpected(from.error());
  const auto to = parse_endpoint(destination);
  if (!to) return std::unexpected(to.error());
  if (from->address().is_v4() != to->address().is_v4()) {
    return std::unexpected("source and destination are of different families");
  }
  return Flow{protocol == "tcp" ? kTcp : kUdp, from->address(), from->port(), to->address(),
              to->port()};
}

Served find_vip(const ByName<Vip>& vips, const Flow& flow) {
  Served found;
  for (const auto& entry : vips) {
    const Vip& vip = entry.second;
    if (!contains(vip.prefix, flow.destination)) continue;
    if (found.address != nullptr && vip.prefix.length < found.address->second.prefix.length) {
      continue;
    }
    if (found.address == nullptr || vip.prefix.length > found.address->second.prefix.length) {
      found = {nullptr, &entry};
    }
    if (!serves(vip, flow.protocol)) continue;
    if (vip.port == flow.destination_port) found.vip = &entry;
    if (vip.port == kAnyPort && found.vip == nullptr) found.vip = &entry;
  }
  return found;
}

uint64_t hash_of(const Flow& flow, const Vip& vip, uint64_t seed) {
  const bool with_ports = vip.fragments == FragmentPolicy::kFlow;
  const uint16_t source_port_be = with_ports ? __builtin_bswap16(flow.source_port) : uint16_t{0};
  const uint16_t destination_port_be =
      with_ports ? __builtin_bswap16(flow.destination_port) : uint16_t{0};
  if (flow.source.is_v4()) {
    FlowKey4 key{0, 0, source_port_be, destination_port_be, flow.protocol};
    std::memcpy(&key.source_be, flow.source.to_v4().to_bytes().data(), 4);
    std::memcpy(&key.destination_be, flow.destination.to_v4().to_bytes().data(), 4);
    return hash_key(key, vip, seed);
  }
  FlowKey6 key{{}, {}, source_port_be, destination_port_be, flow.protocol};
  std::memcpy(key.source, flow.source.to_v6().to_bytes().data(), 16);
  std::memcpy(key.destination, flow.destination.to_v6().to_bytes().data(), 16);
  return hash_key(key, vip, seed);
}

}  // namespace maglev
