"""Datagrams larger than the client's links, in fragments, before two workers."""

import contextlib

import accounts
import pytest
import services
from accounts import Account
from dual_stack import FAMILIES, DualStack, of_family, vip_address
from network import CLIENT_ADDRESSES
from scapy.layers.inet import IP, UDP, fragment
from scapy.layers.inet6 import IPv6, IPv6ExtHdrFragment, fragment6
from scapy.packet import Raw
from lab import UDP_PORT
from servers import Answerers, digest
from wire import Wire

POLICIES = {"flow": 10, "address": 20}
DATAGRAMS = 60
PAYLOAD = bytes(range(250)) * 12  # 3000 bytes: three fragments on a link of 1500
FRAGMENTS = 3


@pytest.fixture(scope="module")
def lab(make_shared_lab):
    """Two ports, so two workers. Half of all datagrams belong to the worker they do not come to."""
    lab = make_shared_lab(lans=2, network=DualStack, servers=services.WEB)
    services.start(lab, [
        services.vip(f"{policy}-{family}", vip_address(family, number), f"web-{family}", "udp",
                     UDP_PORT, fragments=policy)
        for policy, number in POLICIES.items() for family in FAMILIES])
    with Answerers(lab.network, services.WEB):
        yield lab


def questions(lab, family, address, first_port, count=DATAGRAMS):
    """Sockets of as many flows."""
    return [services.question(lab, family, address, source_port=first_port + n,
                              source=of_family(family, CLIENT_ADDRESSES[n % 8]))
            for n in range(count)]


def answers(sockets):
    with contextlib.ExitStack() as stack:
        return [services.answer_to(stack.enter_context(asking)) for asking in sockets]


def arrived_whole(sockets):
    return {received for _, received in answers(sockets)} == {digest(PAYLOAD)}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("policy", POLICIES)
def test_datagrams_in_fragments_arrive_whole_at_the_backend_of_their_flow(lab, policy, family):
    address = vip_address(family, POLICIES[policy])
    with Account(lab) as account:
        sockets = questions(lab, family, address, 20000)
        servers = []
        for asking in sockets:
            asking.send(PAYLOAD)
            server, received = services.answer_to(asking)
            assert received == digest(PAYLOAD)
            servers.append(server)
        for asking in sockets:
            asking.send(b"whole")
        assert answers(sockets) == [(server, digest(b"whole")) for server in servers]
    assert set(servers) == set(services.WEB)
    assert account.received == DATAGRAMS * (FRAGMENTS + 1)
    assert account.verdicts == {"forwarded": account.received}
    handed_over = account.of_workers("handed_over")
    if policy == "flow":
        # All fragments of a datagram, to the worker that its hash names.
        assert 0 < handed_over < DATAGRAMS * FRAGMENTS and handed_over % FRAGMENTS == 0
    else:
        assert handed_over == 0
        assert len({*zip(CLIENT_ADDRESSES * DATAGRAMS, servers)}) == len(CLIENT_ADDRESSES)


def in_fragments(family, address, source_port, number):
    """A datagram of number's, as three packets in order."""
    source = of_family(family, CLIENT_ADDRESSES[number % 8])
    payload = UDP(sport=source_port, dport=UDP_PORT) / Raw(PAYLOAD)
    if family == 4:
        packet = IP(src=source, dst=address, id=1 + number) / payload
        parts = fragment(IP(bytes(packet)), fragsize=1480)
    else:
        packet = IPv6(src=source, dst=address) / IPv6ExtHdrFragment(id=1 + number) / payload
        parts = fragment6(packet, 1500)
    assert len(parts) == FRAGMENTS
    return [bytes(part) for part in parts]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("policy", POLICIES)
