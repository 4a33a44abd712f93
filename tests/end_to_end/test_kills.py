"""kill -9 of either daemon: what goes on, what comes back, what is remembered."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import threading
import time

import expected
import netns
from control_api import ApiError
from http_client import fetch
from lab import to_yaml
from network import CLIENT_ADDRESSES, VIPS
from numbered import NumberedPackets

KILLS = 200
PACKETS_PER_SECOND = 2000


class Publisher(threading.Thread):
    """Changes weights back to back through the control socket, whether control lives or not."""

    def __init__(self, lab, chance):
        super().__init__()
        self.control = lab.control
        self.chance = chance
        self.weights = dict(expected.EQUAL_WEIGHTS)  # as acknowledged
        self.unconfirmed = {name: set() for name in self.weights}  # tried since, without an answer
        self.generations = []
        self.problems = []
        self.stopping = threading.Event()

    def run(self):
        while not self.stopping.is_set():
            name, weight = self.chance.choice(list(self.weights)), self.chance.randint(1, 100)
            try:
                answer = self.control.patch(f"/v1/pools/web/backends/{name}", {"weight": weight})
            except OSError:
                self.unconfirmed[name].add(weight)
                time.sleep(0.002)
            except ApiError as error:
                self.problems.append(error)
            else:
                self.weights[name] = weight
                self.unconfirmed[name].clear()
                self.generations.append(answer["generation"])


def test_200_kills_of_control_under_publications_cost_no_packet(lab):
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"\nseed {seed}")
    chance = random.Random(seed)
    publisher = Publisher(lab, random.Random(seed + 1))
    with NumberedPackets(lab, PACKETS_PER_SECOND) as packets:
        publisher.start()
        try:
            for _ in range(KILLS):
                # Some die while they start, others amid publications.
                time.sleep(chance.uniform(0.0, 0.2))
                killed = lab.stop("control", signal.SIGKILL)
                assert killed.popen.returncode == -signal.SIGKILL, killed.log_tail()
                lab.start_control()
            lab.wait_until(lab.status, "control answers")
        finally:
            publisher.stopping.set()
            publisher.join()
        lab.wait_until_serving()
    print(f"{packets.sent} packets, {len(packets.missing)} missing, {len(packets.twice)} twice, "
          f"{packets.by_server}; {len(publisher.generations)} publications acknowledged, up to "
          f"generation {publisher.generations[-1]}")
    assert packets.missing == []
    assert packets.twice == []
    assert publisher.problems == []
    assert len(publisher.generations) > KILLS
    assert publisher.generations == sorted(publisher.generations)
    weights = {backend["name"]: backend["weight"]
               for backend in lab.control.get("/v1/pools/web")["backends"]}
    for name, weight in weights.items():
        assert weight in {publisher.weights[name]} | publisher.unconfirmed[name]
    expected.check_requests(lab, weights, 23000)


def test_what_was_set_by_socket_survives_a_kill_of_control(lab):
    backends = "/v1/pools/web/backends"
    lab.control.patch(f"{backends}/b2", {"state": "drain"})
    lab.control.patch(f"{backends}/b1", {"weight": 5})
    lab.control.delete(f"{backends}/b3")
    lab.control.post(backends, {"name": "b4", "address": lab.network.address("b4"), "weight": 2})
    lab.control.post("/v1/pools", {"name": "spare", "table_size": 251, "backends": []})
    generation = lab.control.post("/v1/vips", {
        "name": "more", "address": VIPS[0], "protocol": "tcp", "port": 8080, "pool": "web"})[
            "generation"]
    lab.stop("control", signal.SIGKILL)
    lab.start_control()
    status = lab.wait_until(lab.status, "control answers")
    assert status["generation"] >= generation
    found = {backend["name"]: (backend["weight"], backend["state"], backend["source"])
             for backend in lab.control.get("/v1/pools/web")["backends"]}
    assert {name: value[:2] for name, value in found.items()} == {
        "b1": (5, "ready"), "b2": (1, "drain"), "b4": (2, "ready")}
    assert found["b4"][2] == "socket"
    assert "spare" in {pool["name"] for pool in lab.control.get("/v1/pools")["pools"]}
    assert lab.control.get("/v1/vips/more")["port"] == 8080
    lab.wait_until(lambda: lab.status()["backends_in_tables"] == 2, "b1 and b4 in the table")
    lab.wait_until(lambda: lab.status()["adopted_generation"] == lab.status()["generation"],
                   "adopted")
    expected.check_requests(lab, {"b1": 5, "b4": 2}, 24000)


class ResetWatch:
    """Counts TCP resets that reach the client from the VIP."""

    def __init__(self, lab):
        with netns.inside(lab.network.namespace("client")):
            self.tap = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP)
        self.tap.setblocking(False)

    def count(self):
        resets = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                packet, (sender, _) = self.tap.recvfrom(2048)
                header = packet[(packet[0] & 15) * 4:]
                resets += sender == VIPS[0] and bool(header[13] & 0x04)
        return resets


def knock(lab, first_port, count=20):
    """Begins connections and gives each a moment."""
    with netns.inside(lab.network.namespace("client")):
        for port in range(first_port, first_port + count):
            fetch(CLIENT_ADDRESSES[1], port, timeout_s=0.02)


def test_a_killed_dataplane_lets_no_reset_out_and_serves_again_after_its_start(lab):
    netns.run("ip", "-n", lab.network.namespace("lb"), "address", "add", f"{VIPS[0]}/32",
              "dev", "lo")
    expected.check_requests(lab, expected.EQUAL_WEIGHTS, 25000)
    watch = ResetWatch(lab)
    lab.stop("dataplane", signal.SIGKILL)
    knock(lab, 26000)
    assert watch.count() == 0

    started = time.monotonic()
    lab.start_dataplane()
    with netns.inside(lab.network.namespace("client")):
        for port in range(27000, 28000):
            if fetch(CLIENT_ADDRESSES[0], port, timeout_s=0.05).server:
                break
    took = time.monotonic() - started
    print(f"\ntraffic flows {took:.2f} s after the dataplane's start")
    assert took < 1.0
    lab.wait_until_serving()
    expected.check_requests(lab, expected.EQUAL_WEIGHTS, 28000)
    assert watch.count() == 0

    # Without what protects it the kernel does answer: the watch can see it.
    lab.stop("dataplane", signal.SIGKILL)
    netns.run("ip", "-n", lab.network.namespace("lb"), "link", "set", "eth0", "xdp", "off")
    netns.run("tc", "-n", lab.network.namespace("lb"), "qdisc", "del", "dev", "eth0", "clsact")
    knock(lab, 29000)
    assert watch.count() > 0


def test_the_dataplane_goes_on_when_the_reader_of_its_log_is_gone(make_lab):
    lab = make_lab(memory_mib=0)
    lab.settings["dataplane"] |= {
        "hugepages": False, "memory_mib": 128,
        "ports": [{"name": "ring", "device": "net_ring0", "interface": "eth0"}]}
    lab.configuration.write_text(to_yaml(lab.settings))
    reader, writer = os.pipe()
    os.close(reader)
    command = ("ip", "netns", "exec", lab.network.namespace("lb"),
               lab.program("maglev-dataplane"), lab.configuration)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=writer) as dataplane:
        os.close(writer)
        lab.start_control()
        lab.wait_until(lambda: (status := lab.status()) and status["adopted_generation"] > 0,
                       "it works", 20)
        dataplane.terminate()
        assert dataplane.wait(10) == 0
