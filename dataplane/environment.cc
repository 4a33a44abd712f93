#include "dataplane/environment.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "dataplane/port.h"
#include "tables/counted.h"
#include "tables/flow_hash.h"
#include "tables/published.h"

namespace maglev {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMib = 1u << 20;

// Of all sizes. `count` is a file that the kernel keeps for each, like free_hugepages.
uint64_t hugepage_mib(const char* count) {
  uint64_t bytes = 0;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator("/sys/kernel/mm/hugepages", none)) {
    uint64_t size_kib = 0;
    uint64_t pages = 0;
    const std::string name = entry.path().filename();  // hugepages-2048kB
    if (std::sscanf(name.c_str(), "hugepages-%lukB", &size_kib) != 1) continue;
    std::ifstream(entry.path() / count) >> pages;
    bytes += size_kib * 1024 * pages;
  }
  return bytes / kMib;
}

// Which counts pages of 2 MiB, used and free.
constexpr const char* kHugepageNumber = "/proc/sys/vm/nr_hugepages";

uint64_t hugepage_number() {
  uint64_t pages = 0;
  std::ifstream(kHugepageNumber) >> pages;
  return pages;
}

// That nobody uses or has been promised.
uint64_t free_hugepage_mib() {
  const uint64_t free_mib = hugepage_mib("free_hugepages");
  return free_mib - std::min(free_mib, hugepage_mib("resv_hugepages"));
}

// Returns the free MiB of hugepages. Where others hold what is wanted, that is after a time: the
// kernel gives back the memory of an AF_XDP socket some time after its process has ended, and who
// starts in the place of one that was killed must not fail by that.
uint64_t await_hugepages(uint64_t wanted_mib) {
  constexpr auto kPatience = std::chrono::seconds(5);
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  const bool may_come = hugepage_mib("nr_hugepages") >= wanted_mib;
  uint64_t free_mib = free_hugepage_mib();
  while (may_come && free_mib < wanted_mib && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    free_mib = free_hugepage_mib();
  }
  return free_mib;
}

std::string cores_option(const DataplaneSettings& settings) {
  std::string option =
      fmt::format("--lcores={}@{}", settings.main_core.lcore, settings.main_core.processor);
  for (uint32_t i = 0; i < settings.total_queues(); ++i) {
    option += fmt::format(",{}@{}", settings.cores[i].lcore, settings.cores[i].processor);
  }
  return option;
}

std::vector<std::string> eal_arguments(const DataplaneSettings& settings,
                                       const std::string& steering_program) {
  // No file is left behind, whatever the process dies of: --in-memory makes none, and is refused
  // together with --no-huge, whose only files are the shared configuration.
  std::vector<std::string> arguments = {"maglev-dataplane",
                                        settings.hugepages ? "--in-memory" : "--no-shconf",
                                        "--no-telemetry",
                                        "--log-level=lib.eal:warning",
                                        cores_option(settings),
                                        fmt::format("--main-lcore={}", settings.main_core.lcore),
                                        "-m",
                                        fmt::format("{}", settings.memory_mib)};
  if (!settings.hugepages) arguments.push_back("--no-huge");
  const auto is_pci = [](const PortSettings& port) { return is_pci_address(port.device); };
  if (std::ranges::none_of(settings.ports, is_pci)) arguments.push_back("--no-pci");
  for (const PortSettings& port : settings.ports) {
    arguments.push_back(fmt::format("{}={}", is_pci(port) ? "--allow" : "--vdev",
                                    device_arguments(port, steering_program)));
  }
  arguments.insert(arguments.end(), settings.eal_options.begin(), settings.eal_options.end());
  return arguments;
}

}  // namespace

std::expected<void, std::string> lock_directory(const std::string& directory) {
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) {
    return std::unexpected(fmt::format("cannot make {}: {}", directory, error.message()));
  }
  const std::string path = fmt::format("{}/{}", directory, kDataplaneLockFileName);
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) {
    return std::unexpected(fmt::format("cannot open {}: {}", path, std::strerror(errno)));
  }
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  if (fcntl(fd, F_OFD_SETLK, &lock) != 0) {
    return std::unexpected(
        fmt::format("another maglev-dataplane works on {}: stop it first, or give this one another "
                    "directory",
                    directory));
  }
  return {};  // fd stays open for the life of the process: the kernel releases the lock with it
}

std::string flow_store_path(const DataplaneSettings& settings) {
  if (!settings.flow_store.empty()) return settings.flow_store;
  constexpr const char* kHugepages = "/dev/hugepages";
  struct statfs system {};
  const bool huge =
      settings.hugepages && statfs(kHugepages, &system) == 0 && system.f_type == HUGETLBFS_MAGIC;
  const std::string directory = fs::weakly_canonical(settings.directory);
  return fmt::format("{}/maglev-flows-{:016x}", huge ? kHugepages : "/dev/shm",
                     XXH3_64bits(directory.data(), directory.size()));
}

std::expected<void, std::string> start_eal(const DataplaneSettings& settings,
                                           const std::string& steering_program) {
  const uint64_t free_mib = settings.hugepages ? await_hugepages(settings.memory_mib) : 0;
  if (settings.hugepages && free_mib < settings.memory_mib) {
    const uint64_t missing = (settings.memory_mib - free_mib + 1) / 2;
    return std::unexpected(fmt::format(
        "dataplane.memory_mib asks for {} MiB of hugepages, {} MiB are free: write {} to {}, which "
        "adds {}, or set dataplane.hugepages to false for a trial",
        settings.memory_mib, free_mib, hugepage_number() + missing, kHugepageNumber,
        counted(missing, "page")));
  }
  std::vector<std::string> arguments = eal_arguments(settings, steering_program);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  if (rte_eal_init(static_cast<int>(argv.size()), argv.data()) < 0) {
    return std::unexpected(fmt::format("DPDK does not start with '{}': {} (see its messages above)",
                                       fmt::join(arguments, " "), rte_strerror(rte_errno)));
  }
  return {};
}

}  // namespace maglev
