// What the programs in front of the kernel know of the VIPs: for each prefix what is left to the
// kernel, and which protocols and ports are served (vip_maps.h). Kept equal in all programs.
//
// A change is made in two steps: add() with the new VIPs, later set() with them. Invariant, for the
// packets that pass meanwhile: what the old or the new VIPs give to the workers is theirs between
// the two, and what both give to them is theirs throughout. Hence a prefix is written after its
// services and removed before them.
//
// Main thread only. Errors begin with the interface's name.
#pragma once

#include <cstdint>
#include <expected>
#include <map>
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

// One VIP. Of several with the same prefix what one of them keeps from the kernel stays so.
struct SteeredVip {
  VipPrefix prefix;
  VipProtocol protocol = VipProtocol::kTcpAndUdp;
  uint16_t port = kAnyPort;
  uint8_t flags = 0;  // VipFlag; those that say nothing about the kernel are ignored
};

class VipRules {
 public:
  struct Service {
    uint8_t protocol = 0;
    uint16_t port = kAnyPort;
    auto operator<=>(const Service&) const = default;
  };
  struct Rule {
    uint32_t id = 0;    // never used for two prefixes
    uint8_t flags = 0;  // VipFlag
    std::set<Service> services;
  };
  using Rules = std::map<VipPrefix, Rule>;
  // Additions are written in this order, removals in the other one.
  using Programs = std::span<const ProgramMaps* const>;

  explicit VipRules(std::string interface) : interface_(std::move(interface)) {}

  const Rules& rules() const { return rules_; }

  // Writes all to a program that knows none.
  std::expected<void, std::string> fill(const ProgramMaps& program) const;

  // Adds what is missing, and takes back from the kernel what these do not leave to it. A prefix
  // that makes no sense is refused before anything is changed; on another error (a map is full)
  // what was written stays, and rules() tells what is there.
  std::expected<void, std::string> add(Programs programs, std::span<const SteeredVip> vips);

  // Makes the rules those of exactly these VIPs. What was there is not touched.
  std::expected<void, std::string> set(Programs programs, std::span<const SteeredVip> vips);

 private:
  enum class Change { kAdd, kRemove };
  using Result = std::expected<void, std::string>;

  std::expected<Rules, std::string> group(std::span<const SteeredVip> vips) const;
  Result add(Programs programs, const Rules& wanted);
  Result add_rule(Programs programs, const VipPrefix& prefix, const Rule& wanted);
  Result remove_rule(Programs programs, const VipPrefix& prefix, const Rule& rule) const;
  Result add_services(Programs programs, const VipPrefix& prefix, Rule& rule,
                      const std::set<Service>& wanted) const;
  Result remove_services(Programs programs, const VipPrefix& prefix, Rule& rule,
                         const std::set<Service>& kept) const;
  Result set_flags(Programs programs, const VipPrefix& prefix, Rule& rule, uint8_t flags) const;
  Result write_prefix(Programs programs, const VipPrefix& prefix, const Rule& rule,
                      Change change) const;
  Result write_service(Programs programs, const VipPrefix& prefix, const Rule& rule,
                       const Service& service, Change change) const;
  Result write(Programs programs, std::string_view map, const void* key, const void* value,
               Change change, const VipPrefix& prefix) const;

  std::string interface_;
  Rules rules_;
  uint32_t next_id_ = 0;
};

}  // namespace maglev
