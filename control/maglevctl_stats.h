// The figures that `maglevctl stats` shows: totals of one report, or rates between two. Pure
// functions, any thread.
//
// Rates are counter differences over the report's own clock (written_ns), so neither the time a
// request takes nor a late report distorts them. A report of another dataplane process (another
// started_ns) starts its counters anew and cannot be compared with the one before.
#pragma once

#include <cstdint>
#include <expected>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tables/report.h"

namespace maglev {

struct Traffic {
  double packets = 0;  // total, or per second
  double volume = 0;   // bytes in total, or bits per second
};

struct WorkerFigures {
  uint32_t lcore = 0;
  std::string port;
  uint32_t queue = 0;
  Traffic received;
  std::optional<double> busy_share;  // of polls that found packets; none when it did not poll
};

struct NamedFigures {
  std::string pool;  // empty for a VIP
  std::string name;
  Traffic forwarded;
  double dropped_packets = 0;
};

struct PortFigures {
  std::string name;
  bool link_up = false;
  // Packets, as in PortReport.
  double missed = 0;
  double errors = 0;
  double no_buffer = 0;
  double steering_dropped = 0;
};

struct Figures {
  bool per_second = false;
  Traffic received;
  std::vector<std::pair<std::string, double>> verdicts;  // packets
  std::vector<WorkerFigures> workers;
  std::vector<PortFigures> ports;
  std::vector<NamedFigures> vips;
  std::vector<NamedFigures> backends;
};

// Share of its pool's slots that a backend's weight asks for, by (pool, backend).
using WantedShares = std::map<std::pair<std::string, std::string>, double>;

// From the control socket's answers. Fails on an answer of another shape.
std::expected<Report, std::string> read_stats(const nlohmann::ordered_json& stats);
void add_wanted_shares(const nlohmann::ordered_json& pool, WantedShares& shares);

Figures totals(const Report& report);
// nullopt when the two are of different processes, or the later is not newer.
std::optional<Figures> rates(const Report& before, const Report& after);

// "0", "12.3", "1.23 k", "14.9 M"
std::string format_rate(double value);

// Tables of at most 80 columns.
std::string format_figures(const Figures& figures, const WantedShares& wanted);

}  // namespace maglev
