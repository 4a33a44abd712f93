#include "control/json_form.h"

namespace maglev {

using nlohmann::ordered_json;

namespace {

ordered_json http_json(const HttpExchange& http) {
  ordered_json statuses = ordered_json::array();
  for (const StatusRange& range : http.statuses) statuses.push_back(to_text(range));
  return {{"method", http.method},
          {"path", http.path},
          {"host", http.host},
          {"status", std::move(statuses)},
          {"body", http.body}};
}

ordered_json tls_json(const TlsExpectation& tls) {
  return {{"server_name", tls.server_name}, {"ca_file", tls.ca_file}, {"verify", tls.verify}};
}

ordered_json udp_json(const UdpExchange& udp) {
  return {{"encoding", udp.is_hex ? "hex" : "text"},
          {"send", udp.is_hex ? to_hex(udp.send) : udp.send},
          {"expect", udp.is_hex ? to_hex(udp.expect) : udp.expect}};
}

}  // namespace

ordered_json to_json(const HealthSettings& health) {
  const HealthType type = health.type;
  if (type == HealthType::kNone) return nullptr;
  ordered_json form = {{"type", to_text(type)}};
  if (health.port != 0) form["port"] = health.port;
  form["interval_ms"] = health.interval_ms;
  form["timeout_ms"] = health.timeout_ms;
  form["rise"] = health.rise;
  form["fall"] = health.fall;
  if (type == HealthType::kHttp || type == HealthType::kHttps) form.update(http_json(health.http));
  if (type == HealthType::kHttps) form.update(tls_json(health.tls));
  if (type == HealthType::kUdp) form.update(udp_json(health.udp));
  if (type == HealthType::kCommand) form["argv"] = health.argv;
  if (const DampingSettings& damping = health.damping; damping.half_life_s > 0) {
    form["damping"] = {{"half_life_s", damping.half_life_s},
                       {"hold_at", damping.hold_at},
                       {"release_at", damping.release_at}};
  }
  return form;
}

ordered_json to_json(const std::string& name, const PoolSettings& settings) {
  return {{"name", name},
          {"table_size", settings.table_size},
          {"placement", to_text(settings.placement)},
          {"min_healthy", settings.min_healthy},
          {"health", to_json(settings.health)}};
}

ordered_json to_json(const std::string& name, const Backend& backend) {
  ordered_json form = {{"name", name},
                       {"address", backend.address.to_string()},
                       {"weight", backend.weight},
                       {"state", to_text(backend.state)}};
  if (backend.quic_server_id.length != 0) {
    form["quic_server_id"] = to_text(backend.quic_server_id);
  }
  return form;
}

ordered_json to_json(const std::string& name, const Vip& vip) {
  ordered_json form = {{"name", name},
                       {"address", to_text(vip.prefix)},
                       {"protocol", to_text(vip.protocol)},
                       {"port", vip.port},
                       {"pool", vip.pool},
                       {"encapsulation", to_text(vip.encapsulation)},
                       {"hash", to_text(vip.hash)},
                       {"fragments", to_text(vip.fragments)},
                       {"tracking", to_text(vip.tracking)},
                       {"echo", echo_text(vip.flags)},
                       {"unserved_ports", unserved_ports_text(vip.flags)},
                       {"too_big", too_big_text(vip.flags)}};
  if (vip.tracking != Tracking::kNone) {
    form["idle"] = {{"tcp_s", vip.idle.tcp_s},
                    {"tcp_closing_s", vip.idle.tcp_closing_s},
                    {"udp_s", vip.idle.udp_s}};
  }
  if (vip.quic.exists()) {
    form["quic"] = {{"config_rotation", vip.quic.config_rotation()},
                    {"server_id_octets", vip.quic.server_id_length},
                    {"nonce_octets", vip.quic.nonce_length},
                    {"length_encoded", vip.quic.length_encoded()}};
  }
  if (is_gue(vip.encapsulation)) {
    form["gue_port"] = vip.gue_port;
    form["outer_checksum"] = (vip.flags & kVipOuterChecksumZero) == 0;
  }
  return form;
}

ordered_json to_json(const BackendPatch& patch) {
  ordered_json form = ordered_json::object();
  if (patch.weight) form["weight"] = *patch.weight;
  if (patch.state) form["state"] = to_text(*patch.state);
  return form;
}

}  // namespace maglev
