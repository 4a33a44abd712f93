"""Frames of a test's own making, put on the load balancer's wire."""

import json
import socket

import netns


def ethernet_address(lab, host, interface):
    address = json.loads(lab.show_link(host, interface))[0]["address"]
    return bytes.fromhex(address.replace(":", ""))


class Wire:
    """Sends frames to a port of the load balancer, as the router before it does."""

    def __init__(self, lab, lan=0):
        self.header = (ethernet_address(lab, "lb", f"eth{lan}")
                       + ethernet_address(lab, "router", f"lan{lan}"))
        with netns.inside(lab.network.namespace("router")):
            self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        self.socket.bind((f"lan{lan}-lb", 0))

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.socket.close()

    def send(self, packet, tags=b""):
        """An IP packet; tags are whole 802.1Q tags."""
        ether_type = b"\x08\x00" if packet[0] >> 4 == 4 else b"\x86\xdd"
        self.socket.send(self.header + tags + ether_type + packet)
