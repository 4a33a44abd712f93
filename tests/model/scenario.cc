// Scenarios by chance, and what is said of results.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>

#include "tests/model/model.h"

namespace maglev::model {

const char* name_of(Cause cause) {
  constexpr const char* kNames[kCauseCount] = {
      "index of another", "another host, older flow", "another host, younger", "idle for too long",
      "crowded table",    "workers seconds apart",    "several SYNs",          "another worker",
      "ports used again", "slot changed hands"};
  return kNames[static_cast<uint32_t>(cause)];
}

uint64_t ModeResult::violated() const {
  return std::accumulate(flows.begin(), flows.end(), uint64_t{0});
}

ModeResult& ModeResult::operator+=(const ModeResult& other) {
  for (uint32_t i = 0; i < kCauseCount; ++i) {
    flows[i] += other.flows[i];
    packets[i] += other.packets[i];
    kept_by_full[i] += other.kept_by_full[i];
  }
  excused += other.excused;
  return *this;
}

Result& Result::operator+=(const Result& other) {
  for (const auto member :
       {&Result::flows, &Result::packets, &Result::flood_packets, &Result::changes,
        &Result::settled_packets, &Result::unsettled_packets, &Result::lookups_changed,
        &Result::live_flows, &Result::entries_full, &Result::entries_changed, &Result::looks}) {
    this->*member += other.*member;
  }
  for (uint32_t i = 0; i < kModeCount; ++i) modes[i] += other.modes[i];
  return *this;
}

Scenario random_scenario(uint64_t seed) {
  Random random(mix(seed) + 1);
  Scenario scenario;
  scenario.seed = seed;
  const double intervals_s[] = {8, 25, 70, 200};
  scenario.change_every_s = intervals_s[random.below(4)];
  scenario.backends = static_cast<uint32_t>(4 + random.below(20));
  scenario.flows_per_s = random.uniform(2, 8);
  scenario.flap_back = random.chance(0.4);
  scenario.lossy = random.chance(0.4);
  scenario.port_reuse = random.chance(0.4);
  scenario.long_pauses = random.chance(0.2);
  scenario.udp = random.chance(0.4);
  scenario.ecmp = random.chance(0.25);
  scenario.queues = random.chance(0.25);
  scenario.worker_count = random.chance(0.2);
  scenario.control_restarts = random.chance(0.3);
  scenario.dataplane_restarts = random.chance(0.2);
  scenario.host.late_adoption = random.chance(0.3);
  scenario.host.workers = static_cast<uint32_t>(1 + random.below(4));
  if (random.chance(0.2)) scenario.host.entries_per_worker = 16u << random.below(4);
  if (random.chance(0.15)) scenario.flood = static_cast<Flood>(1 + random.below(4));
  return scenario;
}

std::string report(const Result& result) {
  std::string text;
  const auto line = [&]<typename... Args>(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text), format, std::forward<Args>(args)...);
    text += '\n';
  };
  const auto share = [](uint64_t part, uint64_t whole) {
    return 100.0 * static_cast<double>(part) / static_cast<double>(std::max<uint64_t>(whole, 1));
  };
  line("{} flows, {} packets, {} packets of floods, {} changes", result.flows, result.packets,
       result.flood_packets, result.changes);
  line("");
  line("flows violated per million    {:>10} {:>10} {:>10}  changed, kept by full", "none", "full",
       "changed");
  const auto millionth = [&](uint64_t flows) { return 1e4 * share(flows, result.flows); };
  for (uint32_t i = 0; i < kCauseCount; ++i) {
    line("  {:<27} {:>10.1f} {:>10.1f} {:>10.1f} {:>10.1f}", name_of(static_cast<Cause>(i)),
         millionth(result.modes[0].flows[i]), millionth(result.modes[1].flows[i]),
         millionth(result.modes[2].flows[i]), millionth(result.modes[2].kept_by_full[i]));
  }
  line("  {:<27} {:>10.1f} {:>10.1f} {:>10.1f}", "all", millionth(result.modes[0].violated()),
       millionth(result.modes[1].violated()), millionth(result.modes[2].violated()));
  line("  {:<27} {:>10.1f} {:>10.1f} {:>10.1f}", "excused (backend gone)",
       millionth(result.modes[0].excused), millionth(result.modes[1].excused),
       millionth(result.modes[2].excused));
  line("");
  line("entries per live flow         {:>9.1f}% {:>9.1f}% {:>9.2f}%", 0.0,
       share(result.entries_full, result.live_flows),
       share(result.entries_changed, result.live_flows));
  line(
      "packets in settled slots: {:.2f}%; table lookups of `changed`: {}, packets in unsettled "
      "slots: {}",
      share(result.settled_packets, result.settled_packets + result.unsettled_packets),
      result.lookups_changed, result.unsettled_packets);
  return text;
}

}  // namespace maglev::model
