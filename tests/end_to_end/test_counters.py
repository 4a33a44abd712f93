"""Known packets against the counters: exact packets and bytes, each with one verdict."""

import collections
import socket
import struct

import expected
import netns
from lab import UDP_PORT
from network import CLIENT_ADDRESSES, LAN_MTU, VIPS
from wire import Wire

UDP_HEADERS = 14 + 20 + 8  # Ethernet, IPv4, UDP


def counters(lab):
    stats = lab.control.get("/v1/stats")
    return {
        "received": collections.Counter(stats["received"]),
        "verdicts": collections.Counter(stats["verdicts"]),
        "vips": {vip["name"]: (collections.Counter(vip["forwarded"]),
                               collections.Counter(vip["dropped"])) for vip in stats["vips"]},
        "backends": {backend["name"]: (collections.Counter(backend["forwarded"]),
                                       collections.Counter(backend["dropped"]))
                     for backend in stats["backends"]},
    }


def counters_after(lab, packets):
    """The counters once the workers have received exactly so many packets."""
    lab.wait_until(lambda: counters(lab)["received"]["packets"] >= packets,
                   f"{packets} packets received")
    return counters(lab)


def test_datagrams_of_known_sizes_are_counted_once_for_vip_backend_and_worker(lab):
    table = expected.table(expected.EQUAL_WEIGHTS)
    by_backend = collections.defaultdict(collections.Counter)
    total = collections.Counter()
    with netns.inside(lab.network.namespace("client")):
        for n in range(300):
            size = n * 5 % 1473  # up to what fills the client's MTU
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
                sender.bind((CLIENT_ADDRESSES[n % 8], 21000 + n))
                sender.sendto(b"x" * size, (VIPS[0], UDP_PORT))
            server = table[expected.udp_slot(CLIENT_ADDRESSES[n % 8], 21000 + n)]
            # The veth pads nothing: a frame is as long as its packet.
            frame = {"packets": 1, "bytes": UDP_HEADERS + size}
            by_backend[server].update(frame)
            total.update(frame)
    seen = counters_after(lab, 300)
    assert seen["received"] == total
    assert +seen["verdicts"] == {"forwarded": 300}
    assert seen["vips"]["udp-0"] == (total, {"packets": 0, "bytes": 0})
    assert seen["vips"]["tcp-0"][0]["packets"] == 0
    for name in ("b1", "b2", "b3"):
        assert seen["backends"][name] == (by_backend[name], {"packets": 0, "bytes": 0})


def checksum(header):
    total = sum(struct.unpack(f"!{len(header) // 2}H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def ipv4(payload, *, protocol=17, ttl=64, fragment=0, words=5, length=None, to=VIPS[0]):
    header = bytearray(struct.pack(
        "!BBHHHBBH4s4s", 0x40 | words, 0, 20 + len(payload) if length is None else length, 1,
        fragment, ttl, protocol, 0, socket.inet_aton(CLIENT_ADDRESSES[0]), socket.inet_aton(to)))
    struct.pack_into("!H", header, 10, checksum(bytes(header)))
    return bytes(header) + payload


def udp(port=UDP_PORT, size=30):
    return struct.pack("!HHHH", 22000, port, 8 + size, 0) + b"x" * size


def test_each_kind_of_unusable_packet_has_its_verdict_and_none_is_forwarded(lab):
    packets = {
        "forwarded": [ipv4(udp())] * 3,
        "unserved_port": [ipv4(udp(port=9001)), ipv4(udp(port=80))],
        "unsupported_protocol": [ipv4(b"x" * 20, protocol=47)],
        "echo_answered": [ipv4(struct.pack("!BBHHH", 8, 0, 0xF7FE, 1, 0), protocol=1)],
        "fragment_expired": [ipv4(udp(), fragment=0x0003)],
        "ttl_expired": [ipv4(udp(), ttl=1), ipv4(udp(), ttl=0)],
        "malformed": [ipv4(udp(), words=4), ipv4(udp(), words=15), ipv4(udp(), length=500),
                      ipv4(udp(), length=19), ipv4(b"\x55\xf0")],
        "too_big": [ipv4(udp(size=LAN_MTU - 28 - 19), fragment=0x4000)],
    }
    with Wire(lab) as wire:
        for packet in sum(packets.values(), []):
            wire.send(packet)
    lab.wait_until(lambda: counters(lab)["verdicts"]["fragment_expired"] >= 1,
                   "the lone fragment's time is up")
    seen = counters_after(lab, sum(map(len, packets.values())))
    assert +seen["verdicts"] == {verdict: len(sent) for verdict, sent in packets.items()}
    assert seen["received"]["bytes"] == sum(14 + len(packet)
                                            for packet in sum(packets.values(), []))
    forwarded, dropped = seen["vips"]["udp-0"]
    assert forwarded == {"packets": 3, "bytes": 3 * (UDP_HEADERS + 30)}
    assert dropped["packets"] >= len(packets["ttl_expired"])


def test_a_pool_without_a_usable_backend_drops_and_counts(lab):
    for name in ("b1", "b2", "b3"):
        lab.control.patch(f"/v1/pools/web/backends/{name}?wait=adopted", {"state": "maintenance"})
    before = counters(lab)["received"]["packets"]
    with netns.inside(lab.network.namespace("client")), \
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for _ in range(10):
            sender.sendto(b"x", (VIPS[0], UDP_PORT))
    seen = counters_after(lab, before + 10)
    assert seen["verdicts"]["no_backend"] == 10
    assert seen["vips"]["udp-0"][1] == {"packets": 10, "bytes": 10 * (UDP_HEADERS + 1)}
