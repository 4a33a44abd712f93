// Whole files read and written, for state that others may read at any instant. Errors are sentences
// that name the path. Any thread.
#pragma once

#include <cstddef>
#include <expected>
#include <span>
#include <string>
#include <vector>

namespace maglev {

// The file's bytes, aligned for check_header(). Fails when it is longer than max_bytes.
std::expected<std::vector<std::byte>, std::string> read_whole_file(const std::string& path,
                                                                   size_t max_bytes);

// Writes aside, in the same directory, and renames into place: a reader finds the old content or
// the new, whole. Does not wait for the disk. Mode 0600.
std::expected<void, std::string> replace_file(const std::string& path,
                                              std::span<const std::byte> content);

// Makes the directory, and those above it, where they are missing. Mode 0700 for what it makes.
std::expected<void, std::string> make_directory(const std::string& path);

// What replace_file() leaves when its process is killed starts with this.
inline constexpr std::string_view kAsidePrefix = ".aside-";

}  // namespace maglev
