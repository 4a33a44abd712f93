"""A load balancer of thirty lines for one backend, which is not ours: a TUN device takes a client's
packets, scapy puts each into a tunnel, and a packet socket sends it.

    client ── tun0 ── scapy ── eth0 ────── eth0 backend     198.18.2.0/24, 2001:db8:2::/64
                               eth0 ◄───── answers go straight to the client's addresses
"""

import fcntl
import os
import select
import socket
import struct
import threading

import netns
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import GRE, Dot1Q, Ether
from scapy.packet import Raw

CLIENT, BACKEND = ("02:00:00:00:00:01", "02:00:00:00:00:02")
OUTER = {4: ("198.18.2.2", "198.18.2.11"), 6: ("2001:db8:2::2", "2001:db8:2::11")}
CLIENTS = {4: "203.0.113.1", 6: "2001:db8:c::1"}
VIPS = {4: "198.51.100.10", 6: "2001:db8:100::10"}
PREFIX_BITS = {4: 24, 6: 64}
ADDRESS_BITS = {4: 32, 6: 128}
PROTOCOL = {4: 4, 6: 41}  # of a packet of that family inside another
ETHERTYPE = {4: 0x0800, 6: 0x86DD}
GUE_PORT = 6080
ENTROPY_PORT = 50000

TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000


def gue(packet, **udp):
    return UDP(sport=ENTROPY_PORT, dport=GUE_PORT, **udp) / packet


def gue_header(family):
    return Raw(struct.pack("!BBH", 0, PROTOCOL[family], 0))


# What comes behind the outer IP header, its protocol first, for an inner packet of a family.
TUNNELS = {
    "ip-in-ip": lambda family, packet: (PROTOCOL[family], packet),
    "gre": lambda family, packet: (47, GRE(proto=ETHERTYPE[family]) / packet),
    "gue-0": lambda family, packet: (17, gue(gue_header(family) / packet, chksum=0)),
    "gue-0-checksum": lambda family, packet: (17, gue(gue_header(family) / packet)),
    "gue-1": lambda family, packet: (17, gue(packet, chksum=0)),
    "gue-1-checksum": lambda family, packet: (17, gue(packet)),
}


def wrap(tunnel, outer_family, packet, tag=None):
    """The frame, from the load balancer to the backend; packet and frame are bytes."""
    protocol, payload = TUNNELS[tunnel](packet[0] >> 4, Raw(packet))
    source, destination = OUTER[outer_family]
    outer = (IP(src=source, dst=destination, proto=protocol) if outer_family == 4
             else IPv6(src=source, dst=destination, nh=protocol))
    link = Ether(src=CLIENT, dst=BACKEND)
    return bytes((link if tag is None else link / Dot1Q(vlan=tag)) / outer / payload)


class Tunnels:
    """The two namespaces, and the thread between tun0 and eth0. One `tunnel` at a time."""

    def __init__(self, name):
        self.client, self.backend = (f"{name}-client", f"{name}-backend")
        self.tunnel = ("ip-in-ip", 4)
        self.sent = 0
        self.stopping = threading.Event()
        self.thread = self.tun = self.out = None

    def __enter__(self):
        try:
            self.build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def build(self):
        for namespace in (self.client, self.backend):
            netns.run("ip", "netns", "add", namespace)
            netns.set_kernel_values(namespace, ipv4__conf__all__rp_filter=0,
                                    ipv4__conf__default__rp_filter=0,
                                    ipv6__conf__default__accept_dad=0)
            netns.run("ip", "-n", namespace, "link", "set", "lo", "up")
        netns.run("ip", "-n", self.client, "link", "add", "eth0", "address", CLIENT, "mtu", 1600,
                  "type", "veth", "peer", "name", "eth0", "address", BACKEND, "mtu", 1600,
                  "netns", self.backend)
        for namespace in (self.client, self.backend):
            # Nothing on a veth pair fills in the checksums that are left to hardware.
            netns.run("ip", "netns", "exec", namespace, "ethtool", "-K", "eth0", "tx", "off")
            netns.run("ip", "-n", namespace, "link", "set", "eth0", "up")
        with netns.inside(self.client):
            self.tun = open_tun("tun0")
            self.out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
            self.out.bind(("eth0", 0))
        netns.run("ip", "-n", self.client, "link", "set", "tun0", "mtu", 1500, "up")
        for family in (4, 6):
            self.address(family)
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.thread.start()

    def address(self, family):
        balancer, backend = OUTER[family]
        bits = PREFIX_BITS[family]
        for namespace, address, interface in (
                (self.client, f"{balancer}/{bits}", "eth0"),
                (self.backend, f"{backend}/{bits}", "eth0"),
                (self.client, f"{CLIENTS[family]}/{ADDRESS_BITS[family]}", "tun0"),
                (self.backend, f"{VIPS[family]}/{ADDRESS_BITS[family]}", "lo")):
            netns.run("ip", "-n", namespace, "address", "add", address, "dev", interface)
        netns.run("ip", "-n", self.client, "route", "add", VIPS[family], "dev", "tun0",
                  "src", CLIENTS[family])
        netns.run("ip", "-n", self.backend, "route", "add", CLIENTS[family], "via", balancer)

    def work(self):
        while not self.stopping.is_set():
            if not select.select([self.tun], [], [], 0.1)[0]:
                continue
            packet = os.read(self.tun, 65536)
            # The kernel's own router solicitations and the like are not for the VIP.
            if destination(packet) in VIPS.values():
                self.send(wrap(*self.tunnel, packet))

    def send(self, frame):
        self.out.send(frame)
        self.sent += 1

    def __exit__(self, *error):
        self.stopping.set()
        if self.thread:
            self.thread.join()
        # Each keeps its namespace alive.
        if self.tun is not None:
            os.close(self.tun)
        if self.out:
            self.out.close()
        for namespace in set(netns.names()) & {self.client, self.backend}:
            netns.run("ip", "netns", "delete", namespace)


def destination(packet):
    if packet[0] >> 4 == 4:
        return socket.inet_ntop(socket.AF_INET, packet[16:20])
    return socket.inet_ntop(socket.AF_INET6, packet[24:40])


def open_tun(name):
    descriptor = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TUN | IFF_NO_PI))
    return descriptor
