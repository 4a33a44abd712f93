// What the published files (table, pool, root) and the report file have in common: a header that
// says what the file is, how long it is, and what its bytes sum to.
//
// All integers are little-endian. Every file starts with a FileHeader, holds no offset (where each
// part starts follows from the counts before it) and is padded with zeros to a multiple of 8.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace maglev {

// XXH3-128 of a whole file with the checksum field taken as zeros. It names the file: equal names
// mean equal bytes, on one host or between hosts. It guards against accidents, not forgery.
struct Checksum {
  std::array<uint8_t, 16> bytes{};
  auto operator<=>(const Checksum&) const = default;

  std::string hex() const;  // 32 lower-case digits
  static std::optional<Checksum> from_hex(std::string_view text);
};

enum class FileKind : uint32_t { kTable = 1, kPool = 2, kRoot = 3, kReport = 4, kHistory = 5 };

// Grows whenever the layout of any kind changes; a reader refuses versions it does not know.
inline constexpr uint32_t kFileFormatVersion = 3;

struct FileHeader {
  std::array<char, 8> magic;  // "maglevlb"
  FileKind kind;
  uint32_t format_version;
  uint64_t length_bytes;  // of the whole file
  Checksum checksum;
};
static_assert(sizeof(FileHeader) == 40);

// Longest name of a pool, VIP, backend or port.
inline constexpr size_t kMaxNameLength = 255;

// Recomputes the checksum of a file image and stores it in its header. The image must be at least
// one header long.
Checksum seal(std::span<std::byte> file);

// Checks magic, kind, version, length and checksum; the rest is each kind's own checker.
std::expected<const FileHeader*, std::string> check_header(std::span<const std::byte> file,
                                                           FileKind kind);

// Builds a file image part by part, in order; seal() comes last, in finish().
class FileWriter {
 public:
  explicit FileWriter(FileKind kind);

  template <typename T>
  void append(const T& record) {
    append_bytes(std::as_bytes(std::span(&record, 1)));
  }
  template <typename T>
  void append_all(std::span<const T> records) {
    append_bytes(std::as_bytes(records));
  }
  void append_text(std::string_view text) { append_bytes(std::as_bytes(std::span(text))); }
  void pad();  // with zeros to the next multiple of 8
  std::vector<std::byte> finish() &&;

 private:
  void append_bytes(std::span<const std::byte> bytes);

  std::vector<std::byte> image_;
};

// Walks a file image part by part, in order. After the first part that does not fit, failed() is
// true and every further part is empty, so a checker may test once at the end.
class FileReader {
 public:
  // The image must be aligned to 8 bytes and outlive every view taken from it.
  explicit FileReader(std::span<const std::byte> file)
      : file_(file), position_(sizeof(FileHeader)) {}

  template <typename T>
  const T* take() {
    const std::span<const std::byte> bytes = take_bytes(sizeof(T), 1);
    return failed_ ? nullptr : reinterpret_cast<const T*>(bytes.data());
  }
  template <typename T>
  std::span<const T> take_all(uint64_t count) {
    const std::span<const std::byte> bytes = take_bytes(sizeof(T), count);
    return {reinterpret_cast<const T*>(bytes.data()), failed_ ? 0 : static_cast<size_t>(count)};
  }
  std::string_view take_text(uint64_t length);
  void skip_padding();  // fails where a padding byte is not zero
  bool failed() const { return failed_; }
  bool at_end() const { return !failed_ && position_ == file_.size(); }

 private:
  std::span<const std::byte> take_bytes(size_t record_bytes, uint64_t count);

  std::span<const std::byte> file_;
  size_t position_;
  bool failed_ = false;
};

// Names of pools, VIPs and backends appear in URL paths, metrics, JSON and command lines, and must
// pass all of them unchanged: letters, digits and ._:- behind a letter or digit.
bool is_name(std::string_view text);

// Cuts consecutive names off a name block; what does not fit or is no name yields nullopt.
class NameBlock {
 public:
  explicit NameBlock(std::string_view block) : rest_(block) {}
  std::optional<std::string_view> take(size_t length);
  bool empty() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

}  // namespace maglev
