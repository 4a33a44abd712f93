// The simulator through its command line, in process.
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <set>
#include <sstream>
#include <thread>

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include "control/simulator_commands.h"
#include "control/simulator_input.h"
#include "tables/maglev.h"

namespace maglev {
namespace {

using nlohmann::json;

struct Outcome {
  int code = 0;
  std::string out;
  std::string err;
};

Outcome run(const std::vector<std::string>& words) {
  CLI::App app;
  app.fallthrough();
  bool as_json = false;
  app.add_flag("--json", as_json);
  std::function<int()> action;
  add_simulator_commands(app, as_json, action);
  std::vector<std::string> reversed(words.rbegin(), words.rend());
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  Outcome outcome;
  try {
    app.parse(reversed);
    outcome.code = action();
  } catch (const CLI::ParseError& error) {
    std::cerr << error.what();
    outcome.code = 2;
  }
  outcome.out = testing::internal::GetCapturedStdout();
  outcome.err = testing::internal::GetCapturedStderr();
  return outcome;
}

json simulated(std::vector<std::string> words) {
  words.insert(words.begin(), {"simulate", "--json"});
  const Outcome outcome = run(words);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return json::parse(outcome.out);
}

void expect_refused(const std::vector<std::string>& words, const std::string& reason) {
  const Outcome outcome = run(words);
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_NE(outcome.err.find(reason), std::string::npos) << outcome.err;
}

class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& text = "") {
    static int count = 0;
    path_ = std::filesystem::temp_directory_path() /
            fmt::format("simulator_test.{}.{}", getpid(), count++);
    std::ofstream(path_, std::ios::binary) << text;
  }
  ~TemporaryFile() { std::filesystem::remove(path_); }
  std::string path() const { return path_.string(); }
  std::string text() const {
    std::ostringstream text;
    text << std::ifstream(path_).rdbuf();
    return text.str();
  }

 private:
  std::filesystem::path path_;
};

TEST(Simulate, TellsTheGoldenMovementOfARing) {
  const json result =
      simulated({"--placement", "ring", "--hash", "sha1-32", "--vnodes", "150", "--nodes",
                 "a,b,c,d", "--add", "e", "--keys", "order:%d", "--count", "100000"});
  EXPECT_EQ(result["moved"], 21660);
  EXPECT_EQ(result["moved_between_unchanged"], 0);
  EXPECT_EQ(result["ideal_moved"], 20000);
  EXPECT_EQ(result["modulo_moved"], 79931);
  EXPECT_NEAR(result["before"]["peak_over_mean"].get<double>(), 1.08016, 1e-5);
  EXPECT_NEAR(result["before"]["spread"].get<double>(), 0.050061, 1e-6);
  ASSERT_EQ(result["before"]["nodes"].size(), 4u);
  const json& d = result["before"]["nodes"][3];
  EXPECT_EQ(d["name"], "d");
  EXPECT_EQ(d["keys"], 27004);
  EXPECT_DOUBLE_EQ(d["share"].get<double>(), 0.27004);
  EXPECT_DOUBLE_EQ(d["wanted"].get<double>(), 0.25);
  EXPECT_EQ(result["after"]["nodes"].size(), 5u);
}

TEST(Simulate, WithoutAChangeNothingMoves) {
  for (const PlacementKind kind : all_placement_kinds()) {
    const json result = simulated({"--placement", std::string(to_text(kind)), "--nodes", "a,b,c",
                                   "--size", "251", "--count", "1000"});
    EXPECT_EQ(result["moved"], 0) << to_text(kind);
    EXPECT_EQ(result["before"], result["after"]) << to_text(kind);
  }
}

TEST(Simulate, WritesTheMaglevTableOwnerByOwner) {
  const TemporaryFile table;
  simulated({"--nodes", "192.0.2.2:80,192.0.2.1:80,192.0.2.3:80", "--size", "7", "--table-out",
             table.path()});
  std::string expected;
  for (const int owner : {3, 3, 1, 2, 2, 1, 1}) expected += fmt::format("192.0.2.{}:80\n", owner);
  EXPECT_EQ(table.text(), expected);
}

