"""All frames that the cases send, read by an independent dissector (scapy): headers follow each other
as they must, every length and checksum is right, and what is inside is what was received."""

import os
import pathlib
import struct
import subprocess
import sys

import pytest
import xxhash
from scapy.layers.inet import IP, UDP, in4_chksum
from scapy.layers.inet6 import IPv6, IPv6ExtHdrFragment, in6_chksum
from scapy.layers.l2 import GRE, Dot1Q, Ether
from scapy.utils import checksum, rdpcap

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/end_to_end"))
import reference  # noqa: E402

HASH_SEED = 0x9e3779b97f4a7c15  # of all configurations
BUILD = pathlib.Path(os.environ.get("MAGLEV_BUILD", ROOT / "build"))
CASES = sorted(path.name for path in (ROOT / "tests/packets/cases").iterdir())
GUE_PORTS = (6080, 16080)
ICMP_NUMBER, TCP_NUMBER, UDP_NUMBER, ICMPV6_NUMBER = 1, 6, 17, 58
TRANSPORTS = {ICMP_NUMBER: "ICMP", TCP_NUMBER: "TCP", UDP_NUMBER: "UDP", ICMPV6_NUMBER: "ICMPv6"}
# scapy knows neither AH without its crypto library nor routing headers of types for experiments.
EXTENSION_LENGTHS = {0: lambda n: (n + 1) * 8, 43: lambda n: (n + 1) * 8, 44: lambda n: 8,
                     51: lambda n: (n + 2) * 4, 60: lambda n: (n + 1) * 8}

# Cases whose packets are wrong inside on purpose, and stay so: their outer headers alone must be right.
WRONG_INSIDE = {"outer_checksum_over_what_has_none", "transport_lengths_are_the_backends_affair",
                "wrong_inner_checksum", "wrong_ipv4_header_checksum"}
# The sender left checksums to hardware: the packet inside is not byte for byte the one received.
FINISHED_INSIDE = {"checksum_left_to_hardware"}


class Complaint(Exception):
    pass


def demand(condition, what):
    if not condition:
        raise Complaint(what)


def dissect_ip(data):
    demand(data and data[0] >> 4 in (4, 6), "neither IPv4 nor IPv6")
    return IP(data) if data[0] >> 4 == 4 else IPv6(data)


def ip_of(frame):
    """The IP packet of a frame, and what stands behind it; None where there is none."""
    layer = Ether(frame).payload
    while isinstance(layer, Dot1Q):
        layer = layer.payload
    if not isinstance(layer, (IP, IPv6)):
        return None
    length = layer.len if isinstance(layer, IP) else layer.plen + 40
    return bytes(layer)[:length], bytes(layer)[length:]


def check_header(packet):
    if isinstance(packet, IP):
        demand(packet.len == len(bytes(packet)), "IPv4 total length")
        demand(checksum(bytes(packet)[:packet.ihl * 4]) == 0, "IPv4 header checksum")
    else:
        demand(packet.plen + 40 == len(bytes(packet)), "IPv6 payload length")


def is_fragment(packet):
    if isinstance(packet, IP):
        return packet.frag != 0 or bool(packet.flags.MF)
    fragment = packet.getlayer(IPv6ExtHdrFragment)
    return fragment is not None and (fragment.offset != 0 or fragment.m != 0)


def transport_of(packet):
    """Protocol and bytes behind options or extension headers."""
    if isinstance(packet, IP):
        return packet.proto, bytes(packet)[packet.ihl * 4:packet.len]
    protocol, data = packet.nh, bytes(packet)[40:]
    while protocol in EXTENSION_LENGTHS:
        length = EXTENSION_LENGTHS[protocol](data[1])
        protocol, data = data[0], data[length:]
    return protocol, data


def check_transport(packet):
    """UDP, TCP and ICMP of a whole packet."""
    if is_fragment(packet):
        return
    protocol, segment = transport_of(packet)
    demand(protocol in (TCP_NUMBER, UDP_NUMBER, ICMP_NUMBER, ICMPV6_NUMBER), "unknown transport")
    if protocol == UDP_NUMBER:
        udp = UDP(segment)
        demand(udp.len == len(segment), "UDP length")
        if udp.chksum == 0:
            demand(isinstance(packet, IP) or udp.dport in GUE_PORTS, "no UDP checksum over IPv6")
            return
    if protocol == ICMP_NUMBER:
        right = checksum(segment) == 0
    elif isinstance(packet, IP):
        right = in4_chksum(protocol, packet, segment) == 0
    else:
        right = in6_chksum(protocol, packet, segment) == 0
    demand(right, f"{TRANSPORTS[protocol]} checksum")


