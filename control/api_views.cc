#include "control/api_views.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>

#include "control/json_form.h"
#include "tables/flow_hash.h"

namespace maglev {
namespace {

std::string_view health_text(const PoolSettings& settings, HealthVerdict verdict) {
  if (settings.health.type == HealthType::kNone) return "unchecked";
  switch (verdict) {
    case HealthVerdict::kUp:
      return "up";
    case HealthVerdict::kDown:
      return "down";
    case HealthVerdict::kUnknown:
      break;
  }
  return "unknown";
}

Json view_next_hop(const NextHop& hop) {
  return {{"resolved", hop.resolved},   {"mac", hop.resolved ? format_mac(hop.mac) : ""},
          {"interface", hop.interface}, {"via", hop.resolved ? hop.via.to_string() : ""},
          {"on_link", hop.on_link},     {"reason", hop.reason}};
}

Json view_path_mtu(const PathMtu& mtu, Controller::Clock::time_point now) {
  Json expires_in_s;
  if (mtu.until) {
    expires_in_s = std::chrono::duration_cast<std::chrono::seconds>(*mtu.until - now).count();
  }
  return {{"bytes", mtu.bytes}, {"reason", mtu.reason}, {"expires_in_s", expires_in_s}};
}

Json view_path_mtu_messages(const std::optional<PathMtus::Counts>& counts) {
  if (!counts) return nullptr;
  return {{"taken", counts->taken}, {"ignored", counts->ignored}};
}

// `source` follows the name everywhere.
Json with_source(Json form, Source source) {
  Json view = {{"name", form["name"]}, {"source", to_text(source)}};
  view.update(form);
  return view;
}

Json view_count(const PacketCount& count) {
  return {{"packets", count.packets}, {"bytes", count.bytes}};
}

Json view_verdicts(const Report& report, const std::vector<uint64_t>& counts) {
  Json view = Json::object();
  for (size_t i = 0; i < counts.size(); ++i) view[report.verdicts[i]] = counts[i];
  return view;
}

std::vector<uint64_t> verdicts_of_worker(const Report& report, size_t worker) {
  const auto first =
      report.verdict_counts.begin() + static_cast<ptrdiff_t>(worker * report.verdicts.size());
  return {first, first + static_cast<ptrdiff_t>(report.verdicts.size())};
}

double sum_of_weights(const Membership& membership) {
  return std::accumulate(membership.members.begin(), membership.members.end(), 0.0,
                         [](double sum, const auto& member) { return sum + member.weight; });
}

Json view_worker(const Report& report, const WorkerReport& worker) {
  return {{"lcore", worker.lcore},
          {"port", report.ports[worker.port].name},
          {"queue", worker.queue},
          {"generation", worker.generation},
          {"polls", worker.polls}};
}

// What the last look at all flows saw of the pool's; null before there was one.
const PoolFlows* find_flows(const DataplaneStatus& dataplane, std::string_view pool) {
  if (!dataplane.report) return nullptr;
  const auto& pools = dataplane.report->sweep.pools;
  const auto found = std::ranges::find(pools, pool, &PoolFlows::pool);
  return found == pools.end() ? nullptr : &*found;
}

Json view_flows_of(const PoolFlows* flows, const Numbering& numbering, uint32_t index) {
  if (flows == nullptr) return nullptr;
  const uint8_t incarnation = numbering.places()[index].incarnation;
  for (const BackendFlows& backend : flows->backends) {
    if (backend.backend == index && backend.incarnation == incarnation) return backend.flows;
  }
  return 0;
}

// Of how many of a pool's flows the dataplane knows.
std::string_view flows_known(const ByName<Vip>& vips, std::string_view pool) {
  bool any = false;
  bool all = true;
  for (const auto& [name, vip] : vips) {
    if (vip.pool != pool) continue;
    any |= vip.tracking != Tracking::kNone;
    all &= vip.tracking == Tracking::kFull;
  }
  return !any ? "none" : all ? "all" : "some";
}

Json view_leaving(const Numbering& numbering, const PoolFlows* flows) {
  Json leaving = Json::array();
  for (uint32_t index = 0; index < numbering.places().size(); ++index) {
    const Numbering::Place& place = numbering.places()[index];
    if (place.left_in == 0) continue;
    leaving.push_back(
        {{"name", place.name}, {"flows_remembered", view_flows_of(flows, numbering, index)}});
  }
  return leaving;
}

// Rounded up; 0 when it is over.
uint64_t seconds_until(uint64_t until_ns, uint64_t now_ns) {
  return until_ns <= now_ns ? 0 : (until_ns - now_ns + 999'999'999) / 1'000'000'000;
}

// Whether flows of a slot that changed hands may be with another backend than its owner.
void add_past(Json& view, const Controller& controller, const Vip& vip, uint32_t slot) {
  view["tracking"] = to_text(vip.tracking);
  if (vip.tracking == Tracking::kFull) {
    view["verdict"] = "a flow that is remembered keeps its backend; any other is " +
                      view["verdict"].get<std::string>();
  }
  const PoolHistory* history = controller.connections().history(vip.pool);
  if (vip.tracking != Tracking::kChanged || history == nullptr) return;
  const auto entries = history->entries();
  const auto past = std::ranges::lower_bound(entries, slot, {}, &PastOwner::slot);
  if (past == entries.end() || past->slot != slot) return;
  const auto& places = controller.connections().numbering(vip.pool)->places();
  const auto& [index, incarnation] = past->fallback;
  const bool is_known = index < places.size() && places[index].incarnation == incarnation;
  const std::string fallback = is_known ? places[index].name : "";
  const uint64_t pending_s = seconds_until(past->pending_until_ns, controller.boot_time_ns());
  const uint64_t inherit_s = seconds_until(past->inherit_until_ns, controller.boot_time_ns());
  view["fallback"] = fallback;
  view["pending_s"] = pending_s;
  view["inherit_s"] = inherit_s;
  std::string past_flows =
      "the slot has changed hands: a flow that is remembered keeps its backend";
  if (inherit_s > 0 && !fallback.empty()) {
    past_flows +=
        fmt::format(", one that began before goes to '{}', while that serves, for {} s more",
                    fallback, inherit_s);
    if (pending_s > 0) past_flows += fmt::format(" (a new one too, for {} s)", pending_s);
  }
  view["verdict"] = past_flows + "; any other is " + view["verdict"].get<std::string>();
}

Json view_port(const PortReport& port) {
  return {{"name", port.name},
          {"link_up", port.link_up},
          {"receive_missed", port.receive_missed},
          {"receive_errors", port.receive_errors},
          {"no_buffer", port.no_buffer},
          {"steering_dropped", port.steering_dropped}};
}

}  // namespace

Json view_status(const Controller& controller, const DataplaneStatus& dataplane) {
  Json workers = Json::array();
  uint64_t refused_roots = 0;
  std::string last_refusal;
  if (dataplane.report) {
    refused_roots = dataplane.report->refused_roots;
    last_refusal = dataplane.report->last_refusal;
    for (size_t i = 0; i < dataplane.report->workers.size(); ++i) {
      Json worker = view_worker(*dataplane.report, dataplane.report->workers[i]);
      worker["progress"] = dataplane.makes_progress(i);
      workers.push_back(std::move(worker));
    }
  }
  size_t backends = 0;
  size_t in_tables = 0;
  size_t unresolved = 0;
  for (const auto& [name, pool] : controller.model().pools()) {
    backends += pool.backends.size();
    if (const PlannedPool* plan = controller.planned(name)) {
      in_tables += plan->membership.members.size();
      unresolved += plan->unresolved;
    }
  }
  return {{"version", MAGLEV_VERSION},
          {"generation", controller.generation()},
          {"adopted_generation", dataplane.adopted_generation()},
          {"dataplane",
           {{"running", dataplane.running},
            {"report_age_ms", dataplane.report_age_ms()},
            {"refused_roots", refused_roots},
            {"last_refusal", last_refusal}}},
          {"workers", std::move(workers)},
          {"pools", controller.model().pools().size()},
          {"vips", controller.model().vips().size()},
          {"backends", backends},
          {"backends_in_tables", in_tables},
          {"next_hops_unresolved", unresolved},
          {"path_mtu_messages", view_path_mtu_messages(controller.path_mtu_messages())}};
}

WantedShare wanted_shares(const Controller& controller) {
  struct Weighed {
    const Membership* membership = nullptr;
    double weights = 0;
  };
  return [&controller, known = std::map<std::string, Weighed>()](
             const std::string& pool_name, const std::string& backend) mutable {
    const auto [entry, is_new] = known.try_emplace(pool_name);
    Weighed& pool = entry->second;
    if (const PlannedPool* plan = controller.planned(pool_name); is_new && plan != nullptr) {
      pool = {&plan->membership, sum_of_weights(plan->membership)};
    }
    if (pool.membership == nullptr) return 0.0;
    const auto place = pool.membership->place_of(backend);
    return place ? pool.membership->members[*place].weight / pool.weights : 0.0;
  };
}

Json view_stats(const Report& report, uint64_t adopted_generation, const WantedShare& wanted) {
  PacketCount received;
  std::vector<uint64_t> verdicts(report.verdicts.size());
  Json workers = Json::array();
  for (size_t i = 0; i < report.workers.size(); ++i) {
    const WorkerReport& worker = report.workers[i];
    const std::vector<uint64_t> counts = verdicts_of_worker(report, i);
    received.packets += worker.received.packets;
    received.bytes += worker.received.bytes;
    std::ranges::transform(counts, verdicts, verdicts.begin(), std::plus<>());
    Json view = view_worker(report, worker);
    view["empty_polls"] = worker.empty_polls;
    view["received"] = view_count(worker.received);
    view["verdicts"] = view_verdicts(report, counts);
    view["held"] = report.workers[i].held;
    view["handed_over"] = report.workers[i].handed_over;
    view["taken_over"] = report.workers[i].taken_over;
    view["flow_room"] = worker.flow_room;
    view["flows"] = worker.flows;
    workers.push_back(std::move(view));
  }
  Json ports = Json::array();
  for (const PortReport& port : report.ports) ports.push_back(view_port(port));
  const auto view_named = [](const NamedCount& count) {
    Json view = Json::object();
    if (!count.pool.empty()) view["pool"] = count.pool;
    view["name"] = count.name;
    view["forwarded"] = view_count(count.forwarded);
    view["dropped"] = view_count(count.dropped);
    return view;
  };
  Json events = Json::object();
  for (const EventCount& event : report.events) events[event.name] = event.count;
  Json vips = Json::array();
  for (const NamedCount& vip : report.vips) vips.push_back(view_named(vip));
  Json backends = Json::array();
  for (const NamedCount& backend : report.backends) {
    Json view = view_named(backend);
    view["wanted_share"] = wanted(backend.pool, backend.name);
    backends.push_back(std::move(view));
  }
  return {{"started_ns", report.started_ns},
          {"written_ns", report.written_ns},
          {"adopted_generation", adopted_generation},
          {"received", view_count(received)},
          {"verdicts", view_verdicts(report, verdicts)},
          {"events", std::move(events)},
          {"workers", std::move(workers)},
          {"ports", std::move(ports)},
          {"vips", std::move(vips)},
          {"backends", std::move(backends)}};
}

Json view_pool_summary(const Controller& controller, const std::string& name, const Pool& pool) {
  Json view = with_source(to_json(name, pool.settings), pool.settings.source);
  view.erase("health");
  const PlannedPool* plan = controller.planned(name);
  view["table"] = plan != nullptr ? plan->table.hex() : "";
  view["fail_open"] = plan != nullptr && plan->membership.fail_open;
  view["backend_count"] = pool.backends.size();
  view["in_table_count"] = plan != nullptr ? plan->membership.members.size() : 0;
  const PoolHistory* history = controller.connections().history(name);
  view["unsettled_slots"] = history != nullptr ? history->entries().size() : 0;
  return view;
}

Json view_backends(const Controller& controller, const DataplaneStatus& dataplane,
                   const std::string& pool_name, const Pool& pool) {
  const PlannedPool* plan = controller.planned(pool_name);
  static const Membership kNothingPlanned;
  const Membership& membership = plan != nullptr ? plan->membership : kNothingPlanned;
  const double all_weights = sum_of_weights(membership);
  const Numbering* numbering = controller.connections().numbering(pool_name);
  const PoolFlows* flows = find_flows(dataplane, pool_name);

  Json views = Json::array();
  for (const auto& [name, backend] : pool.backends) {
    const Health health = controller.health_of(pool_name, name);
    const bool is_checked = pool.settings.health.type != HealthType::kNone;
    Json view = with_source(to_json(name, backend), backend.source);
    view["health"] = health_text(pool.settings, health.verdict);
    view["health_reason"] = is_checked ? health.reason : "";
    view["health_penalty"] = health.penalty;
    view["check_latency_us"] = health.latency ? Json(health.latency->count()) : Json();
    const auto place = membership.place_of(name);
    const uint32_t slots = place ? plan->owned_slots[*place] : 0;
    view["in_table"] = place.has_value();
    view["slots"] = slots;
    view["share"] = place ? double(slots) / plan->table_size : 0.0;
    view["wanted_share"] = place ? membership.members[*place].weight / all_weights : 0.0;
    const WayOut way_out = controller.way_out_of(backend.address);
    view["next_hop"] = view_next_hop(way_out.next_hop);
    view["outer_source"] = way_out.next_hop.resolved ? to_text(way_out.outer_source) : "";
    view["path_mtu"] = view_path_mtu(way_out.path_mtu, controller.now());
    const bool is_placed = plan != nullptr && numbering != nullptr;
    view["flows_remembered"] =
        is_placed ? view_flows_of(flows, *numbering, numbering->index_of(name)) : nullptr;
    views.push_back(std::move(view));
  }
  Json age_ms;
  if (flows != nullptr) {
    const uint64_t now_ns = controller.boot_time_ns();
    age_ms = (now_ns - std::min(now_ns, dataplane.report->sweep.ended_ns)) / 1'000'000;
  }
  return {{"backends", std::move(views)},
          {"leaving", numbering != nullptr ? view_leaving(*numbering, flows) : Json::array()},
          {"flows_known", flows_known(controller.model().vips(), pool_name)},
          {"sweep_age_ms", std::move(age_ms)}};
}

Json view_pool(const Controller& controller, const DataplaneStatus& dataplane,
               const std::string& name, const Pool& pool) {
  Json view = view_pool_summary(controller, name, pool);
  view["health"] = to_json(pool.settings.health);
  view.update(view_backends(controller, dataplane, name, pool));
  return view;
}

Json view_vip_summary(const std::string& name, const Vip& vip) {
  return with_source(to_json(name, vip), vip.source);
}

Json view_vip(const Controller& controller, const std::string& name, const Vip& vip) {
  Json unusable = Json::array();
  if (vip.encapsulation == Encapsulation::kLayer2) {
    for (const auto& [backend_name, backend] :
         (*controller.model().find_pool(vip.pool))->backends) {
      const NextHop hop = controller.way_out_of(backend.address).next_hop;
      if (!hop.resolved || hop.on_link) continue;
      unusable.push_back({{"name", backend_name},
                          {"reason", fmt::format("it is behind the gateway {}, but encapsulation "
                                                 "l2 needs a backend on link",
                                                 hop.via.to_string())}});
    }
  }
  Json view = view_vip_summary(name, vip);
  view["unusable_backends"] = std::move(unusable);
  return view;
}

std::expected<Json, Refusal> view_flow(const Controller& controller,
                                       const DataplaneStatus& dataplane, const Flow& flow) {
  Json view = {{"generation", controller.generation()},
               {"adopted_generation", dataplane.adopted_generation()}};
  const Served served = find_vip(controller.model().vips(), flow);
  if (served.address == nullptr) {
    view["verdict"] = "no VIP has this address: the packet is not the load balancer's";
    return view;
  }
  if (served.vip == nullptr) {
    const bool to_kernel = (served.address->second.flags & kVipUnservedToKernel) != 0;
    view["verdict"] = fmt::format("no VIP of {} serves this protocol and port: {}",
                                  to_text(served.address->second.prefix),
                                  to_kernel ? "the kernel gets it" : "it is dropped");
    return view;
  }
  const auto& [name, vip] = *served.vip;
  const PlannedPool* plan = controller.planned(vip.pool);
  if (plan == nullptr) return refuse("not_published", "the VIP's pool is not published yet");
  const auto file = controller.read_table(*plan);
  if (!file) return refuse("not_published", file.error());
  const auto table = check_table_file(*file);
  if (!table) return refuse("not_published", table.error());
  const uint64_t hash = hash_of(flow, vip, controller.configuration().hash_seed);
  const uint32_t slot = slot_of(hash, table->size());
  const uint32_t owner = table->owner_of(slot);
  view["vip"] = name;
  view["pool"] = vip.pool;
  view["table"] = plan->table.hex();
  view["hash"] = fmt::format("{:08x}", hash >> 32);
  view["slot"] = slot;
  view["slots"] = table->size();
  if (owner == kNoOwner) {
    view["verdict"] = "no backend of the pool is in its table: the packet is dropped";
    return view;
  }
  const std::string backend(table->owners[owner]);
  const Pool& pool = **controller.model().find_pool(vip.pool);
  const Backend& wanted = pool.backends.find(backend)->second;
  const NextHop hop = controller.way_out_of(wanted.address).next_hop;
  view["backend"] = backend;
  view["address"] = wanted.address.to_string();
  view["health"] = health_text(pool.settings, controller.health_of(vip.pool, backend).verdict);
  view["next_hop"] = view_next_hop(hop);
  view["verdict"] = hop.resolved ? "forwarded to the backend that owns the slot"
                                 : "dropped: the way to the backend is not known";
  add_past(view, controller, vip, slot);
  return view;
}

}  // namespace maglev
