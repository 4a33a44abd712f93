"""VIPs of every shape, what becomes of what none of them serves, and tagged frames."""

import contextlib
import socket
import socketserver

import expected
import netns
import pytest
import services
from accounts import Account
from capture import Capture
from dual_stack import FAMILIES, DualStack, of_family, vip_address
from http_client import fetch
from lab import UDP_PORT
from network import CLIENT_ADDRESSES
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import GRE
from scapy.packet import Raw
from servers import FAMILY, Answerers, digest, serving
from wire import Wire

ANY, BOTH, TCP_ALONE, LEFT_TO_KERNEL = 10, 12, 14, 16
PREFIX = {4: "198.51.100.64/26", 6: "2001:db8:100::1:0/112"}
IN_PREFIX = {4: [f"198.51.100.{n}" for n in (64, 70, 100, 127)],
             6: [f"2001:db8:100::1:{n}" for n in ("0", "1", "7fff", "ffff")]}
NAMED_IN_PREFIX = {4: "198.51.100.71", 6: "2001:db8:100::1:2"}
SSH = 22


@pytest.fixture(scope="module")
def lab(make_shared_lab):
    lab = make_shared_lab(network=DualStack, servers=services.WEB)
    vips = []
    for family in FAMILIES:
        pool, single = f"web-{family}", f"single-{family}"

        def add(name, address, pool_name, *service, **settings):
            vips.append(services.vip(f"{name}-{family}", address, pool_name, *service, **settings))

        add("any", vip_address(family, ANY), pool, "udp", "any")
        add("named-port", vip_address(family, ANY), single, "udp", UDP_PORT)
        add("both", vip_address(family, BOTH), pool, "tcp_and_udp", 80)
        add("prefix", PREFIX[family], pool)
        add("named-address", NAMED_IN_PREFIX[family], single)
        add("tcp", vip_address(family, TCP_ALONE), pool)
        add("to-kernel", vip_address(family, LEFT_TO_KERNEL), pool, unserved_ports="kernel")
        netns.run("ip", "-n", lab.network.namespace("lb"), "address", "add",
                  vip_address(family, LEFT_TO_KERNEL), "dev", "lo")
    services.start(lab, vips, services.pools_of_both_families(lab, "single", ["b1"]))
    with contextlib.ExitStack() as stack:
        for port in (UDP_PORT, 80, UDP_PORT + 1):
            stack.enter_context(Answerers(lab.network, services.WEB, port))
        yield lab


def ask_many(lab, family, address, port, count=24):
    """Which servers answer as many flows."""
    servers = set()
    for n in range(count):
        with services.question(lab, family, address, port) as asking:
            asking.send(b"%d" % n)
            server, received = services.answer_to(asking)
        assert received == digest(b"%d" % n)
        servers.add(server)
    return servers


def fetch_many(lab, family, address, count=24):
    with netns.inside(lab.network.namespace("client")):
        requests = [fetch(of_family(family, CLIENT_ADDRESSES[n % 8]), 0, address)
                    for n in range(count)]
    assert not [request for request in requests if request.error]
    return {request.server for request in requests}


@pytest.mark.parametrize("family", FAMILIES)
def test_any_port_of_an_address_is_served_but_for_those_that_another_vip_names(lab, family):
    address = vip_address(family, ANY)
    with Account(lab) as account:
        assert ask_many(lab, family, address, UDP_PORT + 1) == set(services.WEB)
        assert ask_many(lab, family, address, 80) == set(services.WEB)
        assert ask_many(lab, family, address, UDP_PORT) == {"b1"}
    assert account.verdicts == {"forwarded": 72}
    assert account.forwarded("vips") == {f"any-{family}": 48, f"named-port-{family}": 24}


@pytest.mark.parametrize("family", FAMILIES)
def test_one_vip_serves_tcp_and_udp(lab, family):
    address = vip_address(family, BOTH)
    with Account(lab) as account:
        assert ask_many(lab, family, address, 80) == set(services.WEB)
        assert fetch_many(lab, family, address) == set(services.WEB)
    assert account.forwarded("vips") == {f"both-{family}": account.received}
    assert account.verdicts == {"forwarded": account.received}


@pytest.mark.parametrize("family", FAMILIES)
def test_all_addresses_of_a_prefix_are_served_but_for_that_of_a_longer_one(lab, family):
    with Account(lab) as account:
        for address in IN_PREFIX[family]:
            assert fetch_many(lab, family, address) == set(services.WEB)
        assert fetch_many(lab, family, NAMED_IN_PREFIX[family]) == {"b1"}
    assert set(account.forwarded("vips")) == {f"prefix-{family}", f"named-address-{family}"}
    assert account.verdicts == {"forwarded": account.received}


