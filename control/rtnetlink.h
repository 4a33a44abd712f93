// The few rtnetlink messages that next hops need, as plain values: what the kernel knows about
// links, routes and neighbours, IPv4 and IPv6. One thread at a time. Each socket belongs to the
// network namespace of the thread that opened it. Source: rtnetlink(7), <linux/neighbour.h>.
#pragma once

#include <array>
#include <boost/asio/ip/address.hpp>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

struct mnl_socket;
struct nlmsghdr;

namespace maglev {

struct Link {
  int index = 0;
  bool gone = false;
  std::string name;
  bool ethernet = false;
  bool carrier = false;  // administratively up, and the other end is there
  uint32_t mtu_bytes = 0;
};

struct Neighbour {
  int link = 0;
  boost::asio::ip::address address;
  bool gone = false;
  uint16_t state = 0;  // NUD_*
  std::array<uint8_t, 6> mac{};

  bool usable() const;     // the kernel itself would send to this MAC address
  bool permanent() const;  // set by an operator; must not be marked as used: that would demote it
};

struct Route {
  uint8_t type = 0;  // RTN_*
  int link = 0;
  boost::asio::ip::address source;
  std::optional<boost::asio::ip::address> gateway;
  bool plain = true;  // false: has a gateway of the other family or an encapsulation of its own
  uint32_t mtu_bytes = 0;  // as configured for the route; 0: that of its link counts
};

// A route, rule or address changed: any route may lead elsewhere now.
struct RoutesChanged {};

using RtnetlinkEvent = std::variant<Link, Neighbour, RoutesChanged>;

// Asks the kernel. Every request is answered within the system calls it makes.
class Rtnetlink {
 public:
  static std::expected<Rtnetlink, std::string> open();

  std::expected<std::vector<Link>, std::string> links();
  std::expected<std::vector<Neighbour>, std::string> neighbours();
  // Fails where the kernel has no route, or one that refuses.
  std::expected<Route, std::string> route_to(const boost::asio::ip::address& address);
  // Tells the kernel that the neighbour is in use, making the entry if there is none: an unknown
  // one is then asked for, a stale one verified.
  std::expected<void, std::string> mark_used(int link, const boost::asio::ip::address& address);

 private:
  using OnMessage = std::function<void(const nlmsghdr&)>;
  struct Close {
    void operator()(mnl_socket* socket) const;
  };

  explicit Rtnetlink(mnl_socket* socket);
  std::expected<void, std::string> request(nlmsghdr& message, const OnMessage& on_answer);
  std::expected<void, std::string> ask_route(const boost::asio::ip::address& address,
                                             uint32_t flags, const OnMessage& on_answer);
  template <typename Header, typename Item>
  std::expected<std::vector<Item>, std::string> dump(uint16_t type, Header header,
                                                     std::optional<Item> (*read)(const nlmsghdr&));

  std::unique_ptr<mnl_socket, Close> socket_;
  std::vector<std::byte> buffer_;
  uint32_t sequence_ = 0;
};

// A non-blocking socket, owned by the caller, on which the kernel tells every change of links,
// addresses, routes, rules and neighbours. A read that fails with ENOBUFS means that some were
// lost.
std::expected<int, std::string> open_rtnetlink_events();

// Cuts what was read from that socket into events; messages of other kinds are left out.
void for_each_event(std::span<const std::byte> datagram,
                    const std::function<void(const RtnetlinkEvent&)>& on_event);

}  // namespace maglev
