"""Each encapsulation of each family in each: real requests are answered, and what the load balancer
puts on its wire is what the VIP says, by tshark and by the counters of maglev-decap."""

import dataclasses
import ipaddress

import expected
import netns
import pytest
import services
from accounts import Account
from capture import (BAD_CHECKSUM, GOOD_CHECKSUM, GUE_PORT, NO_CHECKSUM, OTHER_GUE_PORT, Capture,
                     dissect, write_packets)
from dual_stack import FAMILIES, DualStack, of_family, vip_address
from http_client import fetch
from network import CLIENT_ADDRESSES, lan_address

REQUESTS = 12
BODY = b"x" * 3001
# By the outer family: what is around the packet, as tshark calls it, and its bytes.
AROUND = {
    "ipip": {4: ("ip", 20), 6: ("ipv6", 40)},
    "gre": {4: ("ip:gre", 24), 6: ("ipv6:gre", 44)},
    "gue": {4: ("ip:udp", 32), 6: ("ipv6:udp", 52)},
    "gue1": {4: ("ip:udp", 28), 6: ("ipv6:udp", 48)},
    "gue-plain": {4: ("ip:udp", 32), 6: ("ipv6:udp", 52)},
    "gue1-plain": {4: ("ip:udp", 28), 6: ("ipv6:udp", 48)},
    "l2": {4: ("", 0), 6: ("", 0)},
}
PLAIN = "-plain"  # without a checksum over IPv6 either, and on a port of the operator's choice


def is_plain(encapsulation):
    return encapsulation.endswith(PLAIN)


def gue_port(encapsulation):
    return OTHER_GUE_PORT if is_plain(encapsulation) else GUE_PORT


def settings_of(encapsulation):
    if not is_plain(encapsulation):
        return {"encapsulation": encapsulation}
    return {"encapsulation": encapsulation.removesuffix(PLAIN), "gue_port": OTHER_GUE_PORT,
            "outer_checksum": False}


# Encapsulation, outer family, inner family.
KINDS = [(encapsulation, outer, inner) for encapsulation in AROUND for outer in FAMILIES
         for inner in FAMILIES if encapsulation != "l2" or outer == inner]
VIPS = {kind: vip_address(kind[2], 10 + number) for number, kind in enumerate(KINDS)}
# Of all that leaves the load balancer: tunnels, and what goes to VIPs.
FILTER = ("ip proto 4 or ip proto 41 or ip proto 47 or ip6 proto 4 or ip6 proto 41 or ip6 proto 47 "
          f"or udp port {GUE_PORT} or udp port {OTHER_GUE_PORT} or dst net 198.51.100.0/24 "
          "or dst net 2001:db8:100::/64")
OUTER_FIELDS = ["frame.protocols", "ip.src", "ip.dst", "ipv6.src", "ipv6.dst", "ipv6.flow",
                "udp.srcport", "udp.dstport", "udp.checksum"]
INNER_FIELDS = ["ip.ttl", "ipv6.hlim", "ip.dst", "ipv6.dst", "ip.src", "ipv6.src", "tcp.srcport"]


def name_of(kind):
    return "-".join(map(str, kind))


@dataclasses.dataclass
class Traffic:
    """Of one kind: the requests, what the VIP counted, and the frames as tshark sees them."""

    requests: list
    forwarded: int = 0
    outer: list = dataclasses.field(default_factory=list)
    inner: list = dataclasses.field(default_factory=list)


@pytest.fixture(scope="module")
def lab(make_shared_lab):
    lab = make_shared_lab(network=DualStack, servers=services.WEB)
    lab.decap_arguments = [word for port in (GUE_PORT, OTHER_GUE_PORT)
                           for word in ("--gue-port", str(port))]
    services.start(lab, [
        services.vip(name_of(kind), VIPS[kind], f"web-{kind[1]}", **settings_of(kind[0]))
        for kind in KINDS])
    return lab


def send_requests(lab, kind):
    with netns.inside(lab.network.namespace("client")):
        return Traffic([fetch(of_family(kind[2], CLIENT_ADDRESSES[n % 8]), 40000 + n, VIPS[kind],
                              body=BODY) for n in range(REQUESTS)])


def split(frame):
    """The kind that a frame is, by the VIP inside, and the packet inside."""
    for kind, address in VIPS.items():
        encapsulation, outer, inner = kind
        packet = frame[14 + AROUND[encapsulation][outer][1]:]
        destination = packet[16:20] if inner == 4 else packet[24:40]
        if destination == ipaddress.ip_address(address).packed:
            return kind, packet
    raise AssertionError(f"of no kind: {frame.hex()}")


def segment_of(packet):
    """What the load balancer may not change: addresses, and all behind the IP header."""
    length = int.from_bytes(packet[2:4]) if packet[0] >> 4 == 4 else 40 + int.from_bytes(packet[4:6])
    return packet[12:length] if packet[0] >> 4 == 4 else packet[8:length]