TEST(Simulate, CountsBytesAndRequestsWhenTheKeyFileHasThem) {
  const TemporaryFile keys("a\t100\t5\nkey0\t10\t1\nuser:123\t1000\t50\norder:42\t1\t0\n");
  const json result = simulated({"--placement", "rendezvous", "--nodes", "n0,n1,n2,n3", "--remove",
                                 "n3", "--keys-file", keys.path()});
  // By the golden orders: 'a' is the only key of n3, and goes to n2.
  EXPECT_EQ(result["moved"], 1);
  EXPECT_EQ(result["moved_bytes"], 100);
  EXPECT_EQ(result["moved_requests"], 5);
  EXPECT_EQ(result["before"]["nodes"][2]["bytes"], 1000);
  EXPECT_EQ(result["after"]["nodes"][2]["bytes"], 1100);
  EXPECT_EQ(result["after"]["nodes"][2]["requests"], 55);
  EXPECT_EQ(result["flows"], json::parse(R"([{"from": "n3", "to": "n2", "keys": 1}])"));
}

TEST(Simulate, ReadsNodesFromAFile) {
  const TemporaryFile nodes("# racks\nn1 3 z1\n\nn2\tz\n");
  expect_refused({"simulate", "--nodes-file", nodes.path()}, nodes.path() + ":4: weight 'z'");
  const TemporaryFile good("n1 3 z1\nn2 1 z2\n");
  const json result = simulated({"--nodes-file", good.path(), "--replicas", "2"});
  EXPECT_DOUBLE_EQ(result["before"]["nodes"][0]["wanted"].get<double>(), 0.75);
  EXPECT_EQ(result["before"]["nodes"][0]["keys"], 100'000);
  EXPECT_EQ(result["before"]["nodes"][1]["keys"], 100'000);
}

TEST(Simulate, ChangesWeights) {
  const json result = simulated({"--placement", "rendezvous", "--nodes", "a,b", "--weights", "1,1",
                                 "--weight", "b=3", "--hash", "xxh64"});
  EXPECT_DOUBLE_EQ(result["after"]["nodes"][1]["wanted"].get<double>(), 0.75);
  EXPECT_NEAR(result["after"]["nodes"][1]["share"].get<double>(), 0.75, 0.01);
  EXPECT_NEAR(result["moved"].get<double>(), 25'000, 1000);
  EXPECT_EQ(result["ideal_moved"], 25'000);
  EXPECT_EQ(result["flows"].size(), 1u);
}

TEST(Simulate, NamesTheHashThatCounts) {
  const auto hash_of = [](const std::string& placement) {
    return simulated({"--placement", placement, "--nodes", "a,b"})["hash"];
  };
  EXPECT_EQ(hash_of("ring"), "md5-64");
  EXPECT_EQ(hash_of("ketama"), "crc-32");
  EXPECT_EQ(hash_of("slots"), "crc-16");
  const std::string text = run({"simulate", "--placement", "ketama", "--nodes", "a,b"}).out;
  EXPECT_EQ(text.substr(0, text.find('\n')), "ketama, 100000 keys, crc-32");
}

TEST(Simulate, RefusesAHashThatWouldNotCount) {
  for (const char* placement : {"ketama", "slots"}) {
    expect_refused({"simulate", "--placement", placement, "--hash", "xxh64", "--nodes", "a,b"},
                   "has a hash of its own");
    expect_refused({"owner", "--placement", placement, "--hash", "xxh64", "--nodes", "a,b", "k"},
                   "has a hash of its own");
  }
  EXPECT_EQ(run({"simulate", "--placement", "all", "--hash", "xxh64", "--nodes", "a,b"}).code, 0);
}

TEST(Simulate, WarnsOfABusyNodeAndOfALargeMissWave) {
  const Outcome outcome =
      run({"simulate", "--placement", "ring", "--hash", "sha1-32", "--vnodes", "1", "--nodes",
           "a,b,c,d", "--add", "e", "--keys", "order:%d", "--headroom", "0.4"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_NE(outcome.err.find("times the mean"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("47.9 % of the keys miss at once"), std::string::npos) << outcome.err;
  EXPECT_EQ(run({"simulate", "--nodes", "a,b,c,d", "--add", "e", "--headroom", "0.4"}).err, "");
}

TEST(Simulate, ComparesAllPlacementsAndTellsWhichRefuse) {
  const std::vector<std::string> words{"simulate", "--placement", "all",    "--nodes", "a,b,c",
                                       "--remove", "a",           "--size", "4093"};
  const Outcome outcome = run(words);
  EXPECT_EQ(outcome.code, 0);
  for (const PlacementKind kind : all_placement_kinds()) {
    EXPECT_NE(outcome.out.find(to_text(kind)), std::string::npos) << to_text(kind);
  }
  EXPECT_NE(outcome.out.find("jump refused: jump numbers its buckets"), std::string::npos)
      << outcome.out;
  auto as_json = words;
  as_json.push_back("--json");
  const json result = json::parse(run(as_json).out);
  EXPECT_EQ(result["placements"].size(), 7u);
  EXPECT_EQ(result["refused"][0]["placement"], "jump");
}

TEST(Simulate, DrawsSharesAndMovement) {
  const TemporaryFile plot;
  simulated({"--nodes", "a<&>,b", "--add", "c", "--count", "1000", "--plot", plot.path()});
  const std::string svg = plot.text();
  EXPECT_TRUE(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
  EXPECT_NE(svg.find("a&lt;&amp;&gt;"), std::string::npos);
  EXPECT_NE(svg.find("b to c: "), std::string::npos);
  size_t bars = 0;
  for (size_t at = 0; (at = svg.find("<title>", at + 1)) != std::string::npos;) ++bars;
  EXPECT_GE(bars, 5u + 2u);  // two bars before, three after, bands from both to c
}

TEST(Simulate, BadInputIsRefusedWithWhatToDo) {
  expect_refused({"simulate"}, "there is no node");
  expect_refused({"simulate", "--nodes", "a,b,a"}, "two nodes are named 'a'");
  expect_refused({"simulate", "--nodes", "a,,b"}, "empty name");
  expect_refused({"simulate", "--nodes", "a,b", "--weights", "1,0"}, "weight '0'");
  expect_refused({"simulate", "--nodes", "a,b", "--weights", "1,-2"}, "weight '-2'");
  expect_refused({"simulate", "--nodes", "a,b", "--weights", "1,1000001"}, "from 1 to 1000000");
  expect_refused({"simulate", "--nodes", "a,b", "--weights", "1"}, "--weights has 1 for 2 nodes");
  expect_refused({"simulate", "--nodes", "a,b", "--weight", "c=1"}, "'c', which is no node");
  expect_refused({"simulate", "--nodes", "a,b", "--weight", "a"}, "not of the form NODE=VALUE");
  expect_refused({"simulate", "--nodes", "a,b", "--remove", "c"}, "'c', which is no node");
  expect_refused({"simulate", "--nodes", "a,b", "--add", "b"}, "two nodes are named 'b'");
  expect_refused({"simulate", "--nodes", "a,b", "--remove", "a,b"}, "there is no node");
  expect_refused({"simulate", "--nodes", "a,b", "--size", "65536"}, "65521 or 65537");
  expect_refused({"simulate", "--nodes", "a,b,c,d", "--size", "3"}, "cannot each own a slot");
  expect_refused({"simulate", "--nodes", "a,b", "--placement", "rings"},
                 "choose one of maglev, ring, ketama, rendezvous, jump, bounded, slots, modulo, or "
                 "all");
  expect_refused({"simulate", "--nodes", "a,b", "--hash", "md5"}, "choose one of md5-64");
  expect_refused({"simulate", "--nodes", "a,b", "--count", "0"}, "count of 0 keys");
  expect_refused({"simulate", "--nodes", "a,b", "--keys", "order"}, "exactly one %");
  expect_refused({"simulate", "--nodes", "a,b", "--placement", "ring", "--vnodes", "0"}, "vnodes");
  expect_refused({"simulate", "--nodes", "a,b", "--placement", "bounded", "--epsilon", "-1"},
                 "epsilon");
  expect_refused({"simulate", "--nodes", "a,b", "--epsilon", "nan"}, "epsilon nan");
  expect_refused({"simulate", "--nodes", "a,b", "--placement", "all", "--size", "65536"}, "65537");
  expect_refused({"simulate", "--nodes", "a,b", "--weight", "a=2,a=3"}, "names 'a' twice");
  expect_refused({"simulate", "--nodes", "a,b", "--weight", "a=1.5"}, "node 'a': weight '1.5'");
  expect_refused({"simulate", "--nodes", "a,b", "--count", "100000001"}, "from 1 to 100000000");
  expect_refused({"simulate", "--nodes", "a,b", "--replicas", "3"}, "only 2");
  expect_refused({"simulate", "--nodes", "a,b", "--zones", "z,z", "--replicas", "2"}, "only 1");
  expect_refused({"simulate", "--nodes", "a,b", "--placement", "jump", "--weights", "1,2"},
                 "same share");
  expect_refused({"simulate", "--nodes", "a,b", "--placement", "jump", "--remove", "a"},
                 "bucket 0 was 'a' and would become 'b'");
  expect_refused({"simulate", "--nodes", "a, b ,a "}, "two nodes are named 'a'");
  expect_refused({"simulate", "--nodes", "a,b", "--add", "c", "--add", " c"}, "named 'c'");
  expect_refused({"simulate", "--nodes", "a,b\xff"}, "node 2 is not UTF-8");
  expect_refused({"simulate", "--nodes", "a,\xc3\xa9\x01"}, "node 2 is not UTF-8");
  expect_refused({"simulate", "--nodes", "a,b", "--zones", "z,\xc3"}, "node 2 is not UTF-8");
  // U+009B begins a terminal's control sequence, and U+FFFF is no character of XML.
  expect_refused({"simulate", "--nodes", "a,\xc2\x9b"}, "node 2 is not UTF-8");
  expect_refused({"simulate", "--nodes", "a,\xef\xbf\xbf"}, "node 2 is not UTF-8");
  EXPECT_EQ(run({"simulate", "--nodes", "\xc2\xa0,\xef\xbf\xbd,\xf0\x9f\x99\x82"}).code, 0);
  expect_refused({"simulate", "--nodes-file", "/nonexistent/nodes"}, "cannot read");
  expect_refused({"simulate", "--nodes-file", "/"}, "cannot read /: it is a directory");
  expect_refused({"simulate", "--nodes", "a,b", "--keys-file", "/nonexistent/keys"}, "cannot read");
}

TEST(Simulate, APathThatCannotBeLookedAtIsRefusedByItsName) {
  const std::string path(300, 'x');
  expect_refused({"simulate", "--nodes-file", path}, "cannot read " + path + ": File name too");
  expect_refused({"simulate", "--nodes", "a", "--keys-file", path}, "cannot read " + path);
  expect_refused({"simulate", "--nodes", "a", "--plot", path}, "cannot write " + path + ": File");
  expect_refused({"simulate", "--nodes", "a", "--table-out", path}, "cannot write " + path);
}

TEST(Simulate, AnOptionWithoutAValueIsNotTakenForItsAbsence) {
  for (const char* option :
       {"--weights", "--zones", "--epsilon", "--keys-file", "--table-out", "--plot"}) {
    expect_refused({"simulate", "--nodes", "a,b", option, ""}, "its value is empty");
  }
  expect_refused({"simulate", "--nodes-file", ""}, "its value is empty");
}

TEST(Simulate, InputWithoutAnEndIsRefused) {
  for (const char* option : {"--nodes-file", "--keys-file"}) {
    std::vector<std::string> words{"simulate", option, "/dev/zero"};
    if (words[1] == "--keys-file") words.insert(words.end(), {"--nodes", "a,b"});
    expect_refused(words, "/dev/zero:1: the line is longer than 65536 bytes");
  }
  const TemporaryFile keys("a\n" + std::string(65537, 'x') + "\nb\n");
  expect_refused({"simulate", "--nodes", "a,b", "--keys-file", keys.path()}, ":2: the line is");
  const TemporaryFile good("a\n" + std::string(65536, 'x') + "\nb\n");
  EXPECT_EQ(simulated({"--nodes", "a,b", "--keys-file", good.path()})["keys"], 3);
}

TEST(Simulate, ReadsKeysFromAPipe) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  std::thread writer([&] {
    std::string keys;
    for (int i = 0; i < 100'000; ++i) keys += fmt::format("key:{}\n", i);
    for (size_t at = 0; at < keys.size();) {
      const ssize_t written = write(ends[1], keys.data() + at, keys.size() - at);
      if (written <= 0) break;
      at += static_cast<size_t>(written);
    }
    close(ends[1]);
  });
  const json piped =
      simulated({"--nodes", "a,b", "--keys-file", fmt::format("/dev/fd/{}", ends[0])});
  writer.join();
  close(ends[0]);
  EXPECT_EQ(piped["before"], simulated({"--nodes", "a,b"})["before"]);
}

TEST(Simulate, WritesAllFilesOrNone) {
  const TemporaryFile table("as before");
  const std::vector<std::string> words{"simulate", "--nodes",     "a,b",        "--count",
                                       "10",       "--table-out", table.path(), "--plot"};
  const auto refused_with = [&](const std::string& plot, const std::string& reason) {
    auto all = words;
    all.push_back(plot);
    expect_refused(all, reason);
    EXPECT_EQ(table.text(), "as before");
  };
  refused_with("/nonexistent/plot.svg", "cannot write /nonexistent/plot.svg: No such file");
  refused_with("/dev/full", "cannot write /dev/full: No space left on device");
  refused_with("/", "cannot write /: Is a directory");
  refused_with(table.path(), "name the same file");
}

TEST(Simulate, CountsCopiesOfKeysWhereThereAreReplicas) {
  const std::vector<std::string> words{"simulate", "--nodes",    "a,b,c", "--count",
                                       "1000",     "--replicas", "2",     "--placement"};
  auto ring = words;
  ring.push_back("ring");
  EXPECT_NE(run(ring).out.find("moved 0 copies of keys of 2000"), std::string::npos);
  auto all = words;
  all.push_back("all");
  EXPECT_NE(run(all).out.find("of 2000 copies of keys, 0 would move"), std::string::npos);
}

TEST(Simulate, ANumberThatIsNoneIsNotTakenForAnother) {
  for (const char* option : {"--size", "--count", "--vnodes"}) {
    for (const char* text : {"-1", "1e6", "0x10", "", "7 ", "18446744073709551616"}) {
      expect_refused({"simulate", "--nodes", "a,b", option, text},
                     fmt::format("{}: '{}' is not a whole number", option, text));
    }
  }
  for (const char* text : {"-0.1", "1.1", "nan", "inf", "x", ""}) {
    expect_refused({"simulate", "--nodes", "a,b", "--headroom", text},
                   fmt::format("--headroom: '{}' is not a fraction", text));
  }
}

TEST(Simulate, TakesAMillionKeysInSeconds) {
  const auto started = std::chrono::steady_clock::now();
  const Outcome outcome = run({"simulate", "--placement", "rendezvous", "--nodes",
                               "a,b,c,d,e,f,g,h", "--remove", "h", "--count", "1000000"});
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - started;
  EXPECT_EQ(outcome.code, 0);
  EXPECT_LT(took.count(), 20);
  EXPECT_EQ(outcome.err, "") << "no terminal, no progress";
  fmt::print("a million keys took {:.1f} s\n", took.count());
}

TEST(Simulate, TellsATerminalHowFarItIs) {
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
  ASSERT_GE(terminal, 0);
  ASSERT_EQ(grantpt(terminal), 0);
  ASSERT_EQ(unlockpt(terminal), 0);
  const int other_end = open(ptsname(terminal), O_RDWR | O_NOCTTY);
  ASSERT_GE(other_end, 0);
  CLI::App app;
  bool as_json = false;
  std::function<int()> action;
  add_simulator_commands(app, as_json, action);
  app.parse("simulate --placement rendezvous --nodes a,b,c,d,e,f,g,h --count 300000", false);
  testing::internal::CaptureStdout();
  std::fflush(stderr);
  const int stderr_before = dup(STDERR_FILENO);
  dup2(other_end, STDERR_FILENO);
  const int code = action();
  dup2(stderr_before, STDERR_FILENO);
  close(stderr_before);
  EXPECT_NE(testing::internal::GetCapturedStdout(), "");
  EXPECT_EQ(code, 0);
  char shown[4096];
  const ssize_t count = read(terminal, shown, sizeof shown);
  close(other_end);
  close(terminal);
  ASSERT_GT(count, 0);
  const std::string text(shown, static_cast<size_t>(count));
  EXPECT_TRUE(text.starts_with("\rrendezvous: ") && text.ends_with("\r\033[K")) << text;
}

TEST(Simulate, AKeyFilesBadLineIsNamed) {
  const auto error_of = [](std::string_view text) { return parse_keys(text, "keys").error(); };
  EXPECT_EQ(error_of(""), "keys: no key in it");
  EXPECT_EQ(error_of("a\n\nb\n"), "keys:2: the key is empty");
  EXPECT_EQ(error_of("a\t1\t2\nb\tx\t2\n"), "keys:2: 'x' is not a whole number");
  EXPECT_EQ(error_of("a\t1\t-2"), "keys:1: '-2' is not a whole number");
  EXPECT_EQ(error_of("a\t1"),
            "keys:1: 2 fields instead of a key, or a key, bytes and requests "
            "parted by tabs");
  EXPECT_EQ(error_of("a\nb\t1\t2\n"), "keys:2: 3 fields after lines of 1");
  EXPECT_EQ(error_of("a\t9007199254740992\t0\nb\t0\t0\nc\t1\t0\n"),
            "keys:3: all bytes or requests so far are more than 9007199254740992");
  EXPECT_EQ(error_of("a\t18446744073709551615\t1\n"),
            "keys:1: 18446744073709551615 is more than 9007199254740992");
  const auto from_dos = parse_keys("a\t1\t2\r\nb\t3\t4\r\n", "keys");
  ASSERT_TRUE(from_dos) << from_dos.error();
  EXPECT_EQ(from_dos->requests, (std::vector<uint64_t>{2, 4}));
  EXPECT_EQ(parse_keys("a\r\nb\r\n", "keys")->keys, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(parse_keys("a b\nc", "keys")->keys, (std::vector<std::string>{"a b", "c"}));
}

TEST(Owner, TellsHowAKeyIsPlaced) {
  const Outcome outcome =
      run({"owner", "--json", "--placement", "ring", "--vnodes", "16", "--nodes", "n0,n1,n2,n3,n4",
           "--zones", "z1,z1,z2,z3,z2", "--replicas", "3", "café"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const json answer = json::parse(outcome.out);
  EXPECT_EQ(answer["bytes"], "636166c3a9");
  EXPECT_EQ(answer["hash"], 509328852815435076u);
  EXPECT_EQ(answer["position"], 509328852815435076u);
  EXPECT_EQ(answer["owner"], answer["replicas"][0]);
  EXPECT_EQ(answer["replicas"].size(), 3u);
  EXPECT_EQ(answer["next"].size(), 3u);
  std::set<json> nodes(answer["next"].begin(), answer["next"].end());
  nodes.insert(answer["owner"]);
  EXPECT_EQ(nodes.size(), 4u);
}

TEST(Owner, GivesTheSlotOfRedisClusterAndRefusesBadInput) {
  const Outcome outcome =
      run({"owner", "--placement", "slots", "--nodes", "a,b,c", "{user1000}.following"});
  EXPECT_NE(outcome.out.find("slot      3443\nowner     a\n"), std::string::npos) << outcome.out;
  expect_refused({"owner", "--placement", "slot", "--nodes", "a", "k"}, "choose one of");
  expect_refused({"owner", "--nodes", "a", "--replicas", "2", "k"}, "only 1");
  EXPECT_EQ(run({"owner", "--nodes", "a"}).code, 2);
}

}  // namespace
}  // namespace maglev
