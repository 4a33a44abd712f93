#!/usr/bin/python3
"""Kills maglev-control at random instants while it is changed without pause.

What it acknowledged must be there after each kill: the state found by the next process is the one
after the last acknowledged change, or after the one change that was under way. Generations never
go back, and nothing on disk is found damaged. Of the slots nothing is forgotten: each that ever
changed hands names whom it was taken from, the same and until the same time in whatever process
comes later, and no two backends ever have one index and incarnation.

Usage: kill_test.py MAGLEV_CONTROL [ROUNDS] [SEED]
"""
import http.client
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

from published_slots import read_slots

CONFIGURATION = """
directory: {directory}/run
state: {directory}/state
hash_seed: "0123456789abcdef"
dataplane:
  main_core: 0
  cores: [1]
  ports: [{{name: uplink, device: net_null0, interface: lo}}]
pools:
  - name: web
    table_size: 251
    backends:
      - {{name: f1, address: 127.0.0.1}}
      - {{name: f2, address: 127.0.0.2}}
vips:
  - {{name: web-http, address: 198.51.100.10, protocol: tcp, port: 80, pool: web}}
"""
START_SECONDS = 10


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=5)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def call(connection, method, path, body=None):
    connection.request(method, path, json.dumps(body) if body is not None else None)
    response = connection.getresponse()
    return response.status, json.loads(response.read())


class Control:
    """One process, until it is killed."""

    def __init__(self, binary, directory, log):
        self.socket_path = f"{directory}/run/control.sock"
        self.process = subprocess.Popen([binary, f"{directory}/maglev.yaml"], stderr=log)
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self.connection = UnixConnection(self.socket_path)
                self.connection.connect()
                return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    sys.exit(f"maglev-control does not start, exit code {self.process.poll()}")
                time.sleep(0.002)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def backends(self):
        status, pool = call(self.connection, "GET", "/v1/pools/web")
        assert status == 200, pool
        return {b["name"]: (b["weight"], b["state"]) for b in pool["backends"]}

    def generation(self):
        return call(self.connection, "GET", "/v1/status")[1]["generation"]


class Past:
    """What the published roots said so far. No window ends and no dataplane settles anything here."""

    def __init__(self):
        self.last = None
        self.names = {}

    def look(self, directory):
        now = read_slots(f"{directory}/run")
        for place, name in now.backends.items():
            assert self.names.setdefault(place, name) == name, f"{place} was {self.names[place]}"
        if self.last:
            before, self.last = self.last, now
            assert now.generation >= before.generation
            for slot, past in before.unsettled.items():
                assert now.unsettled.get(slot) == past, f"slot {slot} was {past}: {now}"
            for slot, owner in enumerate(before.owners):
                if owner is None or now.owners[slot] == owner or slot in before.unsettled:
                    continue
                assert now.unsettled.get(slot, ())[:2] == owner, f"slot {slot} was {owner}'s: {now}"
        self.last = now


def pick_change(rng, backends):
    """A random change that must succeed, and the state after it."""
    after = dict(backends)
    kind = rng.choice(["add", "remove", "patch", "patch"])
    base = "/v1/pools/web/backends"
    if kind == "add" or not backends:
        name = next(n for n in iter(lambda: f"s{rng.randrange(1000)}", None) if n not in backends)
        after[name] = (rng.randrange(1, 100), "ready")
        body = {"name": name, "address": "127.0.0.3", "weight": after[name][0]}
        return "POST", base, body, after
    name = rng.choice(sorted(backends))
    if kind == "remove":
        del after[name]
        return "DELETE", f"{base}/{name}", None, after
    after[name] = (rng.randrange(1, 100), rng.choice(["ready", "drain", "maintenance"]))
    return "PATCH", f"{base}/{name}", dict(zip(("weight", "state"), after[name])), after


def change_until_killed(rng, control, backends, generation, look):
    """Returns the state last acknowledged, the one under way, and the generation answered last."""
    acknowledged = 0
    while True:
        method, path, body, after = pick_change(rng, backends)
        try:
            status, answer = call(control.connection, method, path, body)
        except (OSError, http.client.HTTPException):
            return backends, after, generation, acknowledged
        assert status in (200, 201), (method, path, body, answer)
        assert answer["generation"] >= generation, (answer, generation)
        backends, generation = after, answer["generation"]
        acknowledged += 1
        look()


def main():
    binary = sys.argv[1]
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 40
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else int.from_bytes(os.urandom(4), "little")
    print(f"seed {seed}", flush=True)
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as directory:
        pathlib.Path(directory, "maglev.yaml").write_text(
            CONFIGURATION.format(directory=directory))
        log_path = pathlib.Path(directory, "log")
        acknowledged = under_way_kept = 0
        expected = [{"f1": (1, "ready"), "f2": (1, "ready")}]
        generation = 0
        past = Past()
        with open(log_path, "wb") as log:
            for number in range(rounds):
                control = Control(binary, directory, log)
                found = control.backends()
                assert found in expected, f"round {number}: {found} is none of {expected}"
                under_way_kept += len(expected) > 1 and found == expected[1] != expected[0]
                killer = threading.Timer(rng.uniform(0.0, 0.15), control.kill)
                killer.start()
                before, after, generation, count = change_until_killed(
                    rng, control, found, generation, lambda: past.look(directory))
                killer.join()
                past.look(directory)
                acknowledged += count
                expected = [before, after]
            control = Control(binary, directory, log)
            assert control.backends() in expected
            deadline = time.monotonic() + START_SECONDS
            while control.generation() < generation:
                assert time.monotonic() < deadline, "the generation went back"
                time.sleep(0.05)
            past.look(directory)
            control.process.terminate()
            assert control.process.wait(timeout=START_SECONDS) == 0
        for line in log_path.read_text().splitlines():
            assert not any(word in line for word in ("damaged", "not usable", " error ")), line
    assert acknowledged > rounds, "hardly any change was made; the test shows nothing"
    unsettled = len(past.last.unsettled)
    assert unsettled > len(past.last.owners) / 2, "hardly any slot changed hands"
    print(f"{rounds} kills: {acknowledged} acknowledged changes, none lost; "
          f"{under_way_kept} under way at a kill had been kept; {unsettled} unsettled slots, none "
          f"forgotten or altered; {len(past.names)} backends, each with a place of its own")


if __name__ == "__main__":
    main()
