"""maglev-replay as an operator uses it: a configuration, a capture file, an answer a packet."""

import json
import os
import pathlib
import re
import struct
import subprocess
import time

import pytest
from scapy.layers.inet import ICMP, IP, UDP
from scapy.layers.l2 import ARP, Ether
from scapy.utils import rdpcap, wrpcap

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("MAGLEV_BUILD", ROOT / "build"))
MANY = 1_000_000  # answers a second
FLOW_STORE = pathlib.Path(f"/dev/shm/maglev-replay-{os.getpid()}.flows")
VIP, CLIENT = "198.51.100.10", "198.18.0.2"


def replay(*arguments):
    return subprocess.run([BUILD / "dataplane/maglev-replay", *arguments], capture_output=True,
                          text=True, timeout=60)


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    directory = tmp_path_factory.mktemp("replay") / "tables"
    subprocess.run([BUILD / "control/maglev-control", "--render",
                    ROOT / "tests/packets/configurations/ipip_over_ipv4.yaml", "--into", directory],
                   check=True, timeout=60)
    return directory


def packet(*layers, time=1000.0):
    frame = Ether(src="02:00:00:00:00:08", dst="02:00:00:00:00:01")
    for layer in layers:
        frame /= layer
    frame.time = time
    return frame


@pytest.fixture
def capture(tmp_path):
    path = tmp_path / "in.pcap"
    wrpcap(str(path), [
        packet(IP(src=CLIENT, dst=VIP), UDP(sport=4000, dport=53), b"query"),
        packet(IP(src=CLIENT, dst=VIP), ICMP(), b"hello"),
        packet(IP(src=CLIENT, dst=VIP, id=7, frag=8, proto=17), b"later fragment"),
        packet(ARP(), time=1001.5),
        packet(IP(src=CLIENT, dst=VIP, ttl=1), UDP(sport=4000, dport=53), time=1001.5)])
    return path


def pcapng(frame, seconds):
    """One frame, its time in whole seconds (draft-ietf-opsawg-pcapng)."""
    def block(kind, body):
        body += bytes(-len(body) % 4)
        length = struct.pack("<I", len(body) + 12)
        return struct.pack("<I", kind) + length + body + length
    resolution = struct.pack("<HHB3xHH", 9, 1, 0, 0, 0)
    return (block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))
            + block(1, struct.pack("<HHI", 1, 0, 0) + resolution)
            + block(6, struct.pack("<IIIII", 0, seconds >> 32, seconds & 0xffffffff, len(frame),
                                   len(frame)) + frame))


def test_every_packet_has_one_line_and_every_frame_sent_is_in_the_output(tables, capture, tmp_path):
    done = replay(tables, capture, tmp_path / "out.pcap")
    assert done.returncode == 0, done.stderr
    lines, counters = done.stdout.split("\n\n")
    assert lines.splitlines() == [
        "1 forwarded vip dns backend one/b1 port 0 length 67",
        "2 echo_answered",
        "- echo_reply port 0 length 47",
        "3 fragment_expired",  # a second after it came, before the next packet
        "4 not_ip",
        "5 ttl_expired vip dns",
        "- time_exceeded port 0 length 70"]
    assert "sent_time_exceeded 1" in counters.splitlines()
    assert [len(frame) for frame in rdpcap(str(tmp_path / "out.pcap"))] == [67, 47, 70]


def test_json_says_the_same(tables, capture):
    done = replay("--json", tables, capture)
    *lines, last = map(json.loads, done.stdout.splitlines())
    assert lines[0] == {"packet": 1, "verdict": "forwarded", "vip": "dns", "pool": "one",
                        "backend": "b1", "port": 0, "length": 67}
    assert [line["packet"] for line in lines if "packet" in line] == [1, 2, 3, 4, 5]
    assert [line["origin"] for line in lines if "origin" in line] == ["echo_reply", "time_exceeded"]
    assert last["counters"]["received_packets"] == 5
    assert last["counters"]["backend one/b1 forwarded_packets"] == 1


def test_the_mtu_is_that_of_the_option(tables, tmp_path):
    path = tmp_path / "in.pcap"
    wrpcap(str(path), [packet(IP(src=CLIENT, dst=VIP, flags="DF"), UDP(dport=53), bytes(1352))])
    assert replay(tables, path).stdout.startswith("1 forwarded ")
    assert replay("--mtu", "1400", tables, path).stdout.startswith("1 forwarded ")
    assert replay("--mtu", "1399", tables, path).stdout.startswith("1 too_big ")


