#include "control/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace maglev {
namespace {

std::unexpected<std::string> failed(std::string_view what, const std::string& path) {
  return std::unexpected(fmt::format("cannot {} {}: {}", what, path, std::strerror(errno)));
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

bool write_all(int fd, std::span<const std::byte> content) {
  while (!content.empty()) {
    const ssize_t written = ::write(fd, content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    content = content.subspan(static_cast<size_t>(written));
  }
  return true;
}

}  // namespace

std::expected<std::vector<std::byte>, std::string> read_whole_file(const std::string& path,
                                                                   size_t max_bytes) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (file.get() < 0 || ::fstat(file.get(), &status) != 0) return failed("read", path);
  if (!S_ISREG(status.st_mode)) {
    return std::unexpected(fmt::format("cannot read {}: it is not a file", path));
  }
  if (static_cast<size_t>(status.st_size) > max_bytes) {
    return std::unexpected(
        fmt::format("cannot read {}: {} bytes are more than {}", path, status.st_size, max_bytes));
  }
  std::vector<std::byte> content(static_cast<size_t>(status.st_size));
  size_t filled = 0;
  while (filled < content.size()) {
    const ssize_t got = ::read(file.get(), content.data() + filled, content.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return failed("read", path);
    if (got == 0) break;
    filled += static_cast<size_t>(got);
  }
  content.resize(filled);
  return content;
}

std::expected<void, std::string> replace_file(const std::string& path,
                                              std::span<const std::byte> content) {
  const std::filesystem::path target(path);
  const std::string aside =
      target.parent_path() / fmt::format("{}{}", kAsidePrefix, target.filename().string());
  {
    // Made anew: nothing laid in its place, a link or a fifo, is written to.
    ::unlink(aside.c_str());
    const Descriptor file(::open(aside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (file.get() < 0) return failed("write", aside);
    if (!write_all(file.get(), content)) {
      auto error = failed("write", aside);
      ::unlink(aside.c_str());
      return error;
    }
  }
  if (::rename(aside.c_str(), path.c_str()) != 0) return failed("replace", path);
  return {};
}

std::expected<void, std::string> make_directory(const std::string& path) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  std::error_code ignored;
  std::filesystem::create_directories(parent, ignored);
  struct stat status {};
  if (::mkdir(path.c_str(), 0700) == 0) return {};
  const int error = errno;
  if (::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) return {};
  errno = error == EEXIST ? ENOTDIR : error;
  return failed("make directory", path);
}

}  // namespace maglev
