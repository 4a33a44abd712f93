"""iperf3 through the load balancer: real TCP and UDP in several streams at once, and counters that
agree with what the router before it has seen and the servers behind it have unwrapped."""

import json
import subprocess

import expected
import netns
import pytest
import reference
import services
from accounts import Account
from dual_stack import FAMILIES, DualStack, of_family, vip_address
from lab import HASH_SEED, TABLE_SIZE
from network import CLIENT_ADDRESSES

IPERF_PORT = 5201
STREAMS = 4
OPTIONS = {"tcp": ["--bitrate", "10M"], "udp": ["--udp", "--bitrate", "10M", "--length", "1200"]}
DESTINATIONS = {4: "ip daddr 198.51.100.0/24", 6: "ip6 daddr 2001:db8:100::/64"}


@pytest.fixture(scope="module")
def lab(make_shared_lab):
    """One connection of iperf3 controls the others, so all of a client need one backend."""
    lab = make_shared_lab(network=DualStack, servers=services.WEB)
    services.start(lab, [
        services.vip(f"iperf-{family}", vip_address(family, 10), f"web-{family}", "tcp_and_udp",
                     IPERF_PORT, hash="source")
        for family in FAMILIES])
    for server in services.WEB:
        for family in FAMILIES:
            # Bound, or its datagrams would come from the server's own address.
            lab.start(f"iperf3-{server}-{family}", server, "iperf3", "--server", "--port",
                      IPERF_PORT, "--bind", vip_address(family, 10))
    nft(lab, "add table inet seen")
    nft(lab, "add chain inet seen forward { type filter hook forward priority 0; }")
    for family, destination in DESTINATIONS.items():
        for protocol in OPTIONS:
            nft(lab, f"add counter inet seen {protocol}-{family}")
            nft(lab, f"add rule inet seen forward {destination} meta l4proto {protocol} "
                     f"counter name {protocol}-{family}")
    return lab


def nft(lab, *words):
    return netns.run("ip", "netns", "exec", lab.network.namespace("router"), "nft", *words)


def seen_by_router(lab):
    """Packets routed to VIPs since the last call, by protocol and family."""
    counters = json.loads(nft(lab, "--json", "reset", "counters"))["nftables"]
    return {one["counter"]["name"]: one["counter"]["packets"] for one in counters
            if "counter" in one}


def clients_of_all_backends(family):
    """An address of the client's for each backend, by the independent computation."""
    table = expected.table(expected.EQUAL_WEIGHTS)
    addresses = (of_family(family, address) for address in CLIENT_ADDRESSES)
    return {table[reference.source_slot(HASH_SEED, TABLE_SIZE, address)]: address
            for address in addresses}


def iperf3(lab, family, source, *options):
    return subprocess.Popen(
        ["ip", "netns", "exec", lab.network.namespace("client"), "iperf3", "--client",
         vip_address(family, 10), "--port", str(IPERF_PORT), "--bind", source, "--json",
         "--parallel", str(STREAMS), "--time", "1", *options], stdout=subprocess.PIPE)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("protocol", OPTIONS)
def test_streams_of_iperf3_go_through_and_every_packet_is_counted(lab, protocol, family):
    clients = clients_of_all_backends(family)
    assert set(clients) == set(services.WEB)
    seen_by_router(lab)
    unwrapped = services.decap_counters(lab)
    with Account(lab) as account:
        running = [iperf3(lab, family, source, *OPTIONS[protocol]) for source in clients.values()]
        results = [json.loads(one.communicate(timeout=20)[0]) for one in running]
    for result in results:
        assert "error" not in result, result["error"]
    seen = seen_by_router(lab)
    # A TCP connection controls either.
    assert account.received == seen[f"tcp-{family}"] + seen[f"udp-{family}"]
    assert account.verdicts == {"forwarded": account.received}
    assert account.forwarded("vips") == {f"iperf-{family}": account.received}
    assert set(account.forwarded("backends")) == set(services.WEB)
    unwrapped["unwrapped"] += account.received
    assert services.decap_counters(lab) == unwrapped
    if protocol == "udp":
        sent = sum(result["end"]["sum"]["packets"] for result in results)
        # Each stream opens with a datagram of its own.
        assert seen[f"udp-{family}"] == sent + STREAMS * len(results)
    else:
        received = sum(result["end"]["sum_received"]["bytes"] for result in results)
        assert received > len(results) * STREAMS * 100_000


@pytest.mark.parametrize("family", FAMILIES)
def test_tcp_as_fast_as_it_can_leaves_no_packet_without_a_verdict(lab, family):
    with Account(lab) as account:
        client = iperf3(lab, family, of_family(family, CLIENT_ADDRESSES[0]))
        result = json.loads(client.communicate(timeout=20)[0])
    assert "error" not in result, result["error"]
    assert account.verdicts.total() == account.received > 1000
    assert set(account.verdicts) <= {"forwarded", "transmit_full"}
