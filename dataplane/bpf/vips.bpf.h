/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The VIPs and the question both programs ask of a frame: is it for a worker? Whatever goes to a
 * VIP's address is, but for
 * - neighbour discovery, as ARP does not ask the workers either;
 * - echo requests, where the address leaves them to the kernel;
 * - where it leaves the unserved to the kernel: ports of TCP and UDP that no VIP of the address
 *   serves, other protocols, and ICMP other than errors and echo requests.
 *
 * ICMP errors belong to a flow, so they are always a worker's. Of a datagram in fragments all but
 * the first have no port: of TCP and UDP they are the worker's, of ICMP they go where echo requests
 * go, for no error is that long. What cannot be read (a header cut short or of a length that cannot
 * be, more than kMaxExtensionHeaders) is the worker's, who counts it. */
#pragma once

#include <linux/bpf.h>

#include <linux/ip.h>
#include <linux/ipv6.h>

#include "dataplane/bpf/ethernet.bpf.h"
#include "dataplane/bpf/transport.bpf.h"
#include "dataplane/bpf/vip_maps.h"

enum { kMaxVipPrefixes = 65536, kMaxServices = 131072 };

struct {
  __uint(type, BPF_MAP_TYPE_LPM_TRIE);
  __uint(map_flags, BPF_F_NO_PREALLOC);
  __uint(max_entries, kMaxVipPrefixes);
  __type(key, struct Prefix4Key);
  __type(value, struct VipRule);
} vips4 SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_LPM_TRIE);
  __uint(map_flags, BPF_F_NO_PREALLOC);
  __uint(max_entries, kMaxVipPrefixes);
  __type(key, struct Prefix6Key);
  __type(value, struct VipRule);
} vips6 SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(map_flags, BPF_F_NO_PREALLOC);
  __uint(max_entries, kMaxServices);
  __type(key, struct ServiceKey);
  __type(value, __u8);
} services SEC(".maps");

/* RFC 792 */
enum {
  kUnreachable4 = 3,
  kSourceQuench4 = 4,
  kRedirect4 = 5,
  kEcho4 = 8,
  kTimeExceeded4 = 11,
  kParameterProblem4 = 12,
};

/* RFC 4443, and RFC 4861 for neighbour discovery, whose hop limit no router lets through. */
enum {
  kFirstInformation6 = 128,
  kEcho6 = 128,
  kRouterSolicitation6 = 133,
  kRedirect6 = 137,
  kNeighbourHopLimit = 255,
};

static __always_inline int is_icmp_error(int is_ipv6, __u8 type) {
  if (is_ipv6) return type < kFirstInformation6;
  return type == kUnreachable4 || type == kSourceQuench4 || type == kRedirect4 ||
         type == kTimeExceeded4 || type == kParameterProblem4;
}

static __always_inline int is_served(__u32 prefix_id, __u8 protocol, __be16 port) {
  struct ServiceKey key = {.prefix_id = prefix_id, .port_be = port, .protocol = protocol};
  if (bpf_map_lookup_elem(&services, &key)) return 1;
  key.port_be = 0;
  return bpf_map_lookup_elem(&services, &key) != 0;
}

static __always_inline int is_icmp_for_worker(const struct VipRule* rule, int is_ipv6,
                                              const struct Transport* transport, const void* data,
                                              const void* end) {
  const __u8* type = data + transport->at;
  int echo_is_for_worker = !(rule->flags & kRuleEchoToKernel);
  if (transport->is_later_fragment) return echo_is_for_worker;
  if ((const void*)(type + 1) > end) return 1;
  if (*type == (is_ipv6 ? kEcho6 : kEcho4)) return echo_is_for_worker;
  if (is_icmp_error(is_ipv6, *type)) return 1;
  return !(rule->flags & kRuleUnservedToKernel);
}

static __always_inline int is_flow_for_worker(const struct VipRule* rule,
                                              const struct Transport* transport, const void* data,
                                              const void* end) {
  const __be16* ports = data + transport->at;
  if (!(rule->flags & kRuleUnservedToKernel)) return 1;
  if (transport->protocol != IPPROTO_TCP && transport->protocol != IPPROTO_UDP) return 0;
  if (transport->is_later_fragment || (const void*)(ports + 2) > end) return 1;
  return is_served(rule->prefix_id, transport->protocol, ports[1]);
}

static __always_inline int is_for_worker4(const struct iphdr* ip, __u32 at, const void* data,
                                          const void* end) {
  struct Prefix4Key key = {.prefix_length = 32};
  struct Transport transport = {};
  __builtin_memcpy(key.address, &ip->daddr, sizeof(key.address));
  const struct VipRule* rule = bpf_map_lookup_elem(&vips4, &key);
  if (!rule) return 0;
  if (rule->flags == 0 || !find_transport4(ip, at, &transport)) return 1;
  if (transport.protocol == IPPROTO_ICMP) return is_icmp_for_worker(rule, 0, &transport, data, end);
  return is_flow_for_worker(rule, &transport, data, end);
}

static __always_inline int is_neighbour_discovery(const struct ipv6hdr* ip, const void* end) {
  const __u8* type = (const void*)(ip + 1);
  return ip->nexthdr == IPPROTO_ICMPV6 && ip->hop_limit == kNeighbourHopLimit &&
         (const void*)(type + 1) <= end && *type >= kRouterSolicitation6 && *type <= kRedirect6;
}

static __always_inline int is_for_worker6(const struct ipv6hdr* ip, __u32 at, const void* data,
                                          const void* end) {
  struct Prefix6Key key = {.prefix_length = 128};
  struct Transport transport = {};
  __builtin_memcpy(key.address, &ip->daddr, sizeof(key.address));
  const struct VipRule* rule = bpf_map_lookup_elem(&vips6, &key);
  if (!rule || is_neighbour_discovery(ip, end)) return 0;
  if (rule->flags == 0 || !find_transport6(ip, at, data, end, &transport)) return 1;
  if (transport.protocol == IPPROTO_ICMPV6)
    return is_icmp_for_worker(rule, 1, &transport, data, end);
  return is_flow_for_worker(rule, &transport, data, end);
}

/* Frames cut short before the end of the IP header are for nobody: the kernel drops them without an
 * answer. */
static __always_inline int is_for_worker(const void* data, const void* end) {
  __be16 ethertype = 0;
  __u32 link_length = link_header_length(data, end, &ethertype);
  if (link_length == 0) return 0;
  if (ethertype == bpf_htons(ETH_P_IP)) {
    const struct iphdr* ip = data + link_length;
    return (const void*)(ip + 1) <= end && is_for_worker4(ip, link_length, data, end);
  }
  if (ethertype == bpf_htons(ETH_P_IPV6)) {
    const struct ipv6hdr* ip = data + link_length;
    return (const void*)(ip + 1) <= end && is_for_worker6(ip, link_length, data, end);
  }
  return 0;
}
