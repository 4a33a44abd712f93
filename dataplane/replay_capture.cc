#include "dataplane/replay_capture.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>

#include <fmt/format.h>

namespace maglev {
namespace {

constexpr uint64_t kSecond_ns = 1'000'000'000;
constexpr int kLongestFrame = 262144;
// In the year 2262: later times, which pcapng can tell, would leave no room to wait in.
constexpr int64_t kLastSecond = std::numeric_limits<int64_t>::max() / int64_t{kSecond_ns};

}  // namespace

std::expected<CaptureReader, std::string> CaptureReader::open(const std::string& path) {
  char why[PCAP_ERRBUF_SIZE] = {};
  std::FILE* file = std::fopen(path.c_str(), "rbe");
  if (file == nullptr) {
    return std::unexpected(fmt::format("cannot read {}: {}", path, std::strerror(errno)));
  }
  pcap_t* capture = pcap_fopen_offline_with_tstamp_precision(file, PCAP_TSTAMP_PRECISION_NANO, why);
  if (capture == nullptr) {
    std::fclose(file);
    return std::unexpected(fmt::format("{} is no capture file: {}", path, why));
  }
  CaptureReader reader(path, capture);
  const int link_type = pcap_datalink(capture);
  if (link_type != DLT_EN10MB) {
    const char* name = pcap_datalink_val_to_name(link_type);
    return std::unexpected(
        fmt::format("{}: frames of link type {}, but only Ethernet is read: capture on one "
                    "interface, not 'any'",
                    path, name == nullptr ? std::to_string(link_type) : name));
  }
  return reader;
}

std::expected<std::optional<CapturedFrame>, std::string> CaptureReader::next() {
  pcap_pkthdr* header = nullptr;
  const u_char* bytes = nullptr;
  const int got = pcap_next_ex(capture_.get(), &header, &bytes);
  if (got == PCAP_ERROR_BREAK) return std::nullopt;
  ++count_;
  if (got != 1) {
    return std::unexpected(
        fmt::format("{}: frame {}: {}", path_, count_, pcap_geterr(capture_.get())));
  }
  if (header->caplen != header->len) {
    return std::unexpected(
        fmt::format("{}: frame {} was cut to {} of {} bytes when it was captured: capture whole "
                    "frames (tcpdump -s 0)",
                    path_, count_, header->caplen, header->len));
  }
  if (header->ts.tv_sec < 0 || header->ts.tv_sec > kLastSecond) {
    return std::unexpected(
        fmt::format("{}: frame {} has a time before 1970 or after 2262: correct it (editcap -t)",
                    path_, count_));
  }
  // With nanosecond precision the field of microseconds holds nanoseconds.
  const uint64_t time_ns = static_cast<uint64_t>(header->ts.tv_sec) * kSecond_ns +
                           static_cast<uint64_t>(header->ts.tv_usec);
  return CapturedFrame{time_ns, {bytes, header->caplen}};
}

std::expected<CaptureWriter, std::string> CaptureWriter::create(const std::string& path) {
  CaptureWriter writer(path);
  writer.format_.reset(
      pcap_open_dead_with_tstamp_precision(DLT_EN10MB, kLongestFrame, PCAP_TSTAMP_PRECISION_NANO));
  writer.file_.reset(pcap_dump_open(writer.format_.get(), path.c_str()));
  if (writer.file_ == nullptr) return std::unexpected(pcap_geterr(writer.format_.get()));
  return writer;
}

void CaptureWriter::write(const CapturedFrame& frame) {
  pcap_pkthdr header{};
  header.ts.tv_sec = static_cast<time_t>(frame.time_ns / kSecond_ns);
  header.ts.tv_usec = static_cast<suseconds_t>(frame.time_ns % kSecond_ns);
  header.caplen = header.len = static_cast<uint32_t>(frame.bytes.size());
  pcap_dump(reinterpret_cast<u_char*>(file_.get()), &header, frame.bytes.data());
}

std::expected<void, std::string> CaptureWriter::finish() {
  if (pcap_dump_flush(file_.get()) != 0 || std::ferror(pcap_dump_file(file_.get())) != 0) {
    return std::unexpected(fmt::format("cannot write {}: {}", path_, std::strerror(errno)));
  }
  return {};
}

}  // namespace maglev
