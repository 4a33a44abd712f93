#include "tests/packets/packet_text.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <map>
#include <optional>
#include <stdexcept>

#include <fmt/format.h>

namespace maglev::packets {
namespace {

// What a header must know of those in front of it, for the pseudo-header under its checksum.
struct Enclosing {
  Bytes source;
  Bytes destination;
};

// Some bytes, and how a header in front names their kind.
struct Encoded {
  Bytes bytes;
  std::optional<uint8_t> protocol;
  std::optional<uint16_t> ether_type;
};

void append(Bytes& bytes, const Bytes& more) {
  bytes.insert(bytes.end(), more.begin(), more.end());
}

void append(Bytes& bytes, uint64_t value, uint32_t size) {
  for (uint32_t i = size; i-- > 0;) bytes.push_back(static_cast<uint8_t>(value >> (8 * i)));
}

void put16(Bytes& bytes, size_t at, uint64_t value) {
  bytes[at] = static_cast<uint8_t>(value >> 8);
  bytes[at + 1] = static_cast<uint8_t>(value);
}

// RFC 1071, word by word.
uint16_t checksum(const Bytes& bytes) {
  uint64_t sum = 0;
  for (size_t i = 0; i < bytes.size(); ++i) sum += uint64_t{bytes[i]} << (i % 2 == 0 ? 8 : 0);
  while (sum > 0xffff) sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<uint16_t>(~sum);
}

Bytes mac(const Line& line, const std::string& text) {
  Bytes bytes;
  for (size_t at = 0; at < text.size(); at += 3) {
    bytes.push_back(static_cast<uint8_t>(number(line, "0x" + text.substr(at, 2))));
  }
  if (bytes.size() != 6) fail(line, "no MAC address: " + text);
  return bytes;
}

Bytes address(const Line& line, const std::string& text) {
  const bool ipv6 = text.contains(':');
  Bytes bytes(ipv6 ? 16 : 4);
  if (inet_pton(ipv6 ? AF_INET6 : AF_INET, text.c_str(), bytes.data()) != 1) {
    fail(line, "no IP address: " + text);
  }
  return bytes;
}

class Encoder {
 public:
  Encoder(std::span<const Line> lines, std::span<const Bytes> received)
      : lines_(lines), received_(received) {}

  // The lines from here on, with the innermost IP header in front of them.
  Encoded encode(size_t i, const Enclosing* ip) const {
    if (i == lines_.size()) return {};
    using Method = Encoded (Encoder::*)(size_t, Words, const Enclosing*) const;
    static const std::map<std::string, Method> kLayers = {{"eth", &Encoder::eth},
                                                          {"vlan", &Encoder::vlan},
                                                          {"ip4", &Encoder::ip4},
                                                          {"ip6", &Encoder::ip6},
                                                          {"hop_by_hop", &Encoder::options_header},
                                                          {"destination", &Encoder::options_header},
                                                          {"routing", &Encoder::options_header},
                                                          {"fragment", &Encoder::fragment},
                                                          {"ah", &Encoder::ah},
                                                          {"tcp", &Encoder::tcp},
                                                          {"udp", &Encoder::udp},
                                                          {"icmp4", &Encoder::icmp},
                                                          {"icmp6", &Encoder::icmp},
                                                          {"gre", &Encoder::gre},
                                                          {"gue", &Encoder::gue},
                                                          {"data", &Encoder::data},
                                                          {"hex", &Encoder::data},
                                                          {"received", &Encoder::earlier},
                                                          {"quote", &Encoder::earlier},
                                                          {"first", &Encoder::first},
                                                          {"part", &Encoder::part},
                                                          {"padding", &Encoder::padding}};
    const auto layer = kLayers.find(lines_[i].words.front());
    if (layer == kLayers.end()) fail(lines_[i], "no header: " + lines_[i].words.front());
    return (this->*layer->second)(i, Words(lines_[i]), ip);
  }

 private:
  static uint8_t protocol_of(const Line& line, const Encoded& payload, Words& words,
                             const std::string& key) {
    const uint64_t said = words.value(key, payload.protocol.value_or(0));
    if (said == 0 && !payload.protocol) fail(line, fmt::format("say '{}'", key));
    return static_cast<uint8_t>(said);
  }

  static uint16_t ether_type_of(const Encoded& payload, Words& words) {
    return static_cast<uint16_t>(words.value("type", payload.ether_type.value_or(0)));
  }

  // "SOURCE > DESTINATION", if the line begins so.
  static std::pair<std::string, std::string> pair(Words& words, const Line& line) {
    const std::string from = words.next();
    if (words.next() != ">") fail(line, "write SOURCE > DESTINATION");
    return {from, words.next()};
  }

