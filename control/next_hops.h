// Next hops: for each backend address, where the kernel would send a packet to it.
//
// The dataplane writes Ethernet headers itself, but routes and neighbours stay the kernel's: this
// class asks it by rtnetlink, hears of changes at once, and keeps the neighbours in use alive.
// Forwarded packets bypass the kernel, so to the kernel those neighbours look idle and it would let
// them go stale, no longer noticing a backend that moved to another MAC address. Each is therefore
// marked as used every few seconds (NTF_USE), which makes the kernel verify it just as its own
// traffic would. An unresolved one is asked for in the same way, with growing pauses. Entries that
// an operator made permanent are left alone.
//
// Thread: everything on the one thread that runs the io_context; the callback comes from there,
// never from inside a call of the caller's. Requests to the kernel are answered within the system
// call, so watch() and the handling of a change do not wait for anybody else.
// Ownership: owns its netlink sockets and timers; must be destroyed before the io_context; after
// its destructor no callback comes. Sees the network namespace of the thread that opened it.
// Needs CAP_NET_ADMIN to mark neighbours.
#pragma once

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <cstdint>
#include <expected>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace maglev {

struct NextHop {
  bool resolved = false;
  std::array<uint8_t, 6> mac{};             // all zeros while unresolved
  boost::asio::ip::address outer_source{};  // preferred source of the route
  boost::asio::ip::address via{};           // who is asked for: the gateway, or the address itself
  bool on_link = false;                     // via is the address itself
  uint32_t mtu_bytes = 0;                   // of the route, or of the interface where it has none
  bool mtu_is_of_route = false;
  std::string interface;               // kernel name of the way out
  std::string reason = "not watched";  // why unresolved; empty when resolved
  bool operator==(const NextHop&) const = default;
};

// "02:00:00:00:00:11"
std::string format_mac(const std::array<uint8_t, 6>& mac);

class NextHops {
 public:
  using OnChange = std::function<void(const std::vector<boost::asio::ip::address>& changed)>;

  // Fails with a sentence when the kernel refuses a netlink socket.
  static std::expected<std::unique_ptr<NextHops>, std::string> open(boost::asio::io_context& io,
                                                                    OnChange on_change);
  ~NextHops();
  NextHops(const NextHops&) = delete;
  NextHops& operator=(const NextHops&) = delete;

  // Makes the addresses watched exactly these. What the kernel knows by now about any of them can
  // be read with of() on return; the callback tells later changes.
  void watch(const std::set<boost::asio::ip::address>& addresses);

  NextHop of(const boost::asio::ip::address& address) const;

 private:
  struct State;
  explicit NextHops(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace maglev
