"""maglev-decap alone, before real servers: what it unwraps the kernel takes, checksums and all."""

import contextlib
import http.client
import http.server
import os
import re
import socket
import socketserver
import subprocess
import time

import netns
import pytest
from lab import BUILD
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.packet import Raw
from servers import FAMILY, serving
from tunnels import CLIENTS, OUTER, TUNNELS, VIPS, Tunnels, wrap

NAME = "maglev-decap"
UDP_PORT = 9000
FAMILIES = [(outer, inner) for outer in (4, 6) for inner in (4, 6)]


class Page(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        payload, server = self.request
        server.sendto(payload, self.client_address)


@pytest.fixture(scope="module")
def tunnels(whole_machine):
    for left in netns.names():
        if left.startswith(f"{NAME}-"):
            netns.run("ip", "netns", "delete", left)
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(Tunnels(f"{NAME}-{os.getpid()}"))
        for family in (4, 6):
            for kind, port, handler in ((http.server.ThreadingHTTPServer, 80, Page),
                                        (socketserver.UDPServer, UDP_PORT, Echo)):
                stack.enter_context(serving(made.backend, kind, VIPS[family], port, handler))
        yield made


@contextlib.contextmanager
def decap(tunnels, *options):
    """maglev-decap, running; yields a dictionary that has its counters afterwards."""
    sources = [word for source, _ in OUTER.values() for word in ("--from", source)]
    process = subprocess.Popen(
        ["ip", "netns", "exec", tunnels.backend, BUILD / "dataplane/bpf/maglev-decap",
         "--interface", "eth0", *sources, *options], stdout=subprocess.PIPE, text=True)
    counters = {}
    try:
        assert process.stdout.readline().startswith("ready: ")
        yield counters
    finally:
        process.terminate()
        output, _ = process.communicate(timeout=10)
        counters.update((name, int(count)) for name, count in re.findall(r"(\w+)=(\d+)", output))


def checksum_errors(tunnels):
    """Of IP, TCP and UDP, both families, that the backend's kernel has found."""
    with netns.inside(tunnels.backend):
        text = subprocess.run(["nstat", "-asz", "--json"], capture_output=True, text=True,
                              check=True, timeout=10).stdout
    return {name: int(count) for name, count in re.findall(r'"(\w*CsumErrors)":(\d+)', text)}


def post(tunnels, family, body):
    with netns.inside(tunnels.client):
        connection = http.client.HTTPConnection(VIPS[family], 80, timeout=10)
        connection.connect()
    with contextlib.closing(connection):
        connection.request("POST", "/", body)
        return connection.getresponse().read()


def echoed(tunnels, family, payload):
    with netns.inside(tunnels.client):
        asking = socket.socket(FAMILY[family], socket.SOCK_DGRAM)
    with asking:
        asking.settimeout(5)
        asking.connect((VIPS[family], UDP_PORT))
        asking.send(payload)
        return asking.recv(65536)


@pytest.mark.parametrize("outer,inner", FAMILIES)
@pytest.mark.parametrize("tunnel", TUNNELS)
def test_tcp_and_udp_of_the_kernel_work_through(tunnels, tunnel, outer, inner):
    tunnels.tunnel = (tunnel, outer)
    errors, sent = checksum_errors(tunnels), tunnels.sent
    body = bytes(range(256)) * 400
    options = ["--require-udp-checksum"] if tunnel.endswith("checksum") else []
    with decap(tunnels, *options) as counters:
        assert post(tunnels, inner, body) == body
        for length in (0, 1, 2, 3, 512, 1400, 1401):
            assert echoed(tunnels, inner, body[:length]) == body[:length]
        time.sleep(0.1)  # the connection's end
    assert checksum_errors(tunnels) == errors
    assert counters.pop("unwrapped") == tunnels.sent - sent
    assert sum(counters.values()) == 0, counters


def datagram(family, payload, **udp):
    ip = (IP if family == 4 else IPv6)(src=CLIENTS[family], dst=VIPS[family])
    return bytes(ip / UDP(sport=5000, dport=UDP_PORT, **udp) / Raw(payload))


@pytest.mark.parametrize("outer,inner", FAMILIES)
@pytest.mark.parametrize("tunnel", TUNNELS)
def test_the_kernel_still_sees_a_wrong_checksum_of_the_client(tunnels, tunnel, outer, inner):
    before = sum(checksum_errors(tunnels).values())
    with decap(tunnels) as counters:
        tunnels.send(wrap(tunnel, outer, datagram(inner, b"damaged", chksum=0x1234)))
        deadline = time.monotonic() + 5
        while sum(checksum_errors(tunnels).values()) == before:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert counters["unwrapped"] == 1


def test_frames_of_other_sources_and_damaged_ones_are_counted(tunnels):
    def changed(frame, at):
        return frame[:at] + bytes([frame[at] ^ 0x40]) + frame[at + 1:]

    def damaged(frame):
        return frame[:-1] + bytes([frame[-1] ^ 0x40])

    with decap(tunnels) as counters:
        for outer, source_end in ((4, 14 + 15), (6, 14 + 23)):
            tunnels.send(changed(wrap("ip-in-ip", outer, datagram(4, b"x")), source_end))
            tunnels.send(damaged(wrap("gue-1-checksum", outer, datagram(4, b"x"))))
        time.sleep(0.2)
    assert (counters["refused_source"], counters["bad_checksum"]) == (2, 2)
    assert counters["unwrapped"] == 0
