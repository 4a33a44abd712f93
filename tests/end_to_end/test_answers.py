"""What a VIP's address answers itself: traceroute and ping as people use them, and how often."""

import re
import socket
import subprocess

import netns
import pytest
import services
from accounts import Account
from dual_stack import FAMILIES, DualStack, of_family, vip_address
from lab import UDP_PORT
from servers import FAMILY

ANSWERS_PER_SECOND = 100
BURST = ANSWERS_PER_SECOND // 10
SERVED, ANY_PORT, OF_KERNEL = 10, 20, 30
PROBES = 3
TTL = {4: (socket.IPPROTO_IP, socket.IP_TTL), 6: (socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS)}


@pytest.fixture(scope="module")
def lab(make_shared_lab):
    lab = make_shared_lab(network=DualStack, servers=services.WEB)
    lab.settings["dataplane"]["icmp_answers_per_second"] = ANSWERS_PER_SECOND
    vips = []
    for family in FAMILIES:
        pool = f"web-{family}"
        vips += [services.vip(f"web-{family}", vip_address(family, SERVED), pool),
                 services.vip(f"any-{family}", vip_address(family, ANY_PORT), pool, "udp", "any"),
                 services.vip(f"kernel-{family}", vip_address(family, OF_KERNEL), pool,
                              echo="kernel")]
        # The kernel answers for what it owns.
        netns.run("ip", "-n", lab.network.namespace("lb"), "address", "add",
                  vip_address(family, OF_KERNEL), "dev", "lo")
    services.start(lab, vips)
    return lab


def client(lab, *command):
    done = subprocess.run(["ip", "netns", "exec", lab.network.namespace("client"),
                           *map(str, command)], capture_output=True, text=True, timeout=30)
    return done.stdout


def traceroute(lab, address, *options):
    """For each hop, who answered; None where nobody did."""
    text = client(lab, "traceroute", "-n", "-q", PROBES, "-w", "0.3", "-m", "4", *options, address)
    hops = re.findall(r"^ *\d+ +(.*)$", text, re.MULTILINE)
    return [hop.split()[0].replace("*", "") or None for hop in hops]


@pytest.mark.parametrize("family", FAMILIES)
def test_traceroute_over_tcp_shows_router_load_balancer_and_server(lab, family):
    address = vip_address(family, SERVED)
    with Account(lab) as account:
        path = traceroute(lab, address, "-T", "-p", "80")
    # The VIP answers twice: the load balancer where the packet ends, then the server itself.
    assert path == [of_family(family, "198.18.1.1"), address, address]
    assert account.verdicts["ttl_expired"] == account.events["sent_time_exceeded"] == PROBES
    assert account.verdicts["forwarded"] > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_traceroute_over_udp_ends_at_a_vip_of_any_port(lab, family):
    address = vip_address(family, ANY_PORT)
    with Account(lab) as account:
        path = traceroute(lab, address)
    # The server tells that nobody listens there. Linux does so in the name of an IPv6 address only
    # where that is on an interface, which a whole prefix is not.
    last = {address} if family == 4 else {lab.network.address(server, 6) for server in services.WEB}
    assert path[:2] == [of_family(family, "198.18.1.1"), address] and len(path) == 3
    assert path[2] in last
    assert account.verdicts["ttl_expired"] == account.events["sent_time_exceeded"] == PROBES


@pytest.mark.parametrize("family", FAMILIES)
def test_traceroute_over_udp_to_ports_that_no_vip_serves_ends_in_silence(lab, family):
    with Account(lab) as account:
        path = traceroute(lab, vip_address(family, SERVED))
    assert path == [of_family(family, "198.18.1.1"), None, None, None]
    assert set(account.verdicts) == {"unserved_port"} and account.events == {}


@pytest.mark.parametrize("family", FAMILIES)
def test_ping_is_answered_by_the_load_balancer(lab, family):
    with Account(lab) as account:
        for size in (0, 1, 56, 1452):
            text = client(lab, "ping", "-c", "3", "-i", "0.02", "-W", "1", "-s", size,
                          vip_address(family, SERVED))
            assert "3 received" in text, text
            # The time to live that is left of the load balancer's own: one router is between.
            assert text.count("ttl=63") == 3, text
    assert account.verdicts == {"echo_answered": 12}
    assert account.events == {"sent_echo_reply": 12}


@pytest.mark.parametrize("family", FAMILIES)
def test_ping_is_left_to_the_kernel_where_the_vip_says_so(lab, family):
    with Account(lab) as account:
        text = client(lab, "ping", "-c", "3", "-i", "0.02", "-W", "1",
                      vip_address(family, OF_KERNEL))
        assert "3 received" in text, text
    assert account.received == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_a_flood_of_pings_is_answered_at_a_limited_rate(lab, family):
    with Account(lab) as account:
        text = client(lab, "ping", "-f", "-l", "150", "-c", "200", "-W", "0.2",
                      vip_address(family, SERVED))
    sent, received = map(int, re.search(r"(\d+) packets transmitted, (\d+) received",
                                        text).groups())
    seconds = int(re.search(r"time (\d+)ms", text)[1]) / 1000
    assert account.received == sent == 200
    assert account.verdicts == {"echo_answered": received, "echo_limited": sent - received}
    assert account.events == {"sent_echo_reply": received}
    # ping and the load balancer time it differently.
    assert 0 < received <= BURST + 1.1 * seconds * ANSWERS_PER_SECOND + 2


@pytest.mark.parametrize("family", FAMILIES)
def test_a_flood_of_dying_packets_is_answered_at_a_limited_rate(lab, family):
    with netns.inside(lab.network.namespace("client")):
        sender = socket.socket(FAMILY[family], socket.SOCK_DGRAM)
    sender.setsockopt(*TTL[family], 2)
    with Account(lab) as account, sender:
        for _ in range(300):
            sender.sendto(b"x", (vip_address(family, ANY_PORT), UDP_PORT))
    assert account.verdicts == {"ttl_expired": 300}
    assert set(account.events) == {"sent_time_exceeded", "icmp_limited"}
    assert account.events.total() == 300
    assert BURST <= account.events["sent_time_exceeded"] < 100