def test_bad_input_is_told_and_ends_with_code_2(tables, capture, tmp_path):
    cut = tmp_path / "cut.pcap"
    cut.write_bytes(capture.read_bytes()[:-3])
    snapped = tmp_path / "snapped.pcap"
    whole = rdpcap(str(capture))
    whole[0].wirelen = 2000
    wrpcap(str(snapped), whole)
    raw = tmp_path / "raw.pcap"
    wrpcap(str(raw), [IP(src=CLIENT, dst=VIP)], linktype=101)
    text = tmp_path / "text.pcap"
    text.write_text("no capture at all, but long enough to be one")
    far = tmp_path / "far.pcapng"
    far.write_bytes(pcapng(bytes(whole[0]), seconds=2**64 - 1))
    (tmp_path / "empty").mkdir()
    for arguments, what in [
            ((tables, tmp_path / "none.pcap"), r"none\.pcap: No such file"),
            ((tables, text), "is no capture file"),
            ((tables, cut), r"cut\.pcap: frame 5: truncated"),
            ((tables, snapped), "frame 1 was cut to 47 of 2000 bytes"),
            ((tables, far), "frame 1 has a time before 1970 or after 2262"),
            ((tables, raw), "link type RAW, but only Ethernet"),
            ((tmp_path / "empty", capture), "has no published files"),
            ((tmp_path / "none", capture), "has no published files"),
            ((tables, capture, capture), "is the input too"),
            ((tables, capture, tmp_path / "none/out.pcap"), r"none/out\.pcap"),
            ((tables,), "INPUT is required"),
            (("--mtu", "big", tables, capture), "mtu"),
            (("--icmp-answers-per-second", "1000001", tables, capture), "icmp-answers-per-second"),
            (("--icmp-answers-per-second", "-5", tables, capture), "icmp-answers-per-second")]:
        done = replay(*arguments)
        assert done.returncode == 2, (arguments, done)
        assert re.search(what, done.stderr), (what, done.stderr)


def test_a_damaged_root_is_refused(tables, capture, tmp_path):
    damaged = tmp_path / "damaged"
    subprocess.run(["cp", "-r", tables, damaged], check=True, timeout=10)
    root = bytearray((damaged / "root").read_bytes())
    root[40] ^= 1
    (damaged / "root").write_bytes(root)
    done = replay(damaged, capture)
    assert done.returncode == 2 and "checksum" in done.stderr, done.stderr


def start_dataplane(directory, received, sent):
    """The real one: a worker on a device that reads a capture file and writes another."""
    configuration = directory / "dataplane.yaml"
    configuration.write_text(json.dumps({
        "directory": str(directory / "tables"),
        "dataplane": {
            "main_core": 0, "cores": ["1@0"], "hugepages": False, "memory_mib": 128,
            "icmp_answers_per_second": MANY, "packet_buffer_bytes": 4096,
            "flow_entries": 1024, "flow_store": str(FLOW_STORE),
            "ports": [{"name": "uplink", "device": f"net_pcap0,rx_pcap={received},tx_pcap={sent}",
                       "interface": ""}]}}) + "\n")
    return subprocess.Popen([BUILD / "dataplane/maglev-dataplane", configuration],
                            stderr=subprocess.PIPE, text=True)


def without_port_mac(path):
    """Frames that go to a backend come from the port's own address, which differs."""
    return sorted(frame[:6] + frame[12:] for frame in map(bytes, rdpcap(str(path))))


@pytest.mark.skipif(os.geteuid() != 0, reason="DPDK's environment wants root")
def test_the_dataplane_sends_the_same_frames(tables, tmp_path):
    """What all cases on these tables receive, by both: verdicts are pinned by the cases."""
    captures = tmp_path / "captures"
    captures.mkdir()
    subprocess.run([BUILD / "tests/packets/packet_cases", "--gtest_brief=1"], check=True,
                   env=dict(os.environ, MAGLEV_CAPTURES=str(captures)), timeout=120,
                   stdout=subprocess.DEVNULL)
    received, sent, replayed = (tmp_path / name for name in ("in.pcap", "sent.pcap", "out.pcap"))
    frames = []
    for case in sorted((ROOT / "tests/packets/cases").iterdir()):
        if "\nuse ipip_over_ipv4\n" in case.read_text():
            frames += [frame for frame in rdpcap(str(captures / f"{case.name}.received.pcap"))
                       if len(frame) > 14]  # scapy writes shorter ones wrongly
    assert len(frames) > 150
    wrpcap(str(received), frames)
    subprocess.run(["cp", "-r", tables, tmp_path / "tables"], check=True, timeout=10)
    done = replay("--icmp-answers-per-second", str(MANY), tmp_path / "tables", received, replayed)
    assert done.returncode == 0, done.stderr
    wanted = without_port_mac(replayed)
    dataplane = start_dataplane(tmp_path, received, sent)
    try:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and dataplane.poll() is None:
            time.sleep(0.2)
            if sent.exists() and sent.stat().st_size >= replayed.stat().st_size:
                break
    finally:
        dataplane.terminate()
        _, log = dataplane.communicate(timeout=30)
        FLOW_STORE.unlink(missing_ok=True)
    assert without_port_mac(sent) == wanted, log


def test_the_options_are_those_of_the_document():
    document = (ROOT / "docs/replay.md").read_text()
    documented = set(re.findall(r"^\| `(--[a-z-]+)", document, re.MULTILINE))
    offered = set(re.findall(r"(--[a-z-]+)", replay("--help").stdout)) - {"--help", "--version"}
    assert documented == offered - {"--render"}
