// What Prometheus scrapes, in its text format, version 0.0.4; docs/metrics.md lists it.
//
// Names are maglev_<thing>_<unit>, counters end in _total, units are base units. Labels are names
// from the configuration and what the dataplane counts by, so their number is bounded by it.
// Counters of the dataplane start at zero with each of its processes, which is what Prometheus
// takes a smaller value for. Without a report what only a dataplane knows is left out, not zero.
//
// Pure function of what it is given; thread: the controller's.
#pragma once

#include <string>

#include "control/controller.h"
#include "control/dataplane_report.h"

namespace maglev {

inline constexpr const char* kMetricsContentType = "text/plain; version=0.0.4; charset=utf-8";

std::string metrics_text(const Controller& controller, const DataplaneStatus& dataplane);

}  // namespace maglev
