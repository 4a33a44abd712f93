#include "dataplane/sweep_reports.h"

#include <utility>

namespace maglev {
namespace {

// About 1 % of the main thread's core, and a table of a million flows in half a second.
constexpr uint64_t kPlacesPerSecond = 2'000'000;
constexpr uint64_t kInterval_ns = 1'000'000'000;

PoolToSweep to_sweep(const TrackedPool& pool) {
  PoolToSweep sweep{.pool = pool.number,
                    .slots = pool.image->size(),
                    .backends = static_cast<uint32_t>(pool.image->serving.size()),
                    .idle = pool.idle};
  for (const UnsettledSlot& slot : pool.image->unsettled) {
    const uint32_t owner = slot.owner;
    sweep.unsettled.push_back(
        {slot.slot, owner, owner == kNoBackendIndex ? uint8_t{0} : pool.incarnation(owner)});
  }
  return sweep;
}

}  // namespace

SweepReports::SweepReports() : sweeper_(kPlacesPerSecond) {}

bool SweepReports::poll(const Snapshot* snapshot, const SharedFlows& flows, uint64_t generation,
                        uint64_t now_ns) {
  bool is_new = false;
  if (auto result = sweeper_.take()) {
    take(*std::move(result));
    is_new = true;
  }
  if (looking_ || snapshot == nullptr || generation == 0 || now_ns < next_ns_) return is_new;
  Sweeper::Job job;
  job.generation = generation;
  job.tables.assign(flows.tables.begin(), flows.tables.end());
  if (now_ns < flows.elsewhere_until_ns.load(std::memory_order_relaxed)) {
    job.tables.insert(job.tables.end(), flows.tables_before.begin(), flows.tables_before.end());
  }
  names_.clear();
  for (const TrackedPool& pool : snapshot->tracked_pools()) {
    job.pools.push_back(to_sweep(pool));
    names_.push_back(pool.image->name);
  }
  looking_ = sweeper_.start(std::move(job));
  next_ns_ = now_ns + kInterval_ns;
  return is_new;
}

void SweepReports::take(Sweeper::Result result) {
  looking_ = false;
  last_ = {result.began_ns, result.ended_ns, result.generation, {}};
  for (size_t p = 0; p < result.pools.size(); ++p) {
    PoolFlows flows{names_[p], std::move(result.pools[p].disagreeing), {}};
    for (const LiveFlows& live : result.pools[p].live_flows) {
      flows.backends.push_back({live.backend, live.incarnation, live.flows});
    }
    last_.pools.push_back(std::move(flows));
  }
}

}  // namespace maglev
