"""The lab's network: one client, one router, the load balancer and web servers.

    client ── router ──┬── lb             lan0 is a bridge in the router: 198.18.2.0/24
                       ├── b1, b3, ...    lan1, where there is one: 198.18.3.0/24
                       └── b2, b4, ...    (servers take turns over the LANs)

Requests go client → router → lb → server; answers go server → router → client, past the load
balancer. The LANs carry 100 bytes more than the client's link, so that a full packet of a client
still fits once the load balancer has put 20 bytes of outer header in front of it; without that
room, or a smaller MSS told to clients, such packets would be too big for the servers' links.
"""

import itertools

import netns

CLIENT_ADDRESSES = [f"198.18.1.{n}" for n in range(2, 10)]
VIPS = ["198.51.100.10", "198.51.100.11"]  # one is routed over each LAN
CLIENT_MTU = 1500
LAN_MTU = 1600


def lan_address(lan, host_number):
    return f"198.18.{2 + lan}.{host_number}"


class Network:
    web_sockets = ["80"]  # in nginx's words

    def __init__(self, prefix, servers, lans=1):
        self.prefix = prefix
        self.servers = list(servers)
        self.lans = lans

    def namespace(self, host):
        return f"{self.prefix}-{host}"

    def lan_of(self, server):
        return self.servers.index(server) % self.lans

    def address(self, server):
        return lan_address(self.lan_of(server), 11 + self.servers.index(server))

    def outer_sources(self, server):
        """Where the load balancer's packets to a server come from."""
        return [lan_address(self.lan_of(server), 2)]

    def build(self):
        self.add_host("client", ipv4__tcp_tw_reuse=1)
        # A router that demultiplexes early drops what it should forward when an old connection of
        # its own looks the same.
        self.add_host("router", ipv4__ip_forward=1, ipv4__ip_early_demux=0,
                      ipv4__conf__all__send_redirects=0, ipv4__conf__default__send_redirects=0)
        self.add_host("lb")
        self.connect("client", "eth0", "client", CLIENT_MTU)
        for address in CLIENT_ADDRESSES:
            self.add_address("client", "eth0", f"{address}/24")
        self.add_address("router", "client", "198.18.1.1/24")
        self.route("client", "default", "198.18.1.1")
        for lan in range(self.lans):
            self.build_lan(lan)
        self.route("lb", "default", lan_address(0, 1))
        for server in self.servers:
            self.build_server(server)

    def build_lan(self, lan):
        router = self.namespace("router")
        # Without an address of its own a bridge changes it with its ports.
        netns.run("ip", "-n", router, "link", "add", f"lan{lan}",
                  "address", f"02:00:00:00:{lan:02x}:01", "type", "bridge")
        netns.run("ip", "-n", router, "link", "set", f"lan{lan}", "mtu", LAN_MTU, "up")
        self.add_address("router", f"lan{lan}", f"{lan_address(lan, 1)}/24")
        self.connect("lb", f"eth{lan}", f"lan{lan}-lb", LAN_MTU, bridge=f"lan{lan}")
        self.add_address("lb", f"eth{lan}", f"{lan_address(lan, 2)}/24")
        self.route("router", VIPS[lan], lan_address(lan, 2))

    def build_server(self, server):
        # The VIP is on the loopback; no one may learn from ARP that it is here.
        self.add_host(server, ipv4__conf__all__arp_ignore=1, ipv4__conf__all__arp_announce=2)
        lan = self.lan_of(server)
        self.connect(server, "eth0", f"lan{lan}-{server}", LAN_MTU, bridge=f"lan{lan}")
        self.add_address(server, "eth0", f"{self.address(server)}/24")
        self.route(server, "default", lan_address(lan, 1))
        for vip in VIPS:
            self.add_address(server, "lo", f"{vip}/32")

    def add_host(self, host, **kernel_values):
        namespace = self.namespace(host)
        netns.run("ip", "netns", "add", namespace)
        # Answers come from where no route points to: from the VIP, past the load balancer.
        netns.set_kernel_values(namespace, ipv4__conf__all__rp_filter=0,
                                ipv4__conf__default__rp_filter=0, **kernel_values)
        netns.run("ip", "-n", namespace, "link", "set", "lo", "up")

    def connect(self, host, interface, router_interface, mtu, bridge=None):
        """A veth pair between a host and the router."""
        namespace, router = self.namespace(host), self.namespace("router")
        netns.run("ip", "-n", namespace, "link", "add", interface, "type", "veth",
                  "peer", "name", router_interface, "netns", router)
        for end, name in ((namespace, interface), (router, router_interface)):
            # AF_XDP sees raw frames: checksums and segments must be finished by the sender.
            netns.run("ip", "netns", "exec", end, "ethtool", "-K", name,
                      *itertools.chain.from_iterable((what, "off") for what in
                                                     ("tx", "tso", "gso", "gro")))
            master = ("master", bridge) if bridge and end == router else ()
            netns.run("ip", "-n", end, "link", "set", name, "mtu", mtu, *master, "up")

    def add_address(self, host, interface, address):
        netns.run("ip", "-n", self.namespace(host), "address", "add", address, "dev", interface)

    def route(self, host, destination, gateway):
        netns.run("ip", "-n", self.namespace(host), "route", "add", destination, "via", gateway)

    def set_link(self, host, interface, state):
        netns.run("ip", "-n", self.namespace(host), "link", "set", interface, state)
