// maglev-decap: on a backend, unwraps what the load balancers send (decap.bpf.c) from the start of
// the program to SIGTERM or SIGINT. After a kill -9 the XDP program stays and goes on unwrapping;
// the next start takes its place without a gap.
#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <fmt/format.h>
#include <linux/if_link.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>
#include <memory>

#include "dataplane/bpf/attachment.h"
#include "dataplane/bpf/decap_maps.h"
#include "decap.skel.h"
#include "tables/command_line.h"
#include "tables/published.h"

namespace maglev {
namespace {

constexpr std::string_view kDecapName = "maglev_decap";
constexpr std::array<std::string_view, 1> kDecapMaps = {"counters"};  // of every version

// A place in `counters` and how it is called where it is printed.
constexpr std::array<std::string_view, kDecapCounters> kCounterNames = {
    "unwrapped", "refused_source", "malformed",  "bad_checksum",
    "fragment",  "unsupported",    "ecn_dropped"};

struct Options {
  std::string interface;
  std::vector<std::string> outer_sources;
  std::vector<uint16_t> gue_ports;
  bool require_checksum = false;
  bool stats = false;
};

using Result = std::expected<void, std::string>;

// Whoever read it may have gone, which is no reason to stop.
void print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
}

struct OuterSource {
  bool is_ipv6;
  uint8_t prefix_length;
  std::array<uint8_t, 16> address;  // IPv4: the first four bytes
};

std::expected<OuterSource, std::string> parse_source(const std::string& text) {
  OuterSource source{};
  const size_t slash = text.find('/');
  const std::string address = text.substr(0, slash);
  source.is_ipv6 = address.find(':') != std::string::npos;
  if (inet_pton(source.is_ipv6 ? AF_INET6 : AF_INET, address.c_str(), source.address.data()) != 1)
    return std::unexpected(text + " is no IPv4 or IPv6 address, nor a prefix (ADDRESS/LENGTH)");
  const uint8_t bits = source.is_ipv6 ? 128 : 32;
  source.prefix_length = bits;
  if (slash == std::string::npos) return source;
  const char* end = text.data() + text.size();
  auto [parsed, error] = std::from_chars(text.data() + slash + 1, end, source.prefix_length);
  if (error != std::errc() || parsed != end || source.prefix_length > bits)
    return std::unexpected(fmt::format("{}: a prefix length is from 0 to {}", text, bits));
  for (size_t bit = source.prefix_length; bit < bits; ++bit)
    if ((source.address[bit / 8] >> (7 - bit % 8) & 1) != 0)
      return std::unexpected(text + ": the address has bits beyond its prefix");
  return source;
}

std::string check_source(const std::string& text) {
  auto source = parse_source(text);
  return source ? "" : source.error();
}

bool is_decap(const Program& program) {
  return program.is(kDecapName, kDecapMaps);
}

std::expected<std::string, std::string> counters_line(const std::string& interface,
                                                      int counters_fd) {
  auto counters = read_counters(interface, counters_fd, kDecapCounters);
  if (!counters) return std::unexpected(counters.error());
  std::string line;
  for (size_t i = 0; i < kCounterNames.size(); ++i)
    line += fmt::format("{}{}={}", i == 0 ? "" : " ", kCounterNames[i], counters->at(i));
  return line + "\n";
}

Result print_stats(const std::string& interface) {
  auto index = find_interface(interface);
  if (!index) return std::unexpected(index.error());
  auto xdp = attached_xdp(interface, *index);
  if (!xdp) return std::unexpected(xdp.error());
  if (!is_decap(xdp->program))
    return std::unexpected(fmt::format("{}: maglev-decap is not attached here", interface));
  auto line = counters_line(interface, xdp->program.maps.find("counters")->second.get());
  if (!line) return std::unexpected(line.error());
  print(*line);
  return {};
}

using Skeleton = std::unique_ptr<decap_bpf, decltype(&decap_bpf::destroy)>;

int write_source(const decap_bpf& skeleton, const OuterSource& source) {
  const uint8_t value = 1;
  auto add = [&](auto key, const bpf_map* map) {
    key.prefix_length = source.prefix_length;
    std::memcpy(key.address, source.address.data(), sizeof(key.address));
    return bpf_map_update_elem(bpf_map__fd(map), &key, &value, BPF_ANY);
  };
  return source.is_ipv6 ? add(Prefix6Key{}, skeleton.maps.sources6)
                        : add(Prefix4Key{}, skeleton.maps.sources4);
}

DecapSettings settings_of(const Options& options) {
  DecapSettings settings{};
  for (size_t i = 0; i < options.gue_ports.size(); ++i)
    settings.gue_ports_be[i] = htons(options.gue_ports[i]);
  settings.refuse_zero_checksum = options.require_checksum;
  return settings;
}

std::expected<Skeleton, std::string> load(const Options& options) {
  LibbpfMessages messages;
  Skeleton skeleton(decap_bpf::open_and_load(), decap_bpf::destroy);
  auto failed = [&](std::string_view what) {
    return std::unexpected(libbpf_error(options.interface, what, errno, messages.text()));
  };
  if (!skeleton) return failed("load the XDP program");
  for (const std::string& text : options.outer_sources)
    if (write_source(*skeleton, *parse_source(text)) != 0)
      return failed(fmt::format("add {} to at most {} outer sources", text, int{kMaxOuterSources}));
  const uint32_t only = 0;
  const DecapSettings settings = settings_of(options);
  if (bpf_map_update_elem(bpf_map__fd(skeleton->maps.settings), &only, &settings, BPF_ANY) != 0)
    return failed("write the settings");
  return skeleton;
}

// In one step where a program of ours is already there.
Result attach(const std::string& interface, uint32_t index, int program_fd) {
  auto stale = attached_xdp(interface, index);
  if (!stale) return std::unexpected(stale.error());
  uint32_t flags = XDP_FLAGS_UPDATE_IF_NOEXIST;
  LIBBPF_OPTS(bpf_xdp_attach_opts, options);
  if (stale->program.id != 0) {
    if (!is_decap(stale->program))
      return std::unexpected(foreign_program_error(interface, stale->program));
    flags = stale->mode_flags;
    options.old_prog_fd = stale->program.fd.get();
  }
  LibbpfMessages messages;
  if (int error = bpf_xdp_attach(static_cast<int>(index), program_fd, flags, &options); error != 0)
    return std::unexpected(
        libbpf_error(interface, "attach the XDP program", -error, messages.text()));
  return {};
}

// Whatever somebody else put in our place meanwhile is not ours to remove.
Result detach(const std::string& interface, uint32_t index) {
  auto current = attached_xdp(interface, index);
  if (!current) return std::unexpected(current.error());
  if (!is_decap(current->program)) return {};
  return detach_xdp(interface, index, *current);
}

Result run(const Options& options) {
  const std::string& interface = options.interface;
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTERM);
  sigaddset(&stop, SIGINT);
  sigprocmask(SIG_BLOCK, &stop, nullptr);
  std::signal(SIGPIPE, SIG_IGN);

