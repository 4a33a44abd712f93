// maglev-decap: on a backend, unwraps what the load balancers send (decap.bpf.c) from the start of
// the program to SIGTERM or SIGINT. After a kill -9 the XDP program stays and goes on unwrapping;
// the next start takes its place without a gap.
#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <fmt/format.h>
#include <linux/if_link.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cerrno>
#include <csignal>
#include <memory>

#include "dataplane/bpf/attachment.h"
#include "dataplane/bpf/decap_maps.h"
#include "decap.skel.h"

namespace maglev {
namespace {

constexpr std::string_view kDecapName = "maglev_decap";
constexpr std::array<std::string_view, 2> kDecapMaps = {"outer_sources", "counters"};

using Result = std::expected<void, std::string>;

// Whoever read it may have gone, which is no reason to stop.
void print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
}

std::string check_address(const std::string& text) {
  in_addr address{};
  return inet_pton(AF_INET, text.c_str(), &address) == 1 ? "" : text + " is not an IPv4 address";
}

bool is_decap(const Program& program) {
  return program.is(kDecapName, kDecapMaps);
}

std::expected<std::string, std::string> counters_line(const std::string& interface,
                                                      int counters_fd) {
  auto counters = read_counters(interface, counters_fd, kDecapCounters);
  if (!counters) return std::unexpected(counters.error());
  return fmt::format("unwrapped={} refused_source={} malformed={} fragment={} ecn_dropped={}\n",
                     counters->at(kDecapUnwrapped), counters->at(kDecapRefusedSource),
                     counters->at(kDecapMalformed), counters->at(kDecapFragment),
                     counters->at(kDecapEcnDropped));
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

std::expected<Skeleton, std::string> load(const std::string& interface,
                                          const std::vector<std::string>& outer_sources) {
  LibbpfMessages messages;
  Skeleton skeleton(decap_bpf::open_and_load(), decap_bpf::destroy);
  if (!skeleton)
    return std::unexpected(libbpf_error(interface, "load the XDP program", errno, messages.text()));
  for (const std::string& text : outer_sources) {
    in_addr source{};
    inet_pton(AF_INET, text.c_str(), &source);
    uint8_t value = 1;
    int map_fd = bpf_map__fd(skeleton->maps.outer_sources);
    if (bpf_map_update_elem(map_fd, &source.s_addr, &value, BPF_ANY) != 0)
      return std::unexpected(libbpf_error(
          interface, fmt::format("add {} to at most {} outer sources", text, int{kMaxOuterSources}),
          errno));
  }
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

Result run(const std::string& interface, const std::vector<std::string>& outer_sources) {
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
  auto skeleton = load(interface, outer_sources);
  if (!skeleton) return std::unexpected(skeleton.error());
  if (auto attached = attach(interface, *index, bpf_program__fd((*skeleton)->progs.maglev_decap));
      !attached)
    return attached;
  print(fmt::format("ready: {} unwraps IPv4-in-IPv4 from {}\n", interface,
                    fmt::join(outer_sources, ", ")));

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
      "Unwraps IPv4-in-IPv4 packets from the load balancers, on a backend, with an XDP program."};
  std::string interface;
  std::vector<std::string> outer_sources;
  bool stats = false;
  app.add_option("--interface", interface, "network interface the packets arrive on")->required();
  auto* from = app.add_option("--from", outer_sources,
                              "IPv4 address of a load balancer (outer source); repeat for each")
                   ->check(maglev::check_address);
  app.add_flag("--stats", stats, "print the counters of the running program and exit")
      ->excludes(from);
  CLI11_PARSE(app, argument_count, arguments);
  if (!stats && outer_sources.empty()) {
    fmt::print(stderr,
               "maglev-decap: name each load balancer's outer source with --from ADDRESS\n");
    return 2;
  }
  // Line by line, for whoever waits for "ready" at the other end of a pipe.
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
  auto result = stats ? maglev::print_stats(interface) : maglev::run(interface, outer_sources);
  if (result) return 0;
  std::fputs(fmt::format("maglev-decap: {}\n", result.error()).c_str(), stderr);
  return 1;
}
