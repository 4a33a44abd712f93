#include "control/connections.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

namespace maglev {
namespace {

SlotHistory to_record(const PastOwner& past) {
  return {past.slot,
          past.fallback.backend,
          past.pending_until_ns,
          past.inherit_until_ns,
          past.fallback.incarnation,
          {}};
}

// By pool; none where no VIP asks for it. A window is for flows of every kind: see
// VipRecord::tcp_idle_s and what the dataplane makes of it.
std::map<std::string_view, uint64_t> longest_idle_times(const ByName<Vip>& vips) {
  std::map<std::string_view, uint64_t> longest_ns;
  for (const auto& [name, vip] : vips) {
    if (vip.tracking != Tracking::kChanged) continue;
    const uint32_t idle_s = std::max({vip.idle.tcp_s, vip.idle.tcp_closing_s, vip.idle.udp_s});
    uint64_t& pool_ns = longest_ns[vip.pool];
    pool_ns = std::max(pool_ns, uint64_t{idle_s} * 1'000'000'000);
  }
  return longest_ns;
}

uint64_t lost_flows(const Report& report) {
  uint64_t lost = 0;
  for (const EventCount& event : report.events) {
    if (std::ranges::find(kLostFlowEvents, event.name) != kLostFlowEvents.end()) {
      lost += event.count;
    }
  }
  return lost;
}

}  // namespace

Connections::Connections(const BootId& boot, ReadTable read_table, ByName<Numbering> numberings,
                         const ByName<FileImage>& histories, uint64_t generation)
    : boot_(boot), read_table_(std::move(read_table)), numberings_(std::move(numberings)) {
  for (const auto& [name, image] : histories) {
    const auto view = check_history_file(image);
    if (!view || view->boot != boot_) {
      unsaved_histories_.insert(name);
      continue;
    }
    Past& past = pasts_[name];
    past.history = PoolHistory(entries_of(name, *view, generation));
    renew_file(name, past);
  }
}

// Without those that speak of places that there are not, which no dataplane would take.
std::vector<PastOwner> Connections::entries_of(const std::string& pool, const HistoryView& file,
                                               uint64_t changed_in) const {
  const Numbering* known = numbering(pool);
  const size_t places = known == nullptr ? 0 : known->places().size();
  std::vector<PastOwner> entries;
  entries.reserve(file.slots.size());
  for (const SlotHistory& record : file.slots) {
    if (record.fallback != kNoOwner && record.fallback >= places) continue;
    entries.push_back({record.slot,
                       {record.fallback, record.fallback_incarnation},
                       record.pending_until_ns,
                       record.inherit_until_ns,
                       changed_in});
  }
  return entries;
}

void Connections::take_published(const PoolView& pool, std::span<const std::byte> history,
                                 uint64_t generation) {
  const std::string name(pool.name);
  if (!numberings_.contains(name)) {
    std::vector<Numbering::Place> places;
    for (size_t i = 0; i < pool.backends.size(); ++i) {
      places.push_back({std::string(pool.backend_names[i]), pool.backends[i].incarnation});
    }
    numberings_.emplace(name, Numbering(std::move(places)));
    unsaved_numberings_.insert(name);
  }
  Past& past = pasts_[name];
  past.owners = Owners{pool.table, {}};
  for (const uint32_t index : pool.owner_backends) {
    past.owners->places.push_back({index, pool.backends[index].incarnation});
  }
  // What is published already was changed in this generation or before.
  std::vector<PastOwner> entries(past.history.entries().begin(), past.history.entries().end());
  for (PastOwner& entry : entries) entry.changed_in = generation;
  if (const auto view = check_history_file(history);
      entries.empty() && view && view->boot == boot_) {
    entries = entries_of(name, *view, generation);
  }
  past.history = PoolHistory(std::move(entries));
  renew_file(name, past);
}

const Numbering& Connections::number(const std::string& pool, const ByName<Backend>& backends,
                                     uint64_t generation) {
  Numbering& numbering = numberings_[pool];
  if (numbering.update(backends, generation)) unsaved_numberings_.insert(pool);
  return numbering;
}

void Connections::forget(const std::string& pool) {
  if (numberings_.erase(pool) > 0) unsaved_numberings_.insert(pool);
  if (pasts_.erase(pool) > 0) unsaved_histories_.insert(pool);
}

Pools Connections::known() const {
  Pools names;
  for (const auto& [name, numbering] : numberings_) names.insert(name);
  for (const auto& [name, past] : pasts_) names.insert(name);
  return names;
}

void Connections::change(ByName<PlannedPool>& planned, const ByName<Vip>& vips, uint64_t now_ns,
                         uint64_t generation) {
  const auto longest_ns = longest_idle_times(vips);
  for (auto& [name, plan] : planned) {
    Past& past = pasts_[name];
    const auto idle = longest_ns.find(name);
    change_pool(name, past, plan, idle == longest_ns.end() ? 0 : idle->second, now_ns, generation);
    plan.history = past.file;
  }
}

void Connections::change_pool(const std::string& name, Past& past, const PlannedPool& plan,
                              uint64_t longest_idle_ns, uint64_t now_ns, uint64_t generation) {
  const uint64_t idle_before_ns = std::exchange(past.idle_ns, longest_idle_ns);
  past.table_size = plan.table_size;
  const auto entries = past.history.entries();
  bool changed = false;
  if (!entries.empty() && entries.back().slot >= plan.table_size) {
    past.history = {};  // of a table that had another size
    changed = true;
  } else if (idle_before_ns != 0 && idle_before_ns < longest_idle_ns) {
    changed = past.history.extend(now_ns, longest_idle_ns);
  }
  if (past.owners && (past.owners->table != plan.table || past.owners->places != plan.owners)) {
    changed |= change_owners(name, past, {plan.table, plan.owners}, now_ns, generation);
  }
  if (changed) renew_file(name, past);
}

bool Connections::change_owners(const std::string& name, Past& past, const Owners& next,
                                uint64_t now_ns, uint64_t generation) {
  if (past.idle_ns == 0) {
    const bool had_some = !past.history.entries().empty();
    past.history = {};  // whose changes nobody follows
    return had_some;
  }
  const auto before = slot_owners(*past.owners);
  const auto after = slot_owners(next);
  if (!before || !after || before->size() != after->size()) {
    spdlog::error("pool {}: whose its slots were cannot be told, so that connections may break: {}",
                  name,
                  !before  ? before.error()
                  : !after ? after.error()
                           : "the table has another size");
    return false;
  }
  past.history.change(*before, *after, now_ns, past.idle_ns, generation);
  return true;
}

void Connections::renew_file(const std::string& name, Past& past) {
  Checksum file;
  if (!past.history.entries().empty()) file = check_history_file(history_file(name))->checksum;
  if (std::exchange(past.file, file) != file) unsaved_histories_.insert(name);
}

FileImage Connections::history_file(std::string_view pool) const {
  std::vector<SlotHistory> records;
  const std::span<const PastOwner> entries = pasts_.find(pool)->second.history.entries();
  records.reserve(entries.size());
  for (const PastOwner& past : entries) records.push_back(to_record(past));
  return build_history_file(boot_, records);
}

std::expected<std::vector<SlotOwner>, std::string> Connections::slot_owners(
    const Owners& owners) const {
  const auto file = read_table_(owners.table);
  if (!file) return std::unexpected(file.error());
  const auto table = check_table_file(*file);
  if (!table) return std::unexpected(table.error());
  if (table->checksum != owners.table || table->owners.size() != owners.places.size()) {
    return std::unexpected("the published table is another one");
  }
  std::vector<SlotOwner> slots(table->size());
  for (uint32_t slot = 0; slot < table->size(); ++slot) {
    const uint32_t owner = table->owner_of(slot);
    if (owner != kNoOwner) slots[slot] = owners.places[owner];
  }
  return slots;
}

std::map<std::string, const Numbering*> Connections::changed_numberings() const {
  std::map<std::string, const Numbering*> changed;
  for (const std::string& name : unsaved_numberings_) changed.emplace(name, numbering(name));
  return changed;
}

std::map<std::string, FileImage> Connections::changed_histories() const {
  std::map<std::string, FileImage> changed;
  for (const std::string& name : unsaved_histories_) {
    const PoolHistory* known = history(name);
    const bool is_empty = known == nullptr || known->entries().empty();
    changed.emplace(name, is_empty ? FileImage() : history_file(name));
  }
  return changed;
}

void Connections::saved() {
  unsaved_numberings_.clear();
  unsaved_histories_.clear();
}

void Connections::published(const ByName<PlannedPool>& planned) {
  for (const auto& [name, plan] : planned) {
    pasts_[name].owners = Owners{plan.table, plan.owners};
  }
}

bool Connections::take_report(const Report& report, uint64_t now_ns,
                              uint64_t published_generation) {
  bool changed = take_losses(report, now_ns);
  if (is_new(report.sweep, now_ns, published_generation)) changed |= take_sweep(report.sweep);
  return changed;
}

// The window of a pool that has unsettled slots becomes longer when half of it is over, not with
// each loss: a flood would lead to a publication with each report.
bool Connections::take_losses(const Report& report, uint64_t now_ns) {
  const uint64_t losses = lost_flows(report);
  const bool is_same = std::exchange(reporter_, report.started_ns) == report.started_ns;
  const bool more = losses > std::exchange(losses_, losses) && is_same;
  bool changed = false;
  for (auto& [name, past] : pasts_) {
    if (past.idle_ns == 0 || past.history.entries().empty()) continue;
    if (more) past.lost_ns = now_ns;
    if (past.lost_ns == 0) continue;
    const auto end_ns = past.history.first_end_ns(now_ns);
    const bool is_near = end_ns && *end_ns < now_ns + past.idle_ns / 2 + kAdoptionGrace_ns;
    if (!is_near || *end_ns >= past.lost_ns + past.idle_ns + kAdoptionGrace_ns) continue;
    if (!past.history.extend(now_ns, past.idle_ns)) continue;
    renew_file(name, past);
    changed = true;
  }
  return changed;
}

// Times and generations that cannot be are nobody's word.
bool Connections::is_new(const SweepReport& sweep, uint64_t now_ns, uint64_t published_generation) {
  if (sweep.began_ns <= last_sweep_ns_ || sweep.generation == 0) return false;
  if (sweep.began_ns > sweep.ended_ns || sweep.ended_ns > now_ns) return false;
  if (sweep.generation > published_generation) return false;
  last_sweep_ns_ = sweep.began_ns;
  return true;
}

bool Connections::take_sweep(const SweepReport& sweep) {
  bool changed = false;
  for (const PoolFlows& flows : sweep.pools) {
    const auto past = pasts_.find(flows.pool);
    const Numbering* places = numbering(flows.pool);
    if (past == pasts_.end() || places == nullptr || past->second.table_size == 0) continue;
    const bool can_be =
        (flows.disagreeing.empty() || flows.disagreeing.back() < past->second.table_size) &&
        (flows.backends.empty() || flows.backends.back().backend < places->places().size());
    if (can_be) {
      changed |= take_pool(sweep, flows);
    } else if (!std::exchange(warned_, true)) {
      spdlog::warn(
          "the dataplane reports flows of slots or backends that pool {} does not have: what "
          "cannot be is not looked at",
          flows.pool);
    }
  }
  return changed;
}

// A place becomes free in the durable state with the next publication; none has to tell of it.
bool Connections::take_pool(const SweepReport& sweep, const PoolFlows& flows) {
  Past& past = pasts_.find(flows.pool)->second;
  const bool settled =
      past.history.settle({sweep.began_ns, sweep.generation, flows.disagreeing}) > 0;
  if (settled) renew_file(flows.pool, past);
  const auto is_named = [&](uint32_t place) {
    const auto found = std::ranges::lower_bound(flows.backends, place, {}, &BackendFlows::backend);
    return (found != flows.backends.end() && found->backend == place) || past.history.names(place);
  };
  if (numberings_.find(flows.pool)->second.free_swept(sweep.generation, is_named)) {
    unsaved_numberings_.insert(flows.pool);
  }
  return settled;
}

const Numbering* Connections::numbering(std::string_view pool) const {
  const auto known = numberings_.find(pool);
  return known == numberings_.end() ? nullptr : &known->second;
}

const PoolHistory* Connections::history(std::string_view pool) const {
  const auto known = pasts_.find(pool);
  return known == pasts_.end() ? nullptr : &known->second.history;
}

}  // namespace maglev
