// Where the packets of one flow go, worked out from what is wanted and published, as the dataplane
// works it out from the published files alone.
//
// Nothing of the hash beyond the half that chooses the slot leaves this file: the seed is secret.
// Pure functions; thread: the controller's.
#pragma once

#include <boost/asio/ip/address.hpp>
#include <cstdint>
#include <expected>
#include <string>
#include <string_view>

#include "control/vip.h"

namespace maglev {

struct Flow {
  uint8_t protocol = 0;  // IANA number of TCP or UDP
  boost::asio::ip::address source;
  uint16_t source_port = 0;
  boost::asio::ip::address destination;  // of the same family
  uint16_t destination_port = 0;
};

// protocol: tcp or udp; places: ADDRESS:PORT or [ADDRESS]:PORT. Else a sentence.
std::expected<Flow, std::string> parse_flow(std::string_view protocol, std::string_view source,
                                            std::string_view destination);

// The VIP that serves the flow, by the rule of dataplane/vip_table.h.
struct Served {
  const ByName<Vip>::value_type* vip = nullptr;      // null: none does
  const ByName<Vip>::value_type* address = nullptr;  // one of the longest prefix with the address
};
Served find_vip(const ByName<Vip>& vips, const Flow& flow);

// tables/flow_hash.h, by the VIP's policies.
uint64_t hash_of(const Flow& flow, const Vip& vip, uint64_t seed);

}  // namespace maglev
