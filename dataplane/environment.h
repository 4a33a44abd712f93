// What a dataplane process needs before it may touch a port: the lock that makes it the only one,
// the place where flows outlive it, and DPDK's environment layer (EAL) with its memory and cores.
// Main thread, once, at start.
#pragma once

#include <expected>
#include <string>

#include "tables/settings.h"

namespace maglev {

// Takes the lock file in the shared directory (made if absent), and keeps it until the process
// ends. Fails where another dataplane holds it.
std::expected<void, std::string> lock_directory(const std::string& directory);

// As configured; else a name of the directory's own on hugetlbfs if that is where the dataplane's
// memory is and it is mounted at /dev/hugepages, or in /dev/shm.
std::string flow_store_path(const DataplaneSettings& settings);

// Fails, before anything is taken, where there are too few free hugepages.
std::expected<void, std::string> start_eal(const DataplaneSettings& settings,
                                           const std::string& steering_program);

}  // namespace maglev