  Encoded eth(size_t i, Words words, const Enclosing* ip) const {
    const Encoded payload = encode(i + 1, ip);
    const uint16_t type = ether_type_of(payload, words);
    Bytes bytes = {2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 8};
    if (!words.empty()) {
      const auto [from, to] = pair(words, lines_[i]);
      bytes = mac(lines_[i], to);
      append(bytes, mac(lines_[i], from));
    }
    words.finish();
    append(bytes, type, 2);
    append(bytes, payload.bytes);
    return {bytes, {}, {}};
  }

  Encoded vlan(size_t i, Words words, const Enclosing* ip) const {
    const Encoded payload = encode(i + 1, ip);
    const uint16_t type = ether_type_of(payload, words);
    const uint64_t priority = words.value("priority", 0);
    const bool drop_eligible = words.flag("drop_eligible");
    const bool service = words.flag("service");
    const uint64_t id = words.next_number();
    words.finish();
    Bytes bytes;
    append(bytes, priority << 13 | uint64_t{drop_eligible} << 12 | id, 2);
    append(bytes, type, 2);
    append(bytes, payload.bytes);
    return {bytes, {}, service ? 0x88a8 : 0x8100};
  }

  Encoded ip4(size_t i, Words words, const Enclosing*) const {
    const auto [from, to] = pair(words, lines_[i]);
    const Enclosing own{address(lines_[i], from), address(lines_[i], to)};
    const Encoded payload = encode(i + 1, &own);
    Bytes options = words.hex_behind("options");
    while (options.size() % 4 != 0) options.push_back(0);
    const uint64_t header = 20 + options.size();
    const uint64_t flags = uint64_t{words.flag("reserved")} << 15 |
                           uint64_t{words.flag("df")} << 14 | uint64_t{words.flag("mf")} << 13;
    Bytes bytes;
    append(bytes, words.value("version", 4) << 4 | words.value("words", header / 4), 1);
    append(bytes, words.value("tos", 0), 1);
    append(bytes, words.value("length", header + payload.bytes.size()), 2);
    append(bytes, words.value("id", 0), 2);
    append(bytes, flags | words.value("offset", 0) / 8, 2);
    append(bytes, words.value("ttl", 64), 1);
    append(bytes, protocol_of(lines_[i], payload, words, "proto"), 1);
    append(bytes, 0, 2);
    append(bytes, own.source);
    append(bytes, own.destination);
    append(bytes, options);
    put16(bytes, 10, words.value("checksum", checksum(bytes)));
    words.finish();
    append(bytes, payload.bytes);
    return {bytes, 4, 0x0800};
  }

  Encoded ip6(size_t i, Words words, const Enclosing*) const {
    const auto [from, to] = pair(words, lines_[i]);
    const Enclosing own{address(lines_[i], from), address(lines_[i], to)};
    const Encoded payload = encode(i + 1, &own);
    Bytes bytes;
    append(
        bytes,
        words.value("version", 6) << 28 | words.value("class", 0) << 20 | words.value("label", 0),
        4);
    append(bytes, words.value("length", payload.bytes.size()), 2);
    append(bytes, protocol_of(lines_[i], payload, words, "next"), 1);
    append(bytes, words.value("hops", 64), 1);
    append(bytes, own.source);
    append(bytes, own.destination);
    words.finish();
    append(bytes, payload.bytes);
    return {bytes, 41, 0x86dd};
  }

  // Hop-by-hop and destination options hold padding alone; a routing header has no segment left.
  Encoded options_header(size_t i, Words words, const Enclosing* ip) const {
    const Encoded payload = encode(i + 1, ip);
    const std::string& kind = lines_[i].words.front();
    Bytes bytes = {protocol_of(lines_[i], payload, words, "next")};
    const uint64_t units = words.value("units", 1);  // of 8 bytes
    append(bytes, words.value("length", units - 1), 1);
    if (kind == "routing") {
      append(bytes, 253, 1);  // a type for experiments (RFC 4727)
    } else {
      append(bytes, 1, 1);  // PadN
      append(bytes, units * 8 - 4, 1);
    }
    bytes.resize(units * 8);
    words.finish();
    append(bytes, payload.bytes);
    const uint8_t number = kind == "hop_by_hop" ? 0 : kind == "routing" ? 43 : 60;
    return {bytes, number, {}};
  }

  Encoded fragment(size_t i, Words words, const Enclosing* ip) const {
    const Encoded payload = encode(i + 1, ip);
    Bytes bytes = {protocol_of(lines_[i], payload, words, "next"), 0};
    append(bytes, words.value("offset", 0) | uint64_t{words.flag("mf")}, 2);
    append(bytes, words.value("id", 0), 4);
    words.finish();
    append(bytes, payload.bytes);
    return {bytes, 44, {}};
  }

