#include "dataplane/adoption.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include <fmt/format.h>

#include "dataplane/file_descriptor.h"
#include "tables/boot_time.h"

namespace maglev {
namespace {

// A table of the largest size has 64 MiB of slots; names and backends come on top.
constexpr uint64_t kMaxFileBytes = 512u << 20;

using Image = std::vector<std::byte>;

// O_NONBLOCK: a fifo laid in the place of a file must not stop the main thread.
std::expected<Image, std::string> read_file(const std::string& path) {
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW));
  struct stat status {};
  if (file.get() < 0 || fstat(file.get(), &status) != 0) {
    return std::unexpected(fmt::format("cannot read {}: {}", path, std::strerror(errno)));
  }
  const auto size = static_cast<uint64_t>(status.st_size);
  if (!S_ISREG(status.st_mode) || size > kMaxFileBytes) {
    return std::unexpected(
        fmt::format("{} is no regular file of at most {} bytes", path, kMaxFileBytes));
  }
  Image image(size);
  size_t got = 0;
  while (got < image.size()) {
    const ssize_t n = read(file.get(), image.data() + got, image.size() - got);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return std::unexpected(fmt::format("{} ended after {} bytes", path, got));
    got += static_cast<size_t>(n);
  }
  return image;
}

// A root is replaced by rename, never written in place, so a new one is a new inode or a new time.
bool same_file(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino && a.st_size == b.st_size &&
         a.st_mtim.tv_sec == b.st_mtim.tv_sec && a.st_mtim.tv_nsec == b.st_mtim.tv_nsec;
}

}  // namespace

void Adopter::set_ports(std::vector<PortFacts> ports) {
  ports_ = std::move(ports);
  pools_.clear();
  ports_changed_ = true;
}

// A file that is named by its checksum, read into the image and checked by its kind's checker.
template <typename View>
std::expected<View, std::string> Adopter::load_file(
    std::string_view folder, const Checksum& name,
    std::expected<View, std::string> (*check)(std::span<const std::byte>), Image& image) const {
  const std::string path = fmt::format("{}/{}/{}", directory_, folder, name.hex());
  auto file = read_file(path);
  if (!file) return std::unexpected(file.error());
  image = std::move(*file);
  auto view = check(image);
  if (!view) return std::unexpected(fmt::format("{}: {}", path, view.error()));
  if (view->checksum != name) return std::unexpected(path + ": its content has another name");
  return view;
}

std::expected<Adopter::Pool, std::string> Adopter::load_pool(const PoolReference& reference,
                                                             const PoolNeeds& needs) {
  std::weak_ptr<const PoolImage>& known = pools_[reference];
  if (Pool pool = known.lock()) {
    const auto has_way = [&](const Way& way) { return pool->ways.contains(way); };
    const auto has_servers = [&](const QuicCidFormat& f) { return pool->quic_servers.contains(f); };
    if (std::ranges::all_of(needs.ways, has_way) && std::ranges::all_of(needs.quic, has_servers)) {
      return pool;
    }
  }

  Image pool_file, table_file, history_file;
  const auto pool = load_file(kPoolDirectory, reference.pool, check_pool_file, pool_file);
  if (!pool) return std::unexpected(pool.error());
  const auto table = load_file(kTableDirectory, pool->table, check_table_file, table_file);
  if (!table) return std::unexpected(table.error());
  std::span<const SlotHistory> past;
  auto fits = check_pool_fits_table(*pool, *table);
  if (fits && reference.history != Checksum{}) {
    const auto history =
        load_file(kHistoryDirectory, reference.history, check_history_file, history_file);
    if (!history) return std::unexpected(history.error());
    fits = check_history_fits(*history, table->size(), pool->backends.size());
    if (history->boot == boot_) past = history->slots;
  }
  auto image =
      fits ? build_pool_image(*pool, *table, past, needs, ports_, backend_counters_, memory_)
           : std::unexpected(fits.error());
  if (!image) {
    return std::unexpected(fmt::format("{}/{}/{}: {}", directory_, kPoolDirectory,
                                       reference.pool.hex(), image.error()));
  }
  known = *image;
  return *image;
}

std::expected<std::shared_ptr<const Snapshot>, std::string> Adopter::adopt(const RootView& root) {
  const bool same_root = last_root_ == root.checksum;  // built again for other ports
  if (root.generation < generation_ || (root.generation == generation_ && !same_root)) {
    return std::unexpected(
        fmt::format("root: generation {} after generation {}", root.generation, generation_));
  }
  std::vector<Pool> pools;
  std::vector<uint16_t> numbers;
  for (uint32_t p = 0; p < root.pools.size(); ++p) {
    const auto pool = load_pool(root.pools[p], needs_of_pool(root, p));
    if (!pool) return std::unexpected(pool.error());
    pools.push_back(*pool);
    const auto number = pool_numbers_.take((*pool)->name, boot_time_ns());
    if (!number) {
      return std::unexpected(fmt::format(
          "root: there are {} pools, with those that flows may still be remembered of; that is all "
          "that can be told apart",
          kMaxTrackedPools));
    }
    numbers.push_back(*number);
  }
  std::vector<CounterHold> counters;
  for (std::string_view name : root.vip_names) {
    counters.push_back(vip_counters_.hold(std::string(name)));
    if (counters.back() == nullptr) {
      return std::unexpected("root: there are more VIPs than counters for them");
    }
  }
  return build_snapshot(root, std::move(pools), numbers, std::move(counters), memory_);
}

void Adopter::retain_numbers(const Snapshot& snapshot) {
  std::vector<PoolNumbers::InUse> in_use;
  for (const TrackedPool& pool : snapshot.tracked_pools()) {
    in_use.push_back({pool.number, pool.idle.longest_ns()});
  }
  pool_numbers_.retain(in_use, boot_time_ns());
}

std::shared_ptr<const Snapshot> Adopter::poll() {
  const std::string path = fmt::format("{}/{}", directory_, kRootFileName);
  const auto refuse = [&](const Checksum& root, std::string why) {
    if (refused_root_ != root || last_refusal_ != why) ++refused_roots_;
    refused_root_ = root;
    last_refusal_ = std::move(why);
  };
  struct stat status {};
  if (stat(path.c_str(), &status) != 0 && errno == ENOENT) return nullptr;
  if (same_file(status, last_status_) && !ports_changed_) return nullptr;
  const auto file = read_file(path);
  if (!file) {
    refuse({}, file.error());
    return nullptr;
  }
  const auto root = check_root_file(*file);
  if (!root) {
    refuse({}, fmt::format("{}: {}", path, root.error()));
    return nullptr;
  }
  if (last_root_ == root->checksum && !ports_changed_) return nullptr;

  std::expected<std::shared_ptr<const Snapshot>, std::string> snapshot;
  try {
    snapshot = adopt(*root);
  } catch (const std::bad_alloc&) {
    snapshot = std::unexpected(
        fmt::format("generation {} does not fit into the memory that is left: raise "
                    "dataplane.memory_mib",
                    root->generation));
  }
  std::erase_if(pools_, [](const auto& entry) { return entry.second.expired(); });
  vip_counters_.forget_unheld();
  backend_counters_.forget_unheld();
  if (!snapshot) {
    refuse(root->checksum, snapshot.error());
    return nullptr;
  }
  retain_numbers(**snapshot);
  last_status_ = status;
  last_root_ = root->checksum;
  ports_changed_ = false;
  refused_root_.reset();
  generation_ = root->generation;
  return *snapshot;
}

}  // namespace maglev
