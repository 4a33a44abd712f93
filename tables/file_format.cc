#include "tables/file_format.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>

#include <fmt/format.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace maglev {
namespace {

static_assert(std::endian::native == std::endian::little, "the files are little-endian");

constexpr std::array<char, 8> kMagic = {'m', 'a', 'g', 'l', 'e', 'v', 'l', 'b'};
constexpr size_t kAlignment = 8;

Checksum sum_without_own_field(std::span<const std::byte> file) {
  const size_t field = offsetof(FileHeader, checksum);
  const size_t after = field + sizeof(Checksum);
  constexpr std::array<std::byte, sizeof(Checksum)> zeros{};
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  XXH3_128bits_update(&state, file.data(), field);
  XXH3_128bits_update(&state, zeros.data(), zeros.size());
  XXH3_128bits_update(&state, file.data() + after, file.size() - after);
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&state));
  Checksum sum;
  std::memcpy(sum.bytes.data(), canonical.digest, sum.bytes.size());
  return sum;
}

}  // namespace

std::string Checksum::hex() const {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (uint8_t b : bytes) {
    text += kDigits[b >> 4];
    text += kDigits[b & 15];
  }
  return text;
}

std::optional<Checksum> Checksum::from_hex(std::string_view text) {
  Checksum sum;
  if (text.size() != 2 * sum.bytes.size()) return std::nullopt;
  for (char c : text) {
    if (!(c >= '0' && c <= '9') && !(c >= 'a' && c <= 'f')) return std::nullopt;
  }
  for (size_t i = 0; i < sum.bytes.size(); ++i) {
    std::from_chars(text.data() + 2 * i, text.data() + 2 * i + 2, sum.bytes[i], 16);
  }
  return sum;
}

Checksum seal(std::span<std::byte> file) {
  const Checksum sum = sum_without_own_field(file);
  std::memcpy(file.data() + offsetof(FileHeader, checksum), &sum, sizeof sum);
  return sum;
}

std::expected<const FileHeader*, std::string> check_header(std::span<const std::byte> file,
                                                           FileKind kind) {
  if (reinterpret_cast<uintptr_t>(file.data()) % kAlignment != 0) {
    return std::unexpected("the file image is not aligned to 8 bytes");
  }
  if (file.size() < sizeof(FileHeader)) {
    return std::unexpected(fmt::format("{} bytes are too few for a header", file.size()));
  }
  const auto* header = reinterpret_cast<const FileHeader*>(file.data());
  if (header->magic != kMagic) return std::unexpected("not a file of this program");
  if (header->kind != kind) {
    return std::unexpected(fmt::format("file kind {} where {} belongs",
                                       static_cast<uint32_t>(header->kind),
                                       static_cast<uint32_t>(kind)));
  }
  if (header->format_version != kFileFormatVersion) {
    return std::unexpected(fmt::format("format version {}, but this program reads version {}",
                                       header->format_version, kFileFormatVersion));
  }
  if (header->length_bytes != file.size() || file.size() % kAlignment != 0) {
    return std::unexpected(fmt::format("the header says {} bytes, the file has {}",
                                       header->length_bytes, file.size()));
  }
  if (header->checksum != sum_without_own_field(file)) {
    return std::unexpected("the checksum does not match the content");
  }
  return header;
}

FileWriter::FileWriter(FileKind kind) {
  append(FileHeader{kMagic, kind, kFileFormatVersion, 0, {}});
}

void FileWriter::append_bytes(std::span<const std::byte> bytes) {
  image_.insert(image_.end(), bytes.begin(), bytes.end());
}

void FileWriter::pad() {
  image_.resize((image_.size() + kAlignment - 1) / kAlignment * kAlignment);
}

std::vector<std::byte> FileWriter::finish() && {
  pad();
  const uint64_t length = image_.size();
  std::memcpy(image_.data() + offsetof(FileHeader, length_bytes), &length, sizeof length);
  seal(image_);
  return std::move(image_);
}

std::span<const std::byte> FileReader::take_bytes(size_t record_bytes, uint64_t count) {
  const size_t left = file_.size() - position_;
  if (failed_ || count > left / record_bytes) {
    failed_ = true;
    return {};
  }
  const auto bytes = file_.subspan(position_, static_cast<size_t>(count) * record_bytes);
  position_ += bytes.size();
  return bytes;
}

std::string_view FileReader::take_text(uint64_t length) {
  const std::span<const std::byte> bytes = take_bytes(1, length);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void FileReader::skip_padding() {
  const size_t gap = (kAlignment - position_ % kAlignment) % kAlignment;
  for (std::byte b : take_bytes(1, gap)) {
    if (b != std::byte{0}) failed_ = true;
  }
}

bool is_name(std::string_view text) {
  const auto alphanumeric = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  };
  const auto allowed = [&](char c) {
    return alphanumeric(c) || c == '.' || c == '_' || c == '-' || c == ':';
  };
  return !text.empty() && text.size() <= kMaxNameLength && alphanumeric(text.front()) &&
         std::ranges::all_of(text, allowed);
}

std::optional<std::string_view> NameBlock::take(size_t length) {
  const std::string_view name = rest_.substr(0, length);
  if (name.size() != length || !is_name(name)) return std::nullopt;
  rest_.remove_prefix(length);
  return name;
}

}  // namespace maglev
