// Path MTUs: what routers tell about packets of ours that were too big for their next link.
//
// The outer packets that the dataplane sends carry sources of this host, so the kernel gets the
// ICMP messages about them and hands each to this class through raw sockets. Whoever can send us
// packets can make up such a message, so little is believed:
// 1. Only IPv4 "fragmentation needed" and IPv6 "packet too big" count that quote a packet which the
//    owner knows as one of ours, and which was larger than what is said to fit.
// 2. An MTU is never taken below kLowestMtuIpv4 or kLowestMtuIpv6, and never raised by a message.
// 3. What was learnt ends after `expiry` (RFC 1191 section 6.3), unless told again.
// 4. The owner hears at most once in kNewsInterval, and messages are read at a bounded pace.
//
// Thread: everything on the one thread that runs the io_context; callbacks come from there, never
// from inside a call of the owner's, and none after the destructor. Ownership: owns its sockets and
// timer; must be destroyed before the io_context. Needs CAP_NET_RAW. Source: RFC 1191, RFC 8201.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace maglev {

// What hosts must take whole, and for IPv4 room for the largest outer header beside it (IPv4, UDP
// and GUE).
inline constexpr uint32_t kLowestMtuIpv4 = 576 + 20 + 8 + 4;
inline constexpr uint32_t kLowestMtuIpv6 = 1280;

struct OuterPacket {
  boost::asio::ip::address source;
  boost::asio::ip::address destination;
  uint8_t protocol = 0;
  uint16_t destination_port = 0;  // of UDP
};

// A message that a packet was too big, as it says.
struct TooBig {
  OuterPacket quoted;
  uint32_t quoted_bytes = 0;  // its length by its own header
  uint32_t mtu_bytes = 0;     // what would have fit
};

// The message in an IPv4 packet, whole with its header, and in an ICMPv6 message without; nullopt
// for any other.
std::optional<TooBig> read_too_big_ipv4(std::span<const std::byte> packet);
std::optional<TooBig> read_too_big_ipv6(std::span<const std::byte> message);

// What was learnt about the paths to destinations.
class PathMtuMemory {
 public:
  using Clock = std::chrono::steady_clock;
  struct Entry {
    uint32_t mtu_bytes = 0;
    boost::asio::ip::address router;  // who said so
    Clock::time_point until;
  };

  enum class Outcome { kIgnored, kRenewed, kLowered };
  Outcome take(const TooBig& message, const boost::asio::ip::address& router,
               Clock::time_point until);
  // Forgets what has ended by now; returns of which destinations.
  std::vector<boost::asio::ip::address> expire(Clock::time_point now);
  std::optional<Entry> of(const boost::asio::ip::address& destination) const;

 private:
  std::map<boost::asio::ip::address, Entry> entries_;
};

class PathMtus {
 public:
  using Clock = PathMtuMemory::Clock;
  using IsOurs = std::function<bool(const OuterPacket&)>;
  using OnChange = std::function<void(const std::vector<boost::asio::ip::address>& destinations)>;

  static constexpr std::chrono::milliseconds kNewsInterval{1000};

  // Fails with a sentence when the kernel refuses a raw socket.
  static std::expected<std::unique_ptr<PathMtus>, std::string> open(boost::asio::io_context& io,
                                                                    std::chrono::seconds expiry,
                                                                    IsOurs is_ours,
                                                                    OnChange on_change);
  ~PathMtus();
  PathMtus(const PathMtus&) = delete;
  PathMtus& operator=(const PathMtus&) = delete;

  // Of what is learnt from now on.
  void set_expiry(std::chrono::seconds expiry);

  std::optional<PathMtuMemory::Entry> of(const boost::asio::ip::address& destination) const;

  // Messages since the start.
  struct Counts {
    uint64_t taken = 0;
    uint64_t ignored = 0;
  };
  Counts counts() const;

 private:
  struct State;
  explicit PathMtus(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace maglev
