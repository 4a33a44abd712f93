#include "tables/settings.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "tables/counted.h"
#include "tables/file_format.h"

namespace maglev {
namespace {

constexpr uint32_t kMaxLcore = 127;  // RTE_MAX_LCORE of Debian's DPDK is 128
constexpr uint32_t kMaxProcessor = 4095;
constexpr uint32_t kMaxQueues = 64;

std::optional<uint32_t> whole_number(std::string_view text, uint32_t max) {
  uint32_t value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || stop != text.data() + text.size() || value > max) {
    return std::nullopt;
  }
  return value;
}

CoreSettings read_core(const YamlCursor& cursor) {
  const std::string text = cursor.text("0");
  const size_t at = text.find('@');
  const auto lcore = whole_number(std::string_view(text).substr(0, at), kMaxLcore);
  const auto processor = at == std::string::npos
                             ? lcore
                             : whole_number(std::string_view(text).substr(at + 1), kMaxProcessor);
  if (!lcore || !processor) {
    cursor.fail(fmt::format("expected a core id from 0 to {}, alone or as ID@PROCESSOR, found '{}'",
                            kMaxLcore, text));
    return {};
  }
  return {*lcore, *processor};
}

PortSettings read_port(const YamlCursor& cursor) {
  cursor.only_keys({"name", "device", "interface", "queues", "rx_descriptors", "tx_descriptors"});
  PortSettings port;
  port.name = cursor.required("name").text();
  port.device = cursor.required("device").text();
  port.interface = cursor.optional("interface").text();
  port.queues = static_cast<uint32_t>(cursor.optional("queues").integer(0, kMaxQueues, 1));
  port.rx_descriptors =
      static_cast<uint32_t>(cursor.optional("rx_descriptors").integer(64, 32768, 1024));
  port.tx_descriptors =
      static_cast<uint32_t>(cursor.optional("tx_descriptors").integer(64, 32768, 1024));
  if (port.queues == 0 && port.device.starts_with("net_af_xdp")) {
    cursor.fail("an AF_XDP port sends only with an RX queue: set queues to 1 or more");
  }
  if (port.name.size() > kMaxNameLength) cursor.fail("the port's name is longer than 255 bytes");
  return port;
}

void check_cores(const YamlCursor& cursor, const DataplaneSettings& settings) {
  std::set<uint32_t> used = {settings.main_core.lcore};
  for (const CoreSettings& core : settings.cores) {
    if (!used.insert(core.lcore).second) {
      cursor.fail(
          fmt::format("core id {} is used twice: main_core and each of cores need an id of "
                      "their own (ID@PROCESSOR lets two share a processor)",
                      core.lcore));
    }
  }
  if (!settings.ports.empty() && settings.total_queues() == 0) {
    cursor.fail("no port has an RX queue: give one of them queues: 1 or more");
  }
  if (settings.cores.size() < settings.total_queues()) {
    cursor.fail(fmt::format("{} for {}: list one core per queue",
                            counted(settings.cores.size(), "core"),
                            counted(settings.total_queues(), "RX queue")));
  }
}

}  // namespace

uint32_t DataplaneSettings::total_queues() const {
  uint32_t sum = 0;
  for (const PortSettings& port : ports) sum += port.queues;
  return sum;
}

DataplaneSettings read_dataplane_settings(const YamlCursor& document) {
  DataplaneSettings settings;
  settings.directory = document.optional("directory").text(settings.directory);
  if (!settings.directory.starts_with('/')) {
    document.optional("directory").fail("expected an absolute path");
  }

  const YamlCursor dataplane = document.required("dataplane");
  dataplane.only_keys({"main_core", "cores", "memory_mib", "hugepages", "packet_buffers",
                       "packet_buffer_bytes", "icmp_answers_per_second", "flow_entries",
                       "flow_store", "steering_program", "eal_options", "ports"});
  settings.main_core = read_core(dataplane.optional("main_core"));
  for (const YamlCursor& core : dataplane.required("cores").elements()) {
    settings.cores.push_back(read_core(core));
  }
  settings.memory_mib =
      static_cast<uint32_t>(dataplane.optional("memory_mib").integer(64, 1u << 20, 256));
  settings.hugepages = dataplane.optional("hugepages").boolean(true);
  const YamlCursor buffers = dataplane.optional("packet_buffers");
  settings.packet_buffers = static_cast<uint32_t>(buffers.integer(0, 1u << 26, 0));
  if (settings.packet_buffers > 0 && settings.packet_buffers < 1024) {
    buffers.fail("expected at least 1024, or 0 to have the number worked out");
  }
  settings.packet_buffer_bytes = static_cast<uint32_t>(
      dataplane.optional("packet_buffer_bytes").integer(128, 32768, settings.packet_buffer_bytes));
  settings.icmp_answers_per_second = static_cast<uint32_t>(
      dataplane.optional("icmp_answers_per_second").integer(0, 1'000'000, 1000));
  const YamlCursor entries = dataplane.optional("flow_entries");
  settings.flow_entries =
      static_cast<uint32_t>(entries.integer(1024, 1u << 30, settings.flow_entries));
  if (!std::has_single_bit(settings.flow_entries)) {
    entries.fail(fmt::format("expected a power of two: {} or {}",
                             std::bit_floor(settings.flow_entries),
                             std::bit_ceil(settings.flow_entries)));
  }
  const YamlCursor store = dataplane.optional("flow_store");
  settings.flow_store = store.text();
  if (!settings.flow_store.empty() && !settings.flow_store.starts_with('/')) {
    store.fail("expected an absolute path");
  }
  settings.steering_program = dataplane.optional("steering_program").text();
  for (const YamlCursor& option : dataplane.optional("eal_options").elements()) {
    settings.eal_options.push_back(option.text());
  }

  const YamlCursor ports = dataplane.required("ports");
  for (const YamlCursor& port : ports.elements()) {
    settings.ports.push_back(read_port(port));
    const auto same_name = [&](const PortSettings& p) {
      return p.name == settings.ports.back().name;
    };
    if (std::ranges::count_if(settings.ports, same_name) > 1) {
      port.fail(fmt::format("two ports are named '{}'", settings.ports.back().name));
    }
  }
  if (ports.exists() && settings.ports.empty()) ports.fail("list at least one port");
  if (dataplane.exists()) check_cores(dataplane, settings);
  return settings;
}

}  // namespace maglev
