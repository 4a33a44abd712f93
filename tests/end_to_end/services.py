"""Pools and VIPs of a lab's configuration, and questions to them."""

import collections
import re
import socket

import netns
from dual_stack import FAMILIES
from lab import TABLE_SIZE, UDP_PORT
from servers import FAMILY

WEB = ("b1", "b2", "b3")


def pool(lab, name, family, servers=WEB):
    return {"name": name, "table_size": TABLE_SIZE,
            "health": {"type": "tcp", "port": 80, "interval_ms": 300, "timeout_ms": 1000, "rise": 2,
                       "fall": 2},
            "backends": [{"name": server, "address": lab.network.address(server, family)}
                         for server in servers]}


def pools_of_both_families(lab, name="web", servers=WEB):
    return [pool(lab, f"{name}-{family}", family, servers) for family in FAMILIES]


def vip(name, address, pool_name, protocol="tcp", port=80, **settings):
    return {"name": name, "address": address, "protocol": protocol, "port": port,
            "pool": pool_name, **settings}


def start(lab, vips, pools=()):
    """Serves the VIPs from the pools web-4 and web-6, and from others."""
    lab.settings |= {"pools": pools_of_both_families(lab) + list(pools), "vips": vips}
    lab.start_all()


def question(lab, family, address, port=UDP_PORT, source_port=0, source=None, client="client"):
    """A datagram socket of the client's."""
    with netns.inside(lab.network.namespace(client)):
        asking = socket.socket(FAMILY[family], socket.SOCK_DGRAM)
    asking.settimeout(3)
    asking.bind((source or "", source_port))
    asking.connect((address, port))
    return asking


def answer_to(asking):
    """Who answered, and the digest of what came there."""
    server, received = asking.recv(65536).decode().split(":")
    return server, received


def decap_counters(lab):
    """Of maglev-decap on all servers, what is not zero."""
    counters = collections.Counter()
    for server in lab.network.servers:
        text = netns.run("ip", "netns", "exec", lab.network.namespace(server),
                         lab.program("maglev-decap"), "--interface", "eth0", "--stats")
        counters.update({name: int(count) for name, count in re.findall(r"(\w+)=(\d+)", text)})
    return +counters
