#include "control/several_changes.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/algorithm/string/join.hpp>
#include <nlohmann/json.hpp>
#include <set>

namespace maglev {
namespace {

// Discarded where it is no JSON, or nested deeper than any change is: what is written again level
// by level must not be as deep as a client likes.
nlohmann::json parse_shallow(const std::string& text) {
  constexpr int kDeepest = 16;
  bool is_shallow = true;
  const auto look = [&](int depth, nlohmann::json::parse_event_t, const nlohmann::json&) {
    is_shallow = is_shallow && depth <= kDeepest;
    return is_shallow;
  };
  auto parsed = nlohmann::json::parse(text, look, /*allow_exceptions=*/false);
  return is_shallow ? parsed : nlohmann::json(nlohmann::json::value_t::discarded);
}

RequestedChange read_change(const nlohmann::json& entry, size_t number,
                            std::vector<std::string>& errors) {
  RequestedChange change;
  const bool fits = entry.is_object() && entry.contains("method") && entry["method"].is_string() &&
                    entry.contains("path") && entry["path"].is_string() &&
                    entry.size() == 2u + (entry.contains("body") ? 1u : 0u);
  if (!fits) {
    errors.push_back(
        fmt::format("change {}: expected an object with method, path and, where the "
                    "path takes one, body",
                    number));
    return change;
  }
  change.method = entry["method"].get<std::string>();
  change.path = entry["path"].get<std::string>();
  if (entry.contains("body")) change.body = entry["body"].dump();
  return change;
}

// What changes of one request take away. Made again by a later request it is another thing of the
// same name, with nothing of the first; within one request the two could not be told apart.
class Taken {
 public:
  void add(const Overrides& changes) {
    for (const Override& change : changes) {
      if (removes(change)) keys_.insert(change.key);
    }
  }
  bool is_made_again_by(const Overrides& changes) const {
    return std::ranges::any_of(changes, [this](const Override& change) {
      return !removes(change) && (keys_.contains(change.key) ||
                                  keys_.contains({OverrideKey::Kind::kPool, "", change.key.pool}));
    });
  }

 private:
  static bool removes(const Override& change) {
    return std::holds_alternative<Removed>(change.value) ||
           std::holds_alternative<Forgotten>(change.value);
  }
  std::set<OverrideKey> keys_;
};

}  // namespace

std::expected<Overrides, Refusal> plan_several(
    const Model& model, const std::string& body,
    const std::function<std::expected<Overrides, Refusal>(const Model&, const RequestedChange&)>&
        plan_one) {
  const auto entries = parse_shallow(body);
  if (!entries.is_array()) {
    return refuse("bad_json", "the body is not a JSON list of changes");
  }
  std::vector<std::string> errors;
  std::vector<RequestedChange> changes;
  for (const auto& entry : entries) {
    changes.push_back(read_change(entry, changes.size() + 1, errors));
  }
  if (!errors.empty()) return refuse("bad_request", boost::algorithm::join(errors, "; "));
  Model next = model;
  Overrides all;
  Taken taken;
  for (size_t i = 0; i < changes.size(); ++i) {
    auto planned = plan_one(next, changes[i]);
    if (planned && taken.is_made_again_by(*planned)) {
      planned = refuse("clash", "a change before it removes what it makes: send them apart");
    }
    if (!planned) {
      return refuse(planned.error().code,
                    fmt::format("change {} ({} {}): {}", i + 1, changes[i].method, changes[i].path,
                                planned.error().message));
    }
    taken.add(*planned);
    next.apply(*planned);
    all.insert(all.end(), planned->begin(), planned->end());
  }
  return all;
}

}  // namespace maglev
