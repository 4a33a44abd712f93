// A file mapped into memory, shared with whoever maps it later. Owned by one thread; the memory may
// be used by any.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <span>
#include <utility>

#include "dataplane/file_descriptor.h"

namespace maglev {

class MappedFile {
 public:
  MappedFile() = default;
  // The memory is a whole mapping of mmap(); the descriptor stays open with it.
  MappedFile(FileDescriptor file, std::span<std::byte> memory)
      : file_(std::move(file)), memory_(memory) {}
  MappedFile(MappedFile&& other) noexcept
      : file_(std::move(other.file_)), memory_(std::exchange(other.memory_, {})) {}
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(file_, other.file_);
    std::swap(memory_, other.memory_);
    return *this;
  }
  ~MappedFile() {
    if (!memory_.empty()) munmap(memory_.data(), memory_.size());
  }

  std::span<std::byte> memory() const { return memory_; }

 private:
  FileDescriptor file_;
  std::span<std::byte> memory_;
};

}  // namespace maglev
