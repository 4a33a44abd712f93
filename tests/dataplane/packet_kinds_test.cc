// What real networks send: tags, options, extension headers, fragments, ICMP, and every
// encapsulation around them.
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include <fmt/format.h>

#include "dataplane/icmp.h"
#include "tests/dataplane/fixture.h"

namespace maglev {
namespace {

using namespace testing;

constexpr uint32_t kPortMtu = 1600;  // of the fixture's port

void append16(Bytes& bytes, uint16_t value) {
  bytes.push_back(static_cast<uint8_t>(value >> 8));
  bytes.push_back(static_cast<uint8_t>(value));
}

Bytes join(const Bytes& a, const Bytes& b) {
  Bytes all = a;
  all.insert(all.end(), b.begin(), b.end());
  return all;
}

Bytes address_bytes(const std::string& text) {
  const auto bytes = address(text).bytes;
  return {bytes.begin(), bytes.begin() + (text.contains(':') ? 16 : 4)};
}

void finish_segment(Bytes& packet, uint8_t protocol, uint32_t offset, uint32_t checksum_at) {
  const auto length = static_cast<uint32_t>(packet.size()) - offset;
  uint8_t* segment = packet.data() + offset;
  store_be16(segment + checksum_at, 0);
  const uint32_t sum = pseudo_header_sum(packet.data(), protocol, length);
  store_be16(segment + checksum_at,
             static_cast<uint16_t>(~fold_checksum(sum + uint64_t{sum_words(segment, length)})));
}

// A UDP packet with right checksums. `extensions` stands between IPv6 header and UDP; its first
// header is of kind `next`, and it ends with the kind of UDP filled in by the caller.
Bytes udp_packet(const std::string& source, const std::string& destination, uint16_t source_port,
                 uint16_t destination_port, uint32_t payload, const Bytes& extensions = {},
                 uint8_t next = kProtocolUdp) {
  const bool ipv6 = source.contains(':');
  const auto udp_length = static_cast<uint16_t>(kUdpHeaderLength + payload);
  Bytes packet;
  if (ipv6) {
    packet = {0x60, 0, 0, 0};
    append16(packet, static_cast<uint16_t>(extensions.size() + udp_length));
    packet.insert(packet.end(), {next, 64});
  } else {
    packet = {0x45, 0};
    append16(packet, static_cast<uint16_t>(kIpv4HeaderLength + udp_length));
    packet.insert(packet.end(), {0x12, 0x34, 0, 0, 64, kProtocolUdp, 0, 0});
  }
  packet = join(join(packet, address_bytes(source)), address_bytes(destination));
  if (!ipv6) set_ipv4_checksum(packet.data());
  packet = join(packet, extensions);
  const auto offset = static_cast<uint32_t>(packet.size());
  append16(packet, source_port);
  append16(packet, destination_port);
  append16(packet, udp_length);
  append16(packet, 0);
  for (uint32_t i = 0; i < payload; ++i) packet.push_back(static_cast<uint8_t>(i * 7));
  finish_segment(packet, kProtocolUdp, offset, kUdpChecksumOffset);
  return packet;
}

Bytes frame_of(const Bytes& packet, const Bytes& tags = {}) {
  Bytes frame = {2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8};
  frame = join(frame, tags);
  append16(frame, is_ipv6(packet.data()) ? kEtherTypeIpv6 : kEtherTypeIpv4);
  return join(frame, packet);
}

// An ICMP error to `destination`, from a router, that quotes these bytes.
Bytes icmp_error(const std::string& router, const std::string& destination, uint8_t type,
                 uint8_t code, const Bytes& quote) {
  const bool ipv6 = router.contains(':');
  const auto length = static_cast<uint16_t>(kIcmpHeaderLength + quote.size());
  Bytes packet;
  if (ipv6) {
    packet = {0x60, 0, 0, 0};
    append16(packet, length);
    packet.insert(packet.end(), {kProtocolIcmpv6, 64});
  } else {
    packet = {0x45, 0};
    append16(packet, static_cast<uint16_t>(kIpv4HeaderLength + length));
    packet.insert(packet.end(), {0, 0, 0, 0, 64, kProtocolIcmp, 0, 0});
  }
  packet = join(join(packet, address_bytes(router)), address_bytes(destination));
  if (!ipv6) set_ipv4_checksum(packet.data());
  packet.insert(packet.end(), {type, code, 0, 0, 0, 0, 5, 120});
  return join(packet, quote);
}

class PacketKinds : public ::testing::Test {
 protected:
  static constexpr const char* kVip4 = "198.51.100.10";
  static constexpr const char* kVip6 = "2001:db8:1::10";
  static constexpr const char* kClient4 = "198.18.0.2";
  static constexpr const char* kClient6 = "2001:db8::99";

