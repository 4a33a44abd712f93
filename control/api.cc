#include "control/api.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <boost/algorithm/string/join.hpp>
#include <charconv>
#include <utility>

#include "control/api_views.h"
#include "control/metrics.h"
#include "control/several_changes.h"

namespace maglev {
namespace {

using boost::algorithm::join;

constexpr uint32_t kDefaultWaitMs = 5000;
constexpr uint32_t kMaxWaitMs = 60000;

using Names = std::vector<std::string>;  // what the placeholders of a path stand for

// f of the value, or the refusal passed on.
template <typename T, typename F>
auto then(const std::expected<T, Refusal>& value, F f) -> decltype(f(*value)) {
  if (!value) return std::unexpected(value.error());
  return f(*value);
}

unsigned status_of(std::string_view code) {
  constexpr std::array<std::pair<std::string_view, unsigned>, 17> kStatuses = {{
      {"bad_json", 400},
      {"bad_request", 400},
      {"read_only", 403},
      {"unknown_path", 404},
      {"unknown_pool", 404},
      {"unknown_vip", 404},
      {"unknown_backend", 404},
      {"bad_method", 405},
      {"exists", 409},
      {"in_use", 409},
      {"clash", 409},
      {"fixed", 409},
      {"stale", 412},
      {"too_large", 413},
      {"bad_file", 422},
      {"no_report", 503},
      {"not_adopted", 504},
  }};
  const auto known = std::ranges::find(kStatuses, code, &decltype(kStatuses)::value_type::first);
  return known == kStatuses.end() ? 500 : known->second;
}

// The body as JSON, through the readers of the configuration file. Syntax that only YAML has is
// refused by parsing it as JSON first.
template <typename Read>
auto read_body(const std::string& body, Read read)
    -> std::expected<decltype(read(std::declval<const YamlCursor&>())), Refusal> {
  try {
    const auto parsed = nlohmann::json::parse(body);
  } catch (const nlohmann::json::exception& error) {
    const std::string_view what = error.what();
    return refuse("bad_json", fmt::format("the body is not JSON: {}",
                                          what.substr(std::min(what.size(), what.find("] ") + 2))));
  }
  std::vector<std::string> errors;
  auto result = read(YamlCursor::parse(body, "body", errors));
  if (!errors.empty()) return refuse("bad_request", join(errors, "; "));
  return result;
}

// --- what is shown ---------------------------------------------------------------------------

using Shown = std::expected<Json, Refusal>;
struct Sources {
  const Controller& controller;
  const DataplaneStatus& dataplane;
};

Shown show_status(const Sources& from, const Names&) {
  return view_status(from.controller, from.dataplane);
}

Shown show_stats(const Sources& from, const Names&) {
  if (!from.dataplane.report) {
    return refuse("no_report", "the dataplane has not reported yet: is maglev-dataplane running?");
  }
  return view_stats(*from.dataplane.report, from.dataplane.adopted_generation(),
                    wanted_shares(from.controller));
}

Shown show_pools(const Sources& from, const Names&) {
  Json pools = Json::array();
  for (const auto& [name, pool] : from.controller.model().pools()) {
    pools.push_back(view_pool_summary(from.controller, name, pool));
  }
  return Json{{"pools", std::move(pools)}};
}

Shown show_pool(const Sources& from, const Names& names) {
  return then(from.controller.model().find_pool(names[0]), [&](const Pool* pool) -> Shown {
    return view_pool(from.controller, from.dataplane, names[0], *pool);
  });
}

Shown show_backends(const Sources& from, const Names& names) {
  return then(from.controller.model().find_pool(names[0]), [&](const Pool* pool) -> Shown {
    return view_backends(from.controller, from.dataplane, names[0], *pool);
  });
}

Shown show_vips(const Sources& from, const Names&) {
  Json vips = Json::array();
  for (const auto& [name, vip] : from.controller.model().vips()) {
    vips.push_back(view_vip_summary(name, vip));
  }
  return Json{{"vips", std::move(vips)}};
}

Shown show_vip(const Sources& from, const Names& names) {
  return then(from.controller.model().find_vip(names[0]),
              [&](const Vip* vip) -> Shown { return view_vip(from.controller, names[0], *vip); });
}

Shown show_flow(const Sources& from, const Names& names) {
  const auto flow = parse_flow(names[0], names[1], names[2]);
  if (!flow) return refuse("bad_request", flow.error());
  return view_flow(from.controller, from.dataplane, *flow);
}

// --- what changes ----------------------------------------------------------------------------

using Planned = std::expected<Overrides, Refusal>;

Planned add_pool(const Model& model, const Names&, const std::string& body) {
  return then(read_body(body, read_pool),
              [&](const auto& pool) { return model.plan_add_pool(pool); });
}

Planned remove_pool(const Model& model, const Names& names, const std::string&) {
  return model.plan_remove_pool(names[0]);
}

Planned add_backend(const Model& model, const Names& names, const std::string& body) {
  return then(read_body(body, read_backend),
              [&](const auto& backend) { return model.plan_add_backend(names[0], backend); });
}

Planned patch_backend(const Model& model, const Names& names, const std::string& body) {
  const auto parsed = nlohmann::json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_object() && (parsed.contains("address") || parsed.contains("name"))) {
    return refuse("fixed",
                  "the name and the address of a backend are fixed for its life: add "
                  "another backend, then drain and remove this one");
  }
  return then(read_body(body, read_backend_patch), [&](const BackendPatch& patch) {
    return model.plan_patch_backend(names[0], names[1], patch);
  });
}

Planned remove_backend(const Model& model, const Names& names, const std::string&) {
  return model.plan_remove_backend(names[0], names[1]);
}

Planned add_vip(const Model& model, const Names&, const std::string& body) {
  return then(read_body(body, read_vip), [&](const auto& vip) { return model.plan_add_vip(vip); });
}

Planned remove_vip(const Model& model, const Names& names, const std::string&) {
  return model.plan_remove_vip(names[0]);
}

// --- paths -----------------------------------------------------------------------------------

// Exactly one of the functions is there, but for the path that reloads.
struct Route {
  std::string_view path;  // {} stands for a name
  std::string_view method;
  Shown (*show)(const Sources&, const Names&) = nullptr;
  Planned (*plan)(const Model&, const Names&, const std::string& body) = nullptr;
  std::string (*tell)(const Controller&, const DataplaneStatus&) = nullptr;
};

Planned plan_changes(const Model& model, const Names&, const std::string& body);

constexpr std::array kRoutes = {
    Route{"/metrics", "GET", nullptr, nullptr, metrics_text},
    Route{"/v1/reload", "POST"},
    Route{"/v1/changes", "POST", nullptr, plan_changes},
    Route{"/v1/status", "GET", show_status},
    Route{"/v1/stats", "GET", show_stats},
    Route{"/v1/pools", "GET", show_pools},
    Route{"/v1/pools", "POST", nullptr, add_pool},
    Route{"/v1/pools/{}", "GET", show_pool},
    Route{"/v1/pools/{}", "DELETE", nullptr, remove_pool},
    Route{"/v1/pools/{}/backends", "GET", show_backends},
    Route{"/v1/pools/{}/backends", "POST", nullptr, add_backend},
    Route{"/v1/pools/{}/backends/{}", "PATCH", nullptr, patch_backend},
    Route{"/v1/pools/{}/backends/{}", "DELETE", nullptr, remove_backend},
    Route{"/v1/flows/{}/{}/{}", "GET", show_flow},
    Route{"/v1/vips", "GET", show_vips},
    Route{"/v1/vips", "POST", nullptr, add_vip},
    Route{"/v1/vips/{}", "GET", show_vip},
    Route{"/v1/vips/{}", "DELETE", nullptr, remove_vip},
};

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

// Percent-decoded; what is not well encoded stays as it is, and then names nothing.
std::string decode(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    uint8_t byte = 0;
    const char* digits = text.data() + i + 1;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2) {
      decoded += static_cast<char>(byte);
      i += 2;
    } else {
      decoded += text[i];
    }
  }
  return decoded;
}