@pytest.mark.parametrize("family", FAMILIES)
def test_what_no_vip_of_the_address_serves_is_dropped_and_counted(lab, family):
    address = vip_address(family, TCP_ALONE)
    source = of_family(family, CLIENT_ADDRESSES[0])
    ip = IP(src=source, dst=address) if family == 4 else IPv6(src=source, dst=address)
    with Account(lab) as account, Wire(lab) as wire:
        for _ in range(5):
            wire.send(bytes(ip / UDP(sport=1, dport=80) / Raw(b"x")))
        for _ in range(3):
            wire.send(bytes(ip / GRE() / Raw(b"x")))
        with netns.inside(lab.network.namespace("client")), \
                socket.socket(FAMILY[family]) as connection:
            connection.settimeout(0.2)
            with pytest.raises(TimeoutError):
                connection.connect((address, SSH))
    assert account.verdicts == {"unserved_port": 6, "unsupported_protocol": 3}
    assert account.events == {}


class Door(socketserver.BaseRequestHandler):
    def handle(self):
        self.request.sendall(b"the load balancer")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_kernel_has_unserved_ports_where_the_vip_says_so(lab, family):
    address = vip_address(family, LEFT_TO_KERNEL)
    door = serving(lab.network.namespace("lb"), socketserver.ThreadingTCPServer, address, SSH, Door)
    with Account(lab) as account, door:
        with netns.inside(lab.network.namespace("client")):
            connection = socket.create_connection((address, SSH), 3)
        with connection:
            assert connection.recv(100) == b"the load balancer"
    assert account.received == 0
    with Account(lab) as account:
        assert fetch_many(lab, family, address) == set(services.WEB)
    assert account.forwarded("vips") == {f"to-kernel-{family}": account.received}


TAGGED = {  # what comes in front of the EtherType of IP, and the tag that leaves
    "802.1Q": ("8100 6064", "8100 6064"),
    "priority tag": ("8100 a000", "8100 a000"),
    "802.1ad and 802.1Q": ("88a8 0007 8100 6064", "8100 6064"),
}


def tagged_datagram(family, source_port):
    ip = (IP(src=CLIENT_ADDRESSES[0], dst=vip_address(4, BOTH), ttl=9) if family == 4 else
          IPv6(src=of_family(6, CLIENT_ADDRESSES[0]), dst=vip_address(6, BOTH), hlim=9))
    return bytes(ip / UDP(sport=source_port, dport=80) / Raw(b"tagged"))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tags", TAGGED)
def test_tagged_frames_leave_with_one_tag(lab, tags, family):
    came, leaves = (bytes.fromhex(tag) for tag in TAGGED[tags])
    packet = tagged_datagram(family, 25000)
    client = services.question(lab, family, vip_address(family, BOTH), 80, 25000,
                               of_family(family, CLIENT_ADDRESSES[0]))
    with Capture(lab, "lan0-lb", "vlan") as capture, Account(lab) as account, client:
        with Wire(lab) as wire:
            wire.send(packet, came)
        if tags == "priority tag":  # no VLAN: the server takes it
            assert services.answer_to(client)[1] == digest(b"tagged")
    assert account.verdicts == {"forwarded": 1}
    frame, = capture.frames()
    assert frame[12:16] == leaves
    outer, inner = ((IP(frame[18:38]), frame[38:]) if family == 4 else
                    (IPv6(frame[18:58]), frame[58:]))
    assert outer.src == of_family(family, "198.18.2.2")
    assert (outer.len, outer.proto) == (20 + len(packet), 4) if family == 4 else (
        outer.plen, outer.nh) == (len(packet), 41)
    assert hop_limit_set(inner, 9) == packet


def hop_limit_set(packet, hop_limit):
    """The same packet as it was before routers."""
    if packet[0] >> 4 == 6:
        return packet[:7] + bytes([hop_limit]) + packet[8:]
    ip = IP(packet)
    ip.ttl, ip.chksum = hop_limit, None
    return bytes(ip)


VIP_COUNT = 10_000


def test_ten_thousand_vips_are_served(make_lab):
    lab = make_lab(network=DualStack, servers=services.WEB)
    addresses = [f"198.19.{n // 250}.{1 + n % 250}" for n in range(VIP_COUNT)]
    services.start(lab, [services.vip(f"vip-{n}", address, "web-4")
                         for n, address in enumerate(addresses)])
    asked = range(7, VIP_COUNT, 199)
    slots = expected.table(expected.EQUAL_WEIGHTS)
    with Account(lab) as account, netns.inside(lab.network.namespace("client")):
        for n in asked:
            request = fetch(CLIENT_ADDRESSES[0], 40000 + n, addresses[n])
            owner = slots[expected.tcp_slot(request.source, request.source_port, addresses[n])]
            assert request.server == owner, (request, owner)
    assert lab.status()["vips"] == VIP_COUNT
    assert set(account.forwarded("vips")) == {f"vip-{n}" for n in asked}
    assert account.verdicts == {"forwarded": account.received}
