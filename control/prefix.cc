#include "control/prefix.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace maglev {
namespace {

namespace ip = boost::asio::ip;

uint8_t bits_of(const ip::address& address) {
  return address.is_v4() ? 32 : 128;
}

// The prefix's first address, or with `ones` its last.
template <typename Bytes>
Bytes fill_beyond(Bytes bytes, uint8_t length, bool ones) {
  for (size_t bit = length; bit < 8 * bytes.size(); ++bit) {
    const auto mask = static_cast<uint8_t>(0x80u >> bit % 8);
    bytes[bit / 8] = static_cast<uint8_t>(ones ? bytes[bit / 8] | mask : bytes[bit / 8] & ~mask);
  }
  return bytes;
}

ip::address first_of(const ip::address& address, uint8_t length) {
  if (address.is_v4()) {
    return ip::address_v4(fill_beyond(address.to_v4().to_bytes(), length, false));
  }
  return ip::address_v6(fill_beyond(address.to_v6().to_bytes(), length, false));
}

ip::address last_of(const ip::address& address, uint8_t length) {
  if (address.is_v4()) {
    return ip::address_v4(fill_beyond(address.to_v4().to_bytes(), length, true));
  }
  return ip::address_v6(fill_beyond(address.to_v6().to_bytes(), length, true));
}

// What one host may have, seen from other links. Loopback is left to the route, which tells it.
bool is_host(const ip::address& address) {
  if (address.is_v4()) {
    constexpr uint32_t kFirstUnicast = 1u << 24;      // below: "this network"
    constexpr uint32_t kFirstMulticast = 0xe0000000;  // from here: multicast, reserved, broadcast
    const uint32_t value = address.to_v4().to_uint();
    return value >= kFirstUnicast && value < kFirstMulticast;
  }
  const ip::address_v6 v6 = address.to_v6();
  return !v6.is_unspecified() && !v6.is_multicast() && !v6.is_link_local() && !v6.is_v4_mapped();
}

std::unexpected<std::string> not_a_host(std::string_view found) {
  return std::unexpected(fmt::format("expected the address of one host, found '{}'", found));
}

}  // namespace

Prefix only(const ip::address& address) {
  return {address, bits_of(address)};
}

bool contains(const Prefix& prefix, const ip::address& address) {
  return address.is_v4() == prefix.address.is_v4() &&
         first_of(address, prefix.length) == prefix.address;
}

std::string to_text(const Prefix& prefix) {
  const std::string address = prefix.address.to_string();
  if (prefix.length == bits_of(prefix.address)) return address;
  return fmt::format("{}/{}", address, prefix.length);
}

std::expected<ip::address, std::string> parse_host(std::string_view text) {
  boost::system::error_code error;
  const ip::address address = ip::make_address(std::string(text), error);
  const bool is_scoped = !error && address.is_v6() && address.to_v6().scope_id() != 0;
  if (error || is_scoped) {
    return std::unexpected(fmt::format(
        "expected an IP address such as 198.51.100.10 or 2001:db8::10, found '{}'", text));
  }
  if (!is_host(address)) return not_a_host(text);
  return address;
}

std::expected<Prefix, std::string> parse_prefix(std::string_view text) {
  const size_t slash = text.find('/');
  auto address = parse_host(text.substr(0, slash));
  if (!address) return std::unexpected(address.error());
  if (slash == std::string_view::npos) return only(*address);

  const std::string_view digits = text.substr(slash + 1);
  const char* const end = digits.data() + digits.size();
  Prefix prefix{*address, 0};
  const auto [stop, error] = std::from_chars(digits.data(), end, prefix.length);
  const uint8_t longest = bits_of(*address);
  if (error != std::errc() || stop != end || prefix.length == 0 || prefix.length > longest) {
    return std::unexpected(
        fmt::format("expected a prefix length from 1 to {}, found '{}'", longest, text));
  }
  const ip::address first = first_of(*address, prefix.length);
  if (first != *address) {
    return std::unexpected(fmt::format("bits are set beyond the prefix of '{}': expected {}", text,
                                       to_text({first, prefix.length})));
  }
  if (!is_host(last_of(*address, prefix.length))) return not_a_host(text);
  return prefix;
}

AddressFamily family_of(const ip::address& address) {
  return address.is_v4() ? AddressFamily::kIpv4 : AddressFamily::kIpv6;
}

Address to_record(const ip::address& address) {
  Address record;
  if (address.is_v4()) {
    std::ranges::copy(address.to_v4().to_bytes(), record.bytes.begin());
  } else {
    std::ranges::copy(address.to_v6().to_bytes(), record.bytes.begin());
  }
  return record;
}

}  // namespace maglev