  // One VIP of each family on UDP port 53, both on backends of the given family.
  void set_up(bool backends6, auto change) {
    vips_ = {make_vip("v4", kVip4, 53, VipProtocol::kUdp),
             make_vip("v6", kVip6, 53, VipProtocol::kUdp)};
    for (RootVip& vip : vips_) change(vip.record);
    Tree tree = make_tree(++generation_, 5, 251, vips_);
    if (backends6) tree = with_ipv6_backends(tree);
    snapshot_ = bed_.adopt(tree);
  }
  void set_up() {
    set_up(false, [](VipRecord&) {});
  }

  Tree with_ipv6_backends(Tree tree) const {
    const TableView table = *check_table_file(tree.table);
    const PoolView pool = *check_pool_file(tree.pool);
    std::vector<PoolBackend> backends;
    for (uint8_t i = 0; i < 5; ++i) {
      backends.push_back(
          {fmt::format("b{}", i), resolved_backend(fmt::format("2001:db8:2::{:x}", 16 + i), i)});
    }
    tree.pool = build_pool_file(
        "pool", table.checksum, backends,
        std::vector<uint32_t>(pool.owner_backends.begin(), pool.owner_backends.end()));
    tree.root =
        build_root_file(generation_, 42, std::vector{check_pool_file(tree.pool)->checksum}, vips_);
    return tree;
  }

  Verdict run(const std::vector<Bytes>& frames) {
    runner_.run(frames, snapshot_.get());
    return runner_.verdict(0);
  }
  Verdict run(const Bytes& frame) { return run(std::vector<Bytes>{frame}); }

  void expect_counts_add_up() {
    const WorkerTotals totals = read_totals(bed_.counters);
    EXPECT_EQ(totals.received_packets,
              std::accumulate(totals.verdicts.begin(), totals.verdicts.end(), totals.held));
  }

