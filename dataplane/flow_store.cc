#include "dataplane/flow_store.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <type_traits>

#include <fmt/format.h>

#include "tables/flow_hash.h"

namespace maglev {
namespace {

constexpr uint64_t kMagic = 0x31776f6c66676d;  // "mgflow1"
constexpr uint32_t kLayoutVersion = 1;

struct Header {
  uint64_t magic;  // written last: without it the file is unfinished
  uint32_t layout_version;
  uint32_t hash_version;
  BootId boot;
  uint64_t seed_fingerprint;  // 0: no snapshot has told it
  uint64_t entries_per_worker;
  uint32_t workers;
  uint32_t zero;
  uint64_t longest_idle_ns;
  uint64_t elsewhere_until_ns;

  FlowLayout layout() const { return {workers, entries_per_worker}; }
};
static_assert(std::is_trivially_copyable_v<Header>);

constexpr const char* kInUse = "another process uses it";

constexpr size_t kNumbersOffset = 128;
constexpr size_t kTablesOffset =
    (kNumbersOffset + kMaxTrackedPools * sizeof(PoolNumberRecord) + 4095) / 4096 * 4096;
static_assert(sizeof(Header) <= kNumbersOffset);

size_t bytes_of(const FlowLayout& layout) {
  return kTablesOffset + layout.workers * FlowTable::bytes_for(layout.entries_per_worker);
}

Header& header_of(const MappedFile& file) {
  return *reinterpret_cast<Header*>(file.memory().data());
}

std::span<PoolNumberRecord> numbers_of(const MappedFile& file) {
  return {reinterpret_cast<PoolNumberRecord*>(file.memory().data() + kNumbersOffset),
          kMaxTrackedPools};
}

void add_tables(const MappedFile& file, std::deque<FlowTable>& tables) {
  const FlowLayout layout = header_of(file).layout();
  const size_t bytes = FlowTable::bytes_for(layout.entries_per_worker);
  for (uint32_t i = 0; i < layout.workers; ++i) {
    tables.emplace_back(file.memory().subspan(kTablesOffset + i * bytes, bytes));
  }
}

std::unexpected<std::string> failed(std::string_view what, const std::string& path) {
  return std::unexpected(fmt::format("cannot {} {}: {}", what, path, std::strerror(errno)));
}

std::expected<MappedFile, std::string> map(FileDescriptor file, size_t bytes,
                                           const std::string& path) {
  void* const memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file.get(), 0);
  if (memory == MAP_FAILED) return failed("map", path);
  return MappedFile(std::move(file), {static_cast<std::byte*>(memory), bytes});
}

// The seed is secret.
uint64_t fingerprint_of(uint64_t seed) {
  return std::max<uint64_t>(1, XXH3_64bits_withSeed(&kMagic, sizeof kMagic, seed));
}

// What an earlier process left, or an error that says why it cannot be used; empty: there is none.
std::expected<MappedFile, std::string> take_over(const std::string& path, const BootId& boot) {
  FileDescriptor file(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (file.get() < 0) return std::unexpected(errno == ENOENT ? "" : std::strerror(errno));
  struct stat status {};
  if (fstat(file.get(), &status) != 0) return std::unexpected(std::strerror(errno));
  if (flock(file.get(), LOCK_EX | LOCK_NB) != 0) return std::unexpected(kInUse);
  if (!S_ISREG(status.st_mode) || status.st_uid != geteuid() || (status.st_mode & 077) != 0) {
    return std::unexpected("it is no file of this user's alone");
  }
  const auto bytes = static_cast<size_t>(status.st_size);
  if (bytes < kTablesOffset) return std::unexpected("it is too short");
  auto mapped = map(std::move(file), bytes, path);
  if (!mapped) return mapped;
  const Header& header = header_of(*mapped);
  if (header.magic != kMagic) return std::unexpected("it is unfinished or something else");
  if (header.layout_version != kLayoutVersion || header.hash_version != kFlowHashVersion) {
    return std::unexpected("another version of maglev-dataplane wrote it");
  }
  if (header.boot != boot) return std::unexpected("it is of an earlier boot of the machine");
  const bool sane = header.workers >= 1 && header.workers <= 4096 &&
                    header.entries_per_worker >= 8 && header.entries_per_worker <= 1ull << 32 &&
                    std::has_single_bit(header.entries_per_worker);
  if (!sane || bytes_of(header.layout()) > bytes) return std::unexpected("it is damaged");
  return mapped;
}

// A new file in the place of whatever is there.
std::expected<MappedFile, std::string> make(const std::string& path, const FlowLayout& layout,
                                            const BootId& boot) {
  if (unlink(path.c_str()) != 0 && errno != ENOENT) return failed("remove", path);
  FileDescriptor file(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (file.get() < 0 || flock(file.get(), LOCK_EX | LOCK_NB) != 0) return failed("make", path);
  struct statfs system {};
  if (fstatfs(file.get(), &system) != 0) return failed("look at", path);
  const bool huge = system.f_type == HUGETLBFS_MAGIC;
  if (!huge && system.f_type != TMPFS_MAGIC) {
    unlink(path.c_str());
    return std::unexpected(fmt::format(
        "dataplane.flow_store {} is not on hugetlbfs or tmpfs: name a path below /dev/hugepages or "
        "/dev/shm",
        path));
  }
  const auto page = huge ? static_cast<size_t>(system.f_bsize) : size_t{4096};
  const size_t bytes = (bytes_of(layout) + page - 1) / page * page;
  if (const int error = posix_fallocate(file.get(), 0, static_cast<off_t>(bytes)); error != 0) {
    unlink(path.c_str());
    return std::unexpected(fmt::format(
        "{} for flow tables do not fit at {} ({}): {}, or lower dataplane.flow_entries",
        fmt::format("{} MiB", (bytes + (1u << 20) - 1) >> 20), path, std::strerror(error),
        huge ? "raise /proc/sys/vm/nr_hugepages" : "free memory there"));
  }
  auto mapped = map(std::move(file), bytes, path);
  if (!mapped) return mapped;
  header_of(*mapped) = {.magic = 0,
                        .layout_version = kLayoutVersion,
                        .hash_version = kFlowHashVersion,
                        .boot = boot,
                        .seed_fingerprint = 0,
                        .entries_per_worker = layout.entries_per_worker,
                        .workers = layout.workers,
                        .zero = 0,
                        .longest_idle_ns = 0,
                        .elsewhere_until_ns = 0};
  return mapped;
}

void finish(const MappedFile& file) {
  std::atomic_ref(header_of(file).magic).store(kMagic, std::memory_order_release);
}

}  // namespace

std::expected<std::unique_ptr<FlowStore>, std::string> FlowStore::open(const std::string& path,
                                                                       const FlowLayout& layout,
                                                                       const BootId& boot,
                                                                       uint64_t now_ns) {
  std::unique_ptr<FlowStore> store(new FlowStore(path));
  if (auto ok = store->open_files(layout, boot, now_ns); !ok) return std::unexpected(ok.error());
  store->share(layout, now_ns);
  return store;
}

void FlowStore::remove(const std::string& path) {
  unlink(path.c_str());
  unlink((path + ".before").c_str());
}

std::expected<void, std::string> FlowStore::open_files(const FlowLayout& layout, const BootId& boot,
                                                       uint64_t now_ns) {
  auto found = take_over(path_, boot);
  if (!found && found.error() == kInUse) {
    return std::unexpected(fmt::format(
        "another process uses {}: give each dataplane a dataplane.flow_store of its own", path_));
  }
  if (!found) not_kept_ = found.error();
  if (found && header_of(*found).layout() == layout) {
    file_ = *std::move(found);
    auto before = take_over(path_of_before(), boot);
    if (before && now_ns < header_of(file_).elsewhere_until_ns) before_ = *std::move(before);
    if (!before_) unlink(path_of_before().c_str());
    return {};
  }
  // What is there becomes `before` under its new name first: whoever is killed here leaves a file
  // that the next start finds.
  if (found && rename(path_.c_str(), path_of_before().c_str()) != 0) {
    return failed("rename", path_);
  }
  auto made = make(path_, layout, boot);
  if (!made) return std::unexpected(made.error());
  file_ = *std::move(made);
  if (found) {
    before_ = *std::move(found);
    const Header& old = header_of(*before_);
    Header& fresh = header_of(file_);
    std::ranges::copy(numbers_of(*before_), numbers_of(file_).begin());
    fresh.seed_fingerprint = old.seed_fingerprint;
    fresh.longest_idle_ns = old.longest_idle_ns;
    fresh.elsewhere_until_ns = now_ns + old.longest_idle_ns;
  } else {
    unlink(path_of_before().c_str());
  }
  finish(file_);
  return {};
}

void FlowStore::share(const FlowLayout& layout, uint64_t now_ns) {
  add_tables(file_, tables_);
  if (before_) add_tables(*before_, tables_before_);
  pool_numbers_.emplace(numbers_of(file_));
  Header& header = header_of(file_);
  for (FlowTable& table : tables_) {
    shared_.tables.push_back(&table);
    kept_ += table.counters().used.get();
  }
  for (const FlowTable& table : tables_before_) {
    shared_.tables_before.push_back(&table);
    kept_ += table.counters().used.get();
  }
  // Devices may spread flows otherwise than before.
  if (kept_ > 0 && layout.workers > 1) {
    header.elsewhere_until_ns =
        std::max(header.elsewhere_until_ns, now_ns + header.longest_idle_ns);
  }
  shared_.elsewhere_until_ns.store(header.elsewhere_until_ns, std::memory_order_release);
}

void FlowStore::use_seed(uint64_t hash_seed, bool workers_write) {
  Header& header = header_of(file_);
  const uint64_t fingerprint = fingerprint_of(hash_seed);
  if (header.seed_fingerprint == fingerprint) return;
  if (header.seed_fingerprint != 0 && !workers_write) {
    for (FlowTable& table : tables_) table.forget_all();
    not_kept_ = "they are by another hash_seed";
    kept_ = 0;
  }
  header.seed_fingerprint = fingerprint;
}

void FlowStore::set_longest_idle(uint64_t idle_ns) {
  header_of(file_).longest_idle_ns = idle_ns;
}

bool FlowStore::end_before(uint64_t now_ns) {
  const uint64_t until_ns = shared_.elsewhere_until_ns.load(std::memory_order_relaxed);
  if (!before_ || until_ns == 0 || now_ns < until_ns) return false;
  shared_.elsewhere_until_ns.store(0, std::memory_order_release);
  return true;
}

void FlowStore::drop_before() {
  unlink(path_of_before().c_str());
  shared_.tables_before.clear();
  tables_before_.clear();
  before_.reset();
}

}  // namespace maglev
