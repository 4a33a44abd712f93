"""Long TCP connections of the client, and what became of each (connections.cc does the work).

A VIP for each tracking mode, all at one address and with one pool, so that all see the same changes:

    with Kept(lab, "none", 500) as kept:
        ...                                     # changes
    broken = [c for c in kept.connections if c.broke]
"""

import dataclasses
import json
import signal

import reference
from lab import HASH_SEED, TABLE_SIZE, Lab
from network import CLIENT_ADDRESSES, VIPS

MODES = ("none", "full", "changed")
PORTS = {mode: 7001 + n for n, mode in enumerate(MODES)}
HEALTH_PORT = 7000
TCP = 6
INTERVAL_S = 0.5  # between an answer and the next message


class ConnectionLab(Lab):
    """A lab whose servers answer the connections, and whose pool is served by a VIP for each mode."""

    def __init__(self, servers, pool, idle_s, **arguments):
        """idle_s: after how long without a packet the tracked modes forget a connection."""
        super().__init__(servers=servers, pool=pool, **arguments)
        idle = {"idle": {"tcp_s": idle_s, "tcp_closing_s": 5, "udp_s": 5}}
        web = self.settings["pools"][0]
        web["health"] |= {"port": HEALTH_PORT, "interval_ms": 200}
        self.settings["vips"] = [
            {"name": mode, "address": VIPS[0], "protocol": "tcp", "port": PORTS[mode],
             "pool": "web", "tracking": mode, **(idle if mode != "none" else {})}
            for mode in MODES]

    def start_servers(self):
        for server in self.network.servers:
            self.start_answering(server)
            self.start_decap(server)

    def start_answering(self, server):
        self.start(f"answers-{server}", server, self.program("connections"), "serve", server,
                   HEALTH_PORT, *PORTS.values())

    def stop_answering(self, server):
        """The server's process dies; the kernel resets or closes its connections."""
        self.stop(f"answers-{server}", signal.SIGKILL)


@dataclasses.dataclass
class Connection:
    number: int
    connected: float  # time.monotonic()
    source: str
    port: int
    server: str = ""  # of the first answer
    ended: float = float("inf")
    why: str = ""     # it broke; empty: it did not

    @property
    def broke(self):
        return bool(self.why)

    def slot(self, mode):
        return reference.flow_slot(HASH_SEED, TABLE_SIZE, TCP, self.source, self.port, VIPS[0],
                                   PORTS[mode])


class Kept:
    """Keeps `count` connections of a mode's VIP open while the block runs; then `connections`, also
    those that were opened in place of broken ones (none with `once`), `unopened` and `messages`
    tell."""

    def __init__(self, lab, mode, count, *, label=None, first_port=20000, open_per_s=250,
                 patience_s=10, lifetime_s=0, once=False):
        self.lab = lab
        self.label = label or f"kept-{mode}"
        self.count = count
        self.patience_s = patience_s
        sources = [word for address in CLIENT_ADDRESSES for word in ("--source", address)]
        self.command = [lab.program("connections"), "keep", f"{VIPS[0]}:{PORTS[mode]}",
                        "--count", count, "--first-port", first_port, "--open-per-s", open_per_s,
                        "--interval-ms", int(INTERVAL_S * 1000), "--patience-ms", int(patience_s * 1000),
                        "--lifetime-ms", int(lifetime_s * 1000), *["--once"] * once, *sources]
        self.connections = []
        self.unopened = []  # when
        self.messages = 0   # answered

    def __enter__(self):
        self.process = self.lab.start(self.label, "client", *self.command)
        return self

    def __exit__(self, error_type, error, trace):
        if error_type is None:
            self.lab.stop(self.label)
            self.read()

    def events(self):
        # The last line may be only half written.
        lines = self.process.log.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def wait_until_open(self):
        def all_answered():
            return sum(event["event"] == "answered" for event in self.events()) >= self.count

        self.lab.wait_until(all_answered, f"{self.count} connections open", 60)

    def read(self):
        by_number = {}
        for event in self.events():
            number = event.get("number")
            match event["event"]:
                case "connected":
                    by_number[number] = Connection(number, event["at"], event["source"],
                                                   event["port"])
                case "answered":
                    by_number[number].server = event["server"]
                case "broke" | "closed":
                    by_number[number].ended = event["at"]
                    by_number[number].why = event.get("why", "")
                case "unopened":
                    self.unopened.append(event["at"])
                case "end":
                    self.messages = event["messages"]
        self.connections = list(by_number.values())

    def broke_at(self, connection):
        """When what broke it happened, as far as the client can know."""
        return connection.ended - (self.patience_s if connection.why == "no answer" else 0)