@pytest.fixture(scope="module")
def traffic(lab):
    """By kind. tshark takes long to start, so all kinds go into one capture."""
    with (Capture(lab, "lan0-lb", FILTER, "out") as arriving,  # the longest, to miss nothing
          Capture(lab, "lan0-lb", FILTER) as capture, Account(lab) as account):
        by_kind = {kind: send_requests(lab, kind) for kind in KINDS}
    assert account.verdicts == {"forwarded": account.received}
    for kind, one in by_kind.items():
        one.forwarded = account.forwarded("vips")[name_of(kind)]
    arrived = {segment_of(frame[14:]) for frame in arriving.frames()}
    kinds, packets = zip(*map(split, capture.frames()))
    # So TCP checksums are as right as their senders made them.
    for packet in packets:
        assert segment_of(packet) in arrived, f"changed on its way: {packet.hex()}"
    inner = lab.directory / "inner.pcap"
    write_packets(inner, packets)
    for kind, *rows in zip(kinds, dissect(capture.path, OUTER_FIELDS), dissect(inner, INNER_FIELDS),
                           strict=True):
        by_kind[kind].outer.append(rows[0])
        by_kind[kind].inner.append(rows[1])
    return by_kind


def field(row, family, name):
    """A field that IPv4 and IPv6 share; of several headers, the outermost."""
    return row[f"{'ip' if family == 4 else 'ipv6'}.{name}"].split(",")[0]


@pytest.mark.parametrize("kind", KINDS, ids=name_of)
def test_requests_are_answered_by_the_right_server_and_counted(traffic, kind):
    slots = expected.table(expected.EQUAL_WEIGHTS)
    for request in traffic[kind].requests:
        owner = slots[expected.tcp_slot(request.source, request.source_port, VIPS[kind])]
        assert request.server == owner, (request, owner)
    assert traffic[kind].forwarded == len(traffic[kind].outer) > REQUESTS * 5


@pytest.mark.parametrize("kind", KINDS, ids=name_of)
def test_the_wire_shows_the_encapsulation_and_nothing_malformed(lab, traffic, kind):
    encapsulation, outer, inner = kind
    around = AROUND[encapsulation][outer][0]
    inside = "ip:tcp" if inner == 4 else "ipv6:tcp"
    expected = "eth:ethertype:" + (around if around.endswith("udp")
                                   else f"{around}:{inside}".lstrip(":"))
    zero_over_ipv6 = outer == 6 and is_plain(encapsulation)
    both = traffic[kind].outer + traffic[kind].inner
    assert not any(row["_ws.malformed"] for row in both)
    for row in traffic[kind].inner if zero_over_ipv6 else both:
        assert BAD_CHECKSUM not in row["ip.checksum.status"] + row["udp.checksum.status"], row
    backends = {lab.network.address(server, outer) for server in services.WEB}
    for row in traffic[kind].outer:
        assert row["frame.protocols"].startswith(expected), row
        if encapsulation == "l2":
            continue
        assert field(row, outer, "src") == of_family(outer, lan_address(0, 2))
        assert field(row, outer, "dst") in backends
        if encapsulation.startswith("gue"):
            assert row["udp.dstport"] == str(gue_port(encapsulation))
            if zero_over_ipv6:  # which tshark calls bad: it does not know RFC 6935
                assert row["udp.checksum"] == "0x0000"
            else:
                assert row["udp.checksum.status"] == (NO_CHECKSUM if outer == 4 else GOOD_CHECKSUM)
    for row in traffic[kind].inner:
        assert field(row, inner, "dst") == VIPS[kind]
        # One off at the router, one at the load balancer.
        assert field(row, inner, "ttl" if inner == 4 else "hlim") == "62"


def has_entropy(encapsulation, outer, _):
    """Something of the outer header is chosen by the flow: a port or the flow label."""
    return encapsulation.startswith("gue") or (outer == 6 and encapsulation != "l2")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if has_entropy(*kind)], ids=name_of)
def test_outer_headers_differ_between_flows_and_not_within_one(traffic, kind):
    encapsulation, outer, inner = kind
    entropy = {}
    for around, inside in zip(traffic[kind].outer, traffic[kind].inner):
        flow = field(inside, inner, "src"), inside["tcp.srcport"]
        said = (around["ipv6.flow"].split(",")[0] if outer == 6 else "", around["udp.srcport"])
        entropy.setdefault(flow, set()).add(said)
    assert len(entropy) == REQUESTS
    assert all(len(said) == 1 for said in entropy.values()), entropy
    assert len(set.union(*entropy.values())) == REQUESTS


def test_backends_unwrapped_every_packet_and_refused_none(lab, traffic):
    counters = services.decap_counters(lab)
    assert counters == {"unwrapped": sum(one.forwarded for kind, one in traffic.items()
                                         if kind[0] != "l2")}
