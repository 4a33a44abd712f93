#include "dataplane/bpf/vip_rules.h"

#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <ranges>
#include <vector>

#include "dataplane/bpf/vip_maps.h"

namespace maglev {
namespace {

static_assert(int{kRuleEchoToKernel} == int{kVipEchoToKernel});
static_assert(int{kRuleUnservedToKernel} == int{kVipUnservedToKernel});
constexpr uint8_t kKernelFlags = kVipEchoToKernel | kVipUnservedToKernel;

std::string to_text(const VipPrefix& prefix) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  inet_ntop(prefix.family == AddressFamily::kIpv4 ? AF_INET : AF_INET6, prefix.address.bytes.data(),
            text.data(), text.size());
  return fmt::format("{}/{}", text.data(), prefix.prefix_length);
}

// Such that two prefixes are the same exactly when they compare equal.
std::expected<void, std::string> check(const std::string& interface, const VipPrefix& prefix) {
  if (prefix.family == AddressFamily::kNone)
    return std::unexpected(fmt::format("{}: a VIP has no address family", interface));
  const size_t bits = prefix.family == AddressFamily::kIpv4 ? 32 : 128;
  if (prefix.prefix_length > bits)
    return std::unexpected(fmt::format("{}: VIP {}: the prefix length is at most {}", interface,
                                       to_text(prefix), bits));
  for (size_t bit = prefix.prefix_length; bit < prefix.address.bytes.size() * 8; ++bit)
    if ((prefix.address.bytes[bit / 8] >> (7 - bit % 8) & 1) != 0)
      return std::unexpected(fmt::format("{}: VIP {}: the address has bits beyond its prefix",
                                         interface, to_text(prefix)));
  return {};
}

template <typename Key>
Key key_of(const VipPrefix& prefix) {
  Key key{};
  key.prefix_length = prefix.prefix_length;
  std::memcpy(key.address, prefix.address.bytes.data(), sizeof(key.address));
  return key;
}

}  // namespace

std::expected<VipRules::Rules, std::string> VipRules::group(
    std::span<const SteeredVip> vips) const {
  Rules rules;
  for (const SteeredVip& vip : vips) {
    if (auto good = check(interface_, vip.prefix); !good) return std::unexpected(good.error());
    Rule& rule = rules.try_emplace(vip.prefix, Rule{.id = 0, .flags = kKernelFlags, .services = {}})
                     .first->second;
    rule.flags &= vip.flags;
    for (VipProtocol protocol : {VipProtocol::kTcp, VipProtocol::kUdp})
      if (vip.protocol == protocol || vip.protocol == VipProtocol::kTcpAndUdp)
        rule.services.insert({static_cast<uint8_t>(protocol), vip.port});
  }
  return rules;
}

VipRules::Result VipRules::fill(const ProgramMaps& program) const {
  const ProgramMaps* const one = &program;
  const Programs programs(&one, 1);
  for (const auto& [prefix, rule] : rules_) {
    for (const Service& service : rule.services)
      if (auto written = write_service(programs, prefix, rule, service, Change::kAdd); !written)
        return written;
    if (auto written = write_prefix(programs, prefix, rule, Change::kAdd); !written) return written;
  }
  return {};
}

VipRules::Result VipRules::add(Programs programs, std::span<const SteeredVip> vips) {
  auto wanted = group(vips);
  if (!wanted) return std::unexpected(wanted.error());
  return add(programs, *wanted);
}

VipRules::Result VipRules::set(Programs programs, std::span<const SteeredVip> vips) {
  auto wanted = group(vips);
  if (!wanted) return std::unexpected(wanted.error());
  // First, for this makes room.
  for (auto entry = rules_.begin(); entry != rules_.end();) {
    if (wanted->contains(entry->first)) {
      ++entry;
      continue;
    }
    if (auto removed = remove_rule(programs, entry->first, entry->second); !removed) return removed;
    entry = rules_.erase(entry);
  }
  if (auto added = add(programs, *wanted); !added) return added;
  for (auto& [prefix, rule] : rules_) {
    const Rule& last = wanted->at(prefix);
    if (auto done = set_flags(programs, prefix, rule, last.flags); !done) return done;
    if (auto done = remove_services(programs, prefix, rule, last.services); !done) return done;
  }
  return {};
}

VipRules::Result VipRules::add(Programs programs, const Rules& wanted) {
  for (const auto& [prefix, more] : wanted) {
    auto known = rules_.find(prefix);
    if (known == rules_.end()) {
      if (auto added = add_rule(programs, prefix, more); !added) return added;
      continue;
    }
    Rule& rule = known->second;
    if (auto added = add_services(programs, prefix, rule, more.services); !added) return added;
    if (auto done = set_flags(programs, prefix, rule, rule.flags & more.flags); !done) return done;
  }
  return {};
}

