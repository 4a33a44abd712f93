#include "control/publisher.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "control/files.h"

namespace maglev {
namespace {

namespace fs = std::filesystem;

// Far above any tree that this program writes: the largest table takes 64 MiB of slots.
constexpr size_t kMaxFileBytes = size_t{1} << 30;

constexpr std::array<std::pair<std::string_view, FileKind>, 3> kFolders = {
    {{kTableDirectory, FileKind::kTable},
     {kPoolDirectory, FileKind::kPool},
     {kHistoryDirectory, FileKind::kHistory}}};

FileKind kind_in(std::string_view folder) {
  return std::ranges::find(kFolders, folder, &decltype(kFolders)::value_type::first)->second;
}

std::expected<int, std::string> take_lock(const std::string& directory) {
  const std::string path = fmt::format("{}/{}", directory, kControlLockFileName);
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) {
    return std::unexpected(fmt::format("cannot open {}: {}", path, std::strerror(errno)));
  }
  struct flock whole_file {};
  whole_file.l_type = F_WRLCK;
  whole_file.l_whence = SEEK_SET;
  if (::fcntl(fd, F_OFD_SETLK, &whole_file) == 0) return fd;
  const int error = errno;
  ::close(fd);
  if (error == EAGAIN || error == EACCES) {
    return std::unexpected(
        fmt::format("another maglev-control is running on directory {} (it holds {})", directory,
                    kControlLockFileName));
  }
  return std::unexpected(fmt::format("cannot lock {}: {}", path, std::strerror(error)));
}

void remove_asides(const fs::path& folder) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (entry.path().filename().string().starts_with(kAsidePrefix)) {
      fs::remove(entry.path(), ignored);
    }
  }
}

bool same_time(const timespec& a, const timespec& b) {
  return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

}  // namespace

bool Publisher::Seen::operator==(const Seen& other) const {
  return inode == other.inode && length_bytes == other.length_bytes &&
         same_time(modified, other.modified) && same_time(changed, other.changed);
}

std::expected<std::unique_ptr<Publisher>, std::string> Publisher::open(std::string directory) {
  if (const auto made = make_directory(directory); !made) return std::unexpected(made.error());
  const auto lock_fd = take_lock(directory);
  if (!lock_fd) return std::unexpected(lock_fd.error());
  std::unique_ptr<Publisher> publisher(new Publisher(directory, *lock_fd));
  for (const auto& [name, kind] : kFolders) {
    const std::string folder = fmt::format("{}/{}", directory, name);
    if (const auto made = make_directory(folder); !made) return std::unexpected(made.error());
    remove_asides(folder);
  }
  remove_asides(directory);
  struct stat status {};
  if (::stat(directory.c_str(), &status) == 0 && (status.st_mode & 0077) != 0) {
    spdlog::warn("{} is open to other users (mode {:04o}); 0700 is enough", directory,
                 status.st_mode & 07777);
  }

  const std::string root_path = fmt::format("{}/{}", directory, kRootFileName);
  if (!fs::exists(root_path)) return publisher;
  auto root = read_whole_file(root_path, kMaxFileBytes);
  const auto view = root ? check_root_file(*root) : std::unexpected(root.error());
  if (view) {
    publisher->root_ = std::move(*root);
    publisher->root_seen_ = look_at(root_path);
    publisher->recent_.push_back(publisher->named_by_current_root());
  } else {
    spdlog::warn("the root in {} is not usable and will be replaced: {}", directory, view.error());
  }
  return publisher;
}

Publisher::Publisher(std::string directory, int lock_fd)
    : directory_(std::move(directory)), lock_fd_(lock_fd) {}

Publisher::~Publisher() {
  ::close(lock_fd_);
}

std::expected<std::vector<std::byte>, std::string> Publisher::read(std::string_view folder,
                                                                   const Checksum& name) const {
  return read_whole_file(path_of(folder, name), kMaxFileBytes);
}

std::string Publisher::path_of(std::string_view folder, const Checksum& name) const {
  return fmt::format("{}/{}/{}", directory_, folder, name.hex());
}

std::optional<Publisher::Seen> Publisher::look_at(const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return std::nullopt;
  return Seen{status.st_ino, status.st_size, status.st_mtim, status.st_ctim};
}

bool Publisher::has_root() const {
  return root_seen_ && look_at(fmt::format("{}/{}", directory_, kRootFileName)) == root_seen_;
}

bool Publisher::has(std::string_view folder, const Checksum& name) {
  const std::string path = path_of(folder, name);
  const std::optional<Seen> now = look_at(path);
  const auto before = seen_.find(path);
  if (now && before != seen_.end() && before->second == *now) return true;
  seen_.erase(path);
  if (!now) return false;
  const auto content = read_whole_file(path, kMaxFileBytes);
  const auto header =
      content ? check_header(*content, kind_in(folder)) : std::unexpected(content.error());
  if (!header || (*header)->checksum != name) {
    spdlog::warn("{} is damaged and will be replaced: {}", path,
                 header ? "it is another file" : header.error());
    return false;
  }
  seen_.emplace(path, *now);
  return true;
}

std::expected<void, std::string> Publisher::write(std::string_view folder, const Checksum& name,
                                                  std::span<const std::byte> file) {
  // It may have been removed since open().
  const auto made = make_directory(fmt::format("{}/{}", directory_, folder));
  if (!made) return made;
  return replace_file(path_of(folder, name), file);
}

Publisher::Named Publisher::named_by_current_root() const {
  Named named;
  const auto root = check_root_file(root_);
  for (const PoolReference& reference : root->pools) {
    named[kPoolDirectory].insert(reference.pool);
    named[kHistoryDirectory].insert(reference.history);
    const auto file = read(kPoolDirectory, reference.pool);
    if (!file) continue;
    if (const auto view = check_pool_file(*file)) named[kTableDirectory].insert(view->table);
  }
  return named;
}

std::expected<void, std::string> Publisher::replace_root(std::vector<std::byte> root, Named named) {
  const std::string path = fmt::format("{}/{}", directory_, kRootFileName);
  if (const auto replaced = replace_file(path, root); !replaced) return replaced;
  root_ = std::move(root);
  root_seen_ = look_at(path);
  recent_.push_back(std::move(named));
  while (recent_.size() > kKeptRoots + 1) recent_.pop_front();
  for (const auto& [folder, kind] : kFolders) sweep(folder);
  return {};
}

void Publisher::sweep(std::string_view folder) {
  std::error_code error;
  for (const auto& entry :
       fs::directory_iterator(fmt::format("{}/{}", directory_, folder), error)) {
    const auto name = Checksum::from_hex(entry.path().filename().string());
    if (!name) continue;
    const bool in_use = std::ranges::any_of(recent_, [&](const Named& named) {
      const auto used = named.find(folder);
      return used != named.end() && used->second.contains(*name);
    });
    if (in_use) continue;
    seen_.erase(entry.path().string());
    fs::remove(entry.path(), error);
  }
}

}  // namespace maglev