// The names in the path, if it has the route's form.
std::optional<Names> match(const Route& route, std::string_view path) {
  const auto wanted = split(route.path, '/');
  const auto found = split(path, '/');
  if (wanted.size() != found.size()) return std::nullopt;
  Names names;
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i] == "{}") {
      names.push_back(decode(found[i]));
    } else if (wanted[i] != found[i]) {
      return std::nullopt;
    }
  }
  return names;
}

Planned plan_one(const Model& model, const RequestedChange& change) {
  for (const Route& route : kRoutes) {
    if (route.plan == nullptr || route.plan == plan_changes || route.method != change.method) {
      continue;
    }
    if (const auto names = match(route, change.path)) {
      return route.plan(model, *names, change.body);
    }
  }
  return refuse("unknown_path",
                fmt::format("there is no change {} {}", change.method, change.path));
}

Planned plan_changes(const Model& model, const Names&, const std::string& body) {
  return plan_several(model, body, plan_one);
}

// --- requests --------------------------------------------------------------------------------

struct Query {
  bool wait_adopted = false;
  bool dry_run = false;
  uint32_t timeout_ms = kDefaultWaitMs;
};

std::expected<Query, Refusal> read_query(std::string_view text) {
  Query query;
  if (text.empty()) return query;
  for (const std::string_view part : split(text, '&')) {
    constexpr std::string_view kTimeout = "timeout_ms=";
    const char* end = part.data() + part.size();
    if (part == "wait=adopted") {
      query.wait_adopted = true;
    } else if (part == "dry_run=true") {
      query.dry_run = true;
    } else if (part.starts_with(kTimeout)) {
      const auto [stop, error] =
          std::from_chars(part.data() + kTimeout.size(), end, query.timeout_ms);
      if (error != std::errc() || stop != end || query.timeout_ms > kMaxWaitMs) {
        return refuse("bad_request",
                      fmt::format("timeout_ms must be a whole number from 0 to {}", kMaxWaitMs));
      }
    } else {
      return refuse("bad_request", fmt::format("unknown parameter '{}': expected wait=adopted, "
                                               "timeout_ms=N or dry_run=true",
                                               part));
    }
  }
  return query;
}

