#include "control/path_mtu.h"

#include <linux/icmp.h>
#include <netinet/icmp6.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <boost/asio/ip/icmp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/endian/conversion.hpp>
#include <cstring>
#include <set>
#include <utility>

namespace maglev {
namespace {

namespace ip = boost::asio::ip;
using boost::system::error_code;
using Bytes = std::span<const std::byte>;

constexpr size_t kIpv4HeaderBytes = 20;
constexpr size_t kIpv6HeaderBytes = 40;
constexpr size_t kIcmpHeaderBytes = 8;
constexpr size_t kPortsBytes = 4;

// Messages are read this many at a time, with this pause after a full round; what comes faster, the
// kernel drops from the socket's buffer.
constexpr int kMessagesPerRound = 64;
constexpr std::chrono::milliseconds kPauseOfReading{10};
constexpr std::chrono::milliseconds kTellTick{250};

uint8_t byte_at(Bytes bytes, size_t at) {
  return std::to_integer<uint8_t>(bytes[at]);
}
uint16_t be16_at(Bytes bytes, size_t at) {
  return boost::endian::load_big_u16(reinterpret_cast<const uint8_t*>(&bytes[at]));
}
uint32_t be32_at(Bytes bytes, size_t at) {
  return boost::endian::load_big_u32(reinterpret_cast<const uint8_t*>(&bytes[at]));
}

template <typename Address>
ip::address address_at(Bytes bytes, size_t at) {
  typename Address::bytes_type raw;
  std::memcpy(raw.data(), &bytes[at], raw.size());
  return Address(raw);
}

// RFC 1071: the sum over what carries its own checksum.
bool has_good_checksum(Bytes message) {
  uint32_t sum = 0;
  size_t at = 0;
  for (; at + 1 < message.size(); at += 2) sum += be16_at(message, at);
  if (at < message.size()) sum += uint32_t{byte_at(message, at)} << 8;
  while (sum > 0xffff) sum = (sum & 0xffff) + (sum >> 16);
  return sum == 0xffff;
}

// Routers older than RFC 1191 do not say what fits: the next of the usual MTUs is tried (section 7
// there).
uint32_t next_plateau(uint32_t too_big_bytes) {
  constexpr std::array<uint32_t, 8> kPlateaus = {32000, 17914, 8166, 4352,
                                                 2002,  1492,  1006, kLowestMtuIpv4};
  const auto plateau = std::ranges::find_if(
      kPlateaus, [&](uint32_t plateau_bytes) { return plateau_bytes < too_big_bytes; });
  return plateau == kPlateaus.end() ? 0 : *plateau;
}

bool takes_port(OuterPacket& packet, Bytes payload) {
  if (packet.protocol != IPPROTO_UDP) return true;
  if (payload.size() < kPortsBytes) return false;
  packet.destination_port = be16_at(payload, 2);
  return true;
}

ip::address without_scope(const ip::address& address) {
  return address.is_v4() ? address : ip::address(ip::address_v6(address.to_v6().to_bytes()));
}

}  // namespace

std::optional<TooBig> read_too_big_ipv4(Bytes packet) {
  if (packet.size() < kIpv4HeaderBytes) return std::nullopt;
  const size_t header_bytes = size_t{byte_at(packet, 0) & 0xfu} * 4;
  if (header_bytes < kIpv4HeaderBytes || packet.size() < header_bytes) return std::nullopt;
  const Bytes message = packet.subspan(header_bytes);
  if (message.size() < kIcmpHeaderBytes + kIpv4HeaderBytes || !has_good_checksum(message) ||
      byte_at(message, 0) != ICMP_DEST_UNREACH || byte_at(message, 1) != ICMP_FRAG_NEEDED) {
    return std::nullopt;
  }
  const Bytes quote = message.subspan(kIcmpHeaderBytes);
  const size_t quoted_header_bytes = size_t{byte_at(quote, 0) & 0xfu} * 4;
  const bool is_first_fragment = (be16_at(quote, 6) & 0x1fff) == 0;
  if (byte_at(quote, 0) >> 4 != 4 || quoted_header_bytes < kIpv4HeaderBytes ||
      quote.size() < quoted_header_bytes || !is_first_fragment) {
    return std::nullopt;
  }
  TooBig too_big;
  too_big.quoted = {address_at<ip::address_v4>(quote, 12), address_at<ip::address_v4>(quote, 16),
                    byte_at(quote, 9), 0};
  if (!takes_port(too_big.quoted, quote.subspan(quoted_header_bytes))) return std::nullopt;
  too_big.quoted_bytes = be16_at(quote, 2);
  too_big.mtu_bytes = be16_at(message, 6);
  if (too_big.mtu_bytes == 0) too_big.mtu_bytes = next_plateau(too_big.quoted_bytes);
  return too_big;
}

// The kernel has looked at the checksum: raw sockets of ICMPv6 get no message with a wrong one.
std::optional<TooBig> read_too_big_ipv6(Bytes message) {
  if (message.size() < kIcmpHeaderBytes + kIpv6HeaderBytes ||
      byte_at(message, 0) != ICMP6_PACKET_TOO_BIG) {
    return std::nullopt;
  }
  const Bytes quote = message.subspan(kIcmpHeaderBytes);
  if (byte_at(quote, 0) >> 4 != 6) return std::nullopt;
  TooBig too_big;
  // Ours have no extension headers.
  too_big.quoted = {address_at<ip::address_v6>(quote, 8), address_at<ip::address_v6>(quote, 24),
                    byte_at(quote, 6), 0};
  if (!takes_port(too_big.quoted, quote.subspan(kIpv6HeaderBytes))) return std::nullopt;
  too_big.quoted_bytes = static_cast<uint32_t>(kIpv6HeaderBytes + be16_at(quote, 4));
  too_big.mtu_bytes = be32_at(message, 4);
  return too_big;
}

PathMtuMemory::Outcome PathMtuMemory::take(const TooBig& message, const ip::address& router,
                                           Clock::time_point until) {
  if (message.mtu_bytes == 0 || message.mtu_bytes >= message.quoted_bytes) {
    return Outcome::kIgnored;
  }
  const ip::address& destination = message.quoted.destination;
  const uint32_t lowest = destination.is_v4() ? kLowestMtuIpv4 : kLowestMtuIpv6;
  const uint32_t mtu_bytes = std::max(message.mtu_bytes, lowest);
  const auto [entry, is_new] = entries_.try_emplace(destination, Entry{mtu_bytes, router, until});
  if (is_new) return Outcome::kLowered;
  if (mtu_bytes > entry->second.mtu_bytes) return Outcome::kIgnored;
  const bool is_lower = mtu_bytes < entry->second.mtu_bytes;
  entry->second = {mtu_bytes, router, until};
  return is_lower ? Outcome::kLowered : Outcome::kRenewed;
}

std::vector<ip::address> PathMtuMemory::expire(Clock::time_point now) {
  std::vector<ip::address> ended;
  for (const auto& [destination, entry] : entries_) {
    if (entry.until <= now) ended.push_back(destination);
  }
  for (const ip::address& destination : ended) entries_.erase(destination);
  return ended;
}

std::optional<PathMtuMemory::Entry> PathMtuMemory::of(const ip::address& destination) const {
  const auto entry = entries_.find(destination);
  if (entry == entries_.end()) return std::nullopt;
  return entry->second;
}

struct PathMtus::State : std::enable_shared_from_this<State> {
  struct Listener {
    explicit Listener(boost::asio::io_context& io) : socket(io), pause(io) {}
    ip::icmp::socket socket;
    boost::asio::steady_timer pause;
  };

