"""What maglevctl says of a flow is what becomes of it."""

import json

import netns
import pytest
import services
from dual_stack import FAMILIES, DualStack, of_family, vip_address
from http_client import fetch
from network import CLIENT_ADDRESSES

VIPS = {family: vip_address(family, 10) for family in FAMILIES}


def place(address, port):
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def explain(lab, protocol, source, destination):
    return json.loads(netns.run(lab.program("maglevctl"), "--socket", lab.control.path, "--json",
                                "explain", protocol, place(*source), place(*destination)))


@pytest.fixture(scope="module")
def lab(make_shared_lab):
    lab = make_shared_lab(network=DualStack, servers=services.WEB)
    services.start(lab, [services.vip(f"web-{family}", VIPS[family], f"web-{family}")
                         for family in FAMILIES])
    return lab


@pytest.mark.parametrize("family", FAMILIES)
def test_flows_go_to_the_backend_that_is_told(lab, family):
    seen = set()
    for number in range(24):
        source = of_family(family, CLIENT_ADDRESSES[number % 8]), 41000 + number
        told = explain(lab, "tcp", source, (VIPS[family], 80))
        with netns.inside(lab.network.namespace("client")):
            request = fetch(*source, VIPS[family])
        assert told["backend"] == request.server, told
        assert told["vip"] == f"web-{family}"
        seen.add(told["backend"])
    assert seen == set(services.WEB)


def test_what_no_vip_serves_is_told(lab):
    told = explain(lab, "udp", ("203.0.113.1", 1), (VIPS[4], 80))
    assert "no VIP of" in told["verdict"] and "vip" not in told
