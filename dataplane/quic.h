// Which server a QUIC packet names in its destination connection ID (DCID), so that a connection
// keeps its server when its client comes from another address or port: after migration, or when a
// NAT forgets it. Servers put their server ID into the connection IDs they issue, in the form of
// draft-ietf-quic-load-balancers-21 without encryption:
//
//   octet 0           config rotation (3 bits), length of what follows or random bits (5 bits)
//   server ID         1 octet and more
//   nonce             4 octets and more; a server may append octets of its own
//
// Of seven config rotations (0b111 is for servers without configuration) each may have a format and
// servers of its own. A VIP has one format.
//
// Whose word is taken. Short headers always carry an ID that the server issued. In a long header of
// version 1 or 2 a Handshake packet does too (RFC 9000, section 17.2.4); an Initial or 0-RTT packet
// may carry what the client made up (section 7.2), and no client sends any other. Those go by their
// addresses and ports, and so does every long header of a version that is not known here. The draft
// (section 4.2) would look at them too, and has servers spread their IDs thinly so that random ones
// seldom hit; but then a client can pick the server that its connection begins with. Little is
// lost: until the handshake is confirmed a client must not migrate (RFC 9000, section 9); what
// remains is a NAT that forgets it within a handshake. What a short header says can be forged as
// well, but a server has no use for packets of a connection that it has not.
//
// Whatever does not name a server goes by addresses and ports; why is told for each, to be counted.
// The bit behind the header form is not looked at: peers may have agreed to vary it (RFC 9287).
//
// Pure functions and one immutable table; any thread. Nothing beyond the given length is read.
//
// Sources: RFC 8999 (what all versions share), RFC 9000 section 17, RFC 9369 section 3.2 (the types
// of version 2), draft-ietf-quic-load-balancers-21 sections 3 to 5.
#pragma once

#include <array>
#include <cstdint>
#include <expected>
#include <span>
#include <string>
#include <vector>

#include "dataplane/packet.h"
#include "tables/flow_hash.h"
#include "tables/quic_cid.h"

namespace maglev {

inline constexpr uint32_t kQuicVersion1 = 0x00000001;
inline constexpr uint32_t kQuicVersion2 = 0x6b3343cf;

enum class QuicRoute : uint8_t {
  kServer,         // the DCID names a server
  kUnreadable,     // ends within its header
  kClientChosen,   // the client may have made the DCID up
  kUnroutable,     // the DCID follows no format: its rotation has none, or its length is wrong
  kUnknownServer,  // the DCID follows a format, but no server has this ID
};

inline constexpr uint32_t kQuicRouteCount = 5;

struct QuicDecision {
  QuicRoute route;
  uint32_t backend = 0;  // of kServer
};

// --- headers ---------------------------------------------------------------------------------

struct QuicHeader {
  std::span<const uint8_t> dcid;  // of a short header, all that follows: its length is not told
  bool is_long = false;
  bool server_chosen = false;  // the DCID, for certain
  bool readable = false;
};

// Whether a long header's DCID is sure to be one that the server issued.
inline bool is_quic_handshake(uint8_t first, uint32_t version) {
  const uint32_t type = first >> 4 & 3u;
  return (version == kQuicVersion1 && type == 2) || (version == kQuicVersion2 && type == 3);
}

// The first packet of a datagram. Those behind it in the same one have the same DCID (RFC 9000,
// section 12.2).
inline QuicHeader parse_quic(std::span<const uint8_t> datagram) {
  constexpr size_t kLengthOffset = 5;
  constexpr size_t kDcidOffset = 6;
  QuicHeader header;
  if (datagram.empty()) return header;
  header.is_long = (datagram[0] & 0x80) != 0;
  if (!header.is_long) {
    header.readable = header.server_chosen = true;
    header.dcid = datagram.subspan(1);
    return header;
  }
  if (datagram.size() < kDcidOffset) return header;
  const size_t length = datagram[kLengthOffset];
  if (datagram.size() < kDcidOffset + length) return header;
  header.readable = true;
  header.server_chosen = is_quic_handshake(datagram[0], load_be32(datagram.data() + 1));
  header.dcid = datagram.subspan(kDcidOffset, length);
  return header;
}

// --- connection IDs --------------------------------------------------------------------------

struct QuicServer {
  uint8_t config_rotation = 0;
  std::vector<uint8_t> id;
  uint32_t backend = 0;
};

class QuicServers {
 public:
  using Formats = std::array<QuicCidFormat, kQuicConfigRotations>;

  // Refuses formats that the draft does not allow, IDs that do not fit their format, and one ID for
  // two servers.
  static std::expected<QuicServers, std::string> make(const Formats& formats,
                                                      std::span<const QuicServer> servers);

  // What the packet at the start of a UDP datagram says.
  QuicDecision route(std::span<const uint8_t> datagram) const {
    const QuicHeader header = parse_quic(datagram);
    if (!header.readable) return {QuicRoute::kUnreadable};
    if (!header.server_chosen) return {QuicRoute::kClientChosen};
    if (!follows_format(header)) return {QuicRoute::kUnroutable};
    const uint32_t rotation = header.dcid[0] >> 5;
    const auto id = header.dcid.subspan(1, formats_[rotation].server_id_length);
    const Entry& entry = entries_[place_of(key_of(rotation, id))];
    if (entry.key.is_none()) return {QuicRoute::kUnknownServer};
    return {QuicRoute::kServer, entry.backend};
  }

 private:
  struct Key {
    uint64_t id = 0;
    uint64_t rotation_plus_one = 0;

    bool is_none() const { return rotation_plus_one == 0; }
    bool operator==(const Key&) const = default;
  };
  struct Entry {
    Key key;
    uint32_t backend = 0;
  };

  QuicServers(const Formats& formats, size_t servers);

  std::expected<void, std::string> add(const QuicServer& server);

  bool follows_format(const QuicHeader& header) const {
    if (header.dcid.empty()) return false;
    const uint32_t rotation = header.dcid[0] >> 5;
    if (rotation >= kQuicConfigRotations) return false;
    const QuicCidFormat& format = formats_[rotation];
    if (!format.exists() || header.dcid.size() < format.cid_length()) return false;
    if (header.is_long && header.dcid.size() > kQuicMaxCidLength) return false;
    if (!format.length_encoded()) return true;
    const uint32_t encoded_length = 1 + (header.dcid[0] & 0x1fu);
    if (header.is_long) return encoded_length == header.dcid.size();
    return encoded_length >= format.cid_length() && encoded_length <= kQuicMaxCidLength &&
           encoded_length <= header.dcid.size();
  }

  static Key key_of(uint32_t rotation, std::span<const uint8_t> id) {
    Key key{0, rotation + 1};
    for (const uint8_t octet : id) key.id = key.id << 8 | octet;
    return key;
  }

  // Where it is, or where it would be. Half of the places and more are free, so there is an end.
  size_t place_of(const Key& key) const {
    const size_t mask = entries_.size() - 1;
    size_t at = XXH3_64bits(&key, sizeof key) & mask;
    while (!entries_[at].key.is_none() && entries_[at].key != key) at = (at + 1) & mask;
    return at;
  }

  Formats formats_;
  std::vector<Entry> entries_;  // a power of two
};

}  // namespace maglev
