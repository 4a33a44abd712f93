#include "dataplane/sweep.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "tables/boot_time.h"
#include "tables/flow_hash.h"

namespace maglev {
namespace {

constexpr uint32_t kNoPool = std::numeric_limits<uint32_t>::max();

}  // namespace

FlowSweep::FlowSweep(std::vector<PoolToSweep> pools)
    : pools_(std::move(pools)), live_(pools_.size()), by_number_(kMaxTrackedPools, kNoPool) {
  for (uint32_t i = 0; i < pools_.size(); ++i) {
    by_number_[pools_[i].pool] = i;
    swept_.push_back({pools_[i].pool, {}, {}});
  }
}

void FlowSweep::look(const FlowTable& table, uint64_t first, uint64_t count, uint32_t tick) {
  const uint64_t last = std::min(first + count, table.capacity());
  for (uint64_t number = first; number < last; ++number) {
    const std::optional<FlowEntry> entry = table.place_at(number).read_shared();
    if (!entry || by_number_[entry->pool] == kNoPool) continue;
    const uint32_t p = by_number_[entry->pool];
    const PoolToSweep& pool = pools_[p];
    if (pool.idle.has_expired(*entry, tick) || entry->backend >= pool.backends) continue;
    ++live_[p][entry->backend << 8 | entry->incarnation];
    const uint32_t slot = slot_of(uint64_t{entry->hash_upper()} << 32, pool.slots);
    const auto owner = std::ranges::lower_bound(pool.unsettled, slot, {}, &UnsettledOwner::slot);
    if (owner == pool.unsettled.end() || owner->slot != slot) continue;
    if (owner->backend != entry->backend || owner->incarnation != entry->incarnation) {
      swept_[p].disagreeing.push_back(slot);
    }
  }
}

std::vector<SweptPool> FlowSweep::finish() {
  for (SweptPool& pool : swept_) {
    std::ranges::sort(pool.disagreeing);
    const auto same = std::ranges::unique(pool.disagreeing);
    pool.disagreeing.erase(same.begin(), same.end());
    for (const auto& [key, flows] : live_[by_number_[pool.pool]]) {
      pool.live_flows.push_back({key >> 8, static_cast<uint8_t>(key), flows});
    }
    std::ranges::sort(pool.live_flows, {}, [](const LiveFlows& live) {
      return std::pair(live.backend, live.incarnation);
    });
  }
  return std::move(swept_);
}

Sweeper::Sweeper(uint64_t places_per_second)
    : places_per_second_(places_per_second), thread_([this](std::stop_token stop) { run(stop); }) {}

bool Sweeper::start(Job job) {
  const std::lock_guard lock(mutex_);
  if (busy_ || result_) return false;
  job_ = std::move(job);
  busy_ = true;
  changed_.notify_one();
  return true;
}

std::optional<Sweeper::Result> Sweeper::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(result_, std::nullopt);
}

void Sweeper::run(std::stop_token stop) {
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stop, [this] { return job_.has_value(); })) {
    Job job = std::move(*job_);
    job_.reset();
    lock.unlock();
    Result result = sweep(std::move(job), stop);
    lock.lock();
    // One that was cut short tells nothing.
    if (!stop.stop_requested()) result_ = std::move(result);
    busy_ = false;
  }
}

Sweeper::Result Sweeper::sweep(Job job, std::stop_token stop) {
  constexpr uint64_t kChunk = 4096;
  const auto pause = std::chrono::nanoseconds(kChunk * 1'000'000'000 / places_per_second_);
  Result result{boot_time_ns(), 0, job.generation, {}};
  FlowSweep sweep(std::move(job.pools));
  auto next = std::chrono::steady_clock::now();
  for (const FlowTable* table : job.tables) {
    for (uint64_t first = 0; first < table->capacity(); first += kChunk) {
      sweep.look(*table, first, kChunk, flow_tick(boot_time_ns()));
      next += pause;
      std::unique_lock lock(mutex_);
      changed_.wait_until(lock, stop, next, [] { return false; });
      if (stop.stop_requested()) return result;
    }
  }
  result.pools = sweep.finish();
  result.ended_ns = boot_time_ns();
  return result;
}

}  // namespace maglev
