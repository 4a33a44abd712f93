// Who owns the way from a network interface to the workers behind its AF_XDP port.
//
// Two programs of ours sit on the interface, each with the set of VIPs in maps of its own:
//
//   steering (XDP)      hands VIP traffic to the worker's socket; without a live worker it drops
//                       and counts it; everything else goes to the kernel. The poll-mode driver
//                       loads it by path, attaches it (only where nothing is attached) and removes
//                       it when the port is closed. After a kill -9 it stays, and VIP traffic is
//                       dropped.
//   guard (tc ingress)  drops VIP traffic that reaches the kernel. It covers what steering cannot:
//                       the time between two steering programs, and while its VIPs are not filled
//                       in.
//
// Rule: the guard stays attached from the first prepare() until detach(), whatever happens to the
// dataplane in between, a graceful stop included. Hence the kernel never answers for a VIP (with a
// TCP reset, say) while the dataplane is being restarted, even when it owns the address. Destroying
// a Steering detaches nothing.
//
// Order of calls: prepare(), start the port, bind(), then add_vips() and set_vips() as roots come.
// Before a root is published to the workers call add_vips() with its VIPs; when all workers use it,
// set_vips(). One process per interface: prepare() and detach() refuse while another one holds it.
//
// Main thread only. No DPDK. Needs root. Every error says where it happened and what to do, and
// leaves what was attached before in place, unless stated.
#pragma once

#include <cstdint>
#include <expected>
#include <set>
#include <span>
#include <string>

#include "dataplane/bpf/attachment.h"
#include "tables/published.h"

namespace maglev {

struct VipPrefix {
  Address address;  // bits beyond the prefix are zero
  AddressFamily family = AddressFamily::kNone;
  uint8_t prefix_length = 0;  // 32 or 128 for one address
  auto operator<=>(const VipPrefix&) const = default;
};

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
                                                      std::span<const VipPrefix> vips);

  // After the driver attached the program: finds it on the interface and fills in its VIPs.
  std::expected<void, std::string> bind();

  // Adds those that are missing. A wrong prefix is refused before anything is changed; on another
  // error (a map is full) what was written stays, and vips() tells what is there.
  std::expected<void, std::string> add_vips(std::span<const VipPrefix> vips);

  // Makes the set equal to these. Those in both sets are not touched.
  std::expected<void, std::string> set_vips(std::span<const VipPrefix> vips);

  const std::set<VipPrefix>& vips() const { return vips_; }

  // Before bind() only `guarded` counts.
  std::expected<Counters, std::string> counters() const;

  // Removes what is ours from the interface, steering and guard, and leaves what is foreign.
  static std::expected<void, std::string> detach(const std::string& interface);

 private:
  Steering() = default;

  std::string interface_;
  uint32_t interface_index_ = 0;
  FileDescriptor claim_;  // held while this process owns the interface
  ProgramMaps guard_maps_;
  ProgramMaps steering_maps_;  // empty before bind()
  std::set<VipPrefix> vips_;
};

}  // namespace maglev
