// Addresses and prefixes as operators write them, IPv4 and IPv6.
// Pure functions, any thread. Source of the text form of IPv6: RFC 5952.
#pragma once

#include <boost/asio/ip/address.hpp>
#include <cstdint>
#include <expected>
#include <string>
#include <string_view>
#include <tuple>

#include "tables/published.h"

namespace maglev {

// All addresses that begin with the first `length` bits of `address`, whose other bits are zero.
// Of length 32 or 128: that address alone.
struct Prefix {
  boost::asio::ip::address address;
  uint8_t length = 0;

  bool operator==(const Prefix&) const = default;
  bool operator<(const Prefix& other) const {
    return std::tie(address, length) < std::tie(other.address, other.length);
  }
};

Prefix only(const boost::asio::ip::address& address);
bool contains(const Prefix& prefix, const boost::asio::ip::address& address);

// "198.51.100.10", "198.51.100.0/24", "2001:db8::/64"
std::string to_text(const Prefix& prefix);

// An address of one host, or a prefix of such; else a sentence with what was expected and found.
std::expected<boost::asio::ip::address, std::string> parse_host(std::string_view text);
std::expected<Prefix, std::string> parse_prefix(std::string_view text);

// As the published files have them.
AddressFamily family_of(const boost::asio::ip::address& address);
Address to_record(const boost::asio::ip::address& address);

}  // namespace maglev
