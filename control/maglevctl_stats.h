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
  std::optional<double> burst_fill;  // packets in such a poll; none when there was none
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
  std::optional<double> interval_s;  // rates, over this time; none: totals
  Traffic received;
  std::vector<std::pair<std::string, double>> verdicts;  // packets
  std::vector<WorkerFigures> workers;
  std::vector<PortFigures> ports;
  std::vector<NamedFigures> vips;
  std::vector<NamedFigures> backends;
};

// Share of its pool's slots that a backend's weight asks for, by (pool, backend).
using WantedShares = std::map<std::pair<std::string, std::string>, double>;

// The control socket's answer to /v1/stats.
struct Stats {
  Report report;
  WantedShares wanted;
};
std::expected<Stats, std::string> read_stats(const nlohmann::ordered_json& answer);

Figures totals(const Report& report);
// nullopt when the two are of different processes, or the later is not newer.
std::optional<Figures> rates(const Report& before, const Report& after);

// "0", "12.3", "1.23 k", "14.9 M"
std::string format_rate(double value);

// Tables of at most 80 columns. Where they would have more than `rows` lines, the busiest VIPs and
// backends are shown, in their order, and the others as one line each.
std::string format_figures(const Figures& figures, const WantedShares& wanted,
                           size_t rows = SIZE_MAX);

// Rates as one object; docs/maglevctl.md has its shape.
nlohmann::ordered_json rates_to_json(const Figures& rates, const WantedShares& wanted);

}  // namespace maglev
