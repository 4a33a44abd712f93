#include "control/reload_rules.h"

#include <fmt/format.h>

namespace maglev {

std::vector<std::string> find_fixed(const Configuration& now, const Configuration& next) {
  std::vector<std::string> errors;
  const auto must_stay = [&](bool same, std::string_view setting) {
    if (same) return;
    errors.push_back(fmt::format(
        "{} cannot change while maglev-control runs: stop it and start it again", setting));
  };
  must_stay(now.dataplane.directory == next.dataplane.directory, "directory");
  must_stay(now.state_directory == next.state_directory, "state");
  must_stay(now.hash_seed == next.hash_seed, "hash_seed");
  must_stay(now.socket == next.socket, "control.socket");
  must_stay(now.read_only_socket == next.read_only_socket, "control.read_only_socket");
  must_stay(now.read_only_address == next.read_only_address, "control.read_only_address");
  must_stay(now.dataplane.ports == next.dataplane.ports, "dataplane.ports");
  return errors;
}

std::vector<std::string_view> find_waiting(const DataplaneSettings& now,
                                           const DataplaneSettings& next) {
  std::vector<std::string_view> waiting;
  const auto compare = [&](auto DataplaneSettings::*setting, std::string_view name) {
    if (now.*setting != next.*setting) waiting.push_back(name);
  };
  compare(&DataplaneSettings::main_core, "main_core");
  compare(&DataplaneSettings::cores, "cores");
  compare(&DataplaneSettings::memory_mib, "memory_mib");
  compare(&DataplaneSettings::hugepages, "hugepages");
  compare(&DataplaneSettings::packet_buffers, "packet_buffers");
  compare(&DataplaneSettings::packet_buffer_bytes, "packet_buffer_bytes");
  compare(&DataplaneSettings::icmp_answers_per_second, "icmp_answers_per_second");
  compare(&DataplaneSettings::flow_entries, "flow_entries");
  compare(&DataplaneSettings::flow_store, "flow_store");
  compare(&DataplaneSettings::steering_program, "steering_program");
  compare(&DataplaneSettings::eal_options, "eal_options");
  return waiting;
}

std::vector<std::string> find_fixed(const Model& now, const Model& next) {
  std::vector<std::string> errors;
  for (const auto& [name, pool] : next.pools()) {
    const auto before = now.pools().find(name);
    if (before == now.pools().end()) continue;
    const PoolSettings& settings = before->second.settings;
    if (settings.table_size == pool.settings.table_size &&
        settings.placement == pool.settings.placement) {
      continue;
    }
    errors.push_back(fmt::format(
        "pool '{}': table_size {} and placement {} are fixed for the pool's life: make a "
        "pool of another name and point its VIPs there",
        name, settings.table_size, to_text(settings.placement)));
  }
  for (const auto& [name, vip] : next.vips()) {
    const auto before = now.vips().find(name);
    if (before == now.vips().end()) continue;
    const Vip& old = before->second;
    if (old.hash == vip.hash && old.fragments == vip.fragments) continue;
    errors.push_back(
        fmt::format("VIP '{}': hash {} and fragments {} are fixed for the VIP's life: "
                    "remove the VIP and add it again",
                    name, to_text(old.hash), to_text(old.fragments)));
  }
  return errors;
}

}  // namespace maglev
