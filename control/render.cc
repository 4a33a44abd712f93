#include "control/render.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "control/plan.h"
#include "control/publisher.h"

namespace maglev {
namespace {

namespace ip = boost::asio::ip;

constexpr uint64_t kRenderedGeneration = 1;

std::array<uint8_t, 6> rendered_mac(const ip::address& address) {
  const Address bytes = to_record(address);
  const auto* const last = bytes.bytes.data() + (address.is_v4() ? 0 : 12);
  return {2, 0, last[0], last[1], last[2], last[3]};
}

WayOut rendered_way_out(const ip::address& address, const Configuration& configuration) {
  NextHop hop;
  hop.resolved = true;
  hop.mac = rendered_mac(address);
  hop.outer_source = ip::make_address(address.is_v4() ? kRenderedSourceIpv4 : kRenderedSourceIpv6);
  hop.via = address;
  hop.on_link = true;
  if (!configuration.dataplane.ports.empty())
    hop.interface = configuration.dataplane.ports.front().interface;
  hop.reason.clear();
  const Prefix source = choose_outer_source(configuration.outer_source_prefixes, hop.outer_source);
  return {std::move(hop), 0, source, {}};
}

std::expected<PlannedPool, std::string> render_pool(const std::string& name, const Pool& pool,
                                                    const Configuration& configuration,
                                                    Publisher& publisher) {
  Numbering numbering;
  numbering.update(pool.backends, kRenderedGeneration);
  const PoolSenses senses{
      [](const std::string&) { return HealthVerdict::kUp; },
      [&](const ip::address& address) { return rendered_way_out(address, configuration); },
      [](const std::string&) { return false; }};
  auto plan = plan_pool(name, pool, numbering, senses, nullptr);
  if (!plan) return plan;
  for (const auto& written : {publisher.write(kTableDirectory, plan->table, plan->table_file),
                              publisher.write(kPoolDirectory, plan->pool, plan->pool_file)}) {
    if (!written) return std::unexpected(written.error());
  }
  return plan;
}

}  // namespace

std::expected<void, std::string> render(const Configuration& configuration,
                                        const std::string& directory,
                                        const std::vector<ip::address>& outer_sources) {
  const std::string root = fmt::format("{}/{}", directory, kRootFileName);
  if (std::filesystem::exists(root)) {
    return std::unexpected(fmt::format(
        "{} exists already and may be in use: name a directory without published files", root));
  }
  const auto publisher = Publisher::open(directory);
  if (!publisher) return std::unexpected(publisher.error());

  Configuration rendered = configuration;
  for (const ip::address& source : outer_sources) {
    auto& prefixes = rendered.outer_source_prefixes;
    std::erase_if(prefixes,
                  [&](const Prefix& prefix) { return prefix.address.is_v4() == source.is_v4(); });
    prefixes.push_back(only(source));
  }
  ByName<PlannedPool> plans;
  Publisher::Named named;
  for (const auto& [name, pool] : rendered.pools) {
    auto plan = render_pool(name, pool, rendered, **publisher);
    if (!plan) return std::unexpected(plan.error());
    named[kTableDirectory].insert(plan->table);
    named[kPoolDirectory].insert(plan->pool);
    plans.emplace(name, std::move(*plan));
  }
  return (*publisher)
      ->replace_root(plan_root(kRenderedGeneration, rendered.hash_seed, plans, rendered.vips),
                     std::move(named));
}

}  // namespace maglev
