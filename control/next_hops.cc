#include "control/next_hops.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <chrono>
#include <map>
#include <utility>

#include "control/rtnetlink.h"

namespace maglev {

namespace {

namespace ip = boost::asio::ip;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

// The kernel verifies a neighbour whose confirmation ran out when it was used within the last
// delay_first_probe_time, 5 s unless configured: marking it twice in that time is enough.
constexpr Clock::duration kMarkInterval = 2s;

// Pauses between questions for one that does not answer. The kernel itself asks three times, a
// second apart, for each of ours.
constexpr Clock::duration kFirstPause = 1s;
constexpr Clock::duration kLongestPause = 15s;

// The pace of marking: 4000 per second at most, whatever the number of backends.
constexpr Clock::duration kTick = 100ms;
constexpr size_t kMarksPerTick = 400;

// Distance between two rounds of route requests, so that a routing daemon that replaces its whole
// table costs a bounded share of this thread. The first change after a quiet time waits for
// nothing.
constexpr Clock::duration kRouteRefreshInterval = 100ms;

// No answer would find the way back to an address of this host or of one link alone, which is what
// the kernel offers while others are still being checked for duplicates.
bool can_send_from(const ip::address& source) {
  return !source.is_unspecified() && !source.is_loopback() &&
         !(source.is_v6() && source.to_v6().is_link_local());
}

using NeighbourKey = std::pair<int, ip::address>;  // link, address

}  // namespace

struct NextHops::State : std::enable_shared_from_this<State> {
  struct Watched {
    std::expected<Route, std::string> route = std::unexpected("");
    NextHop hop;
  };
  struct Use {
    Clock::time_point mark_at;            // the past: at once
    Clock::duration pause = kFirstPause;  // after the next mark, while there is no answer
    std::string refusal;  // why the kernel did not take the last mark; empty: it did
  };

  State(boost::asio::io_context& io, Rtnetlink asked, int event_fd, OnChange callback)
      : kernel(std::move(asked)), events(io, event_fd), tick(io), on_change(std::move(callback)) {}

  void start();
  void close();
  std::expected<void, std::string> resynchronise();
  void wait_for_events();
  void read_events();
  void take(const RtnetlinkEvent& event);
  void wait_for_tick();
  void refresh();
  void watch(const std::set<ip::address>& addresses);
  std::vector<ip::address> evaluate();
  NextHop resolve(const ip::address& address, const std::expected<Route, std::string>& route) const;
  void mark_due();

  Rtnetlink kernel;
  boost::asio::posix::stream_descriptor events;
  boost::asio::steady_timer tick;
  OnChange on_change;

  std::map<int, Link> links;
  std::map<NeighbourKey, Neighbour> neighbours;
  std::map<ip::address, Watched> watched;
  std::map<NeighbourKey, Use> used;  // neighbours that some watched address needs

  bool out_of_step = true;  // events were lost: ask for everything again
  bool routes_changed = false;
  bool neighbours_changed = false;
  Clock::time_point routes_refreshed;
  size_t marks_left = kMarksPerTick;
  bool closed = false;
};

void NextHops::State::start() {
  wait_for_events();
  wait_for_tick();
}

void NextHops::State::close() {
  closed = true;
  error_code ignored;
  events.close(ignored);
  tick.cancel();
}

std::expected<void, std::string> NextHops::State::resynchronise() {
  const auto all_links = kernel.links();
  if (!all_links) return std::unexpected("cannot list links: " + all_links.error());
  const auto all_neighbours = kernel.neighbours();
  if (!all_neighbours) return std::unexpected("cannot list neighbours: " + all_neighbours.error());
  links.clear();
  neighbours.clear();
  for (const Link& link : *all_links) take(link);
  for (const Neighbour& neighbour : *all_neighbours) take(neighbour);
  routes_changed = neighbours_changed = true;
  out_of_step = false;
  return {};
}

void NextHops::State::wait_for_events() {
  events.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                    [self = shared_from_this()](const error_code& error) {
                      if (error || self->closed) return;
                      self->wait_for_events();
                      self->refresh();
                    });
}

