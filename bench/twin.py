"""The plain twin of the packet path, for the benches: what each frame must become.

Worked out one packet at a time from the rules (tests/golden; RFC 2003, RFC 2473, RFC 2784,
draft-ietf-intarea-gue-09, RFC 6040, RFC 6438, RFC 6935), with the tests'
independent computation of tables and flow hash; no code is shared with the product."""

import concurrent.futures
import ipaddress
import json
import pathlib
import struct
import sys

import xxhash

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests/end_to_end"))
import reference  # noqa: E402

ETHERNET = 14
TCP = 6
UDP = 17
GRE = 47
INNER_PROTOCOL = {4: 4, 6: 41}  # of a packet of that version in another
ETHERTYPE = {4: 0x0800, 6: 0x86dd}
COMPARED_POOLS = 1000  # of more, evenly chosen ones: their tables take long to work out


def read_pcap(path):
    """The frames of a capture file, in turn."""
    with open(path, "rb") as file:
        magic = file.read(24)[:4]
        order = {b"\xd4\xc3\xb2\xa1": "<", b"\x4d\x3c\xb2\xa1": "<",
                 b"\xa1\xb2\xc3\xd4": ">", b"\xa1\xb2\x3c\x4d": ">"}[magic]
        while header := file.read(16):
            captured, length = struct.unpack(order + "8xII", header)
            assert captured == length, f"{path} holds a frame that was cut"
            yield file.read(captured)


def write_pcap(path, frames):
    with open(path, "wb") as file:
        file.write(struct.pack("<IHHiIII", 0xa1b2c3d4, 2, 4, 0, 0, 65535, 1))
        for frame in frames:
            file.write(struct.pack("<IIII", 0, 0, len(frame), len(frame)) + frame)


