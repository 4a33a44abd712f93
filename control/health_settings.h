// What is checked, how and how often: settings of health checks, their reader, and the targets made
// of them. Plain values; pure functions, any thread.
#pragma once

#include <boost/asio/ip/address.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace maglev {

class YamlCursor;

enum class HealthType : uint8_t { kNone, kTcp, kHttp, kHttps, kUdp, kIcmp, kCommand };

struct StatusRange {
  uint16_t first = 200;
  uint16_t last = 399;
  bool operator==(const StatusRange&) const = default;
};

struct HttpExchange {  // of kHttp and kHttps
  std::string method = "GET";
  std::string path = "/";
  std::string host;                                  // empty: the backend's address and port
  std::vector<StatusRange> statuses{StatusRange{}};  // any of these is a success
  std::string body;                                  // what the body must hold; empty: anything
  bool operator==(const HttpExchange&) const = default;
};

struct TlsExpectation {     // of kHttps
  std::string server_name;  // for SNI and the certificate; empty: the host, else the address
  std::string ca_file;      // empty: the system's authorities
  bool verify = true;
  bool operator==(const TlsExpectation&) const = default;
};

struct UdpExchange {  // of kUdp; bytes, not text
  std::string send;
  std::string expect;   // what the answer must hold; empty: any answer will do
  bool is_hex = false;  // how the file gives them, and how they are shown
  bool operator==(const UdpExchange&) const = default;
};

// A penalty counts how often a backend went down; it halves each half_life_s. One that reaches
// hold_at keeps the backend down, whatever its checks find, until it has fallen below release_at.
struct DampingSettings {
  uint32_t half_life_s = 0;  // 0: no damping
  uint32_t hold_at = 3;
  uint32_t release_at = 1;
  bool operator==(const DampingSettings&) const = default;
};

struct HealthSettings {
  HealthType type = HealthType::kNone;
  uint16_t port = 0;            // 0: the kind has none
  uint32_t interval_ms = 1000;  // from start to start
  uint32_t timeout_ms = 500;
  uint32_t rise = 2;  // successes in a row that bring a backend up; at least 1
  uint32_t fall = 3;  // failures in a row that take it down; at least 1
  DampingSettings damping{};
  HttpExchange http{};
  TlsExpectation tls{};
  UdpExchange udp{};
  std::vector<std::string> argv{};  // of kCommand
  bool operator==(const HealthSettings&) const = default;
};

enum class HealthVerdict : uint8_t { kUnknown, kUp, kDown };

struct HealthTarget {
  std::string pool;
  std::string backend;
  boost::asio::ip::address address;
  HealthSettings settings;
  // What a new target starts from, such as a verdict remembered from before a restart. Not looked
  // at for a target that is already checked.
  HealthVerdict initial = HealthVerdict::kUnknown;
};

// What a target's check reaches: "tcp 198.18.2.11:80", "icmp 198.18.2.11".
std::string endpoint_text(HealthType type, const boost::asio::ip::address& address, uint16_t port);
std::string_view to_text(HealthType type);

// A section of a pool; mistakes are noted at the cursor. Takes the keys that its type has.
HealthSettings read_health(const YamlCursor& cursor);

std::string to_hex(std::string_view bytes);
// 200, or 200-299.
std::string to_text(const StatusRange& range);

}  // namespace maglev
