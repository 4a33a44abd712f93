#include "control/maglevctl_views.h"

#include <fmt/format.h>

#include "control/text_table.h"

namespace maglev {

namespace {

using Json = nlohmann::ordered_json;
using enum TextTable::Align;

std::string text(const Json& object, const char* field) {
  return object.at(field).get<std::string>();
}
uint64_t number(const Json& object, const char* field) {
  return object.at(field).get<uint64_t>();
}
std::string digits(const Json& object, const char* field) {
  return std::to_string(number(object, field));
}
bool flag(const Json& object, const char* field) {
  return object.at(field).get<bool>();
}

std::string share(const Json& object, const char* field) {
  return fmt::format("{:.2f}%", object.at(field).get<double>() * 100);
}

std::string port(const Json& vip) {
  return number(vip, "port") == 0 ? "any" : digits(vip, "port");
}

std::string format_workers(const Json& workers) {
  TextTable table(
      {{"PORT"}, {"QUEUE", kRight}, {"LCORE", kRight}, {"GENERATION", kRight}, {"PROGRESS"}});
  for (const Json& worker : workers) {
    table.add({text(worker, "port"), digits(worker, "queue"), digits(worker, "lcore"),
               digits(worker, "generation"), flag(worker, "progress") ? "yes" : "NO"});
  }
  return table.text();
}

std::string format_health(const Json& health) {
  if (health.is_null()) return "not checked";
  const std::string port =
      health.contains("port") ? fmt::format(" to port {}", number(health, "port")) : "";
  return fmt::format("{}{} every {} ms, {} ms at most; up after {}, down after {} in a row",
                     text(health, "type"), port, number(health, "interval_ms"),
                     number(health, "timeout_ms"), number(health, "rise"), number(health, "fall"));
}

}  // namespace

std::string format_flow(const Json& flow) {
  std::string view = text(flow, "verdict") + "\n";
  for (const auto& [field, value] : flow.items()) {
    if (field == "verdict" || field == "next_hop") continue;
    view += fmt::format("{:<20}{}\n", field,
                        value.is_string() ? value.get<std::string>() : value.dump());
  }
  if (!flow.contains("next_hop")) return view;
  const Json& hop = flow.at("next_hop");
  return view + (flag(hop, "resolved")
                     ? fmt::format("{:<20}{} ({}) on {}\n", "next_hop", text(hop, "via"),
                                   text(hop, "mac"), text(hop, "interface"))
                     : fmt::format("{:<20}{}\n", "next_hop", text(hop, "reason")));
}

std::string format_status(const Json& status) {
  const Json& dataplane = status.at("dataplane");
  std::string view = fmt::format("version     {}\n", text(status, "version"));
  view += fmt::format("generation  {}, used by all workers: {}\n", number(status, "generation"),
                      number(status, "adopted_generation"));
  view += flag(dataplane, "running") ? fmt::format("dataplane   running, reported {} ms ago\n",
                                                   number(dataplane, "report_age_ms"))
                                     : "dataplane   not running\n";
  if (number(dataplane, "refused_roots") != 0) {
    view += fmt::format("refused     {} publications, the last one: {}\n",
                        number(dataplane, "refused_roots"), text(dataplane, "last_refusal"));
  }
  view += fmt::format("pools       {}\nVIPs        {}\nbackends    {}, in tables: {}\n",
                      number(status, "pools"), number(status, "vips"), number(status, "backends"),
                      number(status, "backends_in_tables"));
  view += fmt::format("next hops   {} unresolved\n", number(status, "next_hops_unresolved"));
  const Json& workers = status.at("workers");
  return workers.empty() ? view : view + "\n" + format_workers(workers);
}

std::string format_pools(const Json& pools) {
  TextTable table({{"POOL"},
                   {"SOURCE"},
                   {"SIZE", kRight},
                   {"BACKENDS", kRight},
                   {"IN TABLE", kRight},
                   {"FAIL OPEN"},
                   {"TABLE"}});
  for (const Json& pool : pools.at("pools")) {
    table.add({text(pool, "name"), text(pool, "source"), digits(pool, "table_size"),
               digits(pool, "backend_count"), digits(pool, "in_table_count"),
               flag(pool, "fail_open") ? "yes" : "no", text(pool, "table").substr(0, 12)});
  }
  return table.text();
}

std::string format_pool(const Json& pool) {
  std::string view =
      fmt::format("pool        {} (set by {})\n", text(pool, "name"), text(pool, "source"));
  view += fmt::format("table       {}, {} slots, {}\n", text(pool, "placement"),
                      number(pool, "table_size"), text(pool, "table"));
  view += fmt::format("health      {}\n", format_health(pool.at("health")));
  view += fmt::format("min_healthy {}{}\n", number(pool, "min_healthy"),
                      flag(pool, "fail_open")
                          ? "; fewer are healthy: all ready backends are used (fail open)"
                          : "");
  if (number(pool, "unsettled_slots") != 0) {
    view += fmt::format("unsettled   {} slots have changed hands and may have flows of before\n",
                        number(pool, "unsettled_slots"));
  }
  return view + "\n" + format_backends(pool);
}

// What the column of flows says, and which of them it does not.
std::string format_flows_known(const Json& pool) {
  if (pool.at("sweep_age_ms").is_null()) return "";
  const std::string_view which = text(pool, "flows_known") == "all"
                                     ? "all that are open"
                                     : "those remembered, of slots that changed hands";
  return fmt::format("FLOWS are {} ({} ms ago)\n", which, number(pool, "sweep_age_ms"));
}

std::string format_backends(const Json& pool) {
  TextTable table({{"BACKEND"},
                   {"ADDRESS"},
                   {"WEIGHT", kRight},
                   {"STATE"},
                   {"HEALTH"},
                   {"SHARE", kRight},
                   {"WANTED", kRight},
                   {"FLOWS", kRight}});
  std::string remarks = format_flows_known(pool);
  for (const Json& left : pool.at("leaving")) {
    if (left.at("flows_remembered").is_null() || number(left, "flows_remembered") == 0) continue;
    remarks += fmt::format("{} is removed and has {} flows that send nothing\n", text(left, "name"),
                           number(left, "flows_remembered"));
  }
  for (const Json& backend : pool.at("backends")) {
    const bool in_table = flag(backend, "in_table");
    table.add(
        {text(backend, "name"), text(backend, "address"), digits(backend, "weight"),
         text(backend, "state"), text(backend, "health"), in_table ? share(backend, "share") : "-",
         in_table ? share(backend, "wanted_share") : "-",
         backend.at("flows_remembered").is_null() ? "-" : digits(backend, "flows_remembered")});
    if (text(backend, "health") == "down" || text(backend, "health") == "unknown") {
      remarks += fmt::format("{} is {}: {}\n", text(backend, "name"), text(backend, "health"),
                             text(backend, "health_reason"));
    }
    const Json& next_hop = backend.at("next_hop");
    if (!flag(next_hop, "resolved")) {
      remarks +=
          fmt::format("{} has no next hop: {}\n", text(backend, "name"), text(next_hop, "reason"));
    }
    const Json& path_mtu = backend.at("path_mtu");
    if (!path_mtu.at("expires_in_s").is_null()) {
      remarks += fmt::format("{} has a path MTU of {} bytes ({}) for another {} s\n",
                             text(backend, "name"), number(path_mtu, "bytes"),
                             text(path_mtu, "reason"), path_mtu.at("expires_in_s").get<int64_t>());
    }
  }
  return remarks.empty() ? table.text() : table.text() + "\n" + remarks;
}

std::string format_vips(const Json& vips) {
  TextTable table(
      {{"VIP"}, {"SOURCE"}, {"ADDRESS"}, {"PROTOCOL"}, {"PORT", kRight}, {"POOL"}, {"ENCAP"}});
  for (const Json& vip : vips.at("vips")) {
    table.add({text(vip, "name"), text(vip, "source"), text(vip, "address"), text(vip, "protocol"),
               port(vip), text(vip, "pool"), text(vip, "encapsulation")});
  }
  return table.text();
}

std::string format_vip(const Json& vip) {
  std::string view =
      fmt::format("{:<15}{} (set by {})\n", "VIP", text(vip, "name"), text(vip, "source"));
  for (const auto& [setting, value] : vip.items()) {
    if (setting == "name" || setting == "source" || setting == "unusable_backends") continue;
    view += fmt::format("{:<15}{}\n", setting,
                        setting == "port"   ? port(vip)
                        : value.is_string() ? value.get<std::string>()
                                            : value.dump());
  }
  for (const Json& backend : vip.at("unusable_backends")) {
    view += fmt::format("{} gets nothing from this VIP: {}\n", text(backend, "name"),
                        text(backend, "reason"));
  }
  return view;
}

}  // namespace maglev
