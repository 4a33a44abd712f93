// Renders a configuration into published files with neither daemon running, so that an operator can
// try packets against it offline.
//
// What is written is what a fresh start would publish as generation 1 with all ready backends up.
// The network is not asked: every backend counts as resolved and on link, out of the first port,
// with a next-hop MAC address of 02:00 and the last four bytes of its own address, and with the
// port's own MTU. Needs no rights beyond writing the directory. One thread.
#pragma once

#include <boost/asio/ip/address.hpp>
#include <expected>
#include <string>
#include <vector>

#include "control/configuration.h"

namespace maglev {

// The outer source of a family without an entry in outer_source_prefixes.
inline constexpr const char* kRenderedSourceIpv4 = "198.18.0.1";
inline constexpr const char* kRenderedSourceIpv6 = "2001:db8::1";

// `outer_sources` go before the configuration's prefixes and the addresses above. Refuses a
// directory that has a root: it may be in use.
std::expected<void, std::string> render(const Configuration& configuration,
                                        const std::string& directory,
                                        const std::vector<boost::asio::ip::address>& outer_sources);

}  // namespace maglev
