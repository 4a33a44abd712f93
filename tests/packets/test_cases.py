"""A case that says something wrong fails, and says where."""

import os
import pathlib
import shutil
import subprocess

import pytest

PACKETS = pathlib.Path(__file__).resolve().parent
BUILD = pathlib.Path(os.environ.get("MAGLEV_BUILD", PACKETS.parents[1] / "build"))
CASE = "transmit_ring_full"


def run(directory, text):
    (directory / "cases").mkdir()
    (directory / "cases" / CASE).write_text(text)
    shutil.copytree(PACKETS / "configurations", directory / "configurations")
    return subprocess.run([BUILD / "tests/packets/packet_cases", "--gtest_filter=Packets/*"],
                          env=dict(os.environ, MAGLEV_PACKETS=str(directory)), timeout=60,
                          capture_output=True, text=True)


def text_of_case():
    return (PACKETS / "cases" / CASE).read_text()


def test_a_directory_without_cases_is_told(tmp_path):
    done = subprocess.run([BUILD / "tests/packets/packet_cases"], timeout=60, capture_output=True,
                          env=dict(os.environ, MAGLEV_PACKETS=str(tmp_path)), text=True)
    assert done.returncode == 2
    assert done.stderr == f"packet_cases: cannot read {tmp_path}/cases: No such file or directory\n"


def test_the_case_holds_as_it_is(tmp_path):
    done = run(tmp_path, text_of_case())
    assert done.returncode == 0 and "1 test " in done.stdout, done.stdout


@pytest.mark.parametrize("right, wrong, what", [
    ("received 1", "quote 1", "the frames differ from byte 42 on"),
    ("on port 0", "on port 1", '"1 forwarded for dns at one/b1 on port 0"'),
    ("at one/b1 on", "on", '"1 forwarded for dns at one/b1 on port 0"'),
    ("2 transmit_full", "2 forwarded", '"2 transmit_full for web at one/b1"'),
    ("2 transmit_full for web at one/b1\n", "", "not expected: 2 transmit_full"),
    ("\ncounters", "own echo_reply on port 0\n  eth\n\ncounters", "nothing more happens"),
    (", transmit_full 1", "", "does not name a counter that changes: transmit_full 1"),
    ("forwarded_bytes 52", "forwarded_bytes 53", "vip dns forwarded_bytes"),
    ("received_packets 2", "received_packets 2, malformed 1", "malformed"),
    ("  udp 4000 > 53", "  udp 4000 > 53 speed 9", f"{CASE}:9: unknown word: speed"),
    ("transmit_room", "transmit_rome", f"{CASE}:4: no step: transmit_rome"),
    ("use ipip_over_ipv4", "use nothing", "cannot read"),
    (".\n\n", "\n\n", "a case opens with a sentence"),
])
def test_whatever_is_wrong_is_seen(tmp_path, right, wrong, what):
    text = text_of_case()
    assert right in text
    done = run(tmp_path, text.replace(right, wrong, 1))
    assert done.returncode == 1 and what in done.stdout, done.stdout
