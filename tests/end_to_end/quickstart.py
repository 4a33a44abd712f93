"""The quickstart's traffic and view; ../../quickstart starts it."""

import argparse
import collections
import os
import signal
import sys
import time

import lab as laboratory
from http_client import Traffic
from network import VIPS

POOL = ("b1", "b2", "b3")
REQUESTS_PER_SECOND = 1000
WINDOW_S = 5  # what the shares seen are taken over


class View:
    """Rates between two looks at the counters, redrawn in place on a terminal."""

    def __init__(self, lab, answered, failures):
        self.lab = lab
        self.answered = answered
        self.failures = failures
        self.started = time.monotonic()
        self.looks = collections.deque(maxlen=WINDOW_S + 1)  # (time, {name: (packets, bytes)})
        self.lines_drawn = 0

    def look(self):
        stats = self.lab.control.get("/v1/stats")
        counts = {backend["name"]: backend["forwarded"] for backend in stats["backends"]}
        self.looks.append((stats["written_ns"] / 1e9, counts))

    def draw(self):
        lines = self.table(self.lab.control.get("/v1/pools/web")["backends"])
        if sys.stdout.isatty():
            up = f"\x1b[{self.lines_drawn}F" if self.lines_drawn else ""
            print(up + "".join(f"\x1b[K{line}\n" for line in lines) + "\x1b[J", end="", flush=True)
            self.lines_drawn = len(lines)
        elif len(self.looks) > WINDOW_S:
            print("\n".join(lines), flush=True)
            self.looks = collections.deque([self.looks[-1]], self.looks.maxlen)

    def since(self, look, name, what):
        """Packets or bytes of a backend since an earlier look."""
        zero = {"packets": 0, "bytes": 0}
        return self.looks[-1][1].get(name, zero)[what] - look[1].get(name, zero)[what]

    def table(self, backends):
        last = self.looks[-2]
        seconds = max(self.looks[-1][0] - last[0], 1e-9)
        rates = {backend["name"]: (self.since(last, backend["name"], "packets") / seconds,
                                   self.since(last, backend["name"], "bytes") * 8e-6 / seconds)
                 for backend in backends}
        seen = {name: self.since(self.looks[0], name, "packets") for name in rates}
        seen_sum = sum(seen.values()) or 1
        lines = ["",
                 f"{time.monotonic() - self.started:.0f} s: {sum(self.answered.values()):,} "
                 f"requests answered, {len(self.failures):,} failed",
                 f"{'':8}{'state':13}{'health':8}{'wanted':>8}{'seen':>8}{'packets/s':>12}"
                 f"{'Mbit/s':>9}{'pages':>9}"]
        for backend in backends:
            name = backend["name"]
            lines.append(f"{name:8}{backend['state']:13}{backend['health']:8}"
                         f"{backend['wanted_share']:8.1%}{seen[name] / seen_sum:8.1%}"
                         f"{rates[name][0]:12,.0f}{rates[name][1]:9.2f}{self.answered[name]:9,}")
        packets, mbits = (sum(rate[i] for rate in rates.values()) for i in (0, 1))
        lines.append(f"{'total':45}{packets:12,.0f}{mbits:9.2f}{sum(self.answered.values()):9,}")
        return lines


def print_commands(lab):
    ctl = f"{os.path.relpath(lab.program('maglevctl'), laboratory.ROOT)} --socket {lab.control.path}"
    spare = next(name for name in lab.network.servers if name not in POOL)
    print(f"""
Requests go to http://{VIPS[0]}/; a page holds the name of the server that it comes from.
In a second terminal, as root, in {laboratory.ROOT}:
  ip netns exec {lab.network.namespace("client")} curl http://{VIPS[0]}/
  {ctl} backend list web
  {ctl} backend drain web b2
  {ctl} backend set web b2 --state ready
  {ctl} backend add web {spare} --address {lab.network.address(spare)}
  {ctl} stats --watch
Configuration: {lab.configuration}
Logs, until the end: {lab.directory / "logs"}
Stop with Ctrl-C.""", flush=True)


def watch(lab, seconds):
    """Traffic and view until time is up or Ctrl-C; returns pages by server, and failures."""
    answered, failures = collections.Counter(), []

    def done(request):
        if request.server:
            answered[request.server] += 1
        else:
            failures.append(request.error)

    with Traffic(lab, REQUESTS_PER_SECOND, done):
        try:
            view = View(lab, answered, failures)
            view.look()
            while seconds is None or time.monotonic() - view.started < seconds:
                time.sleep(1)
                lab.check_processes()
                view.look()
                view.draw()
        except KeyboardInterrupt:
            pass
    return answered, failures


def summarise(answered, failures):
    """Says what went through; returns the exit code."""
    total = sum(answered.values())
    pages = ", ".join(f"{name} {answered[name]:,}" for name in sorted(answered))
    print(f"\n{total:,} requests answered ({pages or 'none'}), {len(failures):,} failed")
    for error, count in collections.Counter(failures).most_common(3):
        print(f"  {count:,} times: {error}")
    idle = [name for name in POOL if not answered[name]]
    if idle:
        print(f"no page came from {', '.join(idle)}")
    if len(failures) * 100 > total:
        print("more than 1 % of the requests failed")
    return 1 if idle or len(failures) * 100 > total else 0


def main():
    parser = argparse.ArgumentParser(prog="quickstart")
    parser.add_argument("--seconds", type=float, help="end by itself after this time of traffic")
    arguments = parser.parse_args()
    # SIGINT too: a shell that starts a program in the background has it ignored.
    for stop in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(stop, signal.default_int_handler)
    try:
        if running := laboratory.running_labs("quickstart"):
            print(f"A quickstart is already running ({running[0]}). Stop it with Ctrl-C there, "
                  "then try again.", file=sys.stderr)
            return 1
        with laboratory.Lab("quickstart") as lab:
            print(f"starting the daemons and {len(lab.network.servers)} web servers", flush=True)
            lab.start_all()
            print_commands(lab)
            answered, failures = watch(lab, arguments.seconds)
            print("\ncleaning up", flush=True)
        return summarise(answered, failures)
    except KeyboardInterrupt:
        return 130
    except (AssertionError, RuntimeError, OSError) as error:
        print(f"quickstart: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
