// The long form of the model: many random histories, and the cost of one changing backend of 100.
#include <fmt/format.h>

#include <cstdlib>
#include <string_view>

#include "tests/model/model.h"

namespace {

using namespace maglev::model;

// One backend of 100 is drained or comes back at a time; entries are counted all the while.
Scenario one_of_hundred(double change_every_s, uint64_t seed) {
  Scenario scenario;
  scenario.seed = seed;
  scenario.host.slots = 10007;
  scenario.backends = 100;
  scenario.change_every_s = change_every_s;
  scenario.failures = 0;
  scenario.removals = 0;
  scenario.flows_per_s = 100;
  scenario.duration_s = 3000;
  scenario.host.entries_per_worker = 32768;
  return scenario;
}

}  // namespace

int main(int argc, char** argv) {
  const uint64_t histories = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 2000;
  Result sum;
  for (uint64_t seed = 1; seed <= histories; ++seed) {
    const Result result = run(random_scenario(seed));
    for (const Cause cause : kPreventable) {
      const auto only_changed =
          result.of(Mode::kChanged).kept_by_full[static_cast<uint32_t>(cause)];
      if (only_changed == 0) continue;
      fmt::print("seed {}: `changed` broke {} that `full` kept: {}\n", seed, only_changed,
                 name_of(cause));
    }
    sum += result;
  }
  fmt::print("{} random histories\n{}\n", histories, report(sum));
  for (const double every_s : {100.0, 300.0, 1000.0}) {
    fmt::print("one backend of 100 changes every {} s, idle time 60 s\n{}\n", every_s,
               report(run(one_of_hundred(every_s, 1))));
  }
}
