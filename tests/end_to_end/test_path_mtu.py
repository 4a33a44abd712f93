"""Path-MTU discovery between real kernels, where a hop takes 1400 bytes: behind the load balancer on
the way to a backend, and before it on the way back to a client."""

import contextlib
import re
import socket
import socketserver

import netns
import pytest
import services
from accounts import Account
from dual_stack import (FAMILIES, FAR, NARROW, NARROW_LAN, NARROW_MTU, OUTER_SOURCES, DualStack,
                        of_family, vip_address)
from http_client import fetch
from lab import UDP_PORT
from network import CLIENT_ADDRESSES, lan_address
from servers import Answerers, digest, serving

OVERHEAD = {4: 20, 6: 40}  # of IP-in-IP, by the outer family
IP_HEADER = {4: 20, 6: 40}
OUTER_AND_INNER = [(outer, inner) for outer in FAMILIES for inner in FAMILIES]
FAR_VIP = {4: 34, 6: 36}  # by the outer family
CUT_VIP, BULK_VIP = 38, 40
BULK_PORT = 8080
BULK = 400_000

# linux/in.h, linux/in6.h: "don't fragment" on every packet, whatever is known of the path.
PROBE = {4: (socket.IPPROTO_IP, 10, 3), 6: (socket.IPPROTO_IPV6, 23, 3)}


@pytest.fixture(scope="module")
def lab(make_shared_lab):
    """Outer packets of IPv4 have one of many sources, those of IPv6 the load balancer's own."""
    lab = make_shared_lab(network=DualStack, servers=(*services.WEB, FAR))
    lab.settings["outer_source_prefixes"] = [OUTER_SOURCES]
    vips = [services.vip(f"far-{outer}-{inner}-{protocol}", vip_address(inner, FAR_VIP[outer]),
                         f"far-{outer}", protocol, port)
            for outer, inner in OUTER_AND_INNER for protocol, port in (("tcp", 80),
                                                                      ("udp", UDP_PORT))]
    vips += [services.vip("cut", vip_address(4, CUT_VIP), "far-4", too_big="fragment")]
    vips += [services.vip(f"bulk-{family}", vip_address(family, BULK_VIP), f"web-{family}", "tcp",
                          BULK_PORT) for family in FAMILIES]
    services.start(lab, vips, services.pools_of_both_families(lab, "far", [FAR]))
    with contextlib.ExitStack() as stack:
        stack.enter_context(Answerers(lab.network, [FAR]))
        for server in services.WEB:
            for family in FAMILIES:
                stack.enter_context(serving(
                    lab.network.namespace(server), socketserver.ThreadingTCPServer,
                    vip_address(family, BULK_VIP), BULK_PORT, bulk_from(server)))
        yield lab


def bulk_from(server):
    class Bulk(socketserver.BaseRequestHandler):
        def handle(self):
            self.request.sendall(f"{server}\n".encode() + b"x" * BULK)
    return Bulk


def learnt_mtu(lab, host, destination):
    """What the kernel of a host has been told, or None."""
    route = netns.run("ip", "-n", lab.network.namespace(host), "route", "get", destination)
    found = re.search(r"expires \d+sec mtu (\d+)", route)
    return int(found[1]) if found else None


def upload(lab, address, source_port):
    with netns.inside(lab.network.namespace("client")):
        source = of_family(6 if ":" in address else 4, CLIENT_ADDRESSES[0])
        return fetch(source, source_port, address, timeout_s=10, body=b"x" * BULK)


def check_boundary(lab, outer, inner):
    fits = NARROW_MTU - OVERHEAD[outer] - IP_HEADER[inner] - 8
    asking = services.question(lab, inner, vip_address(inner, FAR_VIP[outer]))
    asking.setsockopt(*PROBE[inner])
    with Account(lab) as account, asking:
        asking.send(b"x" * fits)
        assert services.answer_to(asking) == (FAR, digest(b"x" * fits))
        asking.send(b"x" * (fits + 1))
    assert account.verdicts == {"forwarded": 1, "too_big": 1}
    assert account.events == {"sent_packet_too_big": 1}


@pytest.mark.parametrize("outer,inner", OUTER_AND_INNER)
def test_a_client_learns_exactly_what_fits_behind_the_load_balancer(lab, outer, inner):
    address = vip_address(inner, FAR_VIP[outer])
    assert learnt_mtu(lab, "client", address) is None
    with Account(lab) as account:
        request = upload(lab, address, 30000)
    assert request.server == FAR, request
    assert learnt_mtu(lab, "client", address) == NARROW_MTU - OVERHEAD[outer]
    assert set(account.verdicts) == {"forwarded", "too_big"}
    assert account.events == {"sent_packet_too_big": account.verdicts["too_big"]}
    far, = lab.control.get(f"/v1/pools/far-{outer}/backends")["backends"]
    assert far["outer_source"] == (OUTER_SOURCES if outer == 4 else "2001:db8:2::2")
    assert far["path_mtu"]["bytes"] == NARROW_MTU
    assert far["path_mtu"]["reason"] == f"said by {of_family(outer, lan_address(0, 1))}"
    assert lab.control.get("/v1/status")["path_mtu_messages"]["ignored"] == 0
    check_boundary(lab, outer, inner)


def test_a_vip_that_cuts_what_is_too_big_tells_clients_nothing(lab):
    with Account(lab) as account:
        request = upload(lab, vip_address(4, CUT_VIP), 31000)
    assert request.server == FAR, request
    assert learnt_mtu(lab, "client", vip_address(4, CUT_VIP)) is None
    assert account.verdicts == {"forwarded": account.received}
    assert set(account.events) == {"sent_fragment"}
    assert account.events["sent_fragment"] >= BULK // 1460 - 1


def download(lab, family, source_port):
    """Which server sent the bulk."""
    source = of_family(family, lan_address(NARROW_LAN, 2))
    with netns.inside(lab.network.namespace(NARROW)):
        connection = socket.create_connection((vip_address(family, BULK_VIP), BULK_PORT), 5,
                                              (source, source_port))
    with connection, connection.makefile("rb") as file:
        server, _, bulk = file.read().partition(b"\n")
    assert len(bulk) == BULK
    return server.decode()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_router_s_message_to_the_vip_reaches_the_backend_of_its_flow(lab, family):
    narrow = of_family(family, lan_address(NARROW_LAN, 2))
    told = set()
    with Account(lab) as account:
        for n in range(12):
            server = download(lab, family, 32000 + n)
            told.add(server)
            # No other server has been told.
            assert {one for one in services.WEB if learnt_mtu(lab, one, narrow)} == told
            assert learnt_mtu(lab, server, narrow) == NARROW_MTU
    assert told == set(services.WEB)
    assert account.verdicts == {"forwarded": account.received}