ApiAnswer show(const Route& route, const Sources& from, const Names& names) {
  auto shown = route.show(from, names);
  if (!shown) return refuse_api(shown.error());
  ApiAnswer answer;
  answer.body = std::move(*shown);
  answer.generation = from.controller.generation();
  return answer;
}

ApiAnswer tell(const Route& route, const Sources& from) {
  ApiAnswer answer;
  answer.metrics = route.tell(from.controller, from.dataplane);
  return answer;
}

// Whether one of the entity tags, of which each is a generation, is that in force.
std::expected<void, Refusal> check_if_match(std::string_view tags, uint64_t generation) {
  if (tags.empty() || tags == "*") return {};
  for (std::string_view tag : split(tags, ',')) {
    while (tag.starts_with(' ')) tag.remove_prefix(1);
    while (tag.ends_with(' ')) tag.remove_suffix(1);
    if (tag.size() >= 2 && tag.front() == '"' && tag.back() == '"') {
      tag = tag.substr(1, tag.size() - 2);
    }
    uint64_t wanted = 0;
    const auto [stop, error] = std::from_chars(tag.data(), tag.data() + tag.size(), wanted);
    if (error != std::errc() || stop != tag.data() + tag.size()) {
      return refuse("bad_request", fmt::format("If-Match takes a generation, found '{}'", tag));
    }
    if (wanted == generation) return {};
  }
  return refuse("stale", fmt::format("generation {} is in force, not {}: look at what has changed, "
                                     "then ask again",
                                     generation, tags));
}

ApiAnswer done(unsigned status, uint64_t generation, const Query& query) {
  ApiAnswer answer;
  answer.status = status;
  answer.body = {{"generation", generation}};
  answer.generation = generation;
  if (query.wait_adopted) answer.wait = {generation, query.timeout_ms};
  return answer;
}

ApiAnswer change(const Route& route, Controller& controller, const Names& names, const Query& query,
                 const std::string& body) {
  auto planned = route.plan(controller.model(), names, body);
  if (query.dry_run) {
    const auto foreseen = controller.foresee(std::move(planned));
    if (!foreseen) return refuse_api(foreseen.error());
    ApiAnswer answer;
    answer.body = view_foreseen(*foreseen);
    return answer;
  }
  const auto generation = controller.commit(std::move(planned));
  if (!generation) return refuse_api(generation.error());
  const bool is_created = route.method == "POST" && route.plan != plan_changes;
  return done(is_created ? 201 : 200, *generation, query);
}