// Takes in all that the kernel has told until now.
void NextHops::State::read_events() {
  alignas(8) std::array<std::byte, 32768> buffer;
  for (;;) {
    const ssize_t length = recv(events.native_handle(), buffer.data(), buffer.size(), 0);
    if (length < 0 && errno == ENOBUFS) {
      out_of_step = true;
    } else if (length <= 0) {
      break;
    } else {
      for_each_event(std::span(buffer).first(static_cast<size_t>(length)),
                     [this](const RtnetlinkEvent& event) { take(event); });
    }
  }
  if (out_of_step) (void)resynchronise();  // where it fails, the next tick tries again
}

void NextHops::State::take(const RtnetlinkEvent& event) {
  if (const auto* link = std::get_if<Link>(&event)) {
    if (link->gone) {
      links.erase(link->index);
    } else {
      links[link->index] = *link;
    }
    routes_changed = true;  // the kernel does not tell of routes that went with a link
  } else if (const auto* neighbour = std::get_if<Neighbour>(&event)) {
    const NeighbourKey key{neighbour->link, neighbour->address};
    if (neighbour->gone) {
      neighbours.erase(key);
    } else {
      neighbours[key] = *neighbour;
    }
    if (used.contains(key)) neighbours_changed = true;
  } else {
    routes_changed = true;
  }
}

void NextHops::State::wait_for_tick() {
  tick.expires_after(kTick);
  tick.async_wait([self = shared_from_this()](const error_code& error) {
    if (error || self->closed) return;
    self->wait_for_tick();
    self->marks_left = kMarksPerTick;
    self->refresh();
    self->mark_due();
  });
}

// Brings the answers up to date with what has been heard. What cannot be done now stays noted and
// is done at a later tick.
void NextHops::State::refresh() {
  read_events();
  const Clock::time_point now = Clock::now();
  if (routes_changed && now - routes_refreshed >= kRouteRefreshInterval) {
    for (auto& [address, entry] : watched) entry.route = kernel.route_to(address);
    routes_refreshed = now;
    routes_changed = false;
    neighbours_changed = true;
  }
  if (!neighbours_changed) return;
  neighbours_changed = false;
  const std::vector<ip::address> changed = evaluate();
  mark_due();
  if (!changed.empty()) on_change(changed);
}

void NextHops::State::watch(const std::set<ip::address>& addresses) {
  std::erase_if(watched, [&](const auto& entry) { return !addresses.contains(entry.first); });
  for (const ip::address& address : addresses) {
    const auto [entry, added] = watched.try_emplace(address);
    if (added) entry->second.route = kernel.route_to(address);
  }
  // Marking an entry that has just been made permanent would demote it, so nothing may be unread.
  read_events();
  evaluate();
  mark_due();
}

// Works out every next hop from routes, links and neighbours; returns the addresses for which the
// answer changed. The neighbours met on the way become the used ones.
std::vector<ip::address> NextHops::State::evaluate() {
  std::set<NeighbourKey> needed;
  std::vector<ip::address> changed;
  for (auto& [address, entry] : watched) {
    NextHop now = resolve(address, entry.route);
    if (!now.via.is_unspecified()) {
      const NeighbourKey key{entry.route->link, now.via};
      needed.insert(key);
      Use& use = used[key];
      if (entry.hop.resolved && !now.resolved) use = {};
    }
    if (now == entry.hop) continue;
    entry.hop = std::move(now);
    changed.push_back(address);
  }
  std::erase_if(used, [&](const auto& entry) { return !needed.contains(entry.first); });
  return changed;
}

