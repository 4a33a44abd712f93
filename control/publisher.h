// The published directory: writes table, pool and history files and replaces the root.
//
// Thread: one at a time. Ownership: holds the directory's control lock while it lives, so there is
// one publisher per directory; the kernel releases the lock whatever the cause of death.
// Invariants:
// 1. A file that is in use is never written to: content goes into a file aside, which is renamed.
// 2. The root is replaced last, so whatever root a reader finds, what it names is there. Files that
//    a recent root named stay for kKeptRoots more publications, for a reader that is just at it.
// 3. Files are for their owner alone (0600, the directory 0700 when made here): the root holds the
//    secret hash seed.
#pragma once

#include <sys/stat.h>

#include <deque>
#include <expected>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tables/published.h"

namespace maglev {

class Publisher {
 public:
  static constexpr size_t kKeptRoots = 3;

  // Makes the directory ready and takes the lock. Fails with a sentence when another process holds
  // the lock, or on what the file system refuses.
  static std::expected<std::unique_ptr<Publisher>, std::string> open(std::string directory);
  ~Publisher();
  Publisher(const Publisher&) = delete;
  Publisher& operator=(const Publisher&) = delete;

  // The root in place, whole and checked; empty when there is none or a damaged one.
  const std::vector<std::byte>& root() const { return root_; }

  // Whether the root last put in place is still there, untouched.
  bool has_root() const;

  // A file that never changes, by the folder that it lies in (tables/published.h) and its name.

  // Whether it is there, whole. Looks into a file only when it changed since the last look.
  bool has(std::string_view folder, const Checksum& name);
  // As it lies there, unchecked.
  std::expected<std::vector<std::byte>, std::string> read(std::string_view folder,
                                                          const Checksum& name) const;
  std::expected<void, std::string> write(std::string_view folder, const Checksum& name,
                                         std::span<const std::byte> file);

  // Puts a root in place, then removes files that it and the last few roots do not name. `named` is
  // what it names, all of it there.
  using Named = std::map<std::string_view, std::set<Checksum>>;  // by folder
  std::expected<void, std::string> replace_root(std::vector<std::byte> root, Named named);

 private:
  // What tells that a file is still the one that was looked into.
  struct Seen {
    ino_t inode;
    off_t length_bytes;
    timespec modified;
    timespec changed;
    bool operator==(const Seen& other) const;
  };
  static std::optional<Seen> look_at(const std::string& path);

  Publisher(std::string directory, int lock_fd);
  std::string path_of(std::string_view folder, const Checksum& name) const;
  void sweep(std::string_view folder);
  Named named_by_current_root() const;

  std::string directory_;
  int lock_fd_;
  std::vector<std::byte> root_;
  std::optional<Seen> root_seen_;
  std::deque<Named> recent_;  // what the current root and the last few name, oldest first
  std::map<std::string, Seen> seen_;
};

}  // namespace maglev
