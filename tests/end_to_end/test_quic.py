"""QUIC connections whose clients move: real ones, of ngtcp2's example programs.

Each client shakes hands, changes its port, by migration or as a NAT would, and only then asks for a
page, which tells who answered. Servers put a server ID into the connection IDs they issue
(quic_cids.cc). Where the load balancer does not look at it the slot of the new port decides, so
that most of those whose slot is another server's get no page.
"""

import collections
import dataclasses
import re
import socket
import subprocess

import pytest

import expected
import reference
from lab import BUILD, HASH_SEED, TABLE_SIZE, Lab
from network import VIPS

SERVERS = ["b1", "b2", "b3"]
SERVER_IDS = {"b1": "c4605e", "b2": "350d28", "b3": "0000b3"}
PORT = 4433
CLIENTS = 24
MOVES = {"migration": [], "NAT rebinding": ["--nat-rebinding"]}
SENT = re.compile(r"Sent packet: local=\[([0-9.]+)\]:(\d+) ")
ISSUED = re.compile(r" initial_source_connection_id=0x11([0-9a-f]{6})")
# What makes a VIP look at connection IDs; `none` for one that does not.
ROUTING = {"none": {},
           "connection IDs": {"quic": {"server_id_octets": 3, "nonce_octets": 4}}}


class QuicLab(Lab):
    def __init__(self, routing, **arguments):
        super().__init__(servers=SERVERS, pool=SERVERS, **arguments)
        self.settings["vips"] = [{"name": "quic", "address": VIPS[0], "protocol": "udp",
                                  "port": PORT, "pool": "web", "tracking": "none",
                                  **ROUTING[routing]}]
        for backend in self.settings["pools"][0]["backends"]:
            backend["quic_server_id"] = SERVER_IDS[backend["name"]]

    def start_servers(self):
        super().start_servers()
        key, certificate = self.directory / "key.pem", self.directory / "certificate.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                        "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key, "-out",
                        certificate, "-days", "2", "-subj", "/CN=web"], check=True,
                       capture_output=True, timeout=20)
        for server in SERVERS:
            pages = self.directory / f"pages-{server}"
            pages.mkdir()
            (pages / "name").write_text(server)
            self.start(f"quic-{server}", server, "env",
                       f"LD_PRELOAD={BUILD / 'tests/end_to_end/quic_cids.so'}",
                       f"MAGLEV_QUIC_SERVER_ID={SERVER_IDS[server]}",
                       "gtlsserver", "--quiet", "--htdocs", pages, "*", PORT, key, certificate)


@dataclasses.dataclass
class Asked:
    server: str       # who issued the connection ID
    page: str         # the name on it; empty: none came
    same_owner: bool  # the slots of the old and the new port are one server's


class Client:
    def __init__(self, lab, number, move):
        directory = lab.directory / f"client-{number}"
        directory.mkdir()
        self.page = directory / "name"
        self.log = directory / "log"
        command = ["ip", "netns", "exec", lab.network.namespace("client"), "gtlsclient",
                   "--exit-on-all-streams-close", "--no-quic-dump", "--no-http-dump",
                   "--change-local-addr=500ms", "--delay-stream=1s", "--timeout=4s",
                   f"--download={directory}", *MOVES[move], VIPS[0], str(PORT),
                   f"https://{VIPS[0]}:{PORT}/name"]
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def asked(self, table):
        self.process.wait(30)
        log = self.log.read_text()
        old, new = dict.fromkeys(SENT.findall(log))  # it moved once
        owners = [table[udp_slot(*source)] for source in (old, new)]
        server, = (name for name, server_id in SERVER_IDS.items()
                   if server_id == ISSUED.search(log)[1])
        assert server == owners[0]
        page = self.page.read_text() if self.page.exists() else ""
        return Asked(server, page, owners[0] == owners[1])


def udp_slot(source, source_port):
    return reference.flow_slot(HASH_SEED, TABLE_SIZE, socket.IPPROTO_UDP, source, int(source_port),
                               VIPS[0], PORT)


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("routing", ROUTING)
def test_a_client_that_moves_is_answered_where_its_server_is_still_reached(make_lab, routing, move):
    lab = make_lab(lab_class=QuicLab, routing=routing)
    lab.start_all()
    table = expected.table(expected.EQUAL_WEIGHTS)
    clients = [Client(lab, number, move) for number in range(CLIENTS)]
    everything = [client.asked(table) for client in clients]
    print(f"\n{routing}, {move}: "
          f"{collections.Counter((one.same_owner, bool(one.page)) for one in everything)}")
    elsewhere = [one for one in everything if not one.same_owner]
    assert len(elsewhere) > CLIENTS / 4
    for one in everything:
        reached = one.same_owner or routing != "none"
        assert one.page == (one.server if reached else ""), one
