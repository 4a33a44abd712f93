"""The lab's network with IPv6 beside IPv4, and two ways that are narrower than a client's packet.

    client ─┐            ┌── lb, b1, b2, ...   the LANs
            ├── router ──┤
    narrow ─┘ 1400  1400 └── far               a server behind a hop of its own

Each IPv4 address a.b.C.D here has an IPv6 address beside it, 2001:db8:C::D. All addresses of the
VIPs' prefixes are routed to the load balancer's first port, and every server takes them as its own.
"""

import netns
from network import Network, lan_address

FAMILIES = (4, 6)
VIP_PREFIXES = {"198.51.100.0/24": 4, "198.19.0.0/16": 4, "2001:db8:100::/64": 6}
FAR, FAR_LAN = "far", 3
NARROW, NARROW_LAN = "narrow", 2
NARROW_MTU = 1400
OUTER_SOURCES = "198.18.64.0/24"  # of outer headers, for a load balancer that chooses per flow
HOST_BITS = {"24": "64", "32": "128"}


def six(address):
    """The IPv6 address or prefix beside an IPv4 one."""
    address, _, bits = address.partition("/")
    _, _, c, d = address.split(".")
    return f"2001:db8:{c}::{d}" + (f"/{HOST_BITS[bits]}" if bits else "")


def of_family(family, address):
    return address if family == 4 else six(address)


def vip_address(family, number):
    return of_family(family, f"198.51.100.{number}")


class DualStack(Network):
    web_sockets = ["80", "[::]:80"]

    def address(self, server, family=4):
        ipv4 = lan_address(FAR_LAN, 11) if server == FAR else super().address(server)
        return of_family(family, ipv4)

    def outer_sources(self, server):
        ipv4 = super().outer_sources(server)
        return [*ipv4, *map(six, ipv4), OUTER_SOURCES]

    def build(self):
        super().build()
        self.add_host(NARROW)
        self.connect_narrow(NARROW, NARROW_LAN, 2)
        # Its own end is as wide as ever, so that it asks for full segments.
        netns.run("ip", "-n", self.namespace(NARROW), "link", "set", "eth0", "mtu", 1500)
        for prefix, family in VIP_PREFIXES.items():
            netns.run("ip", "-n", self.namespace("router"), "route", "add", prefix, "via",
                      of_family(family, lan_address(0, 2)))
        netns.run("ip", "-n", self.namespace("router"), "route", "add", OUTER_SOURCES, "via",
                  lan_address(0, 2))
        self.add_local_route("lb", OUTER_SOURCES)

    def build_server(self, server):
        if server == FAR:
            self.add_host(FAR)
            self.connect_narrow(FAR, FAR_LAN, 11)
        else:
            super().build_server(server)
        for prefix in VIP_PREFIXES:
            self.add_local_route(server, prefix)
        # Linux lets a program answer from addresses of a whole prefix only so.
        netns.set_kernel_values(self.namespace(server), ipv6__ip_nonlocal_bind=1)

    def add_local_route(self, host, prefix):
        netns.run("ip", "-n", self.namespace(host), "route", "add", "local", prefix, "dev", "lo")

    def connect_narrow(self, host, lan, host_number):
        self.connect(host, "eth0", host, NARROW_MTU)
        self.add_address("router", host, f"{lan_address(lan, 1)}/24")
        self.add_address(host, "eth0", f"{lan_address(lan, host_number)}/24")
        self.route(host, "default", lan_address(lan, 1))

    def add_host(self, host, **kernel_values):
        super().add_host(host, ipv6__conf__all__accept_dad=0, ipv6__conf__default__accept_dad=0,
                         ipv4__icmp_ratelimit=0, ipv6__icmp__ratelimit=0,
                         ipv6__conf__all__forwarding=int(host == "router"), **kernel_values)

    def add_address(self, host, interface, address):
        super().add_address(host, interface, address)
        super().add_address(host, interface, six(address))

    def route(self, host, destination, gateway):
        super().route(host, destination, gateway)
        super().route(host, "::/0" if destination == "default" else six(destination), six(gateway))
