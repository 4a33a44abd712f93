// Capture files of Ethernet frames (pcap and pcapng), read and written by libpcap, with times in
// nanoseconds. One thread. Errors name the file and what to do.
#pragma once

#include <pcap/pcap.h>

#include <cstdint>
#include <expected>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace maglev {

struct CapturedFrame {
  uint64_t time_ns = 0;            // since 1970
  std::span<const uint8_t> bytes;  // valid until the next read
};

class CaptureReader {
 public:
  static std::expected<CaptureReader, std::string> open(const std::string& path);

  // The next frame; none at the end of the file. Refuses frames that were cut when captured.
  std::expected<std::optional<CapturedFrame>, std::string> next();

 private:
  struct Close {
    void operator()(pcap_t* capture) const { pcap_close(capture); }
  };
  CaptureReader(std::string path, pcap_t* capture) : path_(std::move(path)), capture_(capture) {}

  std::string path_;
  std::unique_ptr<pcap_t, Close> capture_;
  uint64_t count_ = 0;  // frames read
};

class CaptureWriter {
 public:
  static std::expected<CaptureWriter, std::string> create(const std::string& path);

  void write(const CapturedFrame& frame);
  // What was written is in the file, or the reason why not.
  std::expected<void, std::string> finish();

 private:
  struct Close {
    void operator()(pcap_t* capture) const { pcap_close(capture); }
    void operator()(pcap_dumper_t* file) const { pcap_dump_close(file); }
  };
  explicit CaptureWriter(std::string path) : path_(std::move(path)) {}

  std::string path_;
  std::unique_ptr<pcap_t, Close> format_;
  std::unique_ptr<pcap_dumper_t, Close> file_;
};

}  // namespace maglev
