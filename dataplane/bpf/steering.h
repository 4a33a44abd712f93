// Who owns the way from a network interface to the workers behind its AF_XDP port.
//
// Two programs of ours sit on the interface, each with the set of VIPs in maps of its own:
//
//   steering (XDP)      hands VIP traffic to the worker's socket; without a live worker it drops
//                       and counts it; everything else goes to the kernel. The poll-mode driver
//                       loads it by path, attaches it (only where nothing is attached) and removes
//                       it when the port is closed. After a kill -9 it stays, and VIP traffic is
//                       dropped. Frames to another unicast MAC address than the interface's own
//                       (which a switch may flood) go to the kernel, which drops them.
//   guard (tc ingress)  drops VIP traffic that reaches the kernel. It covers what steering cannot:
//                       the time between two steering programs, and while its VIPs are not filled
//                       in.
//
// Rule: the guard stays attached from the first prepare() until detach(), whatever happens to the
// dataplane in between, a graceful stop included. Hence the kernel never answers for a VIP (with a
// TCP reset, say) while the dataplane is being restarted, even when it owns the address. Destroying
// a Steering detaches nothing.
//
// Which traffic is VIP traffic is told in vips.bpf.h. Of prefixes that contain one another the
// longest that matches decides alone.
//
// Order of calls: prepare(), start the port, bind(), then add_vips() and set_vips() as roots come,
// and follow_mac() from time to time. Before a root is published to the workers call add_vips()
// with its VIPs; when all workers use it, set_vips(). One process per interface: prepare() and
// detach() refuse while another one holds it.
//
// Main thread only. No DPDK. Needs root. Every error says where it happened and what to do, and
// leaves what was attached before in place, unless stated.
#pragma once

#include <array>
#include <cstdint>
#include <expected>
#include <span>
#include <string>
#include <vector>

#include "dataplane/bpf/attachment.h"
#include "dataplane/bpf/vip_rules.h"

namespace maglev {

class Steering {
 public:
  // Packets, since the program in question was loaded.
  struct Counters {
    uint64_t redirected = 0;  // handed to a worker's socket
    uint64_t dropped = 0;     // VIP traffic on a queue without a live worker
    uint64_t passed = 0;      // not for a VIP: left to the kernel
    uint64_t guarded = 0;     // VIP traffic that reached the kernel and was dropped there
  };

  // Before the port starts. Checks that the object at object_path is a steering program, puts a
  // guard with exactly these VIPs in place (in one step where there was one), then removes a stale
  // steering program. A foreign XDP program is refused by id and name. When removing the stale
  // program fails the new guard stays.
  static std::expected<Steering, std::string> prepare(const std::string& interface,
                                                      const std::string& object_path,
                                                      std::span<const SteeredVip> vips);

  // After the driver attached the program: finds it on the interface and fills in its VIPs.
  std::expected<void, std::string> bind();

  // As VipRules::add() and VipRules::set().
  std::expected<void, std::string> add_vips(std::span<const SteeredVip> vips);
  std::expected<void, std::string> set_vips(std::span<const SteeredVip> vips);

  const VipRules::Rules& rules() const { return rules_.rules(); }

  // Tells the steering program when the interface has got another MAC address. Until then frames to
  // the new one are dropped by the guard.
  std::expected<void, std::string> follow_mac();

  // Before bind() only `guarded` counts.
  std::expected<Counters, std::string> counters() const;

  // Removes what is ours from the interface, steering and guard, and leaves what is foreign.
  static std::expected<void, std::string> detach(const std::string& interface);

 private:
  explicit Steering(std::string interface) : interface_(interface), rules_(std::move(interface)) {}

  std::vector<const ProgramMaps*> programs() const;  // those that there are

  std::string interface_;
  uint32_t interface_index_ = 0;
  FileDescriptor claim_;  // held while this process owns the interface
  ProgramMaps guard_maps_;
  ProgramMaps steering_maps_;  // empty before bind()
  VipRules rules_;
  std::array<uint8_t, 6> mac_{};  // what the steering program was told
};

}  // namespace maglev