  // 12 bytes of authentication data, as HMAC-SHA-1-96 has.
  Encoded ah(size_t i, Words words, const Enclosing* ip) const {
    const Encoded payload = encode(i + 1, ip);
    Bytes bytes = {protocol_of(lines_[i], payload, words, "next"), 4, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1};
    words.finish();
    bytes.resize(24);
    append(bytes, payload.bytes);
    return {bytes, 51, {}};
  }

  // What TCP, UDP and ICMPv6 put under their checksums besides themselves.
  static Bytes with_pseudo_header(const Enclosing& ip, uint8_t protocol, const Bytes& segment) {
    Bytes bytes = ip.source;
    append(bytes, ip.destination);
    append(bytes, segment.size(), 4);
    append(bytes, protocol, 4);
    append(bytes, segment);
    return bytes;
  }

  const Enclosing& need(const Enclosing* ip, size_t i) const {
    if (ip == nullptr) fail(lines_[i], "no IP header in front");
    return *ip;
  }

  Encoded tcp(size_t i, Words words, const Enclosing* ip) const {
    Bytes options = words.hex_behind("options");
    while (options.size() % 4 != 0) options.push_back(0);
    const auto [from, to] = pair(words, lines_[i]);
    Bytes bytes;
    append(bytes, number(lines_[i], from), 2);
    append(bytes, number(lines_[i], to), 2);
    append(bytes, words.value("seq", 1), 4);
    append(bytes, words.value("ack", 0), 4);
    append(bytes, (20 + options.size()) / 4 << 12 | words.value("flags", 0x10), 2);
    append(bytes, words.value("window", 65535), 2);
    append(bytes, 0, 4);  // checksum, urgent pointer
    append(bytes, options);
    append(bytes, encode(i + 1, nullptr).bytes);
    put16(bytes, 16, words.value("checksum", checksum(with_pseudo_header(need(ip, i), 6, bytes))));
    words.finish();
    return {bytes, 6, {}};
  }

  Encoded udp(size_t i, Words words, const Enclosing* ip) const {
    const auto [from, to] = pair(words, lines_[i]);
    const Bytes payload = encode(i + 1, nullptr).bytes;
    Bytes bytes;
    append(bytes, number(lines_[i], from), 2);
    append(bytes, number(lines_[i], to), 2);
    append(bytes, words.value("length", 8 + payload.size()), 2);
    append(bytes, 0, 2);
    append(bytes, payload);
    const uint16_t sum = checksum(with_pseudo_header(need(ip, i), 17, bytes));
    put16(bytes, 6, words.value("checksum", sum == 0 ? 0xffff : sum));
    words.finish();
    return {bytes, 17, {}};
  }

  Encoded icmp(size_t i, Words words, const Enclosing* ip) const {
    const uint8_t protocol = lines_[i].words.front() == "icmp4" ? 1 : 58;
    Bytes bytes;
    append(bytes, words.next_number(), 1);
    append(bytes, words.next_number(), 1);
    append(bytes, 0, 2);
    append(bytes, words.value("rest", 0), 4);
    append(bytes, encode(i + 1, nullptr).bytes);
    const Bytes covered = protocol == 1 ? bytes : with_pseudo_header(need(ip, i), protocol, bytes);
    put16(bytes, 2, words.value("checksum", checksum(covered)));
    words.finish();
    return {bytes, protocol, {}};
  }

  Encoded gre(size_t i, Words words, const Enclosing* ip) const {
    const Encoded payload = encode(i + 1, ip);
    Bytes bytes = {0, 0};
    append(bytes, ether_type_of(payload, words), 2);
    words.finish();
    append(bytes, payload.bytes);
    return {bytes, 47, {}};
  }

  Encoded gue(size_t i, Words words, const Enclosing* ip) const {
    const Encoded payload = encode(i + 1, ip);
    Bytes bytes = {0, protocol_of(lines_[i], payload, words, "proto"), 0, 0};
    words.finish();
    append(bytes, payload.bytes);
    return {bytes, {}, {}};
  }

  Encoded data(size_t i, Words words, const Enclosing* ip) const {
    Bytes bytes;
    if (lines_[i].words.front() == "hex") {
      bytes = words.hex();
    } else {
      const uint64_t first = words.value("from", 0);
      bytes.resize(words.next_number());
      for (size_t n = 0; n < bytes.size(); ++n) bytes[n] = static_cast<uint8_t>(first + n);
    }
    words.finish();
    append(bytes, encode(i + 1, ip).bytes);
    return {bytes, {}, {}};
  }

