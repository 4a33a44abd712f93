"""tcpdump on the load balancer's wire, and tshark's word on what it caught."""

import struct
import subprocess

FILE_HEADER = struct.Struct("=IHHiIII")
RECORD_HEADER = struct.Struct("=IIII")
GUE_PORT, OTHER_GUE_PORT = 6080, 7000
MAGIC, RAW_IP = 0xA1B2C3D4, 101
CHECKSUMS = ["ip.checksum.status", "tcp.checksum.status", "udp.checksum.status"]
BAD_CHECKSUM, GOOD_CHECKSUM, NO_CHECKSUM = "0", "1", "3"


class Capture:
    """What the load balancer sends while the block runs, or with direction "out" what it gets."""

    def __init__(self, lab, interface, expression, direction="in"):
        self.path = lab.directory / f"{interface}-{direction}.pcap"
        self.command = ["ip", "netns", "exec", lab.network.namespace("router"), "tcpdump", "-i",
                        interface, "-Q", direction, "-U", "--immediate-mode", "-Z", "root", "-w",
                        str(self.path), expression]

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stderr=subprocess.PIPE, text=True)
        assert "listening on" in self.process.stderr.readline()
        return self

    def __exit__(self, *error):
        self.process.terminate()
        text = self.process.communicate(timeout=10)[1]
        assert "\n0 packets dropped by kernel" in text, text

    def frames(self):
        data = self.path.read_bytes()
        frames, at = [], FILE_HEADER.size
        while at < len(data):
            length = RECORD_HEADER.unpack_from(data, at)[2]
            at += RECORD_HEADER.size + length
            frames.append(data[at - length:at])
        return frames


def write_packets(path, packets):
    """IP packets without link headers."""
    with open(path, "wb") as file:
        file.write(FILE_HEADER.pack(MAGIC, 2, 4, 0, 0, 65535, RAW_IP))
        for packet in packets:
            file.write(RECORD_HEADER.pack(0, 0, len(packet), len(packet)) + packet)


def dissect(path, fields):
    """For each packet a dictionary of fields; several values of one are parted by commas."""
    fields = [*fields, "_ws.malformed", *CHECKSUMS]
    check = [word for protocol in ("ip", "tcp", "udp")
             for word in ("-o", f"{protocol}.check_checksum:TRUE")]
    opaque = [word for port in (GUE_PORT, OTHER_GUE_PORT)
              for word in ("-d", f"udp.port=={port},data")]
    wanted = [word for field in fields for word in ("-e", field)]
    text = subprocess.run(["tshark", "-n", "-r", path, *opaque, *check, "-T", "fields", *wanted],
                          capture_output=True, text=True, check=True, timeout=60).stdout
    rows = [dict(zip(fields, line.split("\t"))) for line in text.splitlines()]
    for row in rows:
        row["checksums"] = ",".join(row[field] for field in CHECKSUMS).split(",")
    return rows
