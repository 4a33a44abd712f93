"""The plain twin of the packet path, for the benches: what each frame must become.

Worked out one packet at a time from the rules (tests/golden, RFC 2003, RFC 6040), with the tests'
independent computation of tables and flow hash; no code is shared with the product."""

import concurrent.futures
import json
import pathlib
import socket
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests/end_to_end"))
import reference  # noqa: E402

ETHERNET = 14
IP_IN_IP = 4
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
        self.vips = {(socket.inet_aton(vip["address"]), vip["port"]): number
                     for number, vip in enumerate(description["vips"])}
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
        length, = struct.unpack_from("!H", frame, ETHERNET + 2)
        ip = frame[ETHERNET:ETHERNET + length]
        source, destination = ip[12:16], ip[16:20]
        source_port, destination_port = struct.unpack_from("!HH", ip, (ip[0] & 15) * 4)
        pool = self.vips[destination, destination_port]
        if pool not in self.backends:
            return None
        slot = reference.flow_slot(self.seed, self.size, ip[9], socket.inet_ntoa(source),
                                   source_port, socket.inet_ntoa(destination), destination_port)
        backend = self.backends[pool][self.tables[pool][slot]]
        inner = with_checksum(ip[:8] + bytes([ip[8] - 1]) + ip[9:20]) + ip[20:]
        outer = with_checksum(struct.pack("!BBHHHBBH4s4s", 0x45, ip[1], length + 20, 0, 0x4000, 64,
                                          IP_IN_IP, 0, backend["outer_source"],
                                          backend["address"]))
        return backend["mac"], frame[12:14] + outer + inner


def new_flow(frame, number):
    """Packet `number` as bench/new_flows.so hands it on."""
    mixed = number * 0x9e3779b1 % (1 << 32)
    source = struct.pack("!I", (198 << 24 | 18 << 16) + (mixed >> 15))
    ip = with_checksum(frame[ETHERNET:ETHERNET + 12] + source + frame[ETHERNET + 16:ETHERNET + 20])
    tcp = struct.pack("!H", 0x8000 | mixed & 0x7fff) + frame[ETHERNET + 22:]
    length, = struct.unpack_from("!H", ip, 2)
    segment = tcp[:16] + b"\0\0" + tcp[18:length - 20]
    covered = ip[12:20] + struct.pack("!BBH", 0, 6, len(segment)) + segment
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
