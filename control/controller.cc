#include "control/controller.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netinet/in.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "control/reload_rules.h"
#include "tables/counted.h"

namespace maglev {
namespace {

using std::chrono::milliseconds;
namespace ip = boost::asio::ip;

// Bounds on how long the first publication waits. Until then the tables of the last run serve.
constexpr milliseconds kLongestHoldForChecks{10000};
constexpr milliseconds kLongestHoldForNextHops{1000};
constexpr milliseconds kRetryAfter{1000};
constexpr milliseconds kLookForDamageEvery{1000};

// With so many, one slot more or less is a hundredth of a backend's share.
constexpr uint64_t kSlotsPerBackend = 100;

// A larger one can only come from damage, and would use up the numbers. What is reported has half
// the room: what follows a damaged report must be sane in our own stores.
constexpr uint64_t kMaxReportedGeneration = uint64_t{1} << 62;
constexpr uint64_t kMaxGeneration = 2 * kMaxReportedGeneration - 1;

uint64_t sane_generation(uint64_t generation, std::string_view where,
                         uint64_t limit = kMaxGeneration) {
  if (generation <= limit) return generation;
  spdlog::warn("generation {} in the {} is out of range and is not looked at", generation, where);
  return 0;
}

bool changes_targets(const Override& change) {
  return change.key.kind != OverrideKey::Kind::kVip &&
         !std::holds_alternative<BackendPatch>(change.value);
}

}  // namespace

Controller::Controller(Configuration configuration, State::Opened state,
                       std::unique_ptr<Publisher> publisher, uint64_t reported_generation,
                       Senses senses)
    : configuration_(std::move(configuration)),
      state_(std::move(state.state)),
      publisher_(std::move(publisher)),
      senses_(std::move(senses)),
      model_(configuration_.pools, configuration_.vips),
      connections_(
          senses_.boot,
          [this](const Checksum& table) { return publisher_->read(kTableDirectory, table); },
          std::move(state.remembered.numberings), state.remembered.histories,
          state.remembered.generation + 1),
      reported_generation_(sane_generation(reported_generation, "report", kMaxReportedGeneration)) {
  for (RememberedVerdict& known : state.remembered.verdicts) {
    const std::pair key(known.pool, known.backend);
    verdicts_.insert_or_assign(key, std::move(known));
  }
  if (!publisher_->root().empty()) take_published_root();
  largest_generation_ = std::max({sane_generation(state.remembered.generation, "durable state"),
                                  published_generation_, reported_generation_});
  if (const auto dropped = model_.restore(state.remembered.overrides); !dropped.empty()) {
    forget(dropped);
  }
  const auto now = senses_.now();
  hold_checks_until_ = now;
  hold_next_hops_until_ = now + kLongestHoldForNextHops;
  renew_senses();
  for (const auto& [name, pool] : model_.pools()) {
    start_settling(name, pool);
    dirty_pools_.insert(name);
  }
  // Of a pool that has left the file since, what is remembered goes too.
  dirty_pools_.merge(connections_.known());
  for (const auto& [name, settling] : settling_) {
    hold_checks_until_ = std::max(hold_checks_until_, settling.deadline);
  }
  hold_checks_until_ = std::min(hold_checks_until_, now + kLongestHoldForChecks);
  tick();
}

void Controller::take_published_root() {
  const auto root = check_root_file(publisher_->root());
  published_generation_ = sane_generation(root->generation, "root");
  if (root->hash_seed != configuration_.hash_seed) {
    spdlog::warn("hash_seed differs from the one in use until now: most connections will move");
  }
  for (const PoolReference& reference : root->pools) {
    const auto file = publisher_->read(kPoolDirectory, reference.pool);
    const auto pool = file ? check_pool_file(*file) : std::unexpected(file.error());
    if (!pool) {
      spdlog::error("a pool that is in use cannot be read, so that its connections may break: {}",
                    pool.error());
      continue;
    }
    const auto history = publisher_->read(kHistoryDirectory, reference.history);
    connections_.take_published(*pool, history.value_or(FileImage()), published_generation_);
  }
}

void Controller::forget(const std::vector<Model::Dropped>& dropped) {
  Overrides forgotten;
  for (const Model::Dropped& lost : dropped) {
    const OverrideKey& key = lost.change.key;
    spdlog::warn("what was set by socket for {}{}{} no longer counts: {}", key.pool,
                 key.pool.empty() ? "" : "/", key.name, lost.why);
    forgotten.push_back({key, Forgotten{}});
  }
  if (const auto saved = state_->save_overrides(forgotten); !saved) spdlog::error(saved.error());
}

const PlannedPool* Controller::planned(std::string_view pool) const {
  const auto plan = planned_.find(pool);
  return plan == planned_.end() ? nullptr : &plan->second;
}

Health Controller::health_of(std::string_view pool, std::string_view backend) const {
  return senses_.health_of(pool, backend);
}

WayOut Controller::way_out_of(const ip::address& address) const {
  return find_way_out(senses_.next_hop_of(address), senses_.path_mtu_of(address), configuration_);
}

// Makes checks and next hops follow the backends there are.
void Controller::renew_senses() {
  std::vector<HealthTarget> targets;
  std::set<ip::address> addresses;
  decltype(verdicts_) kept;
  for (const auto& [name, pool] : model_.pools()) {
    const HealthSettings& health = pool.settings.health;
    for (const auto& [backend_name, backend] : pool.backends) {
      addresses.insert(backend.address);
      if (health.type == HealthType::kNone) continue;
      HealthTarget target{name, backend_name, backend.address, health, HealthVerdict::kUnknown};
      const auto known = verdicts_.find({name, backend_name});
      if (known != verdicts_.end() &&
          known->second.target == endpoint_text(health.type, backend.address, health.port)) {
        target.initial = known->second.verdict;
        kept.insert(verdicts_.extract(known));
      }
      targets.push_back(std::move(target));
    }
  }
  for (auto& [key, verdict] : verdicts_) {
    verdict.verdict = HealthVerdict::kUnknown;
    unsaved_verdicts_.push_back(std::move(verdict));
  }
  verdicts_ = std::move(kept);
  senses_.check(targets);
  senses_.watch(addresses);
}

void Controller::start_settling(const std::string& name, const Pool& pool) {
  const HealthSettings& health = pool.settings.health;
  if (health.type == HealthType::kNone) return;
  // Intervals are jittered by a tenth, so this is the latest time a first result may come.
  const milliseconds longest(health.interval_ms + health.interval_ms / 10 + health.timeout_ms);
  Settling settling{senses_.now() + longest + kTick, {}};
  for (const auto& [backend_name, backend] : pool.backends) {
    if (senses_.health_of(name, backend_name).verdict != HealthVerdict::kUnknown) return;
    settling.unchecked.insert(backend_name);
  }
  if (!settling.unchecked.empty()) settling_.insert_or_assign(name, std::move(settling));
}

void Controller::end_settling() {
  const auto now = senses_.now();
  for (auto settling = settling_.begin(); settling != settling_.end();) {
    if (settling->second.deadline > now && !settling->second.unchecked.empty()) {
      ++settling;
      continue;
    }
    dirty_pools_.insert(settling->first);
    settling = settling_.erase(settling);
  }
}

bool Controller::must_hold() const {
  const auto now = senses_.now();
  if (!settling_.empty() && now < hold_checks_until_) return true;
  if (now >= hold_next_hops_until_) return false;
  return std::ranges::any_of(model_.pools(), [&](const auto& pool) {
    return std::ranges::any_of(pool.second.backends, [&](const auto& backend) {
      return !senses_.next_hop_of(backend.second.address).resolved;
    });
  });
}

// Of a pool that came, went or became another.
void Controller::pool_changed(const std::string& name) {
  dirty_pools_.insert(name);
  settling_.erase(name);
  const auto pool = model_.pools().find(name);
  if (pool != model_.pools().end()) start_settling(name, pool->second);
}

std::expected<uint64_t, Refusal> Controller::commit(std::expected<Overrides, Refusal> planned) {
  if (!planned) return std::unexpected(planned.error());
  if (const auto saved = state_->save_overrides(*planned); !saved) {
    spdlog::error(saved.error());
    return std::unexpected(Refusal{"not_saved", saved.error()});
  }
  model_.apply(*planned);
  root_is_dirty_ = true;
  if (std::ranges::any_of(*planned, changes_targets)) renew_senses();
  for (const Override& change : *planned) {
    if (change.key.kind == OverrideKey::Kind::kPool) pool_changed(change.key.name);
    if (change.key.kind == OverrideKey::Kind::kBackend) dirty_pools_.insert(change.key.pool);
    const auto* vip = std::get_if<Vip>(&change.value);
    const PlannedPool* plan = vip != nullptr ? this->planned(vip->pool) : nullptr;
    if (plan != nullptr) warn_of_layer2(vip->pool, plan->off_link);
  }
  is_held_ = false;
  if (const auto published = publish(); !published) {
    return std::unexpected(Refusal{
        "not_published", fmt::format("the change is saved and will be published when it can be: {}",
                                     published.error())});
  }
  return published_generation_;
}

std::expected<std::vector<Controller::Foreseen>, Refusal> Controller::foresee(
    std::expected<Overrides, Refusal> planned) const {
  if (!planned) return std::unexpected(planned.error());
  Model next = model_;
  next.apply(*planned);
  ByName<std::set<std::string, std::less<>>> altered;  // backends, by pool
  for (const Override& change : *planned) {
    if (change.key.kind == OverrideKey::Kind::kBackend) {
      altered[change.key.pool].insert(change.key.name);
    }
  }
  std::vector<Foreseen> foreseen;
  for (const auto& [name, backends] : altered) {
    const auto before = model_.pools().find(name);
    const auto after = next.pools().find(name);
    if (before == model_.pools().end() || after == next.pools().end()) continue;
    const PoolSenses senses = senses_of(name);
    PoolSenses then = senses;
    then.verdict_of = [&](const std::string& backend) {
      return backends.contains(backend) ? HealthVerdict::kUp : senses.verdict_of(backend);
    };
    auto change =
        plan_table_change(before->second.settings, choose_members(before->second, senses).members,
                          choose_members(after->second, then).members);
    if (!change) return std::unexpected(Refusal{"bad_request", change.error()});
    foreseen.push_back({name, std::move(*change)});
  }
  return foreseen;
}

std::expected<void, std::vector<std::string>> Controller::reload(Configuration next) {
  std::vector<std::string> errors = find_fixed(configuration_, next);
  Model model(next.pools, next.vips);
  const auto dropped = model.restore(model_.overrides());
  for (const Model::Dropped& lost : dropped) {
    if (!lost.is_conflict) continue;
    const OverrideKey& key = lost.change.key;
    errors.push_back(fmt::format("{} '{}', set by socket, does not fit the file: {}",
                                 key.kind == OverrideKey::Kind::kVip ? "VIP" : "backend", key.name,
                                 lost.why));
  }
  std::ranges::move(find_fixed(model_, model), std::back_inserter(errors));
  if (!errors.empty()) return std::unexpected(std::move(errors));

  if (!dropped.empty()) forget(dropped);
  const bool sources_differ = next.outer_source_prefixes != configuration_.outer_source_prefixes;
  const auto waiting = find_waiting(configuration_.dataplane, next.dataplane);
  if (!waiting.empty()) {
    spdlog::warn("changed in dataplane: {}: in force once maglev-dataplane is started again",
                 fmt::join(waiting, ", "));
  }
  configuration_ = std::move(next);
  const Model before = std::exchange(model_, std::move(model));
  root_is_dirty_ = true;
  renew_senses();
  for (const auto& [name, pool] : before.pools()) {
    if (!model_.pools().contains(name)) pool_changed(name);
  }
  for (const auto& [name, pool] : model_.pools()) {
    const auto old = before.pools().find(name);
    if (old == before.pools().end()) {
      pool_changed(name);
    } else if (old->second != pool || sources_differ) {
      dirty_pools_.insert(name);
    }
  }
  return {};
}

void Controller::health_changed(const std::string& pool, const std::string& backend,
                                const Health& health) {
  const auto where = model_.pools().find(pool);
  if (where == model_.pools().end()) return;
  const auto target = where->second.backends.find(backend);
  if (target == where->second.backends.end()) return;
  spdlog::info("backend {}/{} is {}: {}", pool, backend,
               health.verdict == HealthVerdict::kUp ? "up" : "down", health.reason);
  const HealthSettings& checked = where->second.settings.health;
  const RememberedVerdict verdict{pool, backend,
                                  endpoint_text(checked.type, target->second.address, checked.port),
                                  health.verdict};
  verdicts_.insert_or_assign({pool, backend}, verdict);
  unsaved_verdicts_.push_back(verdict);
  if (const auto settling = settling_.find(pool); settling != settling_.end()) {
    settling->second.unchecked.erase(backend);
  }
  dirty_pools_.insert(pool);
}

template <typename F>
void Controller::for_each_backend_at(const std::vector<ip::address>& addresses, F f) const {
  const std::set<ip::address> wanted(addresses.begin(), addresses.end());
  for (const auto& [name, pool] : model_.pools()) {
    for (const auto& [backend_name, backend] : pool.backends) {
      if (wanted.contains(backend.address)) f(name, backend_name, backend.address);
    }
  }
}

void Controller::next_hops_changed(const std::vector<ip::address>& addresses) {
  for_each_backend_at(addresses, [this](const std::string& pool, const std::string& backend,
                                        const ip::address& address) {
    const WayOut way_out = way_out_of(address);
    const NextHop& hop = way_out.next_hop;
    spdlog::info("next hop of backend {}/{}: {}", pool, backend,
                 hop.resolved ? fmt::format("{} out of {}", format_mac(hop.mac), hop.interface)
                              : "unresolved, " + hop.reason);
    dirty_pools_.insert(pool);
  });
}

// One line whatever their number: who sends such messages must not fill the log.
void Controller::path_mtus_changed(const std::vector<ip::address>& addresses) {
  if (addresses.empty()) return;
  for_each_backend_at(addresses, [this](const std::string& pool, const std::string&,
                                        const ip::address&) { dirty_pools_.insert(pool); });
  const PathMtu mtu = way_out_of(addresses.front()).path_mtu;
  spdlog::info("path MTU of {} changed; of {} it is {} bytes ({})",
               counted(addresses.size(), "destination"), addresses.front().to_string(), mtu.bytes,
               mtu.reason);
}

// Of a process that is gone, or of another boot of the machine, nothing is believed.
void Controller::flows_reported(const DataplaneStatus& dataplane) {
  if (!dataplane.is_fresh()) return;
  const Report& report = *dataplane.report;
  if (connections_.take_report(report, senses_.boot_time_ns(), published_generation_)) {
    root_is_dirty_ = true;
  }
}

bool Controller::is_outer_packet(const OuterPacket& packet) const {
  const bool is_encapsulated =
      packet.protocol == IPPROTO_IPIP || packet.protocol == IPPROTO_IPV6 ||
      packet.protocol == IPPROTO_GRE ||
      (packet.protocol == IPPROTO_UDP && model_.vip_set().uses_gue_port(packet.destination_port));
  if (!is_encapsulated) return false;
  const WayOut way_out = way_out_of(packet.destination);  // unresolved where it is no backend's
  return way_out.next_hop.resolved && contains(way_out.outer_source, packet.source);
}

void Controller::tick() {
  end_settling();
  look_for_damage();
  if (dirty_pools_.empty() && !root_is_dirty_ && unsaved_verdicts_.empty()) return;
  if (is_held_ && must_hold()) return;
  is_held_ = false;
  if (senses_.now() < retry_at_) return;
  if (publish()) last_failure_.clear();
}

// A dataplane that refused a damaged file looks again when the generation is new.
void Controller::look_for_damage() {
  const auto now = senses_.now();
  if (published_generation_ == 0 || now < look_for_damage_at_) return;
  look_for_damage_at_ = now + kLookForDamageEvery;
  is_damaged_ = !publisher_->has_root() || std::ranges::any_of(planned_, [&](const auto& pool) {
    const PlannedPool& plan = pool.second;
    return !publisher_->has(kTableDirectory, plan.table) ||
           !publisher_->has(kPoolDirectory, plan.pool) ||
           (plan.history != Checksum{} && !publisher_->has(kHistoryDirectory, plan.history));
  });
  if (!is_damaged_ || root_is_dirty_) return;
  spdlog::warn("the published files were changed or removed by somebody else: publishing again");
  root_is_dirty_ = true;
}

std::expected<void, std::string> Controller::publish() {
  auto done = plan_dirty_pools();
  if (done) done = write_planned_files();
  if (done) {
    connections_.change(planned_, model_.vips(), senses_.boot_time_ns(), largest_generation_ + 1);
    done = write_histories();
  }
  if (done && !is_published()) {
    // Saved before it is visible, so that no later process can use the number again.
    ++largest_generation_;
    save_publication();
    done = write_root();
  } else if (done) {
    save_publication();
  }
  root_is_dirty_ = !done;
  if (done) is_damaged_ = false;
  if (done) return {};
  retry_at_ = senses_.now() + kRetryAfter;
  if (done.error() != last_failure_) spdlog::error("cannot publish: {}", done.error());
  last_failure_ = done.error();
  return done;
}

// Whether the root in place already says what is planned.
bool Controller::is_published() const {
  return !is_damaged_ && published_generation_ > 0 &&
         published_generation_ >= reported_generation_ &&
         publisher_->root() ==
             plan_root(published_generation_, configuration_.hash_seed, planned_, model_.vips());
}

void Controller::save_publication() {
  State::Publication publication{largest_generation_, connections_.changed_numberings(),
                                 connections_.changed_histories(),
                                 std::exchange(unsaved_verdicts_, {})};
  const bool is_new = largest_generation_ != saved_generation_ || !publication.numberings.empty() ||
                      !publication.histories.empty() || !publication.verdicts.empty();
  if (!is_new) return;
  saved_generation_ = largest_generation_;
  // A failure is no reason to stop: the root carries the generation too, and traffic comes first.
  if (const auto saved = state_->save_publication(publication); saved) {
    connections_.saved();
  } else {
    spdlog::error(saved.error());
  }
}

std::expected<void, std::string> Controller::plan_dirty_pools() {
  while (!dirty_pools_.empty()) {
    const std::string name = *dirty_pools_.begin();
    const auto pool = model_.pools().find(name);
    if (pool == model_.pools().end()) {
      planned_.erase(name);
      connections_.forget(name);
    } else {
      if (const auto planned = plan_one(name, ReuseTable::kYes); !planned) return planned;
    }
    dirty_pools_.erase(name);
  }
  return {};
}

PoolSenses Controller::senses_of(const std::string& pool) const {
  const auto settling = settling_.find(pool);
  const auto* const unchecked = settling == settling_.end() ? nullptr : &settling->second.unchecked;
  return {[this, pool](const std::string& name) { return senses_.health_of(pool, name).verdict; },
          [this](const ip::address& address) { return way_out_of(address); },
          [unchecked](const std::string& name) {
            return unchecked != nullptr && unchecked->contains(name);
          }};
}

std::expected<void, std::string> Controller::plan_one(const std::string& name, ReuseTable reuse) {
  const Pool& pool = model_.pools().find(name)->second;
  const PoolSenses senses = senses_of(name);
  const PlannedPool* previous = planned(name);
  const Numbering& numbering = connections_.number(name, pool.backends, largest_generation_ + 1);
  auto plan =
      plan_pool(name, pool, numbering, senses, reuse == ReuseTable::kYes ? previous : nullptr);
  if (!plan) return std::unexpected(plan.error());
  const auto is_crowded = [](const PlannedPool& p) {
    return p.table_size < kSlotsPerBackend * p.membership.members.size();
  };
  if (is_crowded(*plan) && (previous == nullptr || !is_crowded(*previous))) {
    spdlog::warn(
        "pool {}: {} slots for {} backends share the traffic unevenly; {} a backend do well", name,
        plan->table_size, plan->membership.members.size(), kSlotsPerBackend);
  }
  const auto left_out = [](const PlannedPool& p) { return std::ranges::count(p.owned_slots, 0u); };
  if (left_out(*plan) > (previous == nullptr ? 0 : left_out(*previous))) {
    spdlog::warn(
        "pool {}: {} of {} backends own no slot and get no traffic, as placement {} allows: choose "
        "maglev, or a larger table_size",
        name, left_out(*plan), plan->owned_slots.size(), to_text(plan->placement));
  }
  const bool was_open = previous != nullptr && previous->membership.fail_open;
  if (plan->membership.fail_open && !was_open) {
    spdlog::warn("pool {}: fewer than {} ready backends are healthy, so all ready ones are used",
                 name, pool.settings.min_healthy);
  } else if (was_open && !plan->membership.fail_open) {
    spdlog::info("pool {}: enough backends are healthy again", name);
  }
  const size_t off_link_before = previous != nullptr ? previous->off_link : 0;
  if (plan->off_link != off_link_before) warn_of_layer2(name, plan->off_link);
  planned_.insert_or_assign(name, std::move(*plan));
  return {};
}

void Controller::warn_of_layer2(const std::string& pool, size_t off_link) const {
  for (const AddressFamily family : {AddressFamily::kIpv4, AddressFamily::kIpv6}) {
    const std::string* vip = model_.vip_set().find_layer2(pool, family);
    if (vip == nullptr || off_link == 0) continue;
    spdlog::warn(
        "pool {}: VIP {}, whose encapsulation l2 needs backends on link, sends nothing to {} "
        "behind a gateway",
        pool, *vip, counted(off_link, "backend"));
  }
}

// Writes what is not there yet. A plan lets go of its files once they are written; one whose files
// have since been lost or damaged is made again.
std::expected<void, std::string> Controller::write_planned_files() {
  for (auto& [name, plan] : planned_) {
    const bool lost = (plan.table_file.empty() && !publisher_->has(kTableDirectory, plan.table)) ||
                      (plan.pool_file.empty() && !publisher_->has(kPoolDirectory, plan.pool));
    if (lost) {
      if (const auto planned = plan_one(name, ReuseTable::kNo); !planned) return planned;
    }
    if (!plan.table_file.empty() && !publisher_->has(kTableDirectory, plan.table)) {
      const auto written = publisher_->write(kTableDirectory, plan.table, plan.table_file);
      if (!written) return written;
    }
    if (!plan.pool_file.empty() && !publisher_->has(kPoolDirectory, plan.pool)) {
      const auto written = publisher_->write(kPoolDirectory, plan.pool, plan.pool_file);
      if (!written) return written;
    }
    plan.table_file = {};
    plan.pool_file = {};
  }
  return {};
}

std::expected<void, std::string> Controller::write_histories() {
  for (const auto& [name, plan] : planned_) {
    if (plan.history == Checksum{} || publisher_->has(kHistoryDirectory, plan.history)) continue;
    const auto written =
        publisher_->write(kHistoryDirectory, plan.history, connections_.history_file(name));
    if (!written) return written;
  }
  return {};
}

std::expected<void, std::string> Controller::write_root() {
  Publisher::Named named;
  size_t unresolved = 0;
  for (const auto& [name, plan] : planned_) {
    named[kTableDirectory].insert(plan.table);
    named[kPoolDirectory].insert(plan.pool);
    named[kHistoryDirectory].insert(plan.history);
    unresolved += plan.unresolved;
  }
  auto root = plan_root(largest_generation_, configuration_.hash_seed, planned_, model_.vips());
  const auto replaced = publisher_->replace_root(std::move(root), std::move(named));
  if (!replaced) return replaced;
  connections_.published(planned_);
  published_generation_ = largest_generation_;
  spdlog::info("published generation {}: {}, {}, {} without a next hop", published_generation_,
               counted(model_.vips().size(), "VIP"), counted(planned_.size(), "pool"),
               counted(unresolved, "backend"));
  return {};
}

}  // namespace maglev
