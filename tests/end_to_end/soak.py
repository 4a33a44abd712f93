"""Long connections under random changes of backends and of the daemons: which broke, and by what.

A connection may break when its own server died or was removed: that is excused. All others must live
where flows are tracked. Where they are not, some must break: else the changes were too tame, or the
connections too few, for the run to show anything.
"""

import bisect
import collections
import contextlib
import dataclasses
import json
import random
import signal
import time

import expected
import netns
from connections import INTERVAL_S, MODES, PORTS, ConnectionLab, Kept
from lab import TABLE_SIZE
from network import VIPS

SERVERS = [f"b{n}" for n in range(1, 8)]
FIRST_POOL = SERVERS[:5]
FEWEST_USABLE = 3
LEAST_CHANGES = 30
LEAST_MOVED_SHARE = 0.2
LEAST_BROKEN_UNTRACKED = 50
LEAST_MESSAGES_SHARE = 0.5  # of those that there were time for
LONGEST_PAUSE_SHARE = 0.01  # of the run, between two changes
YOUNG_SHARE = 0.1      # of connections that are closed and opened anew all the time
YOUNG_LIFETIME_S = 3
FLOOD_SOURCES = "203.0.113.0/24"
BACKENDS = "/v1/pools/web/backends"

# Kinds of change, as often as they come in a round; each round has an order of its own.
ROUND = ("weight",) * 4 + ("drain", "undrain", "add") * 2 + (
    "remove", "fail", "fail", "recover", "recover", "kill control", "restart dataplane")


@dataclasses.dataclass
class Change:
    what: str
    called: float  # time.monotonic()
    done: float    # used by all workers
    table: list    # from then on
    moved: int     # slots


