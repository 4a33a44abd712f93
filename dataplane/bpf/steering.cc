#include "dataplane/bpf/steering.h"

#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <fmt/format.h>

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
constexpr std::array<std::string_view, 4> kSteeringMaps = {"xsks_map", "vips4", "vips6",
                                                           "counters"};

bool is_steering(const Program& program) {
  return program.is(kSteeringName, kSteeringMaps);
}

size_t address_bytes(const VipPrefix& vip) {
  return vip.family == AddressFamily::kIpv4 ? sizeof(Vip4Key::address) : sizeof(Vip6Key::address);
}

std::string to_text(const VipPrefix& vip) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  inet_ntop(vip.family == AddressFamily::kIpv4 ? AF_INET : AF_INET6, vip.address.bytes.data(),
            text.data(), text.size());
  return fmt::format("{}/{}", text.data(), vip.prefix_length);
}

// Such that two prefixes are the same exactly when they compare equal.
std::expected<void, std::string> check(const std::string& interface,
                                       std::span<const VipPrefix> vips) {
  for (const VipPrefix& vip : vips) {
    if (vip.family == AddressFamily::kNone)
      return std::unexpected(fmt::format("{}: a VIP has no address family", interface));
    size_t bits = address_bytes(vip) * 8;
    if (vip.prefix_length > bits)
      return std::unexpected(fmt::format("{}: VIP {}: the prefix length is at most {}", interface,
                                         to_text(vip), bits));
    for (size_t bit = vip.prefix_length; bit < vip.address.bytes.size() * 8; ++bit)
      if ((vip.address.bytes[bit / 8] >> (7 - bit % 8) & 1) != 0)
        return std::unexpected(fmt::format("{}: VIP {}: the address has bits beyond its prefix",
                                           interface, to_text(vip)));
  }
  return {};
}

enum class Change { kAdd, kRemove };

template <typename Key>
int write_key(const ProgramMaps& maps, std::string_view map, const VipPrefix& vip, Change change) {
  Key key{};
  key.prefix_length = vip.prefix_length;
  std::memcpy(key.address, vip.address.bytes.data(), sizeof(key.address));
  int fd = maps.find(map)->second.get();
  uint8_t value = 1;
  int status = change == Change::kAdd ? bpf_map_update_elem(fd, &key, &value, BPF_ANY)
                                      : bpf_map_delete_elem(fd, &key);
  return status == 0 ? 0 : errno;
}

// Precondition: the maps hold the VIP when it is to be removed.
std::expected<void, std::string> write(const std::string& interface, const ProgramMaps& maps,
                                       const VipPrefix& vip, Change change) {
  int error = vip.family == AddressFamily::kIpv4 ? write_key<Vip4Key>(maps, "vips4", vip, change)
                                                 : write_key<Vip6Key>(maps, "vips6", vip, change);
  if (error == 0) return {};
  std::string text = libbpf_error(
      interface, fmt::format("{} VIP {}", change == Change::kAdd ? "add" : "remove", to_text(vip)),
      error);
  if (error == ENOSPC) text += "; the program's map of VIPs is full";
  return std::unexpected(text);
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
                  std::ranges::all_of(kSteeringMaps, [&](std::string_view map) {
                    return bpf_object__find_map_by_name(object.get(), map.data()) != nullptr;
                  });
  if (!complete)
    return std::unexpected(fmt::format(
        "{}: not a steering program of ours: its first program must be {}, with maps {}", path,
        kSteeringName, fmt::join(kSteeringMaps, ", ")));
  return {};
}

}  // namespace

std::expected<Steering, std::string> Steering::prepare(const std::string& interface,
                                                       const std::string& object_path,
                                                       std::span<const VipPrefix> vips) {
  auto failed = [](const auto& result) { return std::unexpected(result.error()); };
  if (auto good = check(interface, vips); !good) return failed(good);
  if (auto good = check_object(object_path); !good) return failed(good);
  auto index = find_interface(interface);
  if (!index) return failed(index);
  auto claim = claim_interface(interface, *index);
  if (!claim) return failed(claim);
  auto xdp = attached_xdp(interface, *index);
  if (!xdp) return failed(xdp);
  if (xdp->program.id != 0 && !is_steering(xdp->program))
    return std::unexpected(foreign_program_error(interface, xdp->program));

  Steering steering;
  steering.interface_ = interface;
  steering.interface_index_ = *index;
  steering.claim_ = std::move(*claim);
  steering.vips_.insert(vips.begin(), vips.end());
  auto guard = attach_guard(interface, *index, [&](const ProgramMaps& maps) {
    std::expected<void, std::string> filled;
    for (auto vip = steering.vips_.begin(); filled && vip != steering.vips_.end(); ++vip)
      filled = write(interface, maps, *vip, Change::kAdd);
    return filled;
  });
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
  if (!is_steering(xdp->program))
    return std::unexpected(foreign_program_error(interface_, xdp->program));
  for (const VipPrefix& vip : vips_)
    if (auto added = write(interface_, xdp->program.maps, vip, Change::kAdd); !added) return added;
  steering_maps_ = std::move(xdp->program.maps);
  return {};
}

std::expected<void, std::string> Steering::add_vips(std::span<const VipPrefix> vips) {
  if (auto good = check(interface_, vips); !good) return good;
  for (const VipPrefix& vip : vips) {
    if (vips_.contains(vip)) continue;
    if (auto added = write(interface_, guard_maps_, vip, Change::kAdd); !added) return added;
    if (!steering_maps_.empty())
      if (auto added = write(interface_, steering_maps_, vip, Change::kAdd); !added) {
        // One that only the guard knows would be dropped in silence.
        if (auto removed = write(interface_, guard_maps_, vip, Change::kRemove); !removed)
          return std::unexpected(added.error() + "; " + removed.error());
        return added;
      }
    vips_.insert(vip);
  }
  return {};
}

std::expected<void, std::string> Steering::set_vips(std::span<const VipPrefix> vips) {
  if (auto good = check(interface_, vips); !good) return good;
  const std::set<VipPrefix> wanted(vips.begin(), vips.end());
  for (auto vip = vips_.begin(); vip != vips_.end();) {
    if (wanted.contains(*vip)) {
      ++vip;
      continue;
    }
    for (const ProgramMaps* maps : {&steering_maps_, &guard_maps_})
      if (!maps->empty())
        if (auto removed = write(interface_, *maps, *vip, Change::kRemove); !removed)
          return removed;
    vip = vips_.erase(vip);
  }
  return add_vips(vips);
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