VipRules::Result VipRules::add_rule(Programs programs, const VipPrefix& prefix,
                                    const Rule& wanted) {
  Rule rule{.id = next_id_++, .flags = wanted.flags, .services = {}};
  Result added = add_services(programs, prefix, rule, wanted.services);
  if (added) added = write_prefix(programs, prefix, rule, Change::kAdd);
  if (added) {
    rules_.emplace(prefix, std::move(rule));
    return {};
  }
  // One that only some programs know would be nobody's to remove.
  if (auto removed = remove_rule(programs, prefix, rule); !removed)
    return std::unexpected(added.error() + "; " + removed.error());
  return added;
}

VipRules::Result VipRules::remove_rule(Programs programs, const VipPrefix& prefix,
                                       const Rule& rule) const {
  if (auto done = write_prefix(programs, prefix, rule, Change::kRemove); !done) return done;
  Rule emptied = rule;
  return remove_services(programs, prefix, emptied, {});
}

VipRules::Result VipRules::add_services(Programs programs, const VipPrefix& prefix, Rule& rule,
                                        const std::set<Service>& wanted) const {
  for (const Service& service : wanted) {
    if (rule.services.contains(service)) continue;
    auto added = write_service(programs, prefix, rule, service, Change::kAdd);
    if (!added) {
      if (auto removed = write_service(programs, prefix, rule, service, Change::kRemove); !removed)
        return std::unexpected(added.error() + "; " + removed.error());
      return added;
    }
    rule.services.insert(service);
  }
  return {};
}

VipRules::Result VipRules::remove_services(Programs programs, const VipPrefix& prefix, Rule& rule,
                                           const std::set<Service>& kept) const {
  for (auto service = rule.services.begin(); service != rule.services.end();) {
    if (kept.contains(*service)) {
      ++service;
      continue;
    }
    if (auto done = write_service(programs, prefix, rule, *service, Change::kRemove); !done)
      return done;
    service = rule.services.erase(service);
  }
  return {};
}

VipRules::Result VipRules::set_flags(Programs programs, const VipPrefix& prefix, Rule& rule,
                                     uint8_t flags) const {
  if (rule.flags == flags) return {};
  Rule changed{.id = rule.id, .flags = flags, .services = {}};
  if (auto done = write_prefix(programs, prefix, changed, Change::kAdd); !done) return done;
  rule.flags = flags;
  return {};
}

VipRules::Result VipRules::write_prefix(Programs programs, const VipPrefix& prefix,
                                        const Rule& rule, Change change) const {
  const VipRule value{.prefix_id = rule.id, .flags = rule.flags};
  if (prefix.family == AddressFamily::kIpv4) {
    const auto key = key_of<Prefix4Key>(prefix);
    return write(programs, "vips4", &key, &value, change, prefix);
  }
  const auto key = key_of<Prefix6Key>(prefix);
  return write(programs, "vips6", &key, &value, change, prefix);
}

VipRules::Result VipRules::write_service(Programs programs, const VipPrefix& prefix,
                                         const Rule& rule, const Service& service,
                                         Change change) const {
  const ServiceKey key{.prefix_id = rule.id,
                       .port_be = htons(service.port),
                       .protocol = service.protocol,
                       .zero = 0};
  const uint8_t value = 1;
  return write(programs, "services", &key, &value, change, prefix);
}

// What is to be removed may be missing.
VipRules::Result VipRules::write(Programs programs, std::string_view map, const void* key,
                                 const void* value, Change change, const VipPrefix& prefix) const {
  std::vector<const ProgramMaps*> order(programs.begin(), programs.end());
  if (change == Change::kRemove) std::ranges::reverse(order);
  for (const ProgramMaps* program : order) {
    const int fd = program->find(map)->second.get();
    const int status = change == Change::kAdd ? bpf_map_update_elem(fd, key, value, BPF_ANY)
                                              : bpf_map_delete_elem(fd, key);
    if (status == 0 || (change == Change::kRemove && errno == ENOENT)) continue;
    const int error = errno;
    std::string text = libbpf_error(
        interface_,
        fmt::format("{} VIP {}", change == Change::kAdd ? "add" : "remove", to_text(prefix)),
        error);
    // Which of them depends on the kind of map.
    if (error == ENOSPC || error == E2BIG) text += "; the program's map of VIPs is full";
    return std::unexpected(text);
  }
  return {};
}

}  // namespace maglev