class Changes:
    """Makes changes, one at a time, and keeps account of what should be in the table."""

    def __init__(self, lab, chance):
        self.lab = lab
        self.chance = chance
        self.weights = dict.fromkeys(FIRST_POOL, 1)
        self.drained = set()
        self.failed = set()
        self.made = []
        self.gone = collections.defaultdict(list)  # server: [from, until] of what excuses
        self.table = self.first_table = expected.table(self.usable())
        self.ever_moved = set()
        self.left = []

    def usable(self):
        return {name: weight for name, weight in self.weights.items()
                if name not in self.drained | self.failed}

    def candidates(self, kind):
        """What the change may be of."""
        usable = sorted(self.usable())
        ready = sorted(self.weights.keys() - self.drained - self.failed)
        spare = ready if len(usable) > FEWEST_USABLE else []
        return {
            "weight": usable, "drain": spare, "remove": spare, "fail": spare,
            "undrain": sorted(self.drained), "recover": sorted(self.failed),
            "add": [name for name in SERVERS if name not in self.weights],
            "kill control": ["-9"], "restart dataplane": ["-9", "-TERM"]}[kind]

    def make_one(self):
        while True:
            self.left = self.left or self.chance.sample(ROUND, len(ROUND))
            kind = self.left.pop()
            if candidates := self.candidates(kind):
                break
        subject = self.chance.choice(candidates)
        called = time.monotonic()
        getattr(self, kind.replace(" ", "_"))(subject)
        self.lab.wait_until(self.in_force, f"{kind} {subject} in force")
        table = expected.table(self.usable())
        moved = [slot for slot, (before, after) in enumerate(zip(self.table, table))
                 if before != after]
        self.ever_moved.update(moved)
        self.table = table
        self.made.append(Change(f"{kind} {subject}", called, time.monotonic(), table, len(moved)))

    def in_force(self):
        """The table is as it should be, and all workers use it."""
        status = self.lab.status()
        if (status is None or not status["dataplane"]["running"]
                or status["adopted_generation"] != status["generation"]):
            return False
        backends = self.lab.control.get(BACKENDS)["backends"]
        return {b["name"] for b in backends if b["in_table"]} == self.usable().keys()

    # --- the kinds ----------------------------------------------------------------------------

    def weight(self, name):
        self.weights[name] = self.chance.randint(1, 10)
        self.lab.control.patch(f"{BACKENDS}/{name}", {"weight": self.weights[name]})

    def drain(self, name):
        self.drained.add(name)
        self.lab.control.patch(f"{BACKENDS}/{name}", {"state": "drain"})

    def undrain(self, name):
        self.drained.remove(name)
        self.lab.control.patch(f"{BACKENDS}/{name}", {"state": "ready"})

    def add(self, name):
        self.weights[name] = 1
        self.lab.control.post(BACKENDS, {"name": name, "address": self.lab.network.address(name)})
        self.is_back(name)

    def remove(self, name):
        self.is_gone(name)
        del self.weights[name]
        self.lab.control.delete(f"{BACKENDS}/{name}")

    def fail(self, name):
        self.is_gone(name)
        self.failed.add(name)
        self.lab.stop_answering(name)

    def recover(self, name):
        self.failed.remove(name)
        self.lab.start_answering(name)
        self.is_back(name)

    def kill_control(self, _):
        self.lab.stop("control", signal.SIGKILL)
        self.lab.start_control()

    def restart_dataplane(self, how):
        self.lab.stop("dataplane", signal.SIGKILL if how == "-9" else signal.SIGTERM)
        self.lab.start_dataplane()

    def is_gone(self, name):
        self.gone[name].append([time.monotonic(), float("inf")])

    def is_back(self, name):
        if self.gone[name]:
            self.gone[name][-1][1] = time.monotonic()

    # --- what they explain --------------------------------------------------------------------

    def excuse(self, kept, connection):
        """Its server was gone while it lived, and that is when it broke. Of one without an answer
        any server may have been the one."""
        servers = [connection.server] if connection.server else list(self.gone)
        return any(connection.connected < until and since <= connection.ended
                   and kept.broke_at(connection) <= until + kept.patience_s
                   for server in servers for since, until in self.gone[server])

    def moved(self, slot, since, until):
        """Whether its owner may have changed meanwhile."""
        tables = [self.first_table] + [change.table for change in self.made]
        return any(before[slot] != change.table[slot]
                   for before, change in zip(tables, self.made)
                   if since <= change.done and change.called <= until)

    def number_before(self, moment):
        """Of the last change that had been called by then, from 1; 0: none."""
        return bisect.bisect_right([change.called for change in self.made], moment)


@dataclasses.dataclass
class Tally:
    """Of one mode."""
    connections: int = 0
    unopened: int = 0
    messages: int = 0
    # Of those that broke, by the number of the change before.
    excused: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    unexcused: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    inexplicable: list = dataclasses.field(default_factory=list)  # whose slot kept its owner
    reasons: collections.Counter = dataclasses.field(default_factory=collections.Counter)

    def add(self, mode, kept, changes):
        self.connections += len(kept.connections)
        self.unopened += len(kept.unopened)
        self.messages += kept.messages
        for connection in kept.connections:
            if not connection.broke:
                continue
            number = changes.number_before(kept.broke_at(connection))
            if changes.excuse(kept, connection):
                self.excused[number] += 1
            else:
                self.unexcused[number] += 1
                self.reasons[connection.why] += 1
                if not changes.moved(connection.slot(mode), connection.connected, connection.ended):
                    self.inexplicable.append(connection)