def checksum(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return total ^ 0xffff


def with_checksum(header):
    """An IPv4 header, its checksum filled in."""
    zeroed = header[:10] + b"\0\0" + header[12:]
    return zeroed[:10] + struct.pack("!H", checksum(zeroed)) + zeroed[12:]


def table_of(names, size):
    return reference.maglev_table(dict.fromkeys(names, 1), size)


class Twin:
    """What bench/pps_rig published, as it told in rig.json."""

    def __init__(self, description):
        self.seed = description["hash_seed"]
        self.size = description["table_size"]
        self.vips = {(ipaddress.ip_address(vip["address"]).packed, vip["port"]): number
                     for number, vip in enumerate(description["vips"])}
        self.encapsulation = description["vips"][0]["encapsulation"]
        self.gue_port = description["vips"][0]["gue_port"]
        self.backends = {number: {backend["name"]: {key: bytes.fromhex(backend[key])
                                                    for key in ("address", "outer_source", "mac")}
                                  for backend in pool}
                         for number, pool in enumerate(description["pools"])
                         if number % -(-len(description["pools"]) // COMPARED_POOLS) == 0}
        with concurrent.futures.ProcessPoolExecutor() as workers:
            tables = workers.map(table_of, self.backends.values(),
                                 [self.size] * len(self.backends))
            self.tables = dict(zip(self.backends, tables))

    def expected(self, frame):
        """The frame to send, without its source MAC address: what is before and what is behind it;
        None where its pool is not compared."""
        packet = Packet(frame)
        pool = self.vips[packet.destination, packet.destination_port]
        if pool not in self.backends:
            return None
        key = (packet.source + packet.destination
               + struct.pack("!HHB", packet.source_port, packet.destination_port, TCP))
        flow_hash = xxhash.xxh3_64_intdigest(key, self.seed)
        backend = self.backends[pool][self.tables[pool][reference.slot_of(flow_hash, self.size)]]
        payload = self.tunnelled(packet, backend, flow_hash)
        return backend["mac"], frame[12:14] + outer_header(packet, backend, payload, flow_hash)

    def tunnelled(self, packet, backend, flow_hash):
        """The protocol behind the outer IP header, and all that follows."""
        inner = packet.one_hop_further()
        if self.encapsulation == "ipip":
            return INNER_PROTOCOL[packet.version], inner
        if self.encapsulation == "gre":
            return GRE, struct.pack("!HH", 0, ETHERTYPE[packet.version]) + inner
        gue = struct.pack("!BBH", 0, INNER_PROTOCOL[packet.version], 0) + inner
        length = len(gue) + 8
        ports = struct.pack("!HH", 0xc000 | entropy(flow_hash) >> 18, self.gue_port)
        total = 0
        if packet.version == 6:
            pseudo = backend["outer_source"] + backend["address"] + struct.pack("!II", length, UDP)
            datagram = ports + struct.pack("!HH", length, 0) + gue
            total = checksum(pseudo + datagram + bytes(length % 2)) or 0xffff
        return UDP, ports + struct.pack("!HH", length, total) + gue


class Packet:
    """An IP packet without options or extension headers, as it stands in its frame."""

    def __init__(self, frame):
        self.version = frame[ETHERNET] >> 4
        if self.version == 4:
            length, = struct.unpack_from("!H", frame, ETHERNET + 2)
            header, addresses, size = 20, 12, 4
        else:
            length = 40 + struct.unpack_from("!H", frame, ETHERNET + 4)[0]
            header, addresses, size = 40, 8, 16
        self.bytes = frame[ETHERNET:ETHERNET + length]
        self.source = self.bytes[addresses:addresses + size]
        self.destination = self.bytes[addresses + size:addresses + 2 * size]
        self.source_port, self.destination_port = struct.unpack_from("!HH", self.bytes, header)

    def one_hop_further(self):
        if self.version == 6:
            return self.bytes[:7] + bytes([self.bytes[7] - 1]) + self.bytes[8:]
        header = self.bytes[:8] + bytes([self.bytes[8] - 1]) + self.bytes[9:20]
        return with_checksum(header) + self.bytes[20:]


def entropy(flow_hash):
    """Bits for what differs per flow: the upper half of the hash times the golden ratio."""
    return (flow_hash * 0x9e3779b97f4a7c15 & (1 << 64) - 1) >> 32


def outer_header(packet, backend, payload, flow_hash):
    """The outer packet: its header, and the payload behind it."""
    protocol, content = payload
    if packet.version == 6:
        label = struct.unpack_from("!I", packet.bytes)[0] & 0x0ff00000 | entropy(flow_hash) >> 12
        return struct.pack("!IHBB", 6 << 28 | label, len(content), protocol, 64) \
            + backend["outer_source"] + backend["address"] + content
    return with_checksum(struct.pack(
        "!BBHHHBBH4s4s", 0x45, packet.bytes[1], len(content) + 20, 0, 0x4000, 64, protocol, 0,
        backend["outer_source"], backend["address"])) + content


def new_flow(frame, number):
    """Packet `number` as bench/new_flows.so hands it on."""
    mixed = number * 0x9e3779b1 % (1 << 32)
    source = struct.pack("!I", (198 << 24 | 18 << 16) + (mixed >> 15))
    ip = with_checksum(frame[ETHERNET:ETHERNET + 12] + source + frame[ETHERNET + 16:ETHERNET + 20])
    tcp = struct.pack("!H", 0x8000 | mixed & 0x7fff) + frame[ETHERNET + 22:]
    length, = struct.unpack_from("!H", ip, 2)
    segment = tcp[:16] + b"\0\0" + tcp[18:length - 20]
    covered = ip[12:20] + struct.pack("!BBH", 0, TCP, len(segment)) + segment
    total = checksum(covered + bytes(len(covered) % 2))
    return frame[:ETHERNET] + ip + tcp[:16] + struct.pack("!H", total) + tcp[18:]


def differences(description_path, received_path, sent_path, new_flows):
    """How many packets were compared, and a sentence about the first that is not as it must be."""
    twin = Twin(json.loads(pathlib.Path(description_path).read_text()))
    received = read_pcap(received_path)
    sent = read_pcap(sent_path)
    port_mac = None
    compared = 0
    for number, frame in enumerate(received):
        if new_flows:
            frame = new_flow(frame, number)
        got = next(sent, None)
        if got is None:
            return compared, f"only {number} packets were sent"
        port_mac = port_mac or got[6:12]
        wanted = twin.expected(frame)
        if wanted is None:
            continue
        if got != port_mac.join(wanted):
            return compared, (f"packet {number}: received {frame[:80].hex()}, sent "
                              f"{got[:80].hex()}, expected {port_mac.join(wanted)[:80].hex()}")
        compared += 1
    if next(sent, None) is not None:
        return compared, "more packets were sent than received"
    return compared, None
