#include "control/rtnetlink.h"

#include <libmnl/libmnl.h>
#include <linux/if.h>
#include <linux/if_arp.h>
#include <linux/neighbour.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace maglev {

namespace {

namespace ip = boost::asio::ip;

constexpr uint16_t kUsableStates =
    NUD_REACHABLE | NUD_STALE | NUD_DELAY | NUD_PROBE | NUD_PERMANENT | NUD_NOARP;

// A dump that a concurrent change interrupted is asked for again, this often at most.
constexpr int kDumpAttempts = 5;

// Bursts of route changes are large; what overflows this costs a full resynchronisation.
constexpr int kEventBufferBytes = 1 << 20;

// The kernel fills at most this much of a datagram of a dump; single answers are far smaller.
constexpr size_t kBufferBytes = 32768;

template <typename F>
int call_with_attribute(const nlattr* attribute, void* data) {
  (*static_cast<F*>(data))(*attribute);
  return MNL_CB_OK;
}

template <typename F>
void for_each_attribute(const nlmsghdr& message, size_t header_bytes, F on_attribute) {
  mnl_attr_parse(&message, static_cast<unsigned>(header_bytes), call_with_attribute<F>,
                 &on_attribute);
}

template <typename Address>
std::optional<ip::address> copy_address(const nlattr& attribute) {
  typename Address::bytes_type bytes;
  if (mnl_attr_get_payload_len(&attribute) != bytes.size()) return std::nullopt;
  std::memcpy(bytes.data(), mnl_attr_get_payload(&attribute), bytes.size());
  return Address(bytes);
}

std::optional<ip::address> read_address(const nlattr& attribute) {
  const auto v4 = copy_address<ip::address_v4>(attribute);
  return v4 ? v4 : copy_address<ip::address_v6>(attribute);
}

// Room for every request made here: a header, and one address at most.
struct alignas(nlmsghdr) RequestBuffer {
  std::array<std::byte, 128> bytes;
};

template <typename Header>
nlmsghdr& start_request(RequestBuffer& buffer, uint16_t type, uint16_t flags,
                        const Header& header) {
  nlmsghdr* const message = mnl_nlmsg_put_header(buffer.bytes.data());
  message->nlmsg_type = type;
  message->nlmsg_flags = flags;
  std::memcpy(mnl_nlmsg_put_extra_header(message, sizeof(header)), &header, sizeof(header));
  return *message;
}

uint8_t family_number(const ip::address& address) {
  return address.is_v4() ? AF_INET : AF_INET6;
}

void put_address(nlmsghdr& message, uint16_t type, const ip::address& address) {
  const auto put = [&](const auto& bytes) {
    mnl_attr_put(&message, type, bytes.size(), bytes.data());
  };
  address.is_v4() ? put(address.to_v4().to_bytes()) : put(address.to_v6().to_bytes());
}

template <typename T>
const T& header_of(const nlmsghdr& message) {
  return *static_cast<const T*>(mnl_nlmsg_get_payload(&message));
}

// nullopt for what is a link to another part of the kernel only, such as a bridge's view of it.
std::optional<Link> read_link(const nlmsghdr& message) {
  const auto& header = header_of<ifinfomsg>(message);
  if (header.ifi_family != AF_UNSPEC) return std::nullopt;
  Link link{.index = header.ifi_index,
            .gone = message.nlmsg_type == RTM_DELLINK,
            .name = {},
            .ethernet = header.ifi_type == ARPHRD_ETHER,
            .carrier = (header.ifi_flags & IFF_UP) && (header.ifi_flags & IFF_LOWER_UP),
            .mtu_bytes = 0};
  for_each_attribute(message, sizeof(header), [&](const nlattr& attribute) {
    const uint16_t type = mnl_attr_get_type(&attribute);
    if (type == IFLA_IFNAME) link.name = mnl_attr_get_str(&attribute);
    if (type == IFLA_MTU) link.mtu_bytes = mnl_attr_get_u32(&attribute);
  });
  return link;
}

std::optional<Neighbour> read_neighbour(const nlmsghdr& message) {
  const auto& header = header_of<ndmsg>(message);
  if (header.ndm_family != AF_INET && header.ndm_family != AF_INET6) return std::nullopt;
  Neighbour neighbour{.link = header.ndm_ifindex,
                      .address = {},
                      .gone = message.nlmsg_type == RTM_DELNEIGH,
                      .state = header.ndm_state,
                      .mac = {}};
  for_each_attribute(message, sizeof(header), [&](const nlattr& attribute) {
    const uint16_t type = mnl_attr_get_type(&attribute);
    if (type == NDA_DST) neighbour.address = read_address(attribute).value_or(ip::address());
    if (type == NDA_LLADDR && mnl_attr_get_payload_len(&attribute) == neighbour.mac.size()) {
      std::memcpy(neighbour.mac.data(), mnl_attr_get_payload(&attribute), neighbour.mac.size());
    }
  });
  return neighbour;
}

uint32_t read_route_mtu(const nlattr& metrics) {
  uint32_t mtu_bytes = 0;
  const auto on_metric = [&](const nlattr& metric) {
    if (mnl_attr_get_type(&metric) == RTAX_MTU) mtu_bytes = mnl_attr_get_u32(&metric);
  };
  mnl_attr_parse_nested(&metrics, call_with_attribute<decltype(on_metric)>,
                        const_cast<void*>(static_cast<const void*>(&on_metric)));
  return mtu_bytes;
}

// What the kernel itself was taught by ICMP, which ends in silence, stands in the place of what was
// configured for the route.
bool is_learnt(const nlattr& cache_info) {
  return mnl_attr_get_payload_len(&cache_info) >= sizeof(rta_cacheinfo) &&
         static_cast<const rta_cacheinfo*>(mnl_attr_get_payload(&cache_info))->rta_expires != 0;
}

struct RouteAnswer {
  Route route;
  bool has_learnt = false;
};

RouteAnswer read_route(const nlmsghdr& message) {
  const auto& header = header_of<rtmsg>(message);
  RouteAnswer answer;
  Route& route = answer.route;
  route.type = header.rtm_type;
  for_each_attribute(message, sizeof(header), [&](const nlattr& attribute) {
    switch (mnl_attr_get_type(&attribute)) {
      case RTA_OIF:
        route.link = static_cast<int>(mnl_attr_get_u32(&attribute));
        break;
      case RTA_PREFSRC:
        route.source = read_address(attribute).value_or(ip::address());
        break;
      case RTA_GATEWAY:
        route.gateway = read_address(attribute);
        break;
      case RTA_METRICS:
        route.mtu_bytes = read_route_mtu(attribute);
        break;
      case RTA_CACHEINFO:
        answer.has_learnt = is_learnt(attribute);
        break;
      case RTA_VIA:
      case RTA_ENCAP:
        route.plain = false;
        break;
      default:
        break;
    }
  });
  return answer;
}

// Calls on_message for each message of a datagram, cut short at the first that does not fit.
template <typename F>
void for_each_message(std::span<const std::byte> datagram, F on_message) {
  int left = static_cast<int>(datagram.size());
  for (auto* message = reinterpret_cast<const nlmsghdr*>(datagram.data());
       mnl_nlmsg_ok(message, left); message = mnl_nlmsg_next(message, &left)) {
    on_message(*message);
  }
}

std::string describe(int error) {
  return std::strerror(error);
}

}  // namespace