def unwrap(packet):
    """What is inside a tunnel's outer packet; None where it is none."""
    inside = packet.payload
    if isinstance(inside, (IP, IPv6)):
        return bytes(inside)
    if isinstance(inside, GRE):
        demand(bytes(inside)[:2] == b"\0\0", "GRE with options")
        kind = {0x0800: IP, 0x86dd: IPv6}.get(inside.proto)
        demand(kind is not None and isinstance(inside.payload, kind), "GRE protocol type")
        return bytes(inside.payload)
    if isinstance(inside, UDP) and inside.dport in GUE_PORTS:
        demand(inside.sport >= 0xc000, "UDP source port of GUE")
        data = bytes(inside.payload)
        if data[0] >> 6 == 1:  # variant 1: the IP version's first bits
            return data
        demand(data[0] == 0 and data[2:4] == b"\0\0", "GUE header")
        demand({4: 4, 41: 6}.get(data[1]) == data[4] >> 4, "GUE protocol")
        return data[4:]
    return None


def forwarded(packet):
    """The packet that arrives at a backend must have been before: one hop older."""
    if packet[0] >> 4 == 6:
        return packet[:7] + bytes([packet[7] - 1]) + packet[8:]
    return packet[:8] + bytes([packet[8] - 1]) + packet[9:10] + b"\0\0" + packet[12:]


def without_checksum(packet):
    return packet if packet[0] >> 4 == 6 else packet[:10] + b"\0\0" + packet[12:]


def is_part_of(part, whole):
    """An IPv4 fragment, and the packet or longer fragment that it was cut from."""
    part, whole = IP(part), IP(whole)
    start = 8 * (part.frag - whole.frag)
    identified_anew = whole.flags.DF and not whole.flags.MF and whole.frag == 0
    if (part.src, part.dst, part.ttl) != (whole.src, whole.dst, whole.ttl - 1):
        return False
    if part.id != whole.id and not identified_anew:
        return False
    return start >= 0 and bytes(whole)[whole.ihl * 4:][start:].startswith(
        bytes(part)[part.ihl * 4:])


def check_inside(inside, received):
    candidates = [packet for packet in received if packet[0] >> 4 == inside[0] >> 4]
    known = any(without_checksum(inside) == forwarded(packet) for packet in candidates)
    cut = inside[0] >> 4 == 4 and any(is_part_of(inside, packet) for packet in candidates)
    demand(known or cut, "the packet inside was not received")


def check_answer(packet, received):
    """An ICMP message from the VIP to the sender of what it is about, which it quotes or returns."""
    message = bytes(packet.payload)
    about = [IP(p) if p[0] >> 4 == 4 else IPv6(p) for p in received]
    about = [p for p in about if (p.src, p.dst) == (packet.dst, packet.src)]
    demand(about, "an answer to nobody")
    if isinstance(packet, IP):
        echo, limit = message[0] == 0, 576
    else:
        echo, limit = message[0] == 129, 1280
    if echo:
        demand(any(message[4:] in bytes(p) for p in about), "an echo reply with other data")
        return
    demand(len(bytes(packet)) <= limit, "an ICMP error longer than allowed")
    demand(any(bytes(p).startswith(message[8:]) for p in about), "a quote of nothing received")


def check_frame(frame, received, inside_is_right=True, inside_is_known=True):
    """Raises Complaint unless a frame sent is right. `received`: the IP packets of the case."""
    data, rest = ip_of(frame) or (b"", b"")
    demand(not rest, "bytes behind the packet")
    packet = dissect_ip(data)
    inside = unwrap(packet)
    if inside is None and transport_of(packet)[0] in (ICMP_NUMBER, ICMPV6_NUMBER):
        check_header(packet)
        check_transport(packet)
        check_answer(packet, received)
        return
    if inside is None:
        inside = bytes(packet)  # layer-2 rewriting
    else:
        check_header(packet)
        if packet.haslayer(UDP) and packet[UDP].dport in GUE_PORTS:
            check_transport(packet)
    if inside_is_right:
        check_header(dissect_ip(inside))
        check_transport(dissect_ip(inside))
    if inside_is_known:
        check_inside(inside, received)