  // The IP packet of a frame received: with one hop less, or (some first bytes of it) as it was.
  Encoded earlier(size_t i, Words words, const Enclosing*) const {
    const uint64_t n = words.next_number();
    if (n == 0 || n > received_.size()) fail(lines_[i], "no such frame was received");
    const Bytes& frame = received_[n - 1];
    size_t at = 12;
    while (frame[at] == 0x81 || frame[at] == 0x88) at += 4;
    Bytes packet(frame.begin() + static_cast<ptrdiff_t>(at) + 2, frame.end());
    const bool ipv6 = packet[0] >> 4 == 6;
    packet.resize(ipv6 ? 40u + packet[4] * 256u + packet[5] : packet[2] * 256u + packet[3]);
    if (lines_[i].words.front() == "quote") {
      if (!words.empty()) packet.resize(words.next_number());
    } else if (ipv6) {
      --packet[7];
    } else {
      --packet[8];
      put16(packet, 10, 0);
      const Bytes header(packet.begin(), packet.begin() + (packet[0] & 15) * 4);
      put16(packet, 10, checksum(header));
    }
    words.finish();
    return {packet, ipv6 ? 41 : 4, ipv6 ? 0x86dd : 0x0800};
  }

  Encoded first(size_t i, Words words, const Enclosing* ip) const {
    Encoded payload = encode(i + 1, ip);
    const uint64_t length = words.next_number();
    words.finish();
    if (length > payload.bytes.size()) fail(lines_[i], "there are fewer bytes");
    payload.bytes.resize(length);
    return payload;
  }

  // LENGTH bytes from OFFSET on of what follows: the payload of a fragment.
  Encoded part(size_t i, Words words, const Enclosing* ip) const {
    Encoded payload = encode(i + 1, ip);
    const uint64_t offset = words.next_number();
    const uint64_t length = words.next_number();
    words.finish();
    if (offset + length > payload.bytes.size()) fail(lines_[i], "there are fewer bytes");
    const auto start = payload.bytes.begin() + static_cast<ptrdiff_t>(offset);
    payload.bytes = Bytes(start, start + static_cast<ptrdiff_t>(length));
    return payload;
  }

  Encoded padding(size_t i, Words words, const Enclosing* ip) const {
    Encoded payload = encode(i + 1, ip);
    payload.bytes.resize(payload.bytes.size() + words.next_number(), 0xee);
    words.finish();
    return payload;
  }

  std::span<const Line> lines_;
  std::span<const Bytes> received_;
};

}  // namespace

Bytes encode(std::span<const Line> lines, std::span<const Bytes> received) {
  return Encoder(lines, received).encode(0, nullptr).bytes;
}

void fail(const Line& line, const std::string& what) {
  throw std::runtime_error(fmt::format("{}: {}", line.where, what));
}

uint64_t number(const Line& line, const std::string& word) {
  const bool hex = word.starts_with("0x");
  uint64_t value = 0;
  const char* const end = word.data() + word.size();
  const auto [read, error] =
      std::from_chars(word.data() + (hex ? 2 : 0), end, value, hex ? 16 : 10);
  if (error != std::errc{} || read != end) fail(line, "no number: " + word);
  return value;
}

std::string Words::next() {
  if (left_.empty()) fail(line_, "something is missing at the end");
  std::string word = left_.front();
  left_.erase(left_.begin());
  return word;
}

uint64_t Words::value(const std::string& key, uint64_t otherwise) {
  const auto found = std::ranges::find(left_, key);
  if (found == left_.end()) return otherwise;
  if (found + 1 == left_.end()) fail(line_, "no value: " + key);
  const uint64_t value = number(line_, found[1]);
  left_.erase(found, found + 2);
  return value;
}

bool Words::flag(const std::string& word) {
  return std::erase(left_, word) != 0;
}

Bytes Words::hex_behind(const std::string& key) {
  const auto found = std::ranges::find(left_, key);
  Bytes bytes;
  if (found == left_.end()) return bytes;
  for (auto word = found + 1; word != left_.end(); ++word) {
    if (word->size() % 2 != 0) fail(line_, "half a byte: " + *word);
    for (size_t at = 0; at < word->size(); at += 2) {
      bytes.push_back(static_cast<uint8_t>(number(line_, "0x" + word->substr(at, 2))));
    }
  }
  left_.erase(found, left_.end());
  return bytes;
}

Bytes Words::hex() {
  left_.insert(left_.begin(), "hex");
  return hex_behind("hex");
}

void Words::finish() const {
  if (!left_.empty()) fail(line_, "unknown word: " + left_.front());
}

}  // namespace maglev::packets
