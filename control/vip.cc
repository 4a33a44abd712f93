#include "control/vip.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "control/setting_readers.h"

namespace maglev {
namespace {

constexpr Choice<VipProtocol> kProtocols[] = {{"tcp", VipProtocol::kTcp},
                                              {"udp", VipProtocol::kUdp},
                                              {"tcp_and_udp", VipProtocol::kTcpAndUdp}};
constexpr Choice<HashPolicy> kHashes[] = {{"five_tuple", HashPolicy::kFiveTuple},
                                          {"source", HashPolicy::kSource}};
constexpr Choice<Encapsulation> kEncapsulations[] = {{"ipip", Encapsulation::kIpInIp},
                                                     {"gre", Encapsulation::kGre},
                                                     {"gue", Encapsulation::kGueVariant0},
                                                     {"gue1", Encapsulation::kGueVariant1},
                                                     {"l2", Encapsulation::kLayer2}};
constexpr Choice<FragmentPolicy> kFragmentPolicies[] = {{"flow", FragmentPolicy::kFlow},
                                                        {"address", FragmentPolicy::kAddress}};
constexpr Choice<Tracking> kTrackings[] = {
    {"none", Tracking::kNone}, {"full", Tracking::kFull}, {"changed", Tracking::kChanged}};
constexpr Choice<uint8_t> kEchoes[] = {{"answer", 0}, {"kernel", kVipEchoToKernel}};
constexpr Choice<uint8_t> kUnservedPorts[] = {{"drop", 0}, {"kernel", kVipUnservedToKernel}};
constexpr Choice<uint8_t> kTooBig[] = {{"report", 0}, {"fragment", kVipFragmentTooBig}};

// The words without a flag and with it.
std::string_view flag_text(uint8_t flags, Choices<uint8_t> choices) {
  return choices[(flags & choices[1].second) != 0 ? 1 : 0].first;
}

uint8_t read_flag(const YamlCursor& cursor, Choices<uint8_t> choices) {
  return read_choice(cursor, choices, uint8_t{0});
}

// What only GUE has.
void read_gue(const YamlCursor& cursor, Vip& vip) {
  const YamlCursor port = cursor.optional("gue_port");
  const YamlCursor checksum = cursor.optional("outer_checksum");
  if (is_gue(vip.encapsulation)) {
    vip.gue_port = port.exists() ? read_port(port) : kGuePort;
    if (!checksum.boolean(true)) vip.flags |= kVipOuterChecksumZero;
    return;
  }
  for (const YamlCursor* setting : {&port, &checksum}) {
    if (setting->exists()) setting->fail("is a setting of encapsulation gue and gue1 alone");
  }
}

// What is not told follows what is, so that a short time for the one protocol that a VIP has is not
// outlasted by a default of the other.
void read_idle(const YamlCursor& cursor, Vip& vip) {
  if (vip.tracking == Tracking::kNone) {
    if (cursor.exists()) cursor.fail("is a setting of tracking full and changed alone");
    return;
  }
  cursor.only_keys({"tcp_s", "tcp_closing_s", "udp_s"});
  IdleTimes& idle = vip.idle;
  const auto read = [&](std::string_view name, uint32_t fallback_s) {
    return read_number(cursor.optional(name), 1, kMaxFlowIdle_s, fallback_s);
  };
  if (vip.protocol == VipProtocol::kUdp) {
    idle.udp_s = read("udp_s", idle.udp_s);
    idle.tcp_s = read("tcp_s", idle.udp_s);
  } else {
    const bool only_tcp = vip.protocol == VipProtocol::kTcp;
    idle.tcp_s = read("tcp_s", idle.tcp_s);
    idle.udp_s = read("udp_s", only_tcp ? std::min(idle.udp_s, idle.tcp_s) : idle.udp_s);
  }
  idle.tcp_closing_s = read("tcp_closing_s", std::min(idle.tcp_closing_s, idle.tcp_s));
}

void read_quic(const YamlCursor& cursor, Vip& vip) {
  if (!cursor.exists()) return;
  cursor.only_keys({"config_rotation", "server_id_octets", "nonce_octets", "length_encoded"});
  if (vip.protocol != VipProtocol::kUdp || vip.fragments != FragmentPolicy::kFlow) {
    cursor.fail("is a setting of protocol udp with fragments flow alone");
  }
  const auto read = [&](std::string_view name, uint32_t least, uint32_t most) {
    return static_cast<uint8_t>(read_number(cursor.required(name), least, most, least));
  };
  vip.quic.server_id_length = read("server_id_octets", 1, kQuicMaxServerIdLength);
  vip.quic.nonce_length = read("nonce_octets", kQuicMinNonceLength, kQuicMaxCidLength - 2);
  vip.quic.rotation_and_encoding = static_cast<uint8_t>(
      read_number(cursor.optional("config_rotation"), 0, kQuicConfigRotations - 1, 0));
  if (cursor.optional("length_encoded").boolean(false)) {
    vip.quic.rotation_and_encoding |= QuicCidFormat::kLengthEncoded;
  }
  if (vip.quic.cid_length() > kQuicMaxCidLength) {
    cursor.fail(fmt::format("server_id_octets and nonce_octets are more than {} together",
                            kQuicMaxCidLength - 1));
  }
}

// The protocols of which there is a VIP for each.
std::vector<VipProtocol> protocols_of(const Vip& vip) {
  if (vip.protocol != VipProtocol::kTcpAndUdp) return {vip.protocol};
  return {VipProtocol::kTcp, VipProtocol::kUdp};
}

}  // namespace

bool is_gue(Encapsulation encapsulation) {
  return encapsulation == Encapsulation::kGueVariant0 ||
         encapsulation == Encapsulation::kGueVariant1;
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
std::string_view to_text(FragmentPolicy fragments) {
  return text_of(fragments, kFragmentPolicies);
}
std::string_view to_text(Tracking tracking) {
  return text_of(tracking, kTrackings);
}
std::string_view echo_text(uint8_t flags) {
  return flag_text(flags, kEchoes);
}
std::string_view unserved_ports_text(uint8_t flags) {
  return flag_text(flags, kUnservedPorts);
}
std::string_view too_big_text(uint8_t flags) {
  return flag_text(flags, kTooBig);
}

Named<Vip> read_vip(const YamlCursor& cursor) {
  cursor.only_keys({"name", "address", "protocol", "port", "pool", "encapsulation", "gue_port",
                    "outer_checksum", "hash", "fragments", "tracking", "idle", "quic", "echo",
                    "unserved_ports", "too_big"});
  Vip vip;
  std::string name = read_name(cursor);
  vip.prefix = read_prefix(cursor.required("address"));
  vip.protocol = read_choice(cursor.required("protocol"), kProtocols, vip.protocol);
  const YamlCursor port = cursor.required("port");
  if (port.exists() && port.text() != "any") {
    vip.port = static_cast<uint16_t>(port.integer(0, 65535, 0));
  }
  vip.pool = cursor.required("pool").text();
  vip.encapsulation =
      read_choice(cursor.optional("encapsulation"), kEncapsulations, vip.encapsulation);
  vip.hash = read_choice(cursor.optional("hash"), kHashes, vip.hash);
  vip.fragments = read_choice(cursor.optional("fragments"), kFragmentPolicies, vip.fragments);
  vip.tracking = read_choice(cursor.optional("tracking"), kTrackings, vip.tracking);
  read_idle(cursor.optional("idle"), vip);
  read_quic(cursor.optional("quic"), vip);
  vip.flags |= read_flag(cursor.optional("echo"), kEchoes);
  vip.flags |= read_flag(cursor.optional("unserved_ports"), kUnservedPorts);
  vip.flags |= read_flag(cursor.optional("too_big"), kTooBig);
  read_gue(cursor, vip);
  return {std::move(name), std::move(vip)};
}

VipSet::VipSet(const ByName<Vip>& vips) {
  for (const auto& [name, vip] : vips) put(name, vip);
}

void VipSet::put(const std::string& name, const Vip& vip) {
  erase(name);
  all_.emplace(name, vip);
  for (const VipProtocol protocol : protocols_of(vip)) {
    services_.try_emplace({vip.prefix, protocol, vip.port}, name);
    of_prefix_[{vip.prefix, protocol}].insert(name);
  }
  if (vip.encapsulation == Encapsulation::kLayer2) {
    layer2_[{vip.pool, family_of(vip.prefix.address)}].insert(name);
  }
  if (vip.gue_port != 0) ++gue_ports_[vip.gue_port];
}

void VipSet::erase(std::string_view name) {
  const auto known = all_.find(name);
  if (known == all_.end()) return;
  const Vip& vip = known->second;
  const auto leave = [&](auto& map, const auto& key) {
    const auto sharers = map.find(key);
    if (sharers == map.end()) return;
    sharers->second.erase(known->first);
    if (sharers->second.empty()) map.erase(sharers);
  };
  for (const VipProtocol protocol : protocols_of(vip)) {
    const auto service = services_.find({vip.prefix, protocol, vip.port});
    if (service != services_.end() && service->second == name) services_.erase(service);
    leave(of_prefix_, std::pair(vip.prefix, protocol));
  }
  leave(layer2_, std::pair(vip.pool, family_of(vip.prefix.address)));
  const auto gue_port = gue_ports_.find(vip.gue_port);
  if (gue_port != gue_ports_.end() && --gue_port->second == 0) gue_ports_.erase(gue_port);
  all_.erase(known);
}

std::optional<VipSet::Clash> VipSet::find_clash(std::string_view name, const Vip& vip) const {
  for (const VipProtocol protocol : protocols_of(vip)) {
    const auto service = services_.find({vip.prefix, protocol, vip.port});
    if (service == services_.end() || service->second == name) continue;
    return Clash{true, fmt::format("VIP '{}' has this address, protocol and port already: "
                                   "choose another port or remove that VIP",
                                   service->second)};
  }
  // Those in here agree with each other, so that any one speaks for all.
  for (const VipProtocol protocol : {VipProtocol::kTcp, VipProtocol::kUdp}) {
    const auto sharers = of_prefix_.find({vip.prefix, protocol});
    if (sharers == of_prefix_.end()) continue;
    const bool same_protocol = vip.protocol == protocol || vip.protocol == VipProtocol::kTcpAndUdp;
    for (const std::string& other : sharers->second) {
      if (other == name) continue;
      if (auto clash = find_disagreement(vip, other, same_protocol)) return clash;
      break;
    }
  }
  return std::nullopt;
}

std::optional<VipSet::Clash> VipSet::find_disagreement(const Vip& vip,
                                                       const std::string& other_name,
                                                       bool same_protocol) const {
  const Vip& other = all_.find(other_name)->second;
  const auto differ = [&](std::string_view setting, std::string_view who) {
    return Clash{false, fmt::format("{} is not as in VIP '{}', but {} have it alike: set the same "
                                    "in all of them",
                                    setting, other_name, who)};
  };
  constexpr std::string_view kOfAddress = "all VIPs of one address";
  constexpr std::string_view kOfProtocol = "all VIPs of one address and protocol";
  constexpr std::string_view kByAddress =
      "all VIPs of one address and protocol whose fragments go by address";
  if (echo_text(vip.flags) != echo_text(other.flags)) return differ("echo", kOfAddress);
  if (unserved_ports_text(vip.flags) != unserved_ports_text(other.flags)) {
    return differ("unserved_ports", kOfAddress);
  }
  if (!same_protocol) return std::nullopt;
  if (vip.fragments != other.fragments) return differ("fragments", kOfProtocol);
  if (vip.fragments != FragmentPolicy::kAddress) return std::nullopt;
  const std::array<std::pair<std::string_view, bool>, 8> settings = {{
      {"pool", vip.pool == other.pool},
      {"encapsulation", vip.encapsulation == other.encapsulation},
      {"hash", vip.hash == other.hash},
      {"gue_port", vip.gue_port == other.gue_port},
      {"tracking", vip.tracking == other.tracking},
      {"idle", vip.tracking == Tracking::kNone || vip.idle == other.idle},
      {"too_big", too_big_text(vip.flags) == too_big_text(other.flags)},
      {"outer_checksum", vip.flags == other.flags},  // the flag left over
  }};
  for (const auto& [setting, is_alike] : settings) {
    if (!is_alike) return differ(setting, kByAddress);
  }
  return std::nullopt;
}

const std::string* VipSet::find_layer2(std::string_view pool, AddressFamily family) const {
  const auto sharers = layer2_.find({std::string(pool), family});
  return sharers == layer2_.end() ? nullptr : &*sharers->second.begin();
}

}  // namespace maglev
