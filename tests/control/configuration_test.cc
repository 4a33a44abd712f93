#include "control/configuration.h"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include "control/json_form.h"
#include "tests/control/fixtures.h"

namespace maglev {
namespace {

const std::string kGood = sample_configuration("/run/maglev-test");

std::vector<std::string> mistakes(const std::string& text) {
  const auto configuration = read_configuration(text, "maglev.yaml");
  return configuration ? std::vector<std::string>{} : configuration.error();
}

// The sample with one text replaced by another.
std::string with(std::string_view what, std::string_view by) {
  std::string text = kGood;
  const size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return text.replace(at, what.size(), by);
}

TEST(Configuration, AGoodFileIsReadWithDefaults) {
  const auto configuration = read_configuration(kGood, "maglev.yaml");
  ASSERT_TRUE(configuration) << configuration.error().front();
  EXPECT_EQ(configuration->dataplane.directory, "/run/maglev-test/run");
  EXPECT_EQ(configuration->socket.path, "/run/maglev-test/run/control.sock");
  EXPECT_EQ(configuration->hash_seed, 0x9e3779b97f4a7c15u);
  const Pool& web = configuration->pools.at("web");
  EXPECT_EQ(web.settings.table_size, 251u);
  EXPECT_EQ(web.settings.min_healthy, 1u);
  EXPECT_EQ(web.settings.health.fall, 3u);
  ASSERT_EQ(web.backends.size(), 3u);
  EXPECT_EQ(web.backends.at("b2").address.to_string(), "198.18.2.12");
  EXPECT_EQ(web.backends.at("b2").weight, 1u);
  EXPECT_EQ(web.backends.at("b2").state, BackendState::kReady);
  EXPECT_EQ(configuration->pools.at("plain").settings.health.type, HealthType::kNone);
  const Vip& dns = configuration->vips.at("dns");
  EXPECT_EQ(dns.protocol, VipProtocol::kUdp);
  EXPECT_EQ(dns.port, 53);
  EXPECT_EQ(dns.hash, HashPolicy::kSource);
}

// What the pool `web` has instead of its health section, and what the API shows of it.
std::string shown_health(const std::string& section) {
  const auto configuration = read_configuration(
      with("{type: tcp, port: 80, interval_ms: 1000, timeout_ms: 500, rise: 2, fall: 3}", section),
      "maglev.yaml");
  if (!configuration) return configuration.error().front();
  return to_json(configuration->pools.at("web").settings.health).dump();
}

constexpr std::string_view kPace = R"("interval_ms":1000,"timeout_ms":500,"rise":2,"fall":3)";

TEST(Configuration, EachKindOfCheckHasSettingsAndDefaultsOfItsOwn) {
  EXPECT_EQ(shown_health("{type: http, port: 80}"),
            fmt::format(R"({{"type":"http","port":80,{},"method":"GET","path":"/","host":"",)"
                        R"("status":["200-399"],"body":""}})",
                        kPace));
  EXPECT_EQ(shown_health("{type: https, port: 443, method: HEAD, path: /up, host: a.example, "
                         "status: [200-204, 404], server_name: b.example, ca_file: /ca.pem, "
                         "verify: false}"),
            fmt::format(R"({{"type":"https","port":443,{},"method":"HEAD","path":"/up",)"
                        R"("host":"a.example","status":["200-204","404"],"body":"",)"
                        R"("server_name":"b.example","ca_file":"/ca.pem","verify":false}})",
                        kPace));
  EXPECT_EQ(shown_health("{type: udp, port: 53, encoding: hex, send: 00ff, expect: 'A0'}"),
            fmt::format(R"({{"type":"udp","port":53,{},"encoding":"hex","send":"00ff",)"
                        R"("expect":"a0"}})",
                        kPace));
  EXPECT_EQ(shown_health("{type: icmp, damping: {half_life_s: 60}}"),
            fmt::format(R"({{"type":"icmp",{},"damping":{{"half_life_s":60,"hold_at":3,)"
                        R"("release_at":1}}}})",
                        kPace));
  EXPECT_EQ(shown_health("{type: command, argv: [/bin/check, -x]}"),
            fmt::format(R"({{"type":"command",{},"argv":["/bin/check","-x"]}})", kPace));
}

// What the control socket shows is what it takes, and what the durable state holds.
TEST(Configuration, WhatIsShownOfACheckIsReadAsTheSame) {
  for (const char* section :
       {"{type: http, port: 80, body: ok}", "{type: https, port: 443, status: [200]}",
        "{type: udp, port: 53, send: ping, expect: pong}", "{type: icmp}",
        "{type: command, port: 9, argv: [/bin/true], damping: {half_life_s: 9, hold_at: 5}}"}) {
    const std::string shown = shown_health(section);
    EXPECT_TRUE(shown.starts_with('{')) << shown;
    EXPECT_EQ(shown_health(shown), shown);
  }
}

TEST(Configuration, AMistakeInACheckIsToldWithItsPlace) {
  const std::pair<const char*, const char*> mistakes[] = {
      {"{type: icmp, port: 80}", "port"},
      {"{type: tcp, port: 80, path: /}", "path"},
      {"{type: http, port: 80, server_name: a}", "server_name"},
      {"{type: http}", "port"},
      {"{type: http, port: 80, path: up}", "expected a path that starts with /"},
      {"{type: http, port: 80, host: 'a b'}", "expected printable ASCII without blanks"},
      {"{type: http, port: 80, status: [99]}", "expected a status from 100 to 599"},
      {"{type: http, port: 80, status: [300-200]}", "expected a status from 100 to 599"},
      {"{type: http, port: 80, status: []}", "expected a list of statuses"},
      {"{type: http, port: 80, method: HEAD, body: ok}", "an answer to HEAD has no body"},
      {"{type: http, port: 80, method: get}", "expected GET or HEAD or OPTIONS, found 'get'"},
      {"{type: https, port: 443, ca_file: ca.pem}", "expected an absolute path, found 'ca.pem'"},
      {"{type: udp, port: 53}", "send"},
      {"{type: udp, port: 53, encoding: hex, send: 0g}", "expected pairs of hexadecimal digits"},
      {"{type: udp, port: 53, encoding: hex, send: '012'}", "expected pairs of hexadecimal"},
      {"{type: command}", "argv"},
      {"{type: command, argv: [check]}", "expected a program's absolute path"},
      {"{type: command, argv: /bin/check}", "argv"},
      {"{type: tcp, port: 80, damping: {hold_at: 3}}", "half_life_s"},
      {"{type: tcp, port: 80, damping: {half_life_s: 9, hold_at: 3, release_at: 3}}",
       "expected less than hold_at"},
  };
  for (const auto& [section, told] : mistakes) {
    const std::string error = shown_health(section);
    EXPECT_TRUE(error.starts_with("maglev.yaml:")) << section << ": " << error;
    EXPECT_NE(error.find("pools[0].health"), std::string::npos) << section << ": " << error;
    EXPECT_NE(error.find(told), std::string::npos) << section << ": " << error;
  }
}

TEST(Configuration, AVipHasDefaultsAndTakesEverySetting) {
  const auto configuration = read_configuration(
      with("198.51.100.10, protocol: udp, port: 53, pool: plain, hash: source",
           "\"2001:DB8:0::/64\", protocol: tcp_and_udp, port: any, pool: plain, encapsulation: "
           "gue1, "
           "gue_port: 6081, outer_checksum: false, hash: source, fragments: address, echo: kernel, "
           "unserved_ports: kernel, too_big: fragment, tracking: full, "
           "idle: {tcp_s: 7200, tcp_closing_s: 5, udp_s: 30}"),
      "maglev.yaml");
  ASSERT_TRUE(configuration) << configuration.error().front();
  const Vip& plain = configuration->vips.at("web-http");
  EXPECT_EQ(to_text(plain.prefix), "198.51.100.10");
  EXPECT_EQ(plain.prefix.length, 32);
  EXPECT_EQ(plain.encapsulation, Encapsulation::kIpInIp);
  EXPECT_EQ(plain.gue_port, 0);
  EXPECT_EQ(plain.fragments, FragmentPolicy::kFlow);
  EXPECT_EQ(plain.flags, 0);
  EXPECT_EQ(plain.tracking, Tracking::kChanged);
  EXPECT_EQ(plain.idle, (IdleTimes{900, 60, 120}));
  const Vip& full = configuration->vips.at("dns");
  EXPECT_EQ(to_text(full.prefix), "2001:db8::/64") << "the canonical form";
  EXPECT_EQ(full.protocol, VipProtocol::kTcpAndUdp);
  EXPECT_EQ(full.encapsulation, Encapsulation::kGueVariant1);
  EXPECT_EQ(full.gue_port, 6081);
  EXPECT_EQ(full.fragments, FragmentPolicy::kAddress);
  EXPECT_EQ(full.flags, kVipAllFlags);
  EXPECT_EQ(full.tracking, Tracking::kFull);
  EXPECT_EQ(full.idle, (IdleTimes{7200, 5, 30}));
}

TEST(Configuration, IdleTimesNotToldOutlastNoneThatIs) {
  const auto idle_of = [](const std::string& protocol, const std::string& idle) {
    const auto configuration = read_configuration(
        with("protocol: udp, port: 53", "protocol: " + protocol + ", port: 53" + idle),
        "maglev.yaml");
    EXPECT_TRUE(configuration) << configuration.error().front();
    return configuration->vips.at("dns").idle;
  };
  EXPECT_EQ(idle_of("udp", ""), (IdleTimes{120, 60, 120}));
  EXPECT_EQ(idle_of("udp", ", idle: {udp_s: 30}"), (IdleTimes{30, 30, 30}));
  EXPECT_EQ(idle_of("udp", ", idle: {tcp_s: 50}"), (IdleTimes{50, 50, 120}));
  EXPECT_EQ(idle_of("tcp", ", idle: {tcp_s: 50}"), (IdleTimes{50, 50, 50}));
  EXPECT_EQ(idle_of("tcp", ", idle: {tcp_s: 50, udp_s: 300}"), (IdleTimes{50, 50, 300}));
  EXPECT_EQ(idle_of("tcp_and_udp", ", idle: {tcp_s: 50}"), (IdleTimes{50, 50, 120}));
}

TEST(Configuration, ControlListensWhereItIsTold) {
  const auto configuration = read_configuration(
      with("dataplane:",
           "control: {socket: /run/a, socket_mode: \"0660\", socket_group: adm, "
           "read_only_socket: /run/b, read_only_address: \"[::1]:9655\"}\ndataplane:"),
      "maglev.yaml");
  ASSERT_TRUE(configuration) << configuration.error().front();
  EXPECT_EQ(configuration->socket, (UnixSocket{"/run/a", 0660, "adm"}));
  EXPECT_EQ(configuration->read_only_socket, (UnixSocket{"/run/b", 0600, ""}));
  ASSERT_TRUE(configuration->read_only_address);
  EXPECT_EQ(to_text(ListenOn(*configuration->read_only_address)), "[::1]:9655");
}

TEST(Configuration, OuterSourcePrefixesAreOneOfAFamily) {
  const auto configuration = read_configuration(
      with("dataplane:",
           "outer_source_prefixes: [198.18.64.0/24, \"2001:db8:1::/64\"]\ndataplane:"),
      "maglev.yaml");
  ASSERT_TRUE(configuration) << configuration.error().front();
  ASSERT_EQ(configuration->outer_source_prefixes.size(), 2u);
  EXPECT_EQ(to_text(configuration->outer_source_prefixes[1]), "2001:db8:1::/64");
}

TEST(Configuration, AFileWithMarkersIsRefusedWhereverItIsCut) {
  const std::string whole = "---\n" + kGood + "...\n";
  ASSERT_TRUE(mistakes(whole).empty()) << mistakes(whole).front();
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    const auto found = mistakes(whole.substr(0, bytes));
    ASSERT_FALSE(found.empty()) << bytes;
    ASSERT_TRUE(found.front().starts_with("maglev.yaml")) << found.front();
  }
  EXPECT_EQ(mistakes(kGood + "# cut").front(),
            fmt::format("maglev.yaml:{}:6: the last line has no end: is the file cut short?",
                        1 + std::ranges::count(kGood, '\n')));
}

TEST(Configuration, AnyPortIsWrittenAsAWordOrAsZero) {
  for (const char* any : {"any", "0"}) {
    const auto configuration = read_configuration(
        with("port: 80, pool: web", fmt::format("port: {}, pool: web", any)), "maglev.yaml");
    ASSERT_TRUE(configuration);
    EXPECT_EQ(configuration->vips.at("web-http").port, kAnyPort);
  }
}

struct Mistake {
  std::string_view name;
  std::string_view what;
  std::string_view by;
  std::string_view told;
};

class ConfigurationMistakes : public testing::TestWithParam<Mistake> {};

TEST_P(ConfigurationMistakes, AreToldWithTheirPlace) {
  const auto errors = mistakes(with(GetParam().what, GetParam().by));
  ASSERT_EQ(errors.size(), 1u) << testing::PrintToString(errors);
  EXPECT_EQ(errors[0].substr(0, 12), "maglev.yaml:") << errors[0];
  EXPECT_NE(errors[0].find(GetParam().told), std::string::npos) << errors[0];
}

INSTANTIATE_TEST_SUITE_P(
    All, ConfigurationMistakes,
    testing::Values(
        Mistake{"TableSizeNotPrime", "table_size: 251", "table_size: 252",
                "10:17: pools[0].table_size: table size 252 is not a prime from 3 to 16777213: "
                "the nearest allowed is 251 or 257"},
        Mistake{"TableSizeHuge", "table_size: 251", "table_size: 4294967296", "16777213"},
        Mistake{"TableSizeZero", "table_size: 251", "table_size: 0", "nearest allowed is 3"},
        Mistake{"PlacementUnknown", "table_size: 251", "table_size: 251\n    placement: jump",
                "11:16: pools[0].placement: "},
        Mistake{"UnknownWord", "table_size: 251", "table_sise: 251",
                "10:5: pools[0]: unknown setting 'table_sise'"},
        Mistake{"NegativeWeight", "address: 198.18.2.11}", "address: 198.18.2.11, weight: -1}",
                "expected a whole number from 0 to 1000000, found '-1'"},
        Mistake{"UnknownState", "address: 198.18.2.11}", "address: 198.18.2.11, state: gone}",
                "expected ready or drain or maintenance, found 'gone'"},
        Mistake{"BackendPrefix", "198.18.2.11", "198.18.2.0/24", "expected an IP address such as"},
        Mistake{"NoAddress", "198.18.2.11", "web-1.example", "expected an IP address such as"},
        Mistake{"ShortAddress", "198.18.2.11", "198.18.2", "expected an IP address such as"},
        Mistake{"ScopedAddress", "198.18.2.11", "\"fe80::1%lo\"", "expected an IP address such as"},
        Mistake{"LinkLocal", "198.18.2.11", "\"fe80::1\"", "expected the address of one host"},
        Mistake{"MappedAddress", "198.18.2.11", "\"::ffff:198.18.2.11\"",
                "expected the address of one host"},
        Mistake{"MulticastOfIPv6", "198.18.2.11", "\"ff02::1\"",
                "expected the address of one host"},
        Mistake{"Multicast", "198.18.2.11", "224.0.0.1", "expected the address of one host"},
        Mistake{"Unspecified", "198.18.2.11", "0.0.0.0", "expected the address of one host"},
        Mistake{"MissingAddress", "{name: b1, address: 198.18.2.11}", "{name: b1}",
                "'address' is missing"},
        Mistake{"SameBackendTwice", "name: b2", "name: b1", "two backends are named 'b1'"},
        Mistake{"SamePoolTwice", "vips:", "  - {name: web}\nvips:", "two pools are named 'web'"},
        Mistake{"SameVipTwice", "name: dns", "name: web-http", "two VIPs are named 'web-http'"},
        Mistake{"SameVipAddress", "protocol: udp, port: 53", "protocol: tcp, port: 80",
                "21:5: vips[1]: VIP 'web-http' has this address, protocol and port already"},
        Mistake{"BitsBeyondThePrefix", "198.51.100.10, protocol: tcp",
                "198.51.100.10/24, protocol: tcp",
                "20:31: vips[0].address: bits are set beyond the prefix of '198.51.100.10/24': "
                "expected 198.51.100.0/24"},
        Mistake{"PrefixTooLong", "198.51.100.10, protocol: tcp", "198.51.100.10/33, protocol: tcp",
                "expected a prefix length from 1 to 32, found '198.51.100.10/33'"},
        Mistake{"PrefixOfEverything", "198.51.100.10, protocol: tcp", "\"8000::/0\", protocol: tcp",
                "expected a prefix length from 1 to 128"},
        Mistake{"PrefixWithoutLength", "198.51.100.10, protocol: tcp",
                "198.51.100.0/, protocol: tcp", "expected a prefix length from 1 to 32"},
        Mistake{"PrefixOfGroups", "198.51.100.10, protocol: tcp", "\"8000::/1\", protocol: tcp",
                "expected the address of one host"},
        Mistake{"UnknownProtocol", "protocol: udp", "protocol: sctp",
                "expected tcp or udp or tcp_and_udp, found 'sctp'"},
        Mistake{"UnknownEncapsulation", "port: 80, pool: web",
                "port: 80, pool: web, encapsulation: vxlan",
                "expected ipip or gre or gue or gue1 or l2, found 'vxlan'"},
        Mistake{"GuePortWithoutGue", "port: 80, pool: web", "port: 80, pool: web, gue_port: 6081",
                "vips[0].gue_port: is a setting of encapsulation gue and gue1 alone"},
        Mistake{"ChecksumWithoutGue", "port: 80, pool: web",
                "port: 80, pool: web, encapsulation: gre, outer_checksum: false",
                "vips[0].outer_checksum: is a setting of encapsulation gue and gue1 alone"},
        Mistake{"GuePortZero", "port: 80, pool: web",
                "port: 80, pool: web, encapsulation: gue, gue_port: 0", "from 1 to 65535"},
        Mistake{"UnknownTracking", "port: 80, pool: web", "port: 80, pool: web, tracking: some",
                "expected none or full or changed, found 'some'"},
        Mistake{"IdleOfNothing", "port: 80, pool: web",
                "port: 80, pool: web, tracking: none, idle: {tcp_s: 9}",
                "vips[0].idle: is a setting of tracking full and changed alone"},
        Mistake{"IdleZero", "port: 80, pool: web", "port: 80, pool: web, idle: {tcp_s: 0}",
                "from 1 to 604800"},
        Mistake{"IdleUnknown", "port: 80, pool: web", "port: 80, pool: web, idle: {tcp: 9}",
                "vips[0].idle"},
        Mistake{"UnknownTooBig", "port: 80, pool: web", "port: 80, pool: web, too_big: truncate",
                "expected report or fragment, found 'truncate'"},
        Mistake{"EchoesThatDiffer", "port: 80, pool: web", "port: 80, pool: web, echo: kernel",
                "21:5: vips[1]: echo is not as in VIP 'web-http', but all VIPs of one address have "
                "it alike: set the same in all of them"},
        Mistake{"Layer2AcrossFamilies", "198.51.100.10, protocol: tcp, port: 80, pool: web",
                "\"2001:db8::10\", protocol: tcp, port: 80, pool: web, encapsulation: l2",
                "vips[0].pool: backend 'b1' has address 198.18.2.11, but encapsulation l2"},
        Mistake{"TwoSourcePrefixesOfAFamily",
                "dataplane:", "outer_source_prefixes: [198.18.64.0/24, 198.18.65.0/24]\ndataplane:",
                "4:41: outer_source_prefixes[1]: expected at most one prefix of a family: "
                "198.18.64.0/24 is given already"},
        Mistake{"UnknownPool", "port: 80, pool: web", "port: 80, pool: wab",
                "vips[0].pool: no pool is named 'wab'"},
        Mistake{"NameWithSlash", "name: b1", "name: a/b", "expected a name of 1 to 255 letters"},
        Mistake{"EmptyName", "name: b1", "name: \"\"", "expected a name of 1 to 255 letters"},
        Mistake{"PortTooLarge", "port: 53", "port: 65536", "from 0 to 65535"},
        Mistake{"HealthPortZero", "type: tcp, port: 80", "type: tcp, port: 0", "from 1 to 65535"},
        Mistake{"UnknownHealth", "type: tcp", "type: ping",
                "expected tcp or http or https or udp or icmp or command, found 'ping'"},
        Mistake{"ShortSeed", "9e3779b97f4a7c15", "9e37", "expected 16 hexadecimal digits"},
        Mistake{"SignedSeed", "9e3779b97f4a7c15", "-e3779b97f4a7c15", "16 hexadecimal digits"},
        Mistake{"RelativeState", "state: /run", "state: run", "expected an absolute path"},
        Mistake{"SocketMode", "dataplane:", "control: {socket_mode: \"0888\"}\ndataplane:",
                "control.socket_mode: expected the rights of a file as octal digits"},
        Mistake{"SameSocketTwice",
                "dataplane:", "control: {socket: /run/a, read_only_socket: /run/a}\ndataplane:",
                "it has the path of the control socket"},
        Mistake{"AddressWithoutPort",
                "dataplane:", "control: {read_only_address: 127.0.0.1}\ndataplane:",
                "expected an address and a port, as in 127.0.0.1:9655"},
        Mistake{"Ipv6AddressWithoutBrackets",
                "dataplane:", "control: {read_only_address: \"::1:9655\"}\ndataplane:",
                "expected an address and a port"},
        Mistake{"ListForMap", "[{name: p1, address: 198.18.3.1}]", "{name: p1}",
                "expected a list, found a map"}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(Configuration, RendezvousIsRefusedWhereItWouldTakeMinutes) {
  Pool pool;
  pool.settings.table_size = 16777213;
  pool.settings.placement = PlacementKind::kRendezvous;
  EXPECT_TRUE(check_pool_fits(pool, 5));
  EXPECT_NE(check_pool_fits(pool, 6).error().find("choose a smaller table_size"),
            std::string::npos);
}

TEST(Configuration, AllMistakesAreToldInOneRun) {
  std::string text = with("port: 53", "port: x");
  text.replace(text.find("198.18.2.11"), 11, "nowhere");
  EXPECT_EQ(mistakes(text).size(), 2u);
}

TEST(Configuration, TheSeedIsNeverToldInAMessage) {
  const auto errors = mistakes(with("9e3779b97f4a7c15", "9e3779b97f4a7c15f"));
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].find("7f4a7c15"), std::string::npos) << errors[0];
}

TEST(Configuration, MoreBackendsThanSlotsAreRefusedAtTheLastOne) {
  const auto pool_of = [](int backends) {
    std::string list;
    for (int i = 0; i < backends; ++i) list += fmt::format("{{name: x{}, address: 10.0.0.1}}, ", i);
    return with("[{name: p1, address: 198.18.3.1}]", "[" + list + "]");
  };
  EXPECT_TRUE(mistakes(pool_of(251)).empty());
  const auto errors = mistakes(pool_of(252));
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_NE(errors[0].find("252 backends of positive weight are more than 251"), std::string::npos)
      << errors[0];
}

TEST(Configuration, CutAtAnyByteItReadsWholeOrNamesAPlaceAndNeverThrows) {
  for (size_t length = 0; length < kGood.size(); ++length) {
    for (const std::string& error : mistakes(kGood.substr(0, length))) {
      EXPECT_EQ(error.substr(0, 11), "maglev.yaml") << error;
    }
  }
  EXPECT_FALSE(mistakes("").empty());
}

TEST(Configuration, AnyByteMayBeReplacedAndNothingIsThrown) {
  for (size_t at = 0; at < kGood.size(); ++at) {
    for (const char byte : {'\0', '\xff', '{', '"', '&', '*', '\t', '\n'}) {
      std::string text = kGood;
      text[at] = byte;
      for (const std::string& error : mistakes(text)) {
        EXPECT_EQ(error.substr(0, 11), "maglev.yaml") << error;
      }
    }
  }
}

}  // namespace
}  // namespace maglev
