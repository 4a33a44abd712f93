"""What the lab's clients should see, by the independent computation."""

import socket

import netns
import reference
from http_client import fetch
from lab import HASH_SEED, TABLE_SIZE, UDP_PORT
from network import CLIENT_ADDRESSES, VIPS

EQUAL_WEIGHTS = {"b1": 1, "b2": 1, "b3": 1}


def table(weights):
    return reference.maglev_table(weights, TABLE_SIZE)


def tcp_slot(source, source_port, vip=VIPS[0]):
    return reference.flow_slot(HASH_SEED, TABLE_SIZE, socket.IPPROTO_TCP, source, source_port,
                               vip, 80)


def udp_slot(source, source_port, vip=VIPS[0]):
    return reference.flow_slot(HASH_SEED, TABLE_SIZE, socket.IPPROTO_UDP, source, source_port,
                               vip, UDP_PORT)


def check_requests(lab, weights, first_port, vip=VIPS[0], count=50):
    """Each request is answered by the server that the independent computation names."""
    slots = table(weights)
    with netns.inside(lab.network.namespace("client")):
        for n in range(count):
            request = fetch(CLIENT_ADDRESSES[n % len(CLIENT_ADDRESSES)], first_port + n, vip)
            owner = slots[tcp_slot(request.source, request.source_port, vip)]
            assert request.server == owner, (request, owner)