  auto index = find_interface(interface);
  if (!index) return std::unexpected(index.error());
  auto claim = claim_interface(interface, *index);
  if (!claim) return std::unexpected(claim.error());
  auto skeleton = load(options);
  if (!skeleton) return std::unexpected(skeleton.error());
  if (auto attached = attach(interface, *index, bpf_program__fd((*skeleton)->progs.maglev_decap));
      !attached)
    return attached;
  print(fmt::format("ready: {} unwraps IP-in-IP, GRE and GUE on UDP port {} from {}\n", interface,
                    fmt::join(options.gue_ports, ", "), fmt::join(options.outer_sources, ", ")));

  int signal = 0;
  sigwait(&stop, &signal);
  auto line = counters_line(interface, bpf_map__fd((*skeleton)->maps.counters));
  const Result detached = detach(interface, *index);
  if (!line) return std::unexpected(line.error());
  print(*line);
  return detached;
}

}  // namespace
}  // namespace maglev

int main(int argument_count, char** arguments) {
  CLI::App app{
      "On a backend: unwraps with an XDP program what the load balancers send. Understands IPv4 "
      "and "
      "IPv6 inside IPv4 and IPv6: IP-in-IP, GRE, and GUE variants 0 and 1."};
  maglev::Options options;
  options.gue_ports = {maglev::kGuePort};
  app.add_option("--interface", options.interface, "network interface the packets arrive on")
      ->required();
  auto* from = app.add_option("--from", options.outer_sources,
                              "outer source of a load balancer: an IPv4 or IPv6 address, or a "
                              "prefix ADDRESS/LENGTH; repeat for each")
                   ->check(maglev::check_source);
  auto* gue_ports =
      app.add_option("--gue-port", options.gue_ports, "UDP port of GUE packets; repeat for each")
          ->check(CLI::Range(1, 65535))
          ->expected(1, kMaxGuePorts)
          ->capture_default_str();
  auto* checksum =
      app.add_flag("--require-udp-checksum", options.require_checksum,
                   "drop GUE packets over IPv6 that come without a UDP checksum (RFC 6935)");
  app.add_flag("--stats", options.stats, "print the counters of the running program and exit")
      ->excludes(from)
      ->excludes(gue_ports)
      ->excludes(checksum);
  if (const auto code = maglev::parse_command_line(app, argument_count, arguments)) return *code;
  if (!options.stats && options.outer_sources.empty()) {
    fmt::print(stderr,
               "maglev-decap: name each load balancer's outer source with --from ADDRESS\n");
    return maglev::kWrongUsage;
  }
  // Line by line, for whoever waits for "ready" at the other end of a pipe.
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
  auto result = options.stats ? maglev::print_stats(options.interface) : maglev::run(options);
  if (result) return 0;
  std::fputs(fmt::format("maglev-decap: {}\n", result.error()).c_str(), stderr);
  return 1;
}
