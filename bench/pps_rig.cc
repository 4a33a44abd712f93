// What bench/pps needs beside the daemon: flows to replay, tables to forward them by, and counts.
//
//   pps_rig make DIRECTORY [OPTIONS]   writes DIRECTORY/flows.pcap, a published tree whose backends
//                                      are reached by port 1, and DIRECTORY/rig.json, which tells
//                                      the twin what was published
//   pps_rig publish DIRECTORY [OPTIONS] --per-s N
//                                      until SIGTERM or SIGINT, publishes what `make` with the same
//                                      options has published, each time with other weights and so
//                                      with another table; prints how often and how long each took
//   pps_rig count DIRECTORY            prints from the dataplane's report: time in ns, packets
//                                      received, packets forwarded, and the generation in use
#include <pcap/pcap.h>
#include <signal.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include <fmt/format.h>

#include "bench/numbered_flow.h"
#include "tables/boot_id.h"
#include "tables/boot_time.h"
#include "tables/report.h"
#include "tests/dataplane/fixture.h"

namespace maglev {
namespace {

using namespace testing;
namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr uint64_t kHashSeed = 0x9e3779b97f4a7c15;
constexpr uint16_t kOutPort = 1;
constexpr uint64_t kTableSize = 65537;
constexpr uint16_t kGuePort = 6080;
constexpr uint8_t kTcpSyn = 0x02;
constexpr uint8_t kTcpAck = 0x10;

struct Options {
  fs::path directory;
  uint32_t flows = 65536;
  uint32_t vips = 1;
  uint32_t backends = 10;                   // of each VIP, in a pool of its own
  std::vector<uint32_t> ip_lengths = {46};  // of the packets in turn; 46: 64 bytes on the wire
  bool syn = false;
  bool ipv6 = false;  // packets, and the way to the backends
  Encapsulation encapsulation = Encapsulation::kIpInIp;
  Tracking tracking = Tracking::kNone;
  bool unsettled = false;  // all slots: every flow is remembered where it is
};

const std::map<std::string, Encapsulation> kEncapsulations = {{"ipip", Encapsulation::kIpInIp},
                                                              {"gre", Encapsulation::kGre},
                                                              {"gue", Encapsulation::kGueVariant0}};

const std::map<std::string, Tracking> kTrackings = {
    {"none", Tracking::kNone}, {"full", Tracking::kFull}, {"changed", Tracking::kChanged}};

void write_file(const fs::path& path, const Image& image) {
  fs::create_directories(path.parent_path());
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(image.data()),
             static_cast<std::streamsize>(image.size()));
  if (!file) throw std::runtime_error("cannot write " + path.string());
}

template <typename T>
T value_of(std::expected<T, std::string> result) {
  if (!result) throw std::runtime_error(result.error());
  return *std::move(result);
}

// --- what is published -----------------------------------------------------------------------

std::string vip_address(const Options& options, uint32_t vip) {
  return fmt::format("{}{}", options.ipv6 ? "2001:db8:100::" : "203.0.113.", vip % 250 + 1);
}

uint16_t vip_port(uint32_t vip) {
  return static_cast<uint16_t>(80 + vip / 250);
}

std::string backend_address(const Options& options, uint32_t n) {
  return options.ipv6 ? fmt::format("2001:db8:2::{:x}:{:x}", n >> 16, n & 0xffff)
                      : fmt::format("198.{}.{}.{}", 18 + (n >> 16 & 1), n >> 8 & 255, n & 255);
}

// Backend number n of all, of whatever pool.
PoolBackend numbered_backend(const Options& options, uint32_t pool, uint32_t index, uint32_t n) {
  PoolBackend backend{fmt::format("p{}-b{}", pool, index),
                      resolved_backend(backend_address(options, n), 0, kOutPort)};
  for (uint32_t i = 0; i < 3; ++i) {
    backend.record.next_hop_mac[3 + i] = static_cast<uint8_t>(n >> (16 - 8 * i));
  }
  return backend;
}

Json describe(const PoolBackend& backend) {
  const BackendRecord& record = backend.record;
  const size_t address_bytes = record.family == AddressFamily::kIpv6 ? 16 : 4;
  const auto hex = [](std::span<const uint8_t> bytes) {
    return fmt::format("{:02x}", fmt::join(bytes, ""));
  };
  return {{"name", backend.name},
          {"address", hex(std::span(record.address.bytes).first(address_bytes))},
          {"outer_source", hex(std::span(record.outer_source.bytes).first(address_bytes))},
          {"mac", hex(record.next_hop_mac)}};
}

// The weight of a backend in a generation: one after the other weighs twice as much.
uint32_t weight_of(const Options& options, uint32_t backend, uint64_t generation) {
  return generation > 1 && generation % options.backends == backend ? 2 : 1;
}

// Writes one pool with its table; returns the checksum to publish it by.
Checksum publish_pool(const Options& options, uint32_t number, uint64_t generation, Json& pools) {
  std::vector<PoolBackend> backends;
  std::vector<WeightedName> names;
  std::map<std::string, uint32_t> indices;
  Json described = Json::array();
  for (uint32_t i = 0; i < options.backends; ++i) {
    backends.push_back(numbered_backend(options, number, i, number * options.backends + i));
    names.push_back({backends.back().name, weight_of(options, i, generation)});
    indices[backends.back().name] = i;
    described.push_back(describe(backends.back()));
  }
  const MaglevTable table = value_of(build_maglev(names, kTableSize));
  std::vector<uint32_t> owner_backends;
  for (const WeightedName& owner : table.owners) owner_backends.push_back(indices.at(owner.name));
  const Image table_file = build_table_file(table);
  const Checksum table_name = value_of(check_table_file(table_file)).checksum;
  const Image pool_file =
      build_pool_file(fmt::format("pool{}", number), table_name, backends, owner_backends);
  const Checksum pool_name = value_of(check_pool_file(pool_file)).checksum;
  write_file(options.directory / kTableDirectory / table_name.hex(), table_file);
  write_file(options.directory / kPoolDirectory / pool_name.hex(), pool_file);
  pools.push_back(std::move(described));
  return pool_name;
}

// The past of slots whose old owners are gone, so that their flows are the owners'. Returns its
// name.
Checksum publish_history(const Options& options) {
  constexpr uint64_t kHour_ns = 3600'000'000'000;
  std::vector<SlotHistory> past;
  for (uint32_t slot = 0; slot < kTableSize; ++slot) {
    past.push_back({.slot = slot,
                    .fallback = kNoOwner,
                    .pending_until_ns = 0,
                    .inherit_until_ns = boot_time_ns() + kHour_ns,
                    .fallback_incarnation = 0,
                    .zero = {}});
  }
  const Image file = build_history_file(value_of(read_boot_id()), past);
  const Checksum name = value_of(check_history_file(file)).checksum;
  write_file(options.directory / kHistoryDirectory / name.hex(), file);
  return name;
}

void set_tracking(const Options& options, VipRecord& vip) {
  vip.tracking = options.tracking;
  if (options.tracking == Tracking::kNone) return;
  vip.tcp_idle_s = 900;
  vip.tcp_closing_idle_s = 30;
  vip.udp_idle_s = 60;
}

std::string name_of(Encapsulation encapsulation) {
  return std::ranges::find(kEncapsulations, encapsulation,
                           &std::pair<const std::string, Encapsulation>::second)
      ->first;
}

// Returns what the twin must know.
Json publish(const Options& options, uint64_t generation) {
  Json described = {{"hash_seed", kHashSeed}, {"table_size", kTableSize}};
  described["pools"] = Json::array();
  described["vips"] = Json::array();
  std::vector<PoolReference> pools(options.vips);
  std::vector<RootVip> vips;
  for (uint32_t v = 0; v < options.vips; ++v) {
    pools[v].pool = publish_pool(options, v, generation, described["pools"]);
    vips.push_back(make_vip(fmt::format("vip{}", v), vip_address(options, v), vip_port(v),
                            VipProtocol::kTcp, v));
    if (options.unsettled) pools[v].history = publish_history(options);
    set_tracking(options, vips.back().record);
    vips.back().record.encapsulation = options.encapsulation;
    if (options.encapsulation == Encapsulation::kGueVariant0) {
      vips.back().record.gue_port = kGuePort;
    }
    described["vips"].push_back({{"address", vip_address(options, v)},
                                 {"port", vip_port(v)},
                                 {"encapsulation", name_of(options.encapsulation)},
                                 {"gue_port", kGuePort}});
  }
  const fs::path aside = options.directory / "root.next";
  write_file(aside, build_root_file(generation, kHashSeed, pools, vips));
  fs::rename(aside, options.directory / kRootFileName);
  return described;
}

// The dataplane may still be about to read what the last few generations use.
void remove_old_files(const fs::path& directory) {
  constexpr auto kKept = std::chrono::seconds(5);
  for (const auto& entry : fs::directory_iterator(directory)) {
    if (entry.last_write_time() < fs::file_time_type::clock::now() - kKept) fs::remove(entry);
  }
}

void publish_again_and_again(const Options& options, double per_s) {
  using Clock = std::chrono::steady_clock;
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  const auto interval = std::chrono::nanoseconds(static_cast<int64_t>(1e9 / per_s));
  Clock::duration taken{};
  Clock::time_point due = Clock::now();
  uint64_t generation = 1;
  for (;;) {
    due += interval;
    const auto left = std::max<int64_t>(0, std::chrono::nanoseconds(due - Clock::now()).count());
    const timespec wait{left / 1'000'000'000, left % 1'000'000'000};
    if (sigtimedwait(&signals, nullptr, &wait) >= 0) break;
    const Clock::time_point start = Clock::now();
    publish(options, ++generation);
    taken += Clock::now() - start;
    remove_old_files(options.directory / kTableDirectory);
    remove_old_files(options.directory / kPoolDirectory);
  }
  const uint64_t publications = generation - 1;
  fmt::print("{}\n", Json{{"publications", publications},
                          {"mean_ms", std::chrono::duration<double, std::milli>(taken).count() /
                                          static_cast<double>(std::max<uint64_t>(publications, 1))}}
                         .dump());
}

// --- what is sent ----------------------------------------------------------------------------

// The frame with an IPv6 header in place of its IPv4 header; addresses keep their low bits.
Bytes as_ipv6(const Options& options, const Bytes& frame, uint32_t vip) {
  const uint8_t* const ip4 = frame.data() + kEthernetHeaderLength;
  const uint32_t payload = load_be16(ip4 + kIpv4TotalLengthOffset) - kIpv4HeaderLength;
  Bytes result(kEthernetHeaderLength + kIpv6HeaderLength);
  std::copy_n(frame.data(), kEthernetHeaderLength, result.data());
  store_be16(result.data() + kEtherTypeOffset, kEtherTypeIpv6);
  uint8_t* const ip = result.data() + kEthernetHeaderLength;
  ip[0] = 0x60;
  store_be16(ip + kIpv6PayloadLengthOffset, static_cast<uint16_t>(payload));
  ip[kIpv6NextHeaderOffset] = kProtocolTcp;
  ip[kIpv6HopLimitOffset] = 64;
  std::ranges::copy(address("2001:db8:c::").bytes, ip + kIpv6SourceOffset);
  std::copy_n(ip4 + kIpv4SourceOffset, 4, ip + kIpv6SourceOffset + 12);
  std::ranges::copy(address(vip_address(options, vip)).bytes, ip + kIpv6DestinationOffset);
  result.insert(result.end(), ip4 + kIpv4HeaderLength, ip4 + kIpv4HeaderLength + payload);
  return result;
}

Bytes flow_frame(const Options& options, uint32_t number) {
  const NumberedFlow flow(number);
  const uint32_t source = kFlowNetwork + flow.address_bits;
  const uint32_t vip = number % options.vips;
  const uint32_t ip_header = options.ipv6 ? kIpv6HeaderLength : kIpv4HeaderLength;
  const uint32_t ip_length = options.ip_lengths[number % options.ip_lengths.size()];
  Bytes frame = make_frame({.source = fmt::format("{}.{}.{}.{}", source >> 24, source >> 16 & 255,
                                                  source >> 8 & 255, source & 255),
                            .destination = options.ipv6 ? "203.0.113.1" : vip_address(options, vip),
                            .source_port = flow.source_port,
                            .destination_port = vip_port(vip),
                            .payload_bytes = ip_length - ip_header - kTcpHeaderLength});
  if (options.ipv6) frame = as_ipv6(options, frame, vip);
  const uint32_t tcp_length = ip_length - ip_header;
  uint8_t* const ip = frame.data() + kEthernetHeaderLength;
  uint8_t* const tcp = ip + ip_header;
  tcp[12] = kTcpHeaderLength / 4 << 4;
  tcp[13] = options.syn ? kTcpSyn : kTcpAck;
  store_be16(tcp + kTcpChecksumOffset, 0);
  const uint64_t sum =
      uint64_t{pseudo_header_sum(ip, kProtocolTcp, tcp_length)} + sum_words(tcp, tcp_length);
  store_be16(tcp + kTcpChecksumOffset, static_cast<uint16_t>(~fold_checksum(sum)));
  return frame;
}

void write_flows(const Options& options) {
  const fs::path path = options.directory / "flows.pcap";
  pcap_t* const format = pcap_open_dead(DLT_EN10MB, 65535);
  pcap_dumper_t* const file = pcap_dump_open(format, path.c_str());
  if (file == nullptr) throw std::runtime_error(pcap_geterr(format));
  for (uint32_t i = 0; i < options.flows; ++i) {
    const Bytes frame = flow_frame(options, i);
    const auto length = static_cast<bpf_u_int32>(frame.size());
    const pcap_pkthdr header{{}, length, length};
    pcap_dump(reinterpret_cast<u_char*>(file), &header, frame.data());
  }
  if (pcap_dump_flush(file) != 0) throw std::runtime_error("cannot write " + path.string());
  pcap_dump_close(file);
  pcap_close(format);
}

// --- what was counted ------------------------------------------------------------------------

void print_count(const fs::path& directory) {
  const fs::path path = directory / kReportFileName;
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const Report report = value_of(check_report_file(std::as_bytes(std::span(text))));
  const auto forwarded = std::ranges::find(report.verdicts, "forwarded") - report.verdicts.begin();
  fmt::print("{} {} {} {}\n", report.written_ns, report.workers.at(0).received.packets,
             report.verdict_counts.at(static_cast<size_t>(forwarded)),  // of worker 0
             report.workers.at(0).generation);
}

void add_options(CLI::App& command, Options& options) {
  command.add_option("DIRECTORY", options.directory)->required();
  command.add_option("--flows", options.flows, "one packet each")->check(CLI::PositiveNumber);
  command.add_option("--vips", options.vips)->check(CLI::PositiveNumber);
  command.add_option("--backends", options.backends, "of each VIP")->check(CLI::PositiveNumber);
  command.add_option("--ip-lengths", options.ip_lengths, "bytes, in turn")
      ->check(CLI::Range(40, 1500))
      ->delimiter(',');
  command.add_flag("--ipv6", options.ipv6, "IPv6 packets, to backends by IPv6");
  command.add_option("--encapsulation", options.encapsulation)
      ->transform(CLI::CheckedTransformer(kEncapsulations));
  command.add_option("--tracking", options.tracking)
      ->transform(CLI::CheckedTransformer(kTrackings));
  command.add_flag("--unsettled", options.unsettled, "as if all slots had just changed hands");
  command.add_flag("--syn", options.syn, "TCP SYN rather than ACK");
}

int run(int argc, char** argv) {
  Options options;
  CLI::App app("Flows, tables and counts for bench/pps", "pps_rig");
  app.require_subcommand(1);
  CLI::App* const make = app.add_subcommand("make", "flows.pcap, a published tree, rig.json");
  CLI::App* const again = app.add_subcommand("publish", "publishes at a steady rate");
  for (CLI::App* const command : {make, again}) add_options(*command, options);
  double per_s = 1;
  again->add_option("--per-s", per_s)->required()->check(CLI::PositiveNumber);
  CLI::App* const count = app.add_subcommand("count", "what the dataplane has counted");
  count->add_option("DIRECTORY", options.directory)->required();
  CLI11_PARSE(app, argc, argv);
  if (*make) {
    std::ofstream(options.directory / "rig.json") << publish(options, 1).dump(1);
    write_flows(options);
  } else if (*again) {
    publish_again_and_again(options, per_s);
  } else {
    print_count(options.directory);
  }
  return 0;
}

}  // namespace
}  // namespace maglev

int main(int argc, char** argv) {
  try {
    return maglev::run(argc, argv);
  } catch (const std::exception& e) {
    fmt::print(stderr, "pps_rig: {}\n", e.what());
    return 1;
  }
}
