#include "dataplane/quic.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace maglev {
namespace {

using Octets = std::vector<uint8_t>;

Octets hex(const std::string& digits) {
  Octets octets;
  for (size_t i = 0; i < digits.size(); i += 2) {
    octets.push_back(static_cast<uint8_t>(std::stoul(digits.substr(i, 2), nullptr, 16)));
  }
  return octets;
}

Octets operator+(Octets left, const Octets& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

// Sections 3.4 and 5.2 of the draft: config rotation and length, server ID, nonce.
Octets make_cid(uint32_t rotation, const Octets& id, const Octets& nonce) {
  const size_t behind_first = id.size() + nonce.size();
  return Octets{static_cast<uint8_t>(rotation * 32 + behind_first)} + id + nonce;
}

Octets short_packet(const Octets& dcid, const Octets& protected_part = Octets(20, 0xee)) {
  return Octets{0x4b} + dcid + protected_part;
}

enum class Type { kInitial, kZeroRtt, kHandshake, kRetry };

// RFC 9000, section 17.2, and RFC 9369, section 3.2, where each type is the next number.
Octets long_packet(Type type, uint32_t version, const Octets& dcid) {
  const uint32_t number = static_cast<uint32_t>(type) + (version == 0x6b3343cf ? 1 : 0);
  Octets packet = {static_cast<uint8_t>(0xc0 | (number % 4) << 4)};
  for (int shift = 24; shift >= 0; shift -= 8)
    packet.push_back(static_cast<uint8_t>(version >> shift));
  packet.push_back(static_cast<uint8_t>(dcid.size()));
  return packet + dcid + hex("08c1c2c3c4c5c6c7c8") + Octets(30, 0xdd);
}

constexpr QuicCidFormat kPlain = {.server_id_length = 3, .nonce_length = 4};
constexpr QuicCidFormat kWithLength = {.server_id_length = 5,
                                       .nonce_length = 5,
                                       .rotation_and_encoding = QuicCidFormat::kLengthEncoded};

QuicServers two_formats() {
  QuicServers::Formats formats;
  formats[0] = kPlain;
  formats[2] = kWithLength;
  const QuicServer servers[] = {
      {0, hex("c4605e"), 7}, {0, hex("c4605f"), 8}, {2, hex("350d28b420"), 9}};
  return *QuicServers::make(formats, servers);
}

const Octets kKnown = hex("07c4605e4504cc4f");
constexpr uint32_t kVersions[] = {1, 0x6b3343cf};

// The draft's appendix B.1, first row. (The second one prints nine digits of a nonce of five octets
// and a connection ID whose digits do not line up with its parts: it is no vector of octets.)
TEST(QuicServerId, IsFoundInTheDraftsUnencryptedVector) {
  EXPECT_EQ(make_cid(0, hex("c4605e"), hex("4504cc4f")), kKnown);
  const QuicDecision decision = two_formats().route(short_packet(kKnown));
  EXPECT_EQ(decision.route, QuicRoute::kServer);
  EXPECT_EQ(decision.backend, 7u);
}

TEST(QuicServerId, IsFoundBehindEachConfigRotationByItsOwnFormat) {
  const QuicServers servers = two_formats();
  const Octets cid = make_cid(2, hex("350d28b420"), hex("3487d9700b"));
  EXPECT_EQ(servers.route(short_packet(cid)).backend, 9u);
  for (const uint32_t rotation : {1u, 3u, 4u, 5u, 6u, 7u}) {
    const Octets other = make_cid(rotation, hex("350d28b420"), hex("3487d9700b"));
    EXPECT_EQ(servers.route(short_packet(other)).route, QuicRoute::kUnroutable) << rotation;
  }
}

TEST(QuicServerId, OfNobodyIsToldApartFromAnIdWithoutFormat) {
  const QuicServers servers = two_formats();
  const Octets nobody = make_cid(0, hex("c46060"), hex("4504cc4f"));
  EXPECT_EQ(servers.route(short_packet(nobody)).route, QuicRoute::kUnknownServer);
  for (const uint32_t version : kVersions) {
    EXPECT_EQ(servers.route(long_packet(Type::kHandshake, version, nobody)).route,
              QuicRoute::kUnknownServer);
  }
}

TEST(QuicServerId, IsTakenFromHandshakePacketsOfVersions1And2) {
  for (const uint32_t version : kVersions) {
    const QuicDecision decision =
        two_formats().route(long_packet(Type::kHandshake, version, kKnown));
    EXPECT_EQ(decision.route, QuicRoute::kServer);
    EXPECT_EQ(decision.backend, 7u);
  }
}

TEST(QuicServerId, IsNeverTakenFromWhatAClientMayHaveChosen) {
  const QuicServers servers = two_formats();
  for (const uint32_t version : kVersions) {
    for (const Type type : {Type::kInitial, Type::kZeroRtt, Type::kRetry}) {
      EXPECT_EQ(servers.route(long_packet(type, version, kKnown)).route, QuicRoute::kClientChosen);
    }
  }
  for (const uint32_t version : {0u, 2u, 0xff00001du, 0x1a2a3a4au}) {
    for (const Type type : {Type::kInitial, Type::kZeroRtt, Type::kHandshake, Type::kRetry}) {
      EXPECT_EQ(servers.route(long_packet(type, version, kKnown)).route, QuicRoute::kClientChosen);
    }
  }
}

// RFC 9001, appendix A.2 (protected header of a client's Initial), and RFC 9369, appendix A.2
// (unprotected): the DCID is what the client made up.
TEST(QuicHeader, OfThePublishedInitialsHasTheirDcid) {
  for (const char* header : {"c000000001088394c8f03e5157080000449e7b9aec34",
                             "d36b3343cf088394c8f03e5157080000449e00000002"}) {
    const Octets packet = hex(header);
    const QuicHeader parsed = parse_quic(packet);
    EXPECT_TRUE(parsed.readable && parsed.is_long);
    EXPECT_FALSE(parsed.server_chosen);
    EXPECT_EQ(Octets(parsed.dcid.begin(), parsed.dcid.end()), hex("8394c8f03e515708"));
  }
}

TEST(QuicHeader, IsReadWhateverTheBitBehindItsFormSays) {
  Octets packet = short_packet(kKnown);
  packet[0] = 0x0b;
  EXPECT_EQ(two_formats().route(packet).route, QuicRoute::kServer);
}

TEST(QuicHeader, CutAnywhereNamesNoServerUntilTheWholeIdIsThere) {
  const QuicServers servers = two_formats();
  for (const Octets& packet : {short_packet(kKnown), long_packet(Type::kHandshake, 1, kKnown)}) {
    const bool is_long = packet[0] & 0x80;
    const size_t whole = (is_long ? 6 : 1) + kKnown.size();
    for (size_t length = 0; length <= packet.size(); ++length) {
      // Memory of its own, so that reading beyond it is seen.
      const Octets cut(packet.begin(), packet.begin() + static_cast<std::ptrdiff_t>(length));
      const QuicRoute route = servers.route(cut).route;
      EXPECT_EQ(route, length >= whole          ? QuicRoute::kServer
                       : is_long || length == 0 ? QuicRoute::kUnreadable
                                                : QuicRoute::kUnroutable)
          << length;
    }
  }
}

TEST(QuicCid, MayBeLongerThanItsFormatByWhatTheServerAppends) {
  const QuicServers servers = two_formats();
  const Octets longer = kKnown + Octets(12, 0x55);
  EXPECT_EQ(longer.size(), 20u);
  EXPECT_EQ(servers.route(long_packet(Type::kHandshake, 1, longer)).route, QuicRoute::kServer);
  EXPECT_EQ(servers.route(long_packet(Type::kHandshake, 1, longer + Octets{0x55})).route,
            QuicRoute::kUnroutable);
}

TEST(QuicCid, ShorterThanItsFormatIsUnroutable) {
  const Octets shorter(kKnown.begin(), kKnown.end() - 1);
  EXPECT_EQ(two_formats().route(long_packet(Type::kHandshake, 1, shorter)).route,
            QuicRoute::kUnroutable);
  EXPECT_EQ(two_formats().route(long_packet(Type::kHandshake, 1, {})).route,
            QuicRoute::kUnroutable);
}

TEST(QuicCid, ThatSaysAnotherLengthThanItHasIsUnroutableWhereAllServersSayIt) {
  const QuicServers servers = two_formats();
  const Octets right = make_cid(2, hex("350d28b420"), hex("3487d9700b"));
  for (uint32_t told = 0; told < 32; ++told) {
    Octets cid = right;
    cid[0] = static_cast<uint8_t>(2u << 5 | told);
    EXPECT_EQ(servers.route(long_packet(Type::kHandshake, 1, cid)).route,
              told == 10 ? QuicRoute::kServer : QuicRoute::kUnroutable)
        << told;
    // A short header does not tell the length: more may be the server's own octets.
    EXPECT_EQ(servers.route(short_packet(cid)).route,
              told >= 10 && told < kQuicMaxCidLength ? QuicRoute::kServer : QuicRoute::kUnroutable)
        << told;
    cid = kKnown;
    cid[0] = static_cast<uint8_t>(told);
    EXPECT_EQ(servers.route(short_packet(cid)).route, QuicRoute::kServer) << told;
  }
}

TEST(QuicServers, AreAllFoundAndNoOthers) {
  std::mt19937 random(1);
  for (uint32_t length = 1; length <= kQuicMaxServerIdLength; ++length) {
    QuicServers::Formats formats;
    formats[6] = {static_cast<uint8_t>(length), 4, false};
    std::vector<QuicServer> servers;
    const uint32_t count = length == 1 ? 100 : 5000;
    for (uint32_t i = 0; i < count; ++i) {
      Octets id(length, 0xa5);
      id[0] = static_cast<uint8_t>(i);
      if (length > 1) id[length - 1] = static_cast<uint8_t>(i >> 8);
      servers.push_back({6, id, i});
    }
    const auto table = QuicServers::make(formats, servers);
    ASSERT_TRUE(table.has_value()) << table.error();
    for (const QuicServer& server : servers) {
      const Octets nonce = {static_cast<uint8_t>(random()), 2, 3, 4};
      const QuicDecision decision = table->route(short_packet(make_cid(6, server.id, nonce)));
      ASSERT_EQ(decision.route, QuicRoute::kServer);
      ASSERT_EQ(decision.backend, server.backend);
    }
    const Octets nobody(length, 0xfe);
    EXPECT_EQ(table->route(short_packet(make_cid(6, nobody, Octets(4)))).route,
              QuicRoute::kUnknownServer);
  }
}

TEST(QuicServers, OfNoFormatAreNone) {
  const auto none = QuicServers::make({}, {});
  ASSERT_TRUE(none.has_value());
  EXPECT_EQ(none->route(short_packet(kKnown)).route, QuicRoute::kUnroutable);
}

TEST(QuicServers, RefuseFormatsThatTheDraftDoesNotAllow) {
  const auto refused = [](QuicCidFormat format) {
    QuicServers::Formats formats;
    formats[3] = format;
    return !QuicServers::make(formats, {}).has_value();
  };
  EXPECT_FALSE(refused({1, 4, false}));
  EXPECT_FALSE(refused({8, 11, false}));
  EXPECT_TRUE(refused({8, 12, false}));
  EXPECT_TRUE(refused({9, 4, false}));
  EXPECT_TRUE(refused({1, 3, false}));
}

TEST(QuicServers, RefuseIdsThatDoNotFitOrAreThereTwice) {
  const auto error_of = [](std::vector<QuicServer> servers) {
    QuicServers::Formats formats;
    formats[0] = kPlain;
    const auto made = QuicServers::make(formats, servers);
    return made ? std::string() : made.error();
  };
  EXPECT_EQ(error_of({{0, hex("c4605e"), 1}, {0, hex("c4605f"), 1}}), "");
  EXPECT_EQ(error_of({{0, hex("c4605e"), 1}, {0, hex("c4605e"), 2}}),
            "the server ID c4605e of config rotation 0 is there twice");
  EXPECT_EQ(error_of({{0, hex("c460"), 1}}),
            "the server ID c460 of config rotation 0 does not fit a format");
  EXPECT_NE(error_of({{1, hex("c4605e"), 1}}), "");
  EXPECT_NE(error_of({{7, hex("c4605e"), 1}}), "");
  EXPECT_NE(error_of({{0, {}, 1}}), "");
}

}  // namespace
}  // namespace maglev