NextHop NextHops::State::resolve(const ip::address& address,
                                 const std::expected<Route, std::string>& route) const {
  NextHop hop;
  const auto unresolved = [&hop](std::string reason) {
    hop.reason = std::move(reason);
    return hop;
  };
  if (!route) return unresolved(fmt::format("no route ({})", route.error()));
  const auto link = links.find(route->link);
  if (link == links.end()) return unresolved("the interface of its route is gone");
  hop.outer_source = route->source;
  hop.interface = link->second.name;
  if (route->type == RTN_LOCAL) return unresolved("it is an address of this host");
  if (route->type != RTN_UNICAST) return unresolved("it is a broadcast or multicast address");
  if (!route->plain) {
    return unresolved(
        "its route has a gateway of the other family or an encapsulation, which is not "
        "supported");
  }
  if (!link->second.ethernet) {
    return unresolved(fmt::format("interface {} is not Ethernet", hop.interface));
  }
  if (!link->second.carrier) {
    return unresolved(fmt::format("interface {} is down or has no carrier", hop.interface));
  }
  if (!can_send_from(route->source)) {
    return unresolved(fmt::format("interface {} has no {} address to send from", hop.interface,
                                  address.is_v4() ? "IPv4" : "global IPv6"));
  }
  hop.mtu_is_of_route = route->mtu_bytes != 0;
  hop.mtu_bytes = hop.mtu_is_of_route ? route->mtu_bytes : link->second.mtu_bytes;
  hop.on_link = !route->gateway;
  hop.via = route->gateway.value_or(address);
  const NeighbourKey key{route->link, hop.via};
  const auto neighbour = neighbours.find(key);
  if (neighbour == neighbours.end() || !neighbour->second.usable()) {
    const auto use = used.find(key);
    if (use != used.end() && !use->second.refusal.empty()) {
      return unresolved(fmt::format("cannot ask for neighbour {} on {}: {}", hop.via.to_string(),
                                    hop.interface, use->second.refusal));
    }
    return unresolved(
        fmt::format("no answer yet from neighbour {} on {}", hop.via.to_string(), hop.interface));
  }
  if ((neighbour->second.mac[0] & 1) != 0) {
    return unresolved(fmt::format("neighbour {} on {} has the MAC address of a group, {}",
                                  hop.via.to_string(), hop.interface,
                                  format_mac(neighbour->second.mac)));
  }
  hop.mac = neighbour->second.mac;
  hop.resolved = true;
  hop.reason.clear();
  return hop;
}

// Marks the neighbours whose time has come, longest due first, as far as the pace allows.
void NextHops::State::mark_due() {
  const Clock::time_point now = Clock::now();
  std::vector<std::pair<const NeighbourKey, Use>*> due;
  for (auto& entry : used) {
    if (entry.second.mark_at <= now) due.push_back(&entry);
  }
  std::ranges::sort(due, {}, [](const auto* entry) { return entry->second.mark_at; });
  if (due.size() > marks_left) due.resize(marks_left);
  marks_left -= due.size();
  for (auto* entry : due) {
    auto& [key, use] = *entry;
    const auto neighbour = neighbours.find(key);
    const bool known = neighbour != neighbours.end();
    if (known && neighbour->second.usable()) {
      use.mark_at = now + kMarkInterval;
      use.pause = kFirstPause;
    } else {
      use.mark_at = now + use.pause;
      use.pause = std::min(2 * use.pause, kLongestPause);
    }
    if (known && neighbour->second.permanent()) continue;
    const auto marked = kernel.mark_used(key.first, key.second);
    std::string refusal = marked ? "" : marked.error();
    if (refusal == use.refusal) continue;
    use.refusal = std::move(refusal);
    neighbours_changed = true;
  }
}

std::string format_mac(const std::array<uint8_t, 6>& mac) {
  return fmt::format("{:02x}", fmt::join(mac, ":"));
}

NextHops::NextHops(std::shared_ptr<State> state) : state_(std::move(state)) {}

NextHops::~NextHops() {
  state_->close();
}

std::expected<std::unique_ptr<NextHops>, std::string> NextHops::open(boost::asio::io_context& io,
                                                                     OnChange on_change) {
  auto kernel = Rtnetlink::open();
  if (!kernel) return std::unexpected(kernel.error());
  const auto event_fd = open_rtnetlink_events();
  if (!event_fd) return std::unexpected(event_fd.error());
  const auto state =
      std::make_shared<State>(io, std::move(*kernel), *event_fd, std::move(on_change));
  if (const auto done = state->resynchronise(); !done) return std::unexpected(done.error());
  state->start();
  return std::unique_ptr<NextHops>(new NextHops(state));
}

void NextHops::watch(const std::set<ip::address>& addresses) {
  state_->watch(addresses);
}

NextHop NextHops::of(const ip::address& address) const {
  const auto found = state_->watched.find(address);
  return found == state_->watched.end() ? NextHop{} : found->second.hop;
}

}  // namespace maglev