  TestBed bed_;
  std::vector<RootVip> vips_;
  uint64_t generation_ = 0;
  std::shared_ptr<const Snapshot> snapshot_;
  BurstRunner runner_{bed_.counters};
};

// The packet inside an encapsulated frame, and that every header around it is right.
Bytes unwrapped(const Bytes& frame, Encapsulation encapsulation, bool outer6, bool inner6) {
  const uint8_t* outer = frame.data() + kEthernetHeaderLength;
  const auto length = static_cast<uint32_t>(frame.size()) - kEthernetHeaderLength;
  EXPECT_EQ(load_be16(&frame[kEtherTypeOffset]), outer6 ? kEtherTypeIpv6 : kEtherTypeIpv4);
  uint32_t at = outer6 ? kIpv6HeaderLength : kIpv4HeaderLength;
  if (outer6) {
    EXPECT_EQ(load_be16(outer + kIpv6PayloadLengthOffset) + kIpv6HeaderLength, length);
  } else {
    EXPECT_EQ(load_be16(outer + kIpv4TotalLengthOffset), length);
    EXPECT_EQ(sum_words(outer, kIpv4HeaderLength), 0xffff);
    EXPECT_EQ(load_be16(outer + kIpv4FragmentOffset), kIpv4DontFragment);
  }
  const uint8_t protocol = outer6 ? outer[kIpv6NextHeaderOffset] : outer[kIpv4ProtocolOffset];
  const uint8_t inner_protocol = inner6 ? kProtocolIpv6 : kProtocolIpInIp;
  switch (encapsulation) {
    case Encapsulation::kIpInIp:
      EXPECT_EQ(protocol, inner_protocol);
      break;
    case Encapsulation::kGre:
      EXPECT_EQ(protocol, kProtocolGre);
      EXPECT_EQ(load_be16(outer + at), 0);
      EXPECT_EQ(load_be16(outer + at + 2), inner6 ? kEtherTypeIpv6 : kEtherTypeIpv4);
      at += 4;
      break;
    default:
      EXPECT_EQ(protocol, kProtocolUdp);
      EXPECT_GE(load_be16(outer + at), 0xc000);
      EXPECT_EQ(load_be16(outer + at + 2), kGuePort);
      EXPECT_EQ(load_be16(outer + at + kUdpLengthOffset), length - at);
      if (outer6) {
        EXPECT_EQ(fold_checksum(uint64_t{pseudo_header_sum(outer, kProtocolUdp, length - at)} +
                                sum_words(outer + at, length - at)),
                  0xffff)
            << "UDP checksum";
      } else {
        EXPECT_EQ(load_be16(outer + at + kUdpChecksumOffset), 0);
      }
      at += kUdpHeaderLength;
      if (encapsulation == Encapsulation::kGueVariant0) {
        EXPECT_EQ(load_be32(outer + at), uint32_t{inner_protocol} << 16);
        at += 4;
      }
  }
  return {outer + at, outer + length};
}

TEST_F(PacketKinds, EveryEncapsulationCarriesEitherFamilyOverEither) {
  for (const Encapsulation e : {Encapsulation::kIpInIp, Encapsulation::kGre,
                                Encapsulation::kGueVariant0, Encapsulation::kGueVariant1}) {
    for (const bool outer6 : {false, true}) {
      set_up(outer6, [e](VipRecord& vip) {
        vip.encapsulation = e;
        const bool gue = e == Encapsulation::kGueVariant0 || e == Encapsulation::kGueVariant1;
        vip.gue_port = gue ? kGuePort : uint16_t{0};
      });
      for (const bool inner6 : {false, true}) {
        for (const uint32_t payload : {0u, 1u, 18u, 999u}) {
          SCOPED_TRACE(fmt::format("encapsulation {}, outer6 {}, inner6 {}, payload {}",
                                   static_cast<int>(e), outer6, inner6, payload));
          const Bytes packet = inner6 ? udp_packet(kClient6, kVip6, 4000, 53, payload)
                                      : udp_packet(kClient4, kVip4, 4000, 53, payload);
          ASSERT_EQ(run(frame_of(packet)), Verdict::kForwarded);
          Bytes inner = unwrapped(runner_.output(0), e, outer6, inner6);
          ASSERT_EQ(inner.size(), packet.size());
          EXPECT_EQ(hop_limit(inner.data()), 63);
          if (inner6) {
            inner[kIpv6HopLimitOffset] = 64;
          } else {
            EXPECT_EQ(sum_words(inner.data(), kIpv4HeaderLength), 0xffff);
            inner[kIpv4TtlOffset] = 64;
            set_ipv4_checksum(inner.data());
          }
          EXPECT_EQ(inner, packet);
        }
      }
    }
  }
  expect_counts_add_up();
}

TEST_F(PacketKinds, TheOuterUdpChecksumIsRightWhateverIsInside) {
  set_up(true, [](VipRecord& vip) {
    vip.encapsulation = Encapsulation::kGueVariant0;
    vip.gue_port = kGuePort;
    vip.fragment_policy = FragmentPolicy::kAddress;
  });
  Bytes zero = udp_packet(kClient4, kVip4, 4000, 53, 33);
  store_be16(&zero[kIpv4HeaderLength + kUdpChecksumOffset], 0);
  Bytes fragment = udp_packet(kClient4, kVip4, 4000, 53, 33);
  store_be16(&fragment[kIpv4FragmentOffset], 5);
  set_ipv4_checksum(fragment.data());
  const Bytes hop_by_hop = {kProtocolUdp, 0, 1, 4, 0, 0, 0, 0};
  const Bytes extended = udp_packet(kClient6, kVip6, 4000, 53, 12, hop_by_hop, kProtocolHopByHop);
  for (const Bytes& packet : {zero, fragment, extended}) {
    ASSERT_EQ(run(frame_of(packet)), Verdict::kForwarded);
    unwrapped(runner_.output(0), Encapsulation::kGueVariant0, true, is_ipv6(packet.data()));
  }
}

TEST_F(PacketKinds, Layer2RewritingChangesTheMacAddressesAndTheHopLimitAlone) {
  set_up(false, [](VipRecord& vip) { vip.encapsulation = Encapsulation::kLayer2; });
  const Bytes in = frame_of(udp_packet(kClient4, kVip4, 4000, 53, 10));
  ASSERT_EQ(run(in), Verdict::kForwarded);
  Bytes out = runner_.output(0);
  ASSERT_EQ(out.size(), in.size());
  EXPECT_EQ(Bytes(out.begin() + 6, out.begin() + 12), (Bytes{2, 0, 0, 0, 0, 1}));
  EXPECT_LT(out[5], 5) << "the next hop's MAC address is the backend's";
  EXPECT_EQ(out[kEthernetHeaderLength + kIpv4TtlOffset], 63);
  EXPECT_TRUE(std::equal(out.begin() + kEthernetHeaderLength + kIpv4SourceOffset, out.end(),
                         in.begin() + kEthernetHeaderLength + kIpv4SourceOffset));
  EXPECT_EQ(run(frame_of(udp_packet(kClient6, kVip6, 4000, 53, 10))), Verdict::kUnresolved)
      << "an IPv6 packet cannot be handed to a backend known by IPv4";
}

TEST_F(PacketKinds, ATaggedFrameLeavesWithItsInnermostTagAlone) {
  set_up();
  const Bytes packet = udp_packet(kClient4, kVip4, 4000, 53, 10);
  ASSERT_EQ(run(frame_of(packet)), Verdict::kForwarded);
  const Bytes untagged = runner_.output(0);
  const Bytes one = {0x81, 0, 0x20, 7}, priority = {0x81, 0, 0xe0, 0};
  const Bytes two = join({0x88, 0xa8, 0, 99}, one);
  for (const Bytes& tags : {one, priority, two}) {
    ASSERT_EQ(run(frame_of(packet, tags)), Verdict::kForwarded);
    Bytes out = runner_.output(0);
    EXPECT_EQ(Bytes(out.begin() + 12, out.begin() + 16), Bytes(tags.end() - 4, tags.end()));
    out.erase(out.begin() + 12, out.begin() + 16);
    EXPECT_EQ(out, untagged);
  }
  Bytes cut = frame_of(packet, one);
  cut.resize(kEthernetHeaderLength + 2);
  EXPECT_EQ(run(cut), Verdict::kMalformed);
}

TEST_F(PacketKinds, ExtensionHeadersAreLookedBehind) {
  set_up();
  ASSERT_EQ(run(frame_of(udp_packet(kClient6, kVip6, 4000, 53, 10))), Verdict::kForwarded);
  const BackendEntry* backend = runner_.burst().backend[0];
  const Bytes options = {kProtocolUdp, 0, 1, 4, 0, 0, 0, 0};
  const Bytes authentication = {kProtocolUdp, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2};
  const Bytes atomic = {kProtocolUdp, 0, 0, 0, 0, 0, 0, 1};
  for (const auto& [next, header] : {std::pair(kProtocolHopByHop, options),
                                     {kProtocolDestinationOptions, options},
                                     {kProtocolRouting, options},
                                     {kProtocolAuthentication, authentication},
                                     {kProtocolFragment, atomic}}) {
    const Bytes packet = udp_packet(kClient6, kVip6, 4000, 53, 10, header, next);
    ASSERT_EQ(run(frame_of(packet)), Verdict::kForwarded) << int{next};
    EXPECT_EQ(runner_.burst().backend[0], backend) << "ports are read behind " << int{next};
    for (size_t length = kEthernetHeaderLength; length < packet.size() + 14; ++length) {
      Bytes cut = frame_of(packet);
      cut.resize(length);
      ASSERT_EQ(run(cut), Verdict::kMalformed) << length;
    }
  }
  Bytes many;
  for (uint32_t i = 0; i <= kMaxExtensionHeaders; ++i) {
    many = join(many, {i < kMaxExtensionHeaders ? kProtocolDestinationOptions : kProtocolUdp, 0, 1,
                       4, 0, 0, 0, 0});
  }
  EXPECT_EQ(
      run(frame_of(udp_packet(kClient6, kVip6, 4000, 53, 10, many, kProtocolDestinationOptions))),
      Verdict::kUnsupportedProtocol);
}

TEST_F(PacketKinds, IcmpErrorsGoToTheBackendOfTheFlowTheyQuote) {
  set_up();
  for (uint16_t port = 1; port < 300; ++port) {
    ASSERT_EQ(run(frame_of(udp_packet(kClient4, kVip4, port, 53, 10))), Verdict::kForwarded);
    const BackendEntry* backend4 = runner_.burst().backend[0];
    Bytes quote = udp_packet(kVip4, kClient4, 53, port, 10);
    quote.resize(kIpv4HeaderLength + 8);
    for (const uint8_t type : {kIcmpUnreachable, kIcmpTimeExceeded, kIcmpParameterProblem}) {
      ASSERT_EQ(run(frame_of(icmp_error("203.0.113.1", kVip4, type, 4, quote))),
                Verdict::kForwarded);
      EXPECT_EQ(runner_.burst().backend[0], backend4);
    }
    ASSERT_EQ(run(frame_of(udp_packet(kClient6, kVip6, port, 53, 10))), Verdict::kForwarded);
    const BackendEntry* backend6 = runner_.burst().backend[0];
    quote = udp_packet(kVip6, kClient6, 53, port, 10);
    for (uint8_t type = 1; type <= 4; ++type) {
      ASSERT_EQ(run(frame_of(icmp_error("2001:db8:9::1", kVip6, type, 0, quote))),
                Verdict::kForwarded);
      EXPECT_EQ(runner_.burst().backend[0], backend6);
    }
  }
  const Bytes foreign = udp_packet("203.0.113.7", kClient4, 53, 4000, 10);
  EXPECT_EQ(run(frame_of(icmp_error("203.0.113.1", kVip4, 3, 4, foreign))),
            Verdict::kIcmpUnmatched);
  Bytes cut = udp_packet(kVip4, kClient4, 53, 4000, 10);
  cut.resize(kIpv4HeaderLength + 3);
  EXPECT_EQ(run(frame_of(icmp_error("203.0.113.1", kVip4, 3, 4, cut))), Verdict::kIcmpUnmatched);
  expect_counts_add_up();
}

TEST_F(PacketKinds, AnEchoRequestToAVipIsAnsweredOrLeftToTheKernel) {
  set_up();
  for (const bool ipv6 : {false, true}) {
    Bytes packet = ipv6 ? icmp_error(kClient6, kVip6, kIcmpv6EchoRequest, 0, Bytes(57, 0xab))
                        : icmp_error(kClient4, kVip4, kIcmpEchoRequest, 0, Bytes(57, 0xab));
    const uint32_t header = ipv6 ? kIpv6HeaderLength : kIpv4HeaderLength;
    if (ipv6) {
      finish_segment(packet, kProtocolIcmpv6, header, kIcmpChecksumOffset);
    } else {
      store_be16(&packet[header + 2],
                 static_cast<uint16_t>(
                     ~sum_words(&packet[header], static_cast<uint32_t>(packet.size()) - header)));
    }
    const Bytes frame = frame_of(packet);
    ASSERT_EQ(run(frame), Verdict::kEchoAnswered);
    ASSERT_EQ(runner_.own_frames().size(), 1u);
    const Bytes reply = runner_.own_frames()[0];
    ASSERT_EQ(reply.size(), frame.size());
    EXPECT_TRUE(std::equal(reply.begin(), reply.begin() + 6, frame.begin() + 6));
    const uint8_t* ip = reply.data() + kEthernetHeaderLength;
    EXPECT_EQ(ip[header], ipv6 ? kIcmpv6EchoReply : kIcmpEchoReply);
    const auto length = static_cast<uint32_t>(packet.size()) - header;
    const uint32_t pseudo = ipv6 ? pseudo_header_sum(ip, kProtocolIcmpv6, length) : 0;
    EXPECT_EQ(fold_checksum(uint64_t{pseudo} + sum_words(ip + header, length)), 0xffff);
    Bytes damaged = frame;
    damaged.back() ^= 1;
    EXPECT_EQ(run(damaged), Verdict::kMalformed);
    set_up(false, [](VipRecord& vip) { vip.flags = kVipEchoToKernel; });
    EXPECT_EQ(run(frame), Verdict::kForKernel);
    set_up();
  }
  expect_counts_add_up();
}

TEST_F(PacketKinds, AnEchoRequestFromNoSingleHostIsNotAnswered) {
  set_up();
  const auto echo_from = [](const std::string& source) {
    Bytes packet = icmp_error(source, kVip4, kIcmpEchoRequest, 0, Bytes(16, 0xab));
    store_be16(
        &packet[kIpv4HeaderLength + kIcmpChecksumOffset],
        static_cast<uint16_t>(~sum_words(
            &packet[kIpv4HeaderLength], static_cast<uint32_t>(packet.size()) - kIpv4HeaderLength)));
    return frame_of(packet);
  };
  for (const std::string source : {"0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255"}) {
    EXPECT_EQ(run(echo_from(source)), Verdict::kUnsupportedProtocol) << source;
    EXPECT_TRUE(runner_.own_frames().empty());
  }
  for (const size_t first_byte_of_mac : {0u, 6u}) {
    Bytes group = echo_from(kClient4);
    group[first_byte_of_mac] |= 1;
    EXPECT_EQ(run(group), Verdict::kUnsupportedProtocol);
    EXPECT_TRUE(runner_.own_frames().empty());
  }
  EXPECT_EQ(run(echo_from(kClient4)), Verdict::kEchoAnswered);
  expect_counts_add_up();
}

TEST_F(PacketKinds, WhatIsTooBigIsToldToTheSenderWithTheExactMtu) {
  set_up();
  const uint32_t fits = kPortMtu - kIpv4HeaderLength;
  for (const bool ipv6 : {false, true}) {
    const uint32_t headers = (ipv6 ? kIpv6HeaderLength : kIpv4HeaderLength) + kUdpHeaderLength;
    const auto packet_of = [&](uint32_t length) {
      Bytes packet = ipv6 ? udp_packet(kClient6, kVip6, 4000, 53, length - headers)
                          : udp_packet(kClient4, kVip4, 4000, 53, length - headers);
      if (!ipv6) {
        store_be16(&packet[kIpv4FragmentOffset], kIpv4DontFragment);
        set_ipv4_checksum(packet.data());
      }
      return packet;
    };
    EXPECT_EQ(run(frame_of(packet_of(fits))), Verdict::kForwarded);
    EXPECT_TRUE(runner_.own_frames().empty());
    const Bytes big = packet_of(fits + 1);
    ASSERT_EQ(run(frame_of(big, {0x81, 0, 0, 7})), Verdict::kTooBig);
    ASSERT_EQ(runner_.own_frames().size(), 1u);
    const Bytes& answer = runner_.own_frames()[0];
    const uint8_t* ip = answer.data() + kEthernetHeaderLength + kVlanTagLength;
    const uint32_t header = ipv6 ? kIpv6HeaderLength : kIpv4HeaderLength;
    const auto length = static_cast<uint32_t>(answer.size()) - 18;
    EXPECT_EQ(length, ipv6 ? kLongestError6 : kLongestError4);
    EXPECT_EQ(ip[header], ipv6 ? kIcmpv6PacketTooBig : kIcmpUnreachable);
    EXPECT_EQ(ip[header + 1], ipv6 ? 0 : kIcmpFragmentationNeeded);
    EXPECT_EQ(load_be32(ip + header + 4), fits);
    EXPECT_TRUE(std::equal(ip + header + 8, ip + length, big.begin()));
    const uint32_t pseudo = ipv6 ? pseudo_header_sum(ip, kProtocolIcmpv6, length - header) : 0;
    EXPECT_EQ(fold_checksum(uint64_t{pseudo} + sum_words(ip + header, length - header)), 0xffff);
    if (!ipv6) {
      EXPECT_EQ(sum_words(ip, kIpv4HeaderLength), 0xffff);
    }
  }
  expect_counts_add_up();
}

TEST_F(PacketKinds, WhatIsTooBigAndMayBeCutIsCut) {
  set_up();
  Bytes packet = udp_packet(kClient4, kVip4, 4000, 53, 5000);
  ASSERT_EQ(run(frame_of(packet)), Verdict::kForwarded);
  std::vector<Bytes> parts = {runner_.output(0)};
  for (const Bytes& frame : runner_.own_frames()) parts.push_back(frame);
  ASSERT_EQ(parts.size(), 4u);
  Bytes payload(5000 + kUdpHeaderLength);
  for (size_t i = 0; i < parts.size(); ++i) {
    ASSERT_LE(parts[i].size(), kPortMtu + kEthernetHeaderLength);
    const Bytes inner = unwrapped(parts[i], Encapsulation::kIpInIp, false, false);
    EXPECT_EQ(sum_words(inner.data(), kIpv4HeaderLength), 0xffff);
    EXPECT_EQ(inner[kIpv4TtlOffset], 63);
    const uint16_t field = load_be16(&inner[kIpv4FragmentOffset]);
    EXPECT_EQ((field & kIpv4MoreFragments) != 0, i + 1 < parts.size());
    std::copy(inner.begin() + kIpv4HeaderLength, inner.end(),
              payload.begin() + (field & kIpv4FragmentOffsetMask) * 8);
  }
  EXPECT_EQ(payload, Bytes(packet.begin() + kIpv4HeaderLength, packet.end()));
  store_be16(&packet[kIpv4FragmentOffset], kIpv4DontFragment);
  EXPECT_EQ(run(frame_of(packet)), Verdict::kTooBig);
  set_up(false, [](VipRecord& vip) { vip.flags = kVipFragmentTooBig; });
  EXPECT_EQ(run(frame_of(packet)), Verdict::kForwarded) << "by the VIP's choice";
  EXPECT_EQ(runner_.own_frames().size(), 3u);
}

TEST_F(PacketKinds, TheLastHopIsToldButNeverAboutAnError) {
  set_up();
  Bytes packet = udp_packet(kClient4, kVip4, 4000, 53, 10);
  packet[kIpv4TtlOffset] = 1;
  EXPECT_EQ(run(frame_of(packet)), Verdict::kTtlExpired);
  ASSERT_EQ(runner_.own_frames().size(), 1u);
  EXPECT_EQ(runner_.own_frames()[0][kEthernetHeaderLength + kIpv4HeaderLength], kIcmpTimeExceeded);
  Bytes error = icmp_error("203.0.113.1", kVip4, 3, 4, udp_packet(kVip4, kClient4, 53, 4000, 10));
  error[kIpv4TtlOffset] = 1;
  EXPECT_EQ(run(frame_of(error)), Verdict::kTtlExpired);
  EXPECT_TRUE(runner_.own_frames().empty());
  Bytes group = frame_of(packet);
  group[0] |= 1;
  EXPECT_EQ(run(group), Verdict::kTtlExpired);
  EXPECT_TRUE(runner_.own_frames().empty());
}

TEST_F(PacketKinds, FragmentsByAddressNeedNoMemory) {
  set_up(false, [](VipRecord& vip) { vip.fragment_policy = FragmentPolicy::kAddress; });
  const Bytes whole = udp_packet(kClient4, kVip4, 4000, 53, 64);
  ASSERT_EQ(run(frame_of(whole)), Verdict::kForwarded);
  const BackendEntry* backend = runner_.burst().backend[0];
  for (const uint16_t field : std::initializer_list<uint16_t>{0x2000, 0x2003, 0x0005}) {
    Bytes part = whole;
    store_be16(&part[kIpv4FragmentOffset], field);
    set_ipv4_checksum(part.data());
    ASSERT_EQ(run(frame_of(part)), Verdict::kForwarded) << field;
    EXPECT_EQ(runner_.burst().backend[0], backend);
  }
}

TEST_F(PacketKinds, FragmentsOfAFlowWaitForTheFirst) {
  set_up();
  const Bytes whole = udp_packet(kClient4, kVip4, 4000, 53, 64);
  ASSERT_EQ(run(frame_of(whole)), Verdict::kForwarded);
  const BackendEntry* backend = runner_.burst().backend[0];
  Bytes first = whole, later = whole;
  store_be16(&first[kIpv4FragmentOffset], kIpv4MoreFragments);
  store_be16(&later[kIpv4FragmentOffset], 5);
  store_be16(&later[kIpv4HeaderLength + 2], 99);  // looks like another port
  set_ipv4_checksum(first.data());
  set_ipv4_checksum(later.data());
  ASSERT_EQ(run(std::vector<Bytes>{frame_of(later), frame_of(first), frame_of(later)}),
            Verdict::kHeld);
  EXPECT_EQ(runner_.verdict(1), Verdict::kForwarded);
  EXPECT_EQ(runner_.verdict(2), Verdict::kForwarded) << "the first has told the ports";
  EXPECT_EQ(runner_.burst().backend[2], backend);
  expect_counts_add_up();
  EXPECT_EQ(read_totals(bed_.counters).held, 1u);
}

TEST(FragmentTable, WhatIsHeldComesBackOnceInOrder) {
  FragmentTable table(std::pmr::new_delete_resource());
  DatagramKey key;
  key.id = 7;
  const uint64_t hash = key.hash(42);
  for (uint32_t i = 0; i < FragmentTable::kHeld; ++i) {
    EXPECT_TRUE(table.hold(key, hash, {nullptr, nullptr, i, Verdict::kForwarded}, 1));
  }
  EXPECT_FALSE(table.hold(key, hash, {}, 1)) << "no room";
  EXPECT_FALSE(table.has_released());
  table.learn(key, hash, {5, kProtocolUdp}, 2);
  EXPECT_EQ(table.find_transport(key, hash, 3)->ports, 5u);
  for (uint32_t i = 0; i < FragmentTable::kHeld; ++i) {
    ASSERT_TRUE(table.has_released());
    const HeldFrame frame = table.take_released();
    EXPECT_EQ(frame.length, i);
    EXPECT_EQ(frame.verdict, Verdict::kForwarded);
  }
  EXPECT_FALSE(table.has_released());
  EXPECT_EQ(table.held(), 0u);
  EXPECT_FALSE(table.find_transport(key, hash, 2 + FragmentTable::kLifetime_ns + 1));
}

TEST(FragmentTable, WhatWaitsTooLongOrHasToGiveWayIsReleasedWithItsVerdict) {
  FragmentTable table(std::pmr::new_delete_resource());
  DatagramKey key;
  EXPECT_TRUE(table.hold(key, 0, {}, 1));
  table.expire(1 + FragmentTable::kHold_ns);
  EXPECT_FALSE(table.has_released());
  table.expire(2 + FragmentTable::kHold_ns);
  EXPECT_EQ(table.take_released().verdict, Verdict::kFragmentExpired);
  for (uint32_t id = 0; id <= FragmentTable::kWays; ++id) {  // all in one set
    key.id = 100 + id;
    EXPECT_TRUE(table.hold(key, 64 * 1024, {}, FragmentTable::kLifetime_ns * 10 + id));
  }
  ASSERT_TRUE(table.has_released());
  EXPECT_EQ(table.take_released().verdict, Verdict::kFragmentOverflow);
}

TEST(VipTable, AnAddressBelongsToItsLongestPrefix) {
  TestBed bed;
  std::vector<RootVip> vips = {
      make_vip("wide", "198.51.0.0", kAnyPort), make_vip("narrow", "198.51.100.0", 80),
      make_vip("one", "198.51.100.10", 81), make_vip("six", "2001:db8:1::", kAnyPort)};
  vips[0].record.prefix_length = 16;
  vips[1].record.prefix_length = 24;
  vips[3].record.prefix_length = 48;
  vips[3].record.protocol = VipProtocol::kTcpAndUdp;
  const auto snapshot = bed.adopt(make_tree(1, 3, 251, vips));
  const auto find = [&](const std::string& text, uint16_t port, uint8_t protocol) {
    const Service service = snapshot->vip_table().find(
        text.contains(':'), address(text).bytes.data(), htons(port), protocol);
    if (service.address == nullptr) return std::string("no VIP");
    if (service.vip == nullptr) return std::string("unserved");
    return snapshot->vip_names()[static_cast<size_t>(service.vip - snapshot->vips().data())];
  };
  EXPECT_EQ(find("198.51.1.1", 5, kProtocolTcp), "wide");
  EXPECT_EQ(find("198.51.1.1", 5, kProtocolUdp), "unserved");
  EXPECT_EQ(find("198.51.100.1", 80, kProtocolTcp), "narrow");
  EXPECT_EQ(find("198.51.100.1", 5, kProtocolTcp), "unserved");
  EXPECT_EQ(find("198.51.100.10", 81, kProtocolTcp), "one");
  EXPECT_EQ(find("198.51.100.10", 80, kProtocolTcp), "unserved");
  EXPECT_EQ(find("198.52.0.0", 80, kProtocolTcp), "no VIP");
  EXPECT_EQ(find("2001:db8:1:2::3", 9, kProtocolUdp), "six");
  EXPECT_EQ(find("2001:db8:2::3", 9, kProtocolUdp), "no VIP");
}

TEST(FlowHashWords, EqualTheHashOfTheKeyAsBytes) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 100000; ++i) {
    uint8_t bytes[44];
    for (uint8_t& b : bytes) b = static_cast<uint8_t>(random());
    const uint64_t seed = random();
    EXPECT_EQ(hash_flow4(load<uint64_t>(bytes), load<uint64_t>(bytes + 5), seed),
              hash_flow(load<FlowKey4>(bytes), seed));
    FlowKey6 key = load<FlowKey6>(bytes);
    const uint8_t protocol = bytes[43];
    key.protocol = protocol;
    ASSERT_EQ(hash_flow6(bytes, protocol, seed), hash_flow(key, seed));
  }
}

