#include "tests/model/host.h"

#include <algorithm>
#include <utility>

#include "tables/flow_hash.h"

namespace maglev::model {

// --- what the rules ask ---

const FlowIdle& HostView::idle(uint16_t) const {
  return host.idle_;
}

bool HostView::serves(uint16_t, uint32_t backend, uint8_t incarnation) const {
  return published.serves[backend] && (published.incarnations[backend] == incarnation);
}

uint8_t HostView::incarnation(uint16_t, uint32_t backend) const {
  return published.incarnations[backend];
}

SlotView HostView::slot(uint16_t, uint32_t hash_upper) const {
  SlotView view = published.slots[slot_of(uint64_t{hash_upper} << 32,
                                          static_cast<uint32_t>(published.slots.size()))];
  view.full = full;
  return view;
}

bool HostView::looks_elsewhere() const {
  return now_ns < host.elsewhere_until_ns_;
}

// The one seen last, of the other workers and those of before.
std::optional<FlowEntry> HostView::known_elsewhere(const FlowIdentity& flow, uint16_t pool) const {
  std::optional<FlowEntry> known;
  for (const auto* workers : {&host.workers_, &host.retired_}) {
    for (const auto& worker : *workers) {
      const FlowTable& table = full ? *worker->full.table : *worker->changed.table;
      if (&table == own) continue;
      const std::optional<FlowEntry> entry = table.peek(flow, pool);
      if (entry && (!known || flow_age_ticks(tick, entry->seen_tick) <
                                  flow_age_ticks(tick, known->seen_tick))) {
        known = entry;
      }
    }
  }
  return known;
}

// --- the dataplane ---

Host::Table::Table(uint64_t entries)
    : size(FlowTable::bytes_for(entries)),
      memory(static_cast<std::byte*>(std::aligned_alloc(128, size)), &std::free) {
  std::fill_n(memory.get(), size, std::byte{0});
  reopen();
}

Host::Host(const HostSettings& settings, uint64_t seed)
    : settings_(settings),
      random_(seed),
      idle_(flow_idle(settings.idle.tcp_s, settings.idle.tcp_closing_s, settings.idle.udp_s)),
      owners_(settings.slots) {
  for (uint32_t i = 0; i < settings.workers; ++i) {
    workers_.push_back(std::make_unique<Worker>(settings.entries_per_worker));
  }
}

const Published& Host::published(Worker& worker, uint64_t now_ns) {
  while (!worker.coming.empty() && worker.coming.front().first <= now_ns) {
    worker.current = std::move(worker.coming.front().second);
    worker.coming.pop_front();
  }
  return *worker.current;
}

Chosen Host::choose(Mode mode, const Packet& packet, uint32_t number, uint64_t now_ns) {
  Worker& worker = *workers_[number];
  const Published& current = published(worker, now_ns);
  SlotView slot = current.slots[slot_of(packet.flow.hash, settings_.slots)];
  slot.full = mode == Mode::kFull;
  uint32_t index = slot.owner;
  const bool settled = slot.inherit_until_ns == 0;
  if (mode == Mode::kChanged) (settled ? settled_packets_ : unsettled_packets_) += 1;
  if (mode == Mode::kFull || (mode == Mode::kChanged && !settled)) {
    Table& table = slot.full ? worker.full : worker.changed;
    const HostView view{now_ns, flow_tick(now_ns), current, *this, slot.full, table.table.get()};
    index = settings_.track(
        *table.table,
        {packet.flow, table.table->position_of(packet.flow), 0, packet.kind, packet.opening}, slot,
        idle_, view, slot.full ? worker.full_counters : worker.changed_counters);
  }
  if (index == kNoBackendIndex) return {};
  return {current.backends[index], index, index != slot.owner && index != slot.fallback};
}

void Host::look_elsewhere(uint64_t now_ns) {
  elsewhere_until_ns_ = now_ns + to_ns(settings_.idle.tcp_s) + kAdoptionGrace_ns;
}

void Host::set_worker_count(uint32_t workers, uint64_t now_ns) {
  retired_lookups_ = lookups_changed();
  retired_ = std::move(workers_);
  workers_.clear();
  for (uint32_t i = 0; i < workers; ++i) {
    workers_.push_back(std::make_unique<Worker>(settings_.entries_per_worker));
    workers_.back()->current = latest_;
  }
  look_elsewhere(now_ns);
}

void Host::restart_dataplane(uint64_t) {
  for (auto& worker : workers_) {
    worker->full.reopen();
    worker->changed.reopen();
    worker->current = latest_;
    worker->coming.clear();
  }
}

uint64_t Host::lookups_changed() const {
  uint64_t lookups = retired_lookups_;
  for (const auto& worker : workers_) {
    lookups += worker->changed_counters.known.get() + worker->changed_counters.unknown.get();
  }
  return lookups;
}

TableShare Host::count_entries(uint64_t now_ns) const {
  TableShare share;
  const uint32_t tick = flow_tick(now_ns);
  for (const auto& worker : workers_) {
    for (const Table* table : {&worker->full, &worker->changed}) {
      for (uint64_t i = 0; i < table->table->capacity(); ++i) {
        const std::optional<FlowEntry> entry = table->table->place_at(i).read_shared();
        if (!entry || idle_.has_expired(*entry, tick)) continue;
        (table == &worker->full ? share.entries_full : share.entries_changed) += 1;
      }
    }
  }
  return share;
}

// --- control ---

constexpr uint64_t kForever = ~0ull;

uint32_t Host::index_of(uint32_t backend) const {
  if (backend == kNobody) return kNoOwner;
  const auto place = std::ranges::find(places_, backend, &Place::backend);
  return static_cast<uint32_t>(place - places_.begin());
}

// Indices of those who left stay theirs until nothing names them.
void Host::number(const std::vector<uint32_t>& pool) {
  for (Place& place : places_) {
    if (place.backend == kNobody || place.left_in != 0) continue;
    if (std::ranges::find(pool, place.backend) == pool.end()) place.left_in = generation_;
    if (place.left_in != 0 && !settings_.control.index_waits_for_sweep) place.backend = kNobody;
  }
  for (const uint32_t backend : pool) {
    if (std::ranges::find(places_, backend, &Place::backend) != places_.end()) continue;
    auto place = std::ranges::find(places_, kNobody, &Place::backend);
    if (place == places_.end()) place = places_.emplace(place);
    place->backend = backend;
    place->left_in = 0;
    if (settings_.control.new_incarnation || place->incarnation == 0) ++place->incarnation;
  }
}

void Host::change(const Membership& membership, uint64_t now_ns) {
  ++generation_;
  number(membership.pool);
  serves_.assign(places_.size(), false);
  for (uint32_t i = 0; i < places_.size(); ++i) {
    const Place& place = places_[i];
    serves_[i] = place.backend != kNobody && place.left_in == 0 && membership.serves[place.backend];
  }
  down_until_ns_.resize(membership.serves.size());
  for (uint32_t i = 0; i < down_until_ns_.size(); ++i) {
    const bool recovers = membership.serves[i] && down_until_ns_[i] == kForever;
    if (recovers) down_until_ns_[i] = now_ns + to_ns(latest_adoption_s());
    if (!membership.serves[i]) down_until_ns_[i] = kForever;
  }
  std::vector<SlotOwner> after(owners_.size());
  for (uint32_t slot = 0; slot < after.size(); ++slot) {
    const uint32_t index = index_of(membership.owners[slot]);
    if (index != kNoOwner) after[slot] = {index, places_[index].incarnation};
  }
  remember_change(owners_, after, now_ns);
  owners_ = std::move(after);
  publish(now_ns);
}

void Host::remember_change(std::span<const SlotOwner> before, std::span<const SlotOwner> after,
                           uint64_t now_ns) {
  const ControlRules& rules = settings_.control;
  std::vector<PastOwner> entries(history_.entries().begin(), history_.entries().end());
  for (PastOwner& entry : entries) {
    if (!rules.window_outlives_changes) entry.inherit_until_ns = 0;
    if (!rules.later_change_starts_again) entry.inherit_until_ns += 1ull << 62;
  }
  PoolHistory history(std::move(entries));
  history.change(
      before, after, now_ns,
      to_ns(settings_.idle.tcp_s) - (rules.window_covers_adoption ? 0 : kAdoptionGrace_ns),
      generation_);
  entries.assign(history.entries().begin(), history.entries().end());
  for (PastOwner& entry : entries) {
    if (entry.inherit_until_ns > 1ull << 62) entry.inherit_until_ns -= 1ull << 62;
  }
  if (!rules.window_outlives_changes) {
    // Those that did not change now keep the end of their window.
    for (const PastOwner& old : history_.entries()) {
      if (before[old.slot] == after[old.slot]) {
        std::ranges::lower_bound(entries, old.slot, {}, &PastOwner::slot)->inherit_until_ns =
            old.inherit_until_ns;
      }
    }
  }
  if (!rules.return_stays_unsettled) {
    std::erase_if(entries, [&](const PastOwner& e) {
      return before[e.slot] != after[e.slot] && after[e.slot] == e.fallback;
    });
  }
  history_ = PoolHistory(std::move(entries));
}

SlotView Host::view_of(uint32_t slot, const PastOwner* past) const {
  const uint32_t owner = owners_[slot].backend;
  if (past == nullptr) return {.owner = owner, .fallback = owner};
  const SlotOwner& old = past->fallback;
  const bool serves = old.backend < places_.size() && serves_[old.backend] &&
                      places_[old.backend].incarnation == old.incarnation;
  return unsettled_view(owner, old.backend, serves, past->pending_until_ns, past->inherit_until_ns,
                        to_ns(settings_.idle.tcp_s) - to_ns(settings_.idle.udp_s));
}

void Host::publish(uint64_t now_ns) {
  auto next = std::make_shared<Published>();
  next->generation = generation_;
  next->serves = serves_;
  for (const Place& place : places_) {
    next->incarnations.push_back(place.incarnation);
    next->backends.push_back(place.backend);
  }
  auto past = history_.entries().begin();
  for (uint32_t slot = 0; slot < owners_.size(); ++slot) {
    const bool unsettled = past != history_.entries().end() && past->slot == slot;
    next->slots.push_back(view_of(slot, unsettled ? &*past++ : nullptr));
  }
  latest_ = std::move(next);
  for (auto& worker : workers_) {
    if (worker->current == nullptr) worker->current = latest_;
    const uint64_t at_ns = now_ns + to_ns(random_.uniform(0, latest_adoption_s()));
    const uint64_t before_ns = worker->coming.empty() ? 0 : worker->coming.back().first;
    worker->coming.emplace_back(std::max(at_ns, before_ns), latest_);
  }
}

bool Host::was_down(uint32_t backend, uint64_t since_ns) const {
  return backend < down_until_ns_.size() && down_until_ns_[backend] >= since_ns;
}

void Host::restart_control() {
  history_ = PoolHistory({history_.entries().begin(), history_.entries().end()});
}

void Host::begin_sweep(uint64_t now_ns) {
  sweep_began_ns_ = now_ns;
  sweep_generation_ = generation_;
  for (auto& worker : workers_) {
    sweep_generation_ = std::min(sweep_generation_, published(*worker, now_ns).generation);
  }
}

std::vector<SweptPool> Host::sweep(bool full, uint64_t now_ns) const {
  PoolToSweep pool{
      .slots = settings_.slots, .backends = static_cast<uint32_t>(places_.size()), .idle = idle_};
  for (const PastOwner& entry : history_.entries()) {
    const SlotOwner& owner = owners_[entry.slot];
    if (!full) pool.unsettled.push_back({entry.slot, owner.backend, owner.incarnation});
  }
  FlowSweep look({std::move(pool)});
  for (const auto* workers : {&workers_, &retired_}) {
    for (const auto& worker : *workers) {
      const FlowTable& table = full ? *worker->full.table : *worker->changed.table;
      look.look(table, 0, table.capacity(), flow_tick(now_ns));
    }
  }
  return look.finish();
}

// Flows of mode kChanged for which there was no room, or no more, though they were not open ones.
uint64_t Host::flows_lost() const {
  uint64_t lost = 0;
  for (const auto& worker : workers_) {
    lost += worker->changed_counters.others_unstored.get() +
            worker->changed.table->counters()
                .evicted[static_cast<uint32_t>(FlowWorth::kOnePacket)]
                .get();
  }
  return lost;
}

void Host::end_sweep(uint64_t now_ns) {
  const ControlRules& rules = settings_.control;
  const SweptPool full = sweep(true, now_ns)[0];
  SweptPool changed = sweep(false, now_ns)[0];
  if (!rules.settle_by_sweep) changed.disagreeing.clear();
  const auto some_ns = rules.sweep_after_window ? 0 : to_ns(settings_.idle.tcp_s) * 2;
  const uint32_t settled = history_.settle(
      {sweep_began_ns_ + some_ns, rules.sweep_knows_last_change ? sweep_generation_ : generation_,
       changed.disagreeing});
  for (uint32_t i = 0; i < places_.size(); ++i) {
    Place& place = places_[i];
    const bool seen_gone = place.left_in != 0 && place.left_in <= sweep_generation_;
    const auto names = [i](const LiveFlows& live) { return live.backend == i; };
    const bool live = std::ranges::any_of(full.live_flows, names) ||
                      std::ranges::any_of(changed.live_flows, names);
    if (seen_gone && !live && !history_.names(i)) place.backend = kNobody;
  }
  const bool lost = flows_lost() != std::exchange(flows_lost_, flows_lost());
  if (lost && rules.extend_when_crowded) history_.extend(now_ns, to_ns(settings_.idle.tcp_s));
  if (settled > 0 || lost) {
    ++generation_;
    publish(now_ns);
  }
}

}  // namespace maglev::model