  State(boost::asio::io_context& io, std::chrono::seconds lifetime, IsOurs ours, OnChange callback)
      : ipv4(io),
        ipv6(io),
        tick(io),
        expiry(lifetime),
        is_ours(std::move(ours)),
        on_change(std::move(callback)) {}

  error_code open();
  void close();
  void wait_for_messages(Listener& listener);
  void read_messages(Listener& listener);
  void take(Bytes message, const ip::address& router);
  void tell();
  void wait_for_tick();

  Listener ipv4;
  Listener ipv6;
  boost::asio::steady_timer tick;
  std::chrono::seconds expiry;
  IsOurs is_ours;
  OnChange on_change;
  PathMtuMemory memory;
  Counts counts;
  std::set<ip::address> untold;
  Clock::time_point told_at;
  bool closed = false;
};

error_code PathMtus::State::open() {
  error_code error;
  ipv4.socket.open(ip::icmp::v4(), error);
  if (error) return error;
  const icmp_filter ipv4_filter{~(1u << ICMP_DEST_UNREACH)};
  setsockopt(ipv4.socket.native_handle(), SOL_RAW, ICMP_FILTER, &ipv4_filter, sizeof(ipv4_filter));
  ipv4.socket.non_blocking(true, error);
  wait_for_messages(ipv4);
  wait_for_tick();
  ipv6.socket.open(ip::icmp::v6(), error);
  if (error == boost::system::errc::address_family_not_supported) return {};
  if (error) return error;
  icmp6_filter ipv6_filter;
  ICMP6_FILTER_SETBLOCKALL(&ipv6_filter);
  ICMP6_FILTER_SETPASS(ICMP6_PACKET_TOO_BIG, &ipv6_filter);
  setsockopt(ipv6.socket.native_handle(), IPPROTO_ICMPV6, ICMP6_FILTER, &ipv6_filter,
             sizeof(ipv6_filter));
  ipv6.socket.non_blocking(true, error);
  wait_for_messages(ipv6);
  return error;
}

void PathMtus::State::close() {
  closed = true;
  for (Listener* listener : {&ipv4, &ipv6}) {
    error_code ignored;
    listener->socket.close(ignored);
    listener->pause.cancel();
  }
  tick.cancel();
}

void PathMtus::State::wait_for_messages(Listener& listener) {
  listener.socket.async_wait(ip::icmp::socket::wait_read,
                             [self = shared_from_this(), &listener](const error_code& error) {
                               if (error || self->closed) return;
                               self->read_messages(listener);
                             });
}

void PathMtus::State::read_messages(Listener& listener) {
  std::array<std::byte, 65536> buffer;
  for (int i = 0; i < kMessagesPerRound; ++i) {
    ip::icmp::endpoint from;
    error_code error;
    const size_t length = listener.socket.receive_from(boost::asio::buffer(buffer), from, 0, error);
    if (error == boost::asio::error::would_block) return wait_for_messages(listener);
    if (!error) take(Bytes(buffer).first(length), without_scope(from.address()));
  }
  listener.pause.expires_after(kPauseOfReading);
  listener.pause.async_wait([self = shared_from_this(), &listener](const error_code& error) {
    if (error || self->closed) return;
    self->wait_for_messages(listener);
  });
}

void PathMtus::State::take(Bytes message, const ip::address& router) {
  const auto too_big = router.is_v4() ? read_too_big_ipv4(message) : read_too_big_ipv6(message);
  auto outcome = PathMtuMemory::Outcome::kIgnored;
  if (too_big && is_ours(too_big->quoted)) {
    outcome = memory.take(*too_big, router, Clock::now() + expiry);
  }
  ++(outcome == PathMtuMemory::Outcome::kIgnored ? counts.ignored : counts.taken);
  if (outcome != PathMtuMemory::Outcome::kLowered) return;
  untold.insert(too_big->quoted.destination);
  tell();
}

void PathMtus::State::tell() {
  const Clock::time_point now = Clock::now();
  if (untold.empty() || now - told_at < kNewsInterval) return;
  told_at = now;
  const std::set<ip::address> news = std::exchange(untold, {});
  on_change({news.begin(), news.end()});
}

void PathMtus::State::wait_for_tick() {
  tick.expires_after(kTellTick);
  tick.async_wait([self = shared_from_this()](const error_code& error) {
    if (error || self->closed) return;
    for (const ip::address& ended : self->memory.expire(Clock::now())) self->untold.insert(ended);
    self->tell();
    self->wait_for_tick();
  });
}

PathMtus::PathMtus(std::shared_ptr<State> state) : state_(std::move(state)) {}

PathMtus::~PathMtus() {
  state_->close();
}

std::expected<std::unique_ptr<PathMtus>, std::string> PathMtus::open(boost::asio::io_context& io,
                                                                     std::chrono::seconds expiry,
                                                                     IsOurs is_ours,
                                                                     OnChange on_change) {
  const auto state = std::make_shared<State>(io, expiry, std::move(is_ours), std::move(on_change));
  if (const error_code error = state->open()) {
    state->close();
    return std::unexpected("cannot open a raw socket for ICMP (CAP_NET_RAW is needed): " +
                           error.message());
  }
  return std::unique_ptr<PathMtus>(new PathMtus(state));
}

void PathMtus::set_expiry(std::chrono::seconds expiry) {
  state_->expiry = expiry;
}

std::optional<PathMtuMemory::Entry> PathMtus::of(const ip::address& destination) const {
  return state_->memory.of(destination);
}

PathMtus::Counts PathMtus::counts() const {
  return state_->counts;
}

}  // namespace maglev
