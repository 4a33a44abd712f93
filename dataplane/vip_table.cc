#include "dataplane/vip_table.h"

#include <algorithm>
#include <bit>
#include <set>

#include "dataplane/packet.h"

namespace maglev {
namespace {

// The bits beyond the prefix become zero.
std::array<uint8_t, 16> masked(const uint8_t* address, uint32_t bytes, uint32_t prefix_length) {
  std::array<uint8_t, 16> result{};
  const uint32_t whole = prefix_length / 8;
  std::copy_n(address, std::min(bytes, whole + 1), result.begin());
  if (whole < bytes) {
    result[whole] &= static_cast<uint8_t>(0xff00u >> prefix_length % 8);
  }
  return result;
}

// The prefix length is part of a key, except of whole addresses.
uint64_t key4_of(const uint8_t* address, uint32_t length, uint16_t port_be, uint8_t protocol) {
  const uint64_t key = VipTable::key4(load<uint32_t>(address) | uint64_t{port_be} << 48, protocol);
  return length == 32 ? key : key | uint64_t{length} << 40;
}
uint64_t length_bits6(uint32_t length) {
  return length == 128 ? 0 : uint64_t{length} << 24;
}

std::span<const uint8_t> protocols_of(VipProtocol protocol) {
  static constexpr uint8_t kBoth[] = {kProtocolTcp, kProtocolUdp};
  switch (protocol) {
    case VipProtocol::kTcp:
      return {kBoth, 1};
    case VipProtocol::kUdp:
      return {kBoth + 1, 1};
    case VipProtocol::kTcpAndUdp:
      break;
  }
  return kBoth;
}

template <typename Lengths>
uint32_t fill_lengths(const std::set<uint8_t, std::greater<>>& in_use, Lengths& lengths) {
  std::ranges::copy(in_use, lengths.begin());
  return static_cast<uint32_t>(in_use.size());
}

}  // namespace

void VipTable::build(std::span<const VipRecord> records, std::span<const VipEntry> entries) {
  vips_.assign(entries.begin(), entries.end());
  addresses_.reserve(records.size());
  std::set<uint8_t, std::greater<>> lengths4, lengths6;
  size_t keys4 = 0, keys6 = 0;
  for (const VipRecord& record : records) {
    const bool ipv6 = record.family == AddressFamily::kIpv6;
    (ipv6 ? lengths6 : lengths4).insert(record.prefix_length);
    (ipv6 ? keys6 : keys4) += 3;  // at most: TCP, UDP, the address
  }
  length_count4_ = fill_lengths(lengths4, lengths4_);
  length_count6_ = fill_lengths(lengths6, lengths6_);
  table4_.resize(std::bit_ceil(std::max<size_t>(2, 2 * keys4)));
  table6_.resize(std::bit_ceil(std::max<size_t>(2, 2 * keys6)));
  shift4_ = 64 - static_cast<uint32_t>(std::countr_zero(table4_.size()));
  shift6_ = 64 - static_cast<uint32_t>(std::countr_zero(table6_.size()));
  for (uint32_t i = 0; i < records.size(); ++i) {
    for (const uint8_t protocol : protocols_of(records[i].protocol)) {
      insert(records[i], __builtin_bswap16(records[i].port), protocol, i);
    }
    add_address(records[i], vips_[i]);
  }
}

void VipTable::insert(const VipRecord& record, uint16_t port_be, uint8_t protocol, uint32_t index) {
  const uint8_t* address = record.address.bytes.data();
  if (record.family == AddressFamily::kIpv4) {
    const uint64_t key = key4_of(address, record.prefix_length, port_be, protocol);
    size_t b = bucket4(key);
    while (table4_[b].key != 0) b = (b + 1) & (table4_.size() - 1);
    table4_[b] = {key, index};
    return;
  }
  const uint64_t high = load<uint64_t>(address), low = load<uint64_t>(address + 8);
  const uint64_t key = key6(port_be, protocol) | length_bits6(record.prefix_length);
  size_t b = bucket6(high, low, key);
  while (table6_[b].key != 0) b = (b + 1) & (table6_.size() - 1);
  table6_[b] = {high, low, key, index};
}

void VipTable::add_address(const VipRecord& record, const VipEntry& vip) {
  const bool ipv6 = record.family == AddressFamily::kIpv6;
  uint32_t index =
      find_in_prefix(ipv6, record.address.bytes.data(), record.prefix_length, 0, kAddressMark);
  if (index == kNone) {
    index = static_cast<uint32_t>(addresses_.size());
    addresses_.emplace_back();
    insert(record, 0, kAddressMark, index);
  }
  AddressEntry& address = addresses_[index];
  address.echo_to_kernel = (record.flags & kVipEchoToKernel) != 0;
  address.unserved_to_kernel = (record.flags & kVipUnservedToKernel) != 0;
  if (record.fragment_policy == FragmentPolicy::kFlow) {
    address.fragments_by_flow = true;
    return;
  }
  if (record.protocol != VipProtocol::kUdp) address.tcp_fragments = &vip;
  if (record.protocol != VipProtocol::kTcp) address.udp_fragments = &vip;
}

uint32_t VipTable::find4_index(uint64_t key) const {
  for (size_t b = bucket4(key);; b = (b + 1) & (table4_.size() - 1)) {
    if (table4_[b].key == key) return static_cast<uint32_t>(table4_[b].index);
    if (table4_[b].key == 0) return kNone;
  }
}

uint32_t VipTable::find_in_prefix(bool ipv6, const uint8_t* address, uint32_t length,
                                  uint16_t port_be, uint8_t protocol) const {
  const auto prefix = masked(address, ipv6 ? 16 : 4, length);
  if (!ipv6) return find4_index(key4_of(prefix.data(), length, port_be, protocol));
  return find6_index(load<uint64_t>(prefix.data()), load<uint64_t>(prefix.data() + 8),
                     key6(port_be, protocol) | length_bits6(length));
}

Service VipTable::find(bool ipv6, const uint8_t* address, uint16_t port_be,
                       uint8_t protocol) const {
  const uint8_t* lengths = ipv6 ? lengths6_.data() : lengths4_.data();
  const uint32_t count = ipv6 ? length_count6_ : length_count4_;
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t mark = find_in_prefix(ipv6, address, lengths[i], 0, kAddressMark);
    if (mark == kNone) continue;
    uint32_t vip = find_in_prefix(ipv6, address, lengths[i], port_be, protocol);
    if (vip == kNone) vip = find_in_prefix(ipv6, address, lengths[i], kAnyPort, protocol);
    return {vip == kNone ? nullptr : &vips_[vip], &addresses_[mark]};
  }
  return {};
}

}  // namespace maglev