TEST(PartialChecksums, AreCompletedAndRightOnesStay) {
  for (const bool ipv6 : {false, true}) {
    for (uint32_t payload = 0; payload < 64; ++payload) {
      const Bytes right = frame_of(ipv6 ? udp_packet("2001:db8::1", "2001:db8::2", 1, 2, payload)
                                        : udp_packet("198.18.0.1", "198.18.0.2", 1, 2, payload));
      const uint32_t udp = kEthernetHeaderLength + (ipv6 ? kIpv6HeaderLength : kIpv4HeaderLength);
      Bytes partial = right;
      store_be16(&partial[udp + kUdpChecksumOffset],
                 pseudo_header_sum(&partial[kEthernetHeaderLength], kProtocolUdp, 8 + payload));
      complete_checksum(partial.data(), static_cast<uint32_t>(partial.size()));
      EXPECT_EQ(partial, right);
      complete_checksum(partial.data(), static_cast<uint32_t>(partial.size()));
      EXPECT_EQ(partial, right);
    }
  }
}

// Whatever a frame holds it ends in one verdict, and nothing beyond it is touched.
TEST_F(PacketKinds, MutatedFramesEndInOneVerdictEach) {
  set_up();
  std::mt19937 random(11);
  std::vector<Bytes> seeds = {
      frame_of(udp_packet(kClient4, kVip4, 4000, 53, 40)),
      frame_of(udp_packet(kClient6, kVip6, 4000, 53, 40)),
      frame_of(udp_packet(kClient6, kVip6, 4000, 53, 40, {kProtocolUdp, 0, 0, 1, 0, 0, 0, 9},
                          kProtocolFragment)),
      frame_of(icmp_error("203.0.113.1", kVip4, 3, 4, udp_packet(kVip4, kClient4, 53, 4000, 10))),
      frame_of(icmp_error("2001:db8:9::1", kVip6, 2, 0, udp_packet(kVip6, kClient6, 53, 4000, 9))),
      frame_of(udp_packet(kClient4, kVip4, 4000, 53, 40), {0x88, 0xa8, 0, 1, 0x81, 0, 0, 2})};
  uint64_t sent = 0;
  for (int i = 0; i < 5000; ++i) {
    std::vector<Bytes> burst;
    for (int n = 0; n < 8; ++n) {
      Bytes frame = seeds[random() % seeds.size()];
      for (uint32_t change = random() % 4; change > 0; --change) {
        frame[12 + random() % (frame.size() - 12)] = static_cast<uint8_t>(random());
      }
      if (random() % 4 == 0) frame.resize(random() % (frame.size() + 1));
      burst.push_back(frame);
    }
    run(burst);
    sent += burst.size();
  }
  const WorkerTotals totals = read_totals(bed_.counters);
  EXPECT_EQ(totals.received_packets, sent);
  expect_counts_add_up();
}

}  // namespace
}  // namespace maglev
