#include "tests/packets/case_file.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include <fmt/format.h>

namespace maglev::packets {
namespace {

// A line that starts a step, and the indented ones below it.
struct Block {
  Line head;
  std::vector<Line> body;
  std::string text;  // of the body, as it stands
};

std::string read_text(const std::filesystem::path& file) {
  std::ifstream stream(file);
  std::stringstream text;
  if (!stream || !(text << stream.rdbuf())) {
    throw std::runtime_error(fmt::format("cannot read {}", file.string()));
  }
  return text.str();
}

// Without its comment.
std::vector<std::string> words_of(const std::string& line) {
  std::istringstream stream(line.substr(0, line.find('#')));
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

class Reader {
 public:
  explicit Reader(const std::filesystem::path& file) : file_(file) {
    case_.settings.ports = {{{2, 0, 0, 0, 0, 1}, 1500}, {{2, 0, 0, 0, 0, 2}, 1500}};
    case_.settings.counted_vips = 64;
    case_.settings.counted_backends = 64;
  }

  PacketCase read() {
    for (const Block& block : blocks()) read_block(block);
    return std::move(case_);
  }

 private:
  // The first paragraph is the sentence.
  std::vector<Block> blocks() {
    std::istringstream stream(read_text(file_));
    std::vector<Block> blocks;
    size_t number = 0;
    bool in_sentence = true;
    for (std::string text; std::getline(stream, text);) {
      Line line{fmt::format("{}:{}", file_.filename().string(), ++number), words_of(text)};
      if (in_sentence) {
        in_sentence = !text.empty();
        if (in_sentence) case_.sentence += (case_.sentence.empty() ? "" : " ") + text;
      } else if (text.starts_with(' ')) {
        if (blocks.empty()) fail(line, "an indented line with nothing above");
        blocks.back().text += text + "\n";
        if (!line.words.empty()) blocks.back().body.push_back(std::move(line));
      } else if (!line.words.empty()) {
        blocks.push_back({std::move(line), {}, {}});
      }
    }
    if (!case_.sentence.ends_with('.')) {
      throw std::runtime_error(file_.string() + ": a case opens with a sentence");
    }
    return blocks;
  }

  void read_block(const Block& block) {
    Words words(block.head);
    const std::string& name = block.head.words.front();
    if (name == "use") {
      publish(block.head, read_text(file_.parent_path().parent_path() / "configurations" /
                                    (words.next() + ".yaml")));
    } else if (name == "configuration") {
      publish(block.head, block.text);
    } else if (name == "way") {
      way(words);
    } else if (name == "wait") {
      add(block.head, Wait{words.next_number() * 1'000'000});
      words.flag("ms");
    } else if (name == "receive") {
      receive(block, words);
    } else if (name == "counters") {
      counters(block);
    } else if (std::isdigit(name[0]) != 0 || name == "own") {
      expect(block);
      return;
    } else {
      setting(block.head, name, words);
    }
    words.finish();
  }

  void setting(const Line& line, const std::string& name, Words& words) {
    ReplaySettings& settings = case_.settings;
    if (name == "mtu") {
      const uint64_t mtu = words.next_number();
      for (PortFacts& port : settings.ports) port.mtu = static_cast<uint32_t>(mtu);
    } else if (name == "workers") {
      settings.workers = static_cast<uint32_t>(words.next_number());
    } else if (name == "answers_per_second") {
      settings.answers_per_second = words.next_number();
    } else if (name == "transmit_room") {
      settings.transmit_room = static_cast<uint32_t>(words.next_number());
    } else if (name == "own_buffers") {
      settings.own_buffers = static_cast<uint32_t>(words.next_number());
    } else if (name == "partial_checksums") {
      settings.partial_checksums = true;
    } else {
      fail(line, "no step: " + name);
    }
  }

  template <typename What>
  void add(const Line& line, What what) {
    case_.steps.push_back({line.where, std::move(what)});
  }

  void publish(const Line& line, std::string configuration) {
    add(line, Publish{std::move(configuration), ways_});
  }

  // Of the publications that follow.
  void way(Words& words) {
    WayOut& way = ways_[words.next()];
    way.resolved = !words.flag("unresolved");
    way.on_link = !words.flag("behind_gateway");
    way.path_mtu_bytes = static_cast<uint16_t>(words.value("path_mtu", 0));
    way.port = static_cast<uint16_t>(words.value("port", 0));
  }

  void receive(const Block& block, Words& words) {
    Receive received;
    received.worker = static_cast<uint32_t>(words.value("worker", 0));
    received.port = static_cast<uint16_t>(words.value("port", 0));
    const uint64_t times = words.value("times", 1);
    received.segmented = words.flag("segmented");
    received.frame = encode(block.body, received_);
    for (uint64_t i = 0; i < times; ++i) {
      received_.push_back(received.frame);
      add(block.head, received);
    }
  }

  // "FIRST..LAST OUTCOME" stands for one line each.
  void expect(const Block& block) {
    Expect expected;
    expected.frame = encode(block.body, received_);
    const std::string& numbers = block.head.words.front();
    const size_t dots = numbers.find("..");
    std::string rest;
    for (size_t w = 1; w < block.head.words.size(); ++w) rest += " " + block.head.words[w];
    if (dots == std::string::npos) {
      expected.outcome = numbers + rest;
      add(block.head, expected);
      return;
    }
    const uint64_t last = number(block.head, numbers.substr(dots + 2));
    for (uint64_t i = number(block.head, numbers.substr(0, dots)); i <= last; ++i) {
      expected.outcome = std::to_string(i) + rest;
      add(block.head, expected);
    }
  }

  // "PREFIX: NAME VALUE, NAME VALUE": the prefix, if there is one, belongs to each name.
  void counters(const Block& block) {
    for (const Line& line : block.body) {
      std::string prefix;
      std::vector<std::string> words;
      for (std::string word : line.words) {
        if (word.ends_with(':')) {
          word.pop_back();
          for (const std::string& part : words) prefix += part + " ";
          prefix += word + " ";
          words.clear();
          continue;
        }
        if (word.ends_with(',')) word.pop_back();
        words.push_back(std::move(word));
      }
      if (words.size() % 2 != 0) fail(line, "write NAME VALUE, NAME VALUE");
      for (size_t w = 0; w < words.size(); w += 2) {
        case_.counters[prefix + words[w]] = number(line, words[w + 1]);
      }
    }
  }

  const std::filesystem::path file_;
  PacketCase case_;
  std::map<std::string, WayOut> ways_;
  std::vector<Bytes> received_;
};

}  // namespace

PacketCase read_case(const std::filesystem::path& file) {
  return Reader(file).read();
}

std::string describe(const Outcome& outcome, uint32_t workers) {
  std::string text;
  if (outcome.packet == 0) {
    text = fmt::format("own {}", kOriginNames[static_cast<uint32_t>(outcome.origin)]);
  } else if (outcome.verdict == Verdict::kHeld) {
    text = fmt::format("{} held", outcome.packet);
  } else if (outcome.verdict == Verdict::kHandedOver) {
    text = fmt::format("{} handed_over to worker {}", outcome.packet, outcome.next_worker);
  } else {
    text =
        fmt::format("{} {}", outcome.packet, kVerdictNames[static_cast<uint32_t>(outcome.verdict)]);
  }
  if (!outcome.vip.empty()) text += fmt::format(" for {}", outcome.vip);
  if (!outcome.backend.empty()) text += fmt::format(" at {}/{}", outcome.pool, outcome.backend);
  if (!outcome.frame.empty()) text += fmt::format(" on port {}", outcome.port);
  if (workers > 1) text += fmt::format(" by worker {}", outcome.worker);
  return text;
}

}  // namespace maglev::packets