// What clients send may hold anything; the log has a line for each change.
std::string in_one_line(std::string text) {
  constexpr size_t kLongest = 500;
  if (text.size() > kLongest) text.replace(kLongest, std::string::npos, "...");
  std::ranges::replace_if(
      text, [](char c) { return c >= 0 && (c < ' ' || c == 127); }, ' ');
  return text;
}

void log_change(const ApiRequest& request, const ApiAnswer& answer) {
  const std::string what = in_one_line(request.method + " " + request.target);
  if (answer.status < 300) {
    spdlog::info("{} by {}: generation {}", what, request.client, answer.generation);
  } else {
    spdlog::warn("{} by {} is refused: {}", what, request.client,
                 in_one_line(answer.body["error"]["message"].get<std::string>()));
  }
}

ApiAnswer reload_file(Controller& controller, const Reload& reload, const Query& query) {
  if (query.dry_run) {
    return refuse_api({"bad_request",
                       "a reload takes no dry_run: maglev-control --check tells "
                       "whether the file is valid"});
  }
  if (const auto taken = reload(); !taken) {
    return refuse_api({"bad_file", join(taken.error(), "\n")});
  }
  const auto generation = controller.commit(Overrides{});
  if (!generation) return refuse_api(generation.error());
  return done(200, *generation, query);
}

}  // namespace

ApiAnswer refuse_api(const Refusal& refusal) {
  ApiAnswer answer;
  answer.status = status_of(refusal.code);
  answer.body = {{"error", {{"code", refusal.code}, {"message", refusal.message}}}};
  return answer;
}

ApiAnswer answer_api(Controller& controller, const DataplaneStatus& dataplane,
                     const ApiRequest& request, const Reload& reload) {
  const std::string_view target = request.target;
  const size_t question_mark = std::min(target.find('?'), target.size());
  const std::string_view path = target.substr(0, question_mark);
  std::vector<std::string> methods;
  for (const Route& route : kRoutes) {
    const auto names = match(route, path);
    if (!names) continue;
    methods.emplace_back(route.method);
    if (route.method != request.method) continue;
    if (route.tell != nullptr) return tell(route, {controller, dataplane});
    if (route.show != nullptr) return show(route, {controller, dataplane}, *names);
    const auto query = read_query(target.substr(std::min(question_mark + 1, target.size())));
    if (!query) return refuse_api(query.error());
    const auto fresh = check_if_match(request.if_match, controller.generation());
    if (!fresh) return refuse_api(fresh.error());
    ApiAnswer answer = route.plan == nullptr
                           ? reload_file(controller, reload, *query)
                           : change(route, controller, *names, *query, request.body);
    if (!query->dry_run) log_change(request, answer);
    return answer;
  }
  if (methods.empty()) {
    return refuse_api({"unknown_path", fmt::format("there is no path {}", path)});
  }
  ApiAnswer answer = refuse_api({"bad_method", fmt::format("{} takes {}, not {}", path,
                                                           join(methods, " or "), request.method)});
  answer.allow = join(methods, ", ");
  return answer;
}

ApiAnswer answer_read_only(Controller& controller, const DataplaneStatus& dataplane,
                           const ApiRequest& request) {
  if (request.method == "GET") return answer_api(controller, dataplane, request, {});
  return refuse_api({"read_only", fmt::format("{} is refused here, where things are only shown: "
                                              "changes go through the control socket",
                                              request.method)});
}

ApiAnswer adopted_answer(ApiAnswer held) {
  held.wait.reset();
  held.body["adopted"] = true;
  return held;
}

ApiAnswer not_adopted_answer(const ApiAnswer& held, const DataplaneStatus& dataplane) {
  const std::string so_far =
      dataplane.running ? fmt::format("they use generation {}", dataplane.adopted_generation())
                        : "no dataplane is running";
  return refuse_api(
      {"not_adopted", fmt::format("generation {} is published, but not all workers "
                                  "use it after {} ms: {}",
                                  held.wait->generation, held.wait->timeout_ms, so_far)});
}

}  // namespace maglev