@dataclasses.dataclass
class Result:
    changes: Changes
    tallies: dict  # by mode
    messages_due: float  # in each mode
    flood_packets: int = 0

    def report(self):
        lines = ["   after s  " + f"{'change':24}{'slots moved':>12}"
                 + "".join(f"{mode + ': broken':>20}{'excused':>9}" for mode in self.tallies)]
        start = self.changes.made[0].called
        for number, change in enumerate(self.changes.made, 1):
            lines.append(f"{change.called - start:10.2f}  {change.what:24}{change.moved:12}"
                         + "".join(f"{t.unexcused[number]:20}{t.excused[number]:9}"
                                   for t in self.tallies.values()))
        lines.append(f"{len(self.changes.made)} changes; {self.moved_share:.0%} of the slots moved "
                     "at least once")
        for mode, tally in self.tallies.items():
            lines.append(
                f"{mode}: {tally.connections} connections, {tally.messages} messages answered; "
                f"{tally.unexcused.total()} broke, {tally.excused.total()} more with their server; "
                f"{tally.unopened} could not be opened")
            lines += [f"    {count} {why}" for why, count in tally.reasons.most_common()]
        if self.flood_packets:
            lines.append(f"{self.flood_packets} packets of the flood")
        return "\n".join(lines)

    @property
    def moved_share(self):
        return len(self.changes.ever_moved) / TABLE_SIZE

    def failures(self):
        """Why the run counts for nothing, or what it found; empty when all is well."""
        found = []
        if len(self.changes.made) < LEAST_CHANGES:
            found.append(f"only {len(self.changes.made)} changes")
        if self.moved_share < LEAST_MOVED_SHARE:
            found.append(f"only {self.moved_share:.1%} of the slots moved")
        for mode, tally in self.tallies.items():
            if tally.messages < self.messages_due * LEAST_MESSAGES_SHARE:
                found.append(f"only {tally.messages} messages in mode {mode}")
            broken = tally.unexcused.total()
            if mode == "none" and broken < LEAST_BROKEN_UNTRACKED:
                found.append(f"only {broken} untracked connections broke")
            if mode != "none" and broken:
                found.append(f"{broken} connections of mode {mode} broke")
            if tally.inexplicable:
                found.append(f"{len(tally.inexplicable)} connections of mode {mode} broke though "
                             f"their slots kept their owners: {tally.inexplicable[:3]}")
        return found


@contextlib.contextmanager
def flooding(lab, rate, seed):
    """SYNs from random sources to every VIP; yields what tells how many there were."""
    if not rate:
        yield lambda: 0
        return
    netns.run("ip", "-n", lab.network.namespace("router"), "route", "add", "blackhole",
              FLOOD_SOURCES)
    floods = [lab.start(f"flood-{mode}", "client", lab.program("flood"), f"{VIPS[0]}:{port}",
                        "--rate", max(1, rate // len(PORTS)), "--seed", seed)
              for mode, port in PORTS.items()]
    yield lambda: sum(json.loads(flood.log.read_text())["sent"] for flood in floods)
    for mode in PORTS:
        lab.stop(f"flood-{mode}")


def run(make_lab, *, connections, seconds, seed, idle_s, flood_rate=0, patience_s=10):
    lab = make_lab(lab_class=ConnectionLab, servers=SERVERS, pool=FIRST_POOL, idle_s=idle_s)
    lab.start_all()
    changes = Changes(lab, random.Random(seed))
    young = max(1, int(connections * YOUNG_SHARE))
    with contextlib.ExitStack() as stack:
        sent = stack.enter_context(flooding(lab, flood_rate, seed))
        kept = {mode: [stack.enter_context(Kept(lab, mode, connections, patience_s=patience_s)),
                       stack.enter_context(Kept(
                           lab, mode, young, label=f"young-{mode}", first_port=50000,
                           patience_s=patience_s, lifetime_s=YOUNG_LIFETIME_S))]
                for mode in MODES}
        for of_mode in kept.values():
            of_mode[0].wait_until_open()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            lab.check_processes()
            changes.make_one()
            time.sleep(changes.chance.uniform(0, seconds * LONGEST_PAUSE_SHARE))
        time.sleep(patience_s)
    tallies = {}
    for mode, of_mode in kept.items():
        tallies[mode] = Tally()
        for one in of_mode:
            tallies[mode].add(mode, one, changes)
    return Result(changes, tallies, connections * seconds / INTERVAL_S, sent())
