"""Two load balancers side by side behind a router that spreads flows over them, of which one dies.

    client ── router ──┬── lb, lb2           the router hashes addresses and ports (layer 4)
                       └── b1, b2, ...

They share no state. Connections are opened evenly before a backend change ("old") and after it
("young"); then lb dies and its flows meet lb2, which has never seen them.
"""

import collections
import contextlib
import copy
import dataclasses
import signal
import time

import expected
import netns
from connections import MODES, ConnectionLab, Kept
from control_api import ControlApi
from lab import to_yaml
from network import LAN_MTU, VIPS, Network, lan_address

SERVERS = ["b1", "b2", "b3", "b4"]
BACKENDS = "/v1/pools/web/backends"
DRAINED = "b2"
OPENING_S = 4  # of the old, and at most of the young
SETTLING_S = 5  # after the kill, in which what breaks breaks
MEMORY_MIB = 256
HEADING = (f"{'killed after':>13}  {'connections':16}{'opened':>8}{'broke at the change':>21}"
           f"{'at the kill':>13}")


class TwoBalancers(Network):
    def outer_sources(self, server):
        return [lan_address(0, 2), lan_address(0, 3)]

    def build_lan(self, lan):
        super().build_lan(lan)
        self.add_host("lb2")
        self.connect("lb2", "eth0", "lan0-lb2", LAN_MTU, bridge="lan0")
        self.add_address("lb2", "eth0", f"{lan_address(0, 3)}/24")
        self.route("lb2", "default", lan_address(0, 1))
        netns.set_kernel_values(self.namespace("router"), ipv4__fib_multipath_hash_policy=1)
        self.spread_over(2, 3)

    def spread_over(self, *host_numbers):
        hops = [word for number in host_numbers
                for word in ("nexthop", "via", lan_address(0, number))]
        netns.run("ip", "-n", self.namespace("router"), "route", "replace", VIPS[0], *hops)


class EcmpLab(ConnectionLab):
    """The lab's own load balancer, and lb2 with the same settings in a directory of its own."""

    def __init__(self, idle_s):
        super().__init__(SERVERS, SERVERS, idle_s, network=TwoBalancers, memory_mib=2 * MEMORY_MIB)
        self.settings["dataplane"]["memory_mib"] = MEMORY_MIB
        self.second_control = ControlApi(self.directory / "control-2.sock")

    def start_all(self):
        super().start_all()
        settings = copy.deepcopy(self.settings)
        settings |= {"directory": str(self.directory / "shared-2"),
                     "state": str(self.directory / "state-2"),
                     "control": {"socket": str(self.second_control.path)}}
        settings["dataplane"]["flow_store"] += "-2"
        configuration = self.directory / "maglev-2.yaml"
        configuration.write_text(to_yaml(settings))
        for daemon in ("control", "dataplane"):
            self.start(f"{daemon}-2", "lb2", self.program(f"maglev-{daemon}"), configuration)
        self.wait_until(lambda: self.is_serving(self.second_control), "lb2 serves", 20)

    def drain(self, server):
        """Returns when both load balancers use the change."""
        for control in (self.control, self.second_control):
            control.patch(f"{BACKENDS}/{server}?wait=adopted", {"state": "drain"})

    def kill_first(self):
        """The router hears of it at once, as if a session with it had ended."""
        self.stop("dataplane", signal.SIGKILL)
        self.network.spread_over(3)
        self.stop("control", signal.SIGKILL)


@dataclasses.dataclass
class Group:
    """The old or the young connections of a mode."""
    opened: int
    at_the_change: int  # broke before the kill
    at_the_kill: int
    inexplicable: list  # broke or did not, against what its slot says, where that alone decides


@dataclasses.dataclass
class Row:
    delay_s: float   # from the change to the kill
    groups: dict     # (mode, "old" or "young"): Group
    forwarded: list  # packets of lb and of lb2 before the kill


def packets_forwarded(control):
    return control.get("/v1/stats")["verdicts"]["forwarded"]


def run(lab, connections, delay_s):
    """One kill; `lab` is an EcmpLab that has not started."""
    lab.start_all()
    half = connections // 2
    before = expected.table(dict.fromkeys(SERVERS, 1))
    after = expected.table({name: 1 for name in SERVERS if name != DRAINED})
    with contextlib.ExitStack() as stack:
        def keep(age, mode, first_port, opening_s):
            return stack.enter_context(Kept(
                lab, mode, half, label=f"{age}-{mode}", first_port=first_port,
                open_per_s=half / opening_s, patience_s=SETTLING_S, once=True))

        kept = {(mode, "old"): keep("old", mode, 20000, OPENING_S) for mode in MODES}
        for old in kept.values():
            old.wait_until_open()
        lab.drain(DRAINED)
        changed = time.monotonic()
        for mode in MODES:
            kept[mode, "young"] = keep("young", mode, 40000, min(OPENING_S, delay_s * 0.8))
        for mode in MODES:
            kept[mode, "young"].wait_until_open()
        time.sleep(max(0.0, changed + delay_s - time.monotonic()))
        forwarded = [packets_forwarded(control) for control in (lab.control, lab.second_control)]
        killed = time.monotonic()
        lab.kill_first()
        time.sleep(2 * SETTLING_S)  # what was sent at the end has run out of patience too
    groups = {(mode, age): tell(of_group, mode, killed, moved=lambda slot: age == "old"
                                and before[slot] != after[slot])
              for (mode, age), of_group in kept.items()}
    return Row(delay_s, groups, forwarded)


def tell(kept, mode, killed, moved):
    broke = [connection for connection in kept.connections if connection.broke]
    when = collections.Counter(kept.broke_at(connection) >= killed for connection in broke)
    inexplicable = [connection for connection in kept.connections
                    if mode == "none" and connection.broke != moved(connection.slot(mode))]
    return Group(len(kept.connections), when[False], when[True], inexplicable)


def report(row):
    return "\n".join(f"{row.delay_s:11.1f} s  {mode + ', ' + age:16}{group.opened:8}"
                     f"{group.at_the_change:21}{group.at_the_kill:13}"
                     for (mode, age), group in row.groups.items())


def failures(row):
    found = []
    if min(row.forwarded) < max(row.forwarded) / 4:
        found.append(f"the router did not spread the flows: {row.forwarded} packets")
    for name, group in row.groups.items():
        if group.inexplicable:
            found.append(f"{name}: untracked connections are to break exactly where their slots "
                         f"moved: {group.inexplicable[:3]}")
    return found