def test_fragments_come_through_in_any_order_and_on_any_queue(lab, policy, family):
    address = vip_address(family, POLICIES[policy])
    with Account(lab) as account, Wire(lab, 0) as left, Wire(lab, 1) as right:
        sockets = questions(lab, family, address, 21000)
        for n in range(DATAGRAMS):
            parts = in_fragments(family, address, 21000 + n, n)
            for wire, part in zip((left, right, left) if n % 2 else (right, left, right),
                                  reversed(parts)):
                wire.send(part)
        assert arrived_whole(sockets)
    assert account.received == DATAGRAMS * FRAGMENTS
    assert account.verdicts == {"forwarded": account.received}
    assert (account.of_workers("handed_over") > 0) == (policy == "flow")


def held(lab):
    return accounts.total(lab.control.get("/v1/stats")["workers"], "held")


def test_later_fragments_wait_for_the_first_and_are_counted_as_held(lab):
    address = vip_address(4, POLICIES["flow"])
    with Account(lab) as account, Wire(lab) as wire:
        sockets = questions(lab, 4, address, 22000, 5)
        datagrams = [in_fragments(4, address, 22000 + n, 1000 + n) for n in range(5)]
        for _, *later in datagrams:
            for part in later:
                wire.send(part)
        lab.wait_until(lambda: held(lab) == 10, "ten fragments are held", 0.9)
        for first, *_ in datagrams:
            wire.send(first)
        assert arrived_whole(sockets)
    assert held(lab) == 0
    assert account.verdicts == {"forwarded": 15}


def test_fragments_whose_first_never_comes_end_within_bounded_memory(lab):
    lone, room = 800, 2 * 256
    fields = {"src": CLIENT_ADDRESSES[0], "dst": vip_address(4, POLICIES["flow"]), "proto": 17,
              "frag": 185}
    fragments = [bytes(IP(id=3000 + n, **fields) / Raw(b"later")) for n in range(lone)]
    with Account(lab) as account, Wire(lab) as wire:
        for part in fragments:
            wire.send(part)
        lab.wait_until(lambda: held(lab) > 0, "fragments are held", 1)
        lab.wait_until(lambda: held(lab) == 0, "their time is up")
    assert account.verdicts.total() == account.received == lone
    assert set(account.verdicts) == {"fragment_expired", "fragment_overflow"}
    assert account.verdicts["fragment_expired"] <= room
    assert account.events == {}


@pytest.fixture(scope="module")
def packet_socket_lab(make_shared_lab):
    lab = make_shared_lab(network=DualStack, servers=services.WEB)
    lab.settings["dataplane"] |= {
        "cores": [f"{core}@{lab.worker_processor}" for core in (1, 2)],
        "packet_buffer_bytes": 8192,
        "ports": [{"name": "lan0", "interface": "eth0", "queues": 2, "device":
                   "net_af_packet0,iface=eth0,qpairs=2,framesz=8192,framecnt=512,blocksz=16384"}]}
    services.start(lab, [
        services.vip(f"flow-{family}", vip_address(family, POLICIES["flow"]), f"web-{family}",
                     "udp", UDP_PORT) for family in FAMILIES])
    with Answerers(lab.network, services.WEB):
        yield lab


def is_answered(asking):
    try:
        asking.send(PAYLOAD)
        return services.answer_to(asking)[1] == digest(PAYLOAD)
    except OSError:
        return False


@pytest.mark.parametrize("family", FAMILIES)
def test_fragments_come_through_two_queues_of_a_packet_socket(packet_socket_lab, family):
    lab = packet_socket_lab
    address = vip_address(family, POLICIES["flow"])
    with Account(lab), services.question(lab, family, address) as asking:
        # The driver's MTU is 1500 whatever the interface's is, and the client must learn that.
        lab.wait_until(lambda: is_answered(asking), "an answer")
    with Account(lab) as account:
        sockets = questions(lab, family, address, 24000)
        for asking in sockets:
            asking.send(PAYLOAD)
        assert arrived_whole(sockets)
    # The kernel has put datagrams of IPv4 together before it spreads them over the queues.
    expected = DATAGRAMS * (FRAGMENTS if family == 6 else 1)
    assert account.forwarded("vips") == {f"flow-{family}": expected}
    assert (account.of_workers("handed_over") > 0) == (family == 6)
    assert (account.events["sent_fragment"] > 0) == (family == 4)