bool Neighbour::usable() const {
  return (state & kUsableStates) != 0 && mac != std::array<uint8_t, 6>{};
}
bool Neighbour::permanent() const {
  return (state & (NUD_PERMANENT | NUD_NOARP)) != 0;
}

void Rtnetlink::Close::operator()(mnl_socket* socket) const {
  mnl_socket_close(socket);
}

Rtnetlink::Rtnetlink(mnl_socket* socket) : socket_(socket), buffer_(kBufferBytes) {}

std::expected<Rtnetlink, std::string> Rtnetlink::open() {
  Rtnetlink opened(mnl_socket_open2(NETLINK_ROUTE, SOCK_CLOEXEC));
  if (!opened.socket_ || mnl_socket_bind(opened.socket_.get(), 0, MNL_SOCKET_AUTOPID) < 0) {
    return std::unexpected("cannot open a netlink socket: " + describe(errno));
  }
  return opened;
}

std::expected<void, std::string> Rtnetlink::request(nlmsghdr& message, const OnMessage& on_answer) {
  message.nlmsg_seq = ++sequence_;
  message.nlmsg_flags |= NLM_F_REQUEST | NLM_F_ACK;
  if (mnl_socket_sendto(socket_.get(), &message, message.nlmsg_len) < 0) {
    return std::unexpected(describe(errno));
  }
  std::optional<int> end;  // 0: complete
  bool interrupted = false;
  while (!end) {
    const ssize_t length = mnl_socket_recvfrom(socket_.get(), buffer_.data(), buffer_.size());
    if (length < 0) return std::unexpected(describe(errno));
    for_each_message(std::span(buffer_).first(static_cast<size_t>(length)),
                     [&](const nlmsghdr& answer) {
                       if (answer.nlmsg_seq != sequence_) return;
                       if (answer.nlmsg_flags & NLM_F_DUMP_INTR) interrupted = true;
                       if (answer.nlmsg_type == NLMSG_ERROR) {
                         end = -header_of<nlmsgerr>(answer).error;
                       } else if (answer.nlmsg_type == NLMSG_DONE) {
                         end = interrupted ? EINTR : 0;
                       } else {
                         on_answer(answer);
                       }
                     });
  }
  if (*end != 0) return std::unexpected(describe(*end));
  return {};
}