@pytest.fixture(scope="module")
def captures(tmp_path_factory):
    directory = tmp_path_factory.mktemp("captures")
    done = subprocess.run([BUILD / "tests/packets/packet_cases", "--gtest_brief=1"],
                          env=dict(os.environ, MAGLEV_CAPTURES=str(directory)),
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
    return directory


def frames(captures, case, which):
    return [bytes(frame) for frame in rdpcap(str(captures / f"{case}.{which}.pcap"))]


def received_packets(captures, case):
    found = [ip_of(frame) for frame in frames(captures, case, "received") if len(frame) >= 34]
    return [packet for packet, _ in filter(None, found)]


def test_every_frame_sent_is_right(captures):
    count, complaints = 0, []
    for case in CASES:
        received = received_packets(captures, case)
        for number, frame in enumerate(frames(captures, case, "sent"), 1):
            count += 1
            try:
                check_frame(frame, received, case not in WRONG_INSIDE,
                            case not in FINISHED_INSIDE)
            except Complaint as why:
                complaints.append(f"{case}, frame {number}: {why}")
    assert not complaints, "\n".join(complaints)
    assert count > 200


def entropy_of(packet):
    """The flow's bits for outer headers (dataplane/outer_header.h), and its slot among 251."""
    protocol, segment = transport_of(packet)
    source_port, destination_port = struct.unpack_from("!HH", segment)
    key = reference.flow_bytes(protocol, packet.src, source_port, packet.dst, destination_port)
    flow_hash = xxhash.xxh3_64_intdigest(key, HASH_SEED)
    mixed = (flow_hash * 0x9e3779b97f4a7c15) % (1 << 64) >> 32
    return mixed, reference.slot_of(flow_hash, 251)


def test_what_depends_on_the_flow_follows_from_the_rules(captures):
    """UDP source ports, flow labels, and which of three backends: worked out from tests/golden."""
    owners = reference.maglev_table({"b1": 1, "b2": 1, "b3": 1}, 251)
    checked = {"port": 0, "label": 0, "backend": 0}
    for case in CASES:
        text = (ROOT / "tests/packets/cases" / case).read_text()
        if "use hash_by_source" in text or "use fragments_by_address" in text:
            continue
        for frame in frames(captures, case, "sent"):
            outer = dissect_ip(ip_of(frame)[0])
            inside = unwrap(outer)
            inner = dissect_ip(inside) if inside else None
            if inner is None or is_fragment(inner) or transport_of(inner)[0] not in (6, 17):
                continue
            mixed, slot = entropy_of(inner)
            if isinstance(outer.payload, UDP):
                checked["port"] += 1
                assert outer.payload.sport == 0xc000 | mixed >> 18, case
            if isinstance(outer, IPv6):
                checked["label"] += 1
                assert outer.fl == mixed >> 12, case
            if "use three_backends" in text:
                checked["backend"] += 1
                assert outer.dst == f"198.18.2.1{owners[slot][1:]}", case
    assert min(checked.values()) > 20, checked


# CASE, number of the frame, byte from the start of the frame: what the check must say.
@pytest.mark.parametrize("case, number, byte, what", [
    ("ipip_over_ipv4", 0, 17, "total length|behind"),
    ("ipip_over_ipv4", 0, 24, "IPv4 header checksum"),
    ("ipip_over_ipv4", 0, 34 + 10, "IPv4 header checksum"),
    ("ipip_over_ipv4", 0, 34 + 20 + 8, "UDP checksum"),
    ("ipip_over_ipv6", 0, 19, "behind|neither"),
    ("gre_over_ipv4", 0, 34 + 3, "GRE protocol type"),
    ("gue_over_ipv6", 0, 54 + 6, "UDP checksum"),
    ("gue_over_ipv6", 1, 54 + 8 + 4 + 47, "UDP checksum"),
    ("gue_over_ipv4", 0, 34 + 8 + 1, "GUE protocol"),
    ("gue_over_ipv4", 1, 34 + 8 + 4 + 40, "UDP checksum"),
    ("layer_2_ipv4", 0, 22, "IPv4 header checksum"),
    ("whole_in_hex", 0, 34 + 20 + 4, "TCP checksum"),
    ("last_hop", 0, 34 + 2, "ICMP checksum"),
    ("last_hop", 2, 54 + 8, "ICMPv6 checksum"),
])
def test_one_wrong_byte_is_seen(captures, case, number, byte, what):
    frame = bytearray(frames(captures, case, "sent")[number])
    received = received_packets(captures, case)
    check_frame(bytes(frame), received)
    frame[byte] ^= 1
    with pytest.raises(Complaint, match=what):
        check_frame(bytes(frame), received)


def test_a_packet_that_was_not_received_is_seen(captures):
    frame = frames(captures, "ipip_over_ipv4", "sent")[0]
    with pytest.raises(Complaint, match="was not received"):
        check_frame(frame, received_packets(captures, "layer_2_ipv6"))
