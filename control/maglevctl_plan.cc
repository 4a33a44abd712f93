#include <fmt/format.h>

#include <map>
#include <string>

#include "control/maglevctl_views.h"
#include "control/text_table.h"

namespace maglev {
namespace {

using Json = nlohmann::ordered_json;
using enum TextTable::Align;

constexpr size_t kMostMoves = 20;

double percent(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : 100 * static_cast<double>(part) / static_cast<double>(whole);
}

std::string end_of(const Json& move, const char* field) {
  const Json& backend = move.at(field);
  return backend.is_null() ? "(none)" : backend.get<std::string>();
}

std::string format_shares(const Json& pool) {
  struct Sides {
    const Json* before = nullptr;
    const Json* after = nullptr;
  };
  std::map<std::string, Sides> backends;
  for (const Json& backend : pool.at("before")) {
    backends[backend.at("name").get<std::string>()].before = &backend;
  }
  for (const Json& backend : pool.at("after")) {
    backends[backend.at("name").get<std::string>()].after = &backend;
  }
  const auto share = [](const Json* side, const char* field) {
    return side == nullptr ? "-" : fmt::format("{:.2f}%", 100 * side->at(field).get<double>());
  };
  const auto slots = [](const Json* side) {
    return side == nullptr ? int64_t{0} : side->at("slots").get<int64_t>();
  };
  TextTable table({{"BACKEND"},
                   {"SLOTS", kRight},
                   {"THEN", kRight},
                   {"CHANGE", kRight},
                   {"SHARE", kRight},
                   {"THEN", kRight},
                   {"WANTED", kRight}});
  for (const auto& [name, sides] : backends) {
    const int64_t before = slots(sides.before);
    const int64_t after = slots(sides.after);
    table.add({name, std::to_string(before), std::to_string(after),
               fmt::format("{:+d}", after - before), share(sides.before, "share"),
               share(sides.after, "share"), share(sides.after, "wanted_share")});
  }
  return table.text();
}

std::string format_moves(const Json& pool) {
  const Json& moves = pool.at("moves");
  if (moves.empty()) return "";
  const auto slots = pool.at("slots").get<uint64_t>();
  TextTable table({{"FROM"}, {"TO"}, {"SLOTS", kRight}, {"OF ALL", kRight}});
  uint64_t left_out = pool.at("moves_left_out").get<uint64_t>();
  size_t shown = 0;
  for (const Json& move : moves) {
    const auto moved = move.at("slots").get<uint64_t>();
    if (shown == kMostMoves) {
      left_out += moved;
      continue;
    }
    ++shown;
    table.add({end_of(move, "from"), end_of(move, "to"), std::to_string(moved),
               fmt::format("{:.2f}%", percent(moved, slots))});
  }
  std::string text = "\n" + table.text();
  if (left_out > 0) {
    text += fmt::format("... {} more slots move in smaller parts; --json tells more\n", left_out);
  }
  return text;
}

std::string format_pool_plan(const Json& pool) {
  const auto slots = pool.at("slots").get<uint64_t>();
  const auto moved = pool.at("moved").get<uint64_t>();
  const auto ideal = pool.at("ideal_moved").get<uint64_t>();
  const Json& peak = pool.at("peak_over_mean");
  const Json& bytes = pool.at("table_bytes");
  std::string text = fmt::format("{:<19}{}\n", "pool", pool.at("pool").get<std::string>());
  text += fmt::format("{:<19}{} of {} slots ({:.2f}% of new flows)\n", "moves", moved, slots,
                      percent(moved, slots));
  text += fmt::format("{:<19}{} slots ({:.2f}%)\n", "least possible", ideal, percent(ideal, slots));
  text += fmt::format("{:<19}{} slots between backends that stay as they are\n", "of these",
                      pool.at("moved_between_unchanged").get<uint64_t>());
  text += fmt::format("{:<19}{:.4f} now, {:.4f} then (by weight)\n", "busiest over mean",
                      peak.at("before").get<double>(), peak.at("after").get<double>());
  text += fmt::format("{:<19}{} bytes now, {} bytes then\n", "table memory",
                      bytes.at("before").get<uint64_t>(), bytes.at("after").get<uint64_t>());
  return text + "\n" + format_shares(pool) + format_moves(pool);
}

}  // namespace

std::string format_plan(const Json& foreseen) {
  std::string text;
  for (const Json& pool : foreseen.at("pools")) {
    if (!text.empty()) text += "\n";
    text += format_pool_plan(pool);
  }
  if (text.empty()) text = "no slot of any table would change hands\n";
  return text + "\nnothing was changed: this is what the change would do\n";
}

}  // namespace maglev