template <typename Header, typename Item>
std::expected<std::vector<Item>, std::string> Rtnetlink::dump(
    uint16_t type, Header header, std::optional<Item> (*read)(const nlmsghdr&)) {
  std::expected<void, std::string> done;
  for (int attempt = 0; attempt < kDumpAttempts; ++attempt) {
    RequestBuffer buffer;
    nlmsghdr& message = start_request(buffer, type, NLM_F_DUMP, header);
    std::vector<Item> items;
    done = request(message, [&](const nlmsghdr& answer) {
      if (std::optional<Item> item = read(answer)) items.push_back(std::move(*item));
    });
    if (done) return items;
  }
  return std::unexpected(done.error());
}

std::expected<std::vector<Link>, std::string> Rtnetlink::links() {
  return dump(RTM_GETLINK, ifinfomsg{}, read_link);
}

std::expected<std::vector<Neighbour>, std::string> Rtnetlink::neighbours() {
  return dump(RTM_GETNEIGH, ndmsg{}, read_neighbour);
}

std::expected<void, std::string> Rtnetlink::ask_route(const ip::address& address, uint32_t flags,
                                                      const OnMessage& on_answer) {
  rtmsg header{};
  header.rtm_family = family_number(address);
  header.rtm_dst_len = address.is_v4() ? 32 : 128;
  header.rtm_flags = flags;
  RequestBuffer buffer;
  nlmsghdr& message = start_request(buffer, RTM_GETROUTE, 0, header);
  put_address(message, RTA_DST, address);
  return request(message, on_answer);
}

std::expected<Route, std::string> Rtnetlink::route_to(const ip::address& address) {
  RouteAnswer found;
  auto done = ask_route(address, 0, [&](const nlmsghdr& answer) { found = read_route(answer); });
  if (done && found.has_learnt) {
    done = ask_route(address, RTM_F_FIB_MATCH, [&](const nlmsghdr& answer) {
      found.route.mtu_bytes = read_route(answer).route.mtu_bytes;
    });
  }
  if (!done) return std::unexpected(done.error());
  return found.route;
}

std::expected<void, std::string> Rtnetlink::mark_used(int link, const ip::address& address) {
  ndmsg header{};
  header.ndm_family = family_number(address);
  header.ndm_ifindex = link;
  header.ndm_flags = NTF_USE;
  RequestBuffer buffer;
  nlmsghdr& message = start_request(buffer, RTM_NEWNEIGH, NLM_F_CREATE, header);
  put_address(message, NDA_DST, address);
  return request(message, [](const nlmsghdr&) {});
}

std::expected<int, std::string> open_rtnetlink_events() {
  const int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, NETLINK_ROUTE);
  sockaddr_nl address{};
  address.nl_family = AF_NETLINK;
  address.nl_groups = RTMGRP_LINK | RTMGRP_NEIGH | RTMGRP_IPV4_IFADDR | RTMGRP_IPV4_ROUTE |
                      RTMGRP_IPV4_RULE | RTMGRP_IPV6_IFADDR | RTMGRP_IPV6_ROUTE |
                      1u << (RTNLGRP_IPV6_RULE - 1);
  if (fd < 0 || bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) < 0) {
    const int error = errno;
    if (fd >= 0) close(fd);
    return std::unexpected("cannot listen to netlink events: " + describe(error));
  }
  // Without the right to a larger buffer the default one serves, with more resynchronisations.
  setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &kEventBufferBytes, sizeof(kEventBufferBytes));
  return fd;
}

void for_each_event(std::span<const std::byte> datagram,
                    const std::function<void(const RtnetlinkEvent&)>& on_event) {
  for_each_message(datagram, [&](const nlmsghdr& message) {
    switch (message.nlmsg_type) {
      case RTM_NEWLINK:
      case RTM_DELLINK:
        if (const auto link = read_link(message)) on_event(*link);
        break;
      case RTM_NEWNEIGH:
      case RTM_DELNEIGH:
        if (const auto neighbour = read_neighbour(message)) on_event(*neighbour);
        break;
      case RTM_NEWADDR:
      case RTM_DELADDR:
      case RTM_NEWROUTE:
      case RTM_DELROUTE:
      case RTM_NEWRULE:
      case RTM_DELRULE:
        on_event(RoutesChanged{});
        break;
      default:
        break;
    }
  });
}

}  // namespace maglev
