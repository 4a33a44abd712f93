// A VIP as the operator wants it: its settings, how they are read and written, and a set of VIPs
// that finds clashes.
//
// One thread at a time; pure, no input or output.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "control/prefix.h"
#include "tables/published.h"
#include "tables/yaml_cursor.h"

namespace maglev {

// Whether the configuration file or the control socket set something.
enum class Source : uint8_t { kFile, kSocket };

template <typename T>
using ByName = std::map<std::string, T, std::less<>>;
template <typename T>
using Named = std::pair<std::string, T>;

// After how long without a packet a flow is forgotten.
struct IdleTimes {
  uint32_t tcp_s = 900;
  uint32_t tcp_closing_s = 60;  // of TCP, once a FIN or RST has passed
  uint32_t udp_s = 120;
  bool operator==(const IdleTimes&) const = default;
};

struct Vip {
  Prefix prefix;
  VipProtocol protocol = VipProtocol::kTcp;
  uint16_t port = kAnyPort;
  std::string pool;
  Encapsulation encapsulation = Encapsulation::kIpInIp;
  uint16_t gue_port = 0;  // 0 unless the encapsulation is GUE
  HashPolicy hash = HashPolicy::kFiveTuple;
  FragmentPolicy fragments = FragmentPolicy::kFlow;
  uint8_t flags = 0;  // VipFlag
  Tracking tracking = Tracking::kChanged;
  IdleTimes idle;  // of no meaning where nothing is tracked
  QuicCidFormat quic;
  Source source = Source::kFile;
  bool operator==(const Vip&) const = default;
};

Named<Vip> read_vip(const YamlCursor& cursor);

bool is_gue(Encapsulation encapsulation);

std::string_view to_text(VipProtocol protocol);
std::string_view to_text(HashPolicy hash);
std::string_view to_text(Encapsulation encapsulation);
std::string_view to_text(FragmentPolicy fragments);
std::string_view to_text(Tracking tracking);
// What the flags say, in the words of the settings of these names.
std::string_view echo_text(uint8_t flags);
std::string_view unserved_ports_text(uint8_t flags);
std::string_view too_big_text(uint8_t flags);

// VIPs by name, and what of them must be looked up to add another one. Looking up costs the
// logarithm of their number, whatever they share.
class VipSet {
 public:
  VipSet() = default;
  explicit VipSet(const ByName<Vip>& vips);

  const ByName<Vip>& all() const { return all_; }

  // Puts it in place of a VIP of the same name, if there is one.
  void put(const std::string& name, const Vip& vip);
  void erase(std::string_view name);

  // Why a VIP of this name cannot stand beside the others: one serves the same already, or one of
  // the same prefix does not agree in what all of them must have alike (VipRecord).
  struct Clash {
    bool same_service = false;
    std::string message;  // names the other one and says what to do
  };
  std::optional<Clash> find_clash(std::string_view name, const Vip& vip) const;

  // Some VIP of encapsulation l2, address family and pool as given; else null.
  const std::string* find_layer2(std::string_view pool, AddressFamily family) const;
  bool uses_gue_port(uint16_t port) const { return gue_ports_.contains(port); }

 private:
  using Service = std::tuple<Prefix, VipProtocol, uint16_t>;  // protocol: TCP or UDP
  using Sharers = std::set<std::string, std::less<>>;

  std::optional<Clash> find_disagreement(const Vip& vip, const std::string& other_name,
                                         bool same_protocol) const;

  ByName<Vip> all_;
  std::map<Service, std::string> services_;
  // VIPs of one prefix that serve TCP, UDP.
  std::map<std::pair<Prefix, VipProtocol>, Sharers> of_prefix_;
  std::map<std::pair<std::string, AddressFamily>, Sharers> layer2_;  // by pool
  std::map<uint16_t, uint32_t> gue_ports_;                           // and how many use them
};

}  // namespace maglev
