#include "dataplane/bpf/steering.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <fmt/format.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "dataplane/bpf/guard.h"
#include "dataplane/bpf/vip_maps.h"

namespace maglev {
namespace {

constexpr std::string_view kSteeringName = "maglev_steering";
// Of every version: by these a program is known for ours.
constexpr std::array<std::string_view, 4> kSteeringMaps = {"xsks_map", "vips4", "vips6",
                                                           "counters"};
// Of this version.
constexpr std::array<std::string_view, 6> kAllSteeringMaps = {
    "xsks_map", "vips4", "vips6", "services", "interface_mac", "counters"};

bool is_steering(const Program& program) {
  return program.is(kSteeringName, kSteeringMaps);
}

std::expected<std::array<uint8_t, 6>, std::string> read_mac(const std::string& interface) {
  const FileDescriptor socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  interface.copy(request.ifr_name, sizeof(request.ifr_name) - 1);
  if (socket.get() < 0 || ioctl(socket.get(), SIOCGIFHWADDR, &request) != 0)
    return std::unexpected(libbpf_error(interface, "ask for the MAC address", errno));
  std::array<uint8_t, 6> mac;
  std::memcpy(mac.data(), request.ifr_hwaddr.sa_data, mac.size());
  return mac;
}

// That the driver will find in this file what it needs and what bind() looks for.
std::expected<void, std::string> check_object(const std::string& path) {
  LibbpfMessages messages;
  std::unique_ptr<bpf_object, decltype(&bpf_object__close)> object(
      bpf_object__open_file(path.c_str(), nullptr), bpf_object__close);
  if (!object)
    return std::unexpected(libbpf_error(path, "open the steering program", errno, messages.text()) +
                           "; `meson install` puts steering.bpf.o in place, or name another with "
                           "dataplane.steering_program");
  const bpf_program* first = bpf_object__next_program(object.get(), nullptr);
  bool complete = first != nullptr && bpf_program__name(first) == kSteeringName &&
                  std::ranges::all_of(kAllSteeringMaps, [&](std::string_view map) {
                    return bpf_object__find_map_by_name(object.get(), map.data()) != nullptr;
                  });
  if (!complete)
    return std::unexpected(fmt::format(
        "{}: not a steering program of ours: its first program must be {}, with maps {}", path,
        kSteeringName, fmt::join(kAllSteeringMaps, ", ")));
  return {};
}

}  // namespace

std::expected<Steering, std::string> Steering::prepare(const std::string& interface,
                                                       const std::string& object_path,
                                                       std::span<const SteeredVip> vips) {
  auto failed = [](const auto& result) { return std::unexpected(result.error()); };
  Steering steering(interface);
  if (auto good = steering.rules_.add({}, vips); !good) return failed(good);
  if (auto good = check_object(object_path); !good) return failed(good);
  auto index = find_interface(interface);
  if (!index) return failed(index);
  auto claim = claim_interface(interface, *index);
  if (!claim) return failed(claim);
  auto xdp = attached_xdp(interface, *index);
  if (!xdp) return failed(xdp);
  if (xdp->program.id != 0 && !is_steering(xdp->program))
    return std::unexpected(foreign_program_error(interface, xdp->program));

  steering.interface_index_ = *index;
  steering.claim_ = std::move(*claim);
  auto guard = attach_guard(interface, *index,
                            [&](const ProgramMaps& maps) { return steering.rules_.fill(maps); });
  if (!guard) return failed(guard);
  steering.guard_maps_ = std::move(*guard);
  if (xdp->program.id != 0)
    if (auto detached = detach_xdp(interface, *index, *xdp); !detached) return failed(detached);
  return steering;
}

std::expected<void, std::string> Steering::bind() {
  auto xdp = attached_xdp(interface_, interface_index_);
  if (!xdp) return std::unexpected(xdp.error());
  if (xdp->program.id == 0)
    return std::unexpected(fmt::format(
        "{}: the AF_XDP driver has attached no program; give the port the device argument "
        "xdp_prog=PATH",
        interface_));
  if (!xdp->program.is(kSteeringName, kAllSteeringMaps))
    return std::unexpected(foreign_program_error(interface_, xdp->program));
  if (auto filled = rules_.fill(xdp->program.maps); !filled) return filled;
  steering_maps_ = std::move(xdp->program.maps);
  return follow_mac();
}

std::vector<const ProgramMaps*> Steering::programs() const {
  // The guard first: it covers what steering lets through.
  if (steering_maps_.empty()) return {&guard_maps_};
  return {&guard_maps_, &steering_maps_};
}

std::expected<void, std::string> Steering::add_vips(std::span<const SteeredVip> vips) {
  return rules_.add(programs(), vips);
}

std::expected<void, std::string> Steering::set_vips(std::span<const SteeredVip> vips) {
  return rules_.set(programs(), vips);
}

std::expected<void, std::string> Steering::follow_mac() {
  auto mac = read_mac(interface_);
  if (!mac) return std::unexpected(mac.error());
  if (*mac == mac_) return {};
  const uint32_t only = 0;
  const int fd = steering_maps_.find("interface_mac")->second.get();
  if (bpf_map_update_elem(fd, &only, mac->data(), BPF_ANY) != 0)
    return std::unexpected(libbpf_error(interface_, "write the MAC address", errno));
  mac_ = *mac;
  return {};
}

std::expected<Steering::Counters, std::string> Steering::counters() const {
  Counters counters;
  auto guard =
      read_counters(interface_, guard_maps_.find("counters")->second.get(), kGuardCounters);
  if (!guard) return std::unexpected(guard.error());
  counters.guarded = guard->at(kGuardDropped);
  if (steering_maps_.empty()) return counters;
  auto steering =
      read_counters(interface_, steering_maps_.find("counters")->second.get(), kSteeringCounters);
  if (!steering) return std::unexpected(steering.error());
  counters.redirected = steering->at(kSteeringRedirected);
  counters.dropped = steering->at(kSteeringDropped);
  counters.passed = steering->at(kSteeringPassed);
  return counters;
}

std::expected<void, std::string> Steering::detach(const std::string& interface) {
  auto index = find_interface(interface);
  if (!index) return std::unexpected(index.error());
  auto claim = claim_interface(interface, *index);
  if (!claim) return std::unexpected(claim.error());
  auto xdp = attached_xdp(interface, *index);
  if (!xdp) return std::unexpected(xdp.error());
  if (is_steering(xdp->program))
    if (auto detached = detach_xdp(interface, *index, *xdp); !detached) return detached;
  return detach_guard(interface, *index);
}

}  // namespace maglev
