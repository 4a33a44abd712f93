"""One core, no NIC: the bare rx/tx loop, maglev-dataplane and dpdk-testpmd in turn on the same
devices. Shared by bench/pps and bench/growth."""

import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import twin

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests/end_to_end"))
import hugepages  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEADROOM = 128  # RTE_PKTMBUF_HEADROOM
SAMPLE = 1 << 16  # packets compared with the twin's
AGREEMENT = 0.10  # of the bare loop's two runs in a round that counts
WARM_UP_S = 1
HUGEPAGES = "hugepages"  # where the flow tables lie


class Failure(Exception):
    """Why there is no figure."""


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    flows: int = 1 << 16
    backends: int = 10  # of each VIP
    vips: int = 1
    ip_lengths: tuple = (46,)  # of the packets, in turn; 46 bytes: a frame of 64
    new_flows: bool = False
    ipv6: bool = False  # packets, and the way to the backends
    encapsulation: str = "ipip"  # or gre, gue
    tracking: str = "none"  # or full, changed
    unsettled: bool = False  # all slots, as if they had just changed hands

    @property
    def buffers(self):
        # As many as packets in the file, which the device keeps, and those on their way.
        return self.flows + max(self.flows // 16, 16384)

    @property
    def buffer_bytes(self):
        # As small as may be, so that it is the flows and not the device's copies of their packets
        # that take up caches and TLB.
        return max(256, (max(self.ip_lengths) + 14 + 63) // 64 * 64)

    @property
    def memory_mib(self):
        buffer_bytes = self.buffer_bytes + HEADROOM + 256  # with what DPDK keeps beside it
        tables_mib = self.vips * 65537 * 4 >> 20
        ring_mib = 2 * self.flows * 8 >> 20  # in which the device keeps the packets of the file
        return ((self.buffers * buffer_bytes >> 20) + tables_mib + ring_mib + 256) // 2 * 2  # pages


    @property
    def flow_entries(self):
        """Twice as many as flows, for tables that are half full."""
        return max(1 << 17, 2 * self.flows)

    @property
    def flow_mib(self):
        return self.flow_entries * 16 // (1 << 20) + 4  # a header comes before the tables


@dataclasses.dataclass
class Run:
    packets_per_s: float  # while the polling thread had the core
    core_share: float     # of the time: 1 when nothing else ran there
    involuntary_switches: int


class PollingThread:
    """How much of its core the one worker of a DPDK program got since this was made.

    From then on the worker goes before whatever else wants its core."""

    def __init__(self, process):
        deadline = time.monotonic() + 300
        while not (found := self.worker(process)):
            if process.poll() is not None or time.monotonic() > deadline:
                raise Failure(f"{process.args[0]} has no worker")
            time.sleep(0.01)
        self.thread = found
        os.setpriority(os.PRIO_PROCESS, int(found.name), -20)
        self.start = self.now()

    @staticmethod
    def worker(process):
        threads = pathlib.Path(f"/proc/{process.pid}/task").iterdir()
        return next((t for t in threads if (t / "comm").read_text().startswith("rte-worker")), None)

    def now(self):
        switches = re.search(r"nonvoluntary_ctxt_switches:\s+(\d+)",
                             (self.thread / "status").read_text())[1]
        on_core_ns = (self.thread / "schedstat").read_text().split()[0]
        return time.monotonic_ns(), int(on_core_ns), int(switches)

    def run(self, packets_per_s):
        """A run at this rate, by the clock on the wall."""
        elapsed_ns, on_core_ns, switches = (b - a for a, b in zip(self.start, self.now()))
        share = on_core_ns / elapsed_ns
        return Run(packets_per_s / share, share, switches)


class Rig:
    """A directory with one case's flows and tables, and the programs that run on it."""

    def __init__(self, options, case, directory):
        self.options = options
        self.case = case
        self.directory = directory
        self.hz = None
        self.run(self.built("bench/pps_rig"), "make", directory, "--flows", str(case.flows),
                 "--vips", str(case.vips), "--backends", str(case.backends),
                 "--ip-lengths", ",".join(map(str, case.ip_lengths)),
                 "--encapsulation", case.encapsulation, *["--syn"] * case.new_flows,
                 *["--ipv6"] * case.ipv6, "--tracking", case.tracking,
                 *["--unsettled"] * case.unsettled)

    def built(self, path):
        return self.options.build / path

    def run(self, *command):
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        if done.returncode != 0:
            raise Failure(f"{command[0]} failed: {done.stderr.strip()}")
        return done

    @contextlib.contextmanager
    def running(self, command, log_name="log", **variables):
        environment = os.environ | variables
        if self.case.new_flows:
            environment["LD_PRELOAD"] = str(self.built("bench/new_flows.so"))
        log = open(self.directory / log_name, "w+")
        process = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE,
                                   stderr=log, text=True, env=environment)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()
            log.close()

    def ended(self, process, log_name="log"):
        text = (self.directory / log_name).read_text()
        return Failure(f"{process.args[0]} ended early:\n{text[-2000:]}")

    def devices(self, received="flows.pcap,infinite_rx=1", sent=None):
        way_out = f"net_pcap1,tx_pcap={sent}" if sent else "net_null1,no-rx=1"
        return [f"net_pcap0,rx_pcap={self.directory}/{received}", way_out]

    # --- the three programs, on any two devices ------------------------------------------------

    def eal_options(self, devices, core):
        options = ["--in-memory", "--no-pci", "--no-telemetry",
                   f"--lcores=0@{self.options.main_core},1@{core}", "--main-lcore=0",
                   "-m", self.case.memory_mib]
        return options + [f"--vdev={device}" for device in devices]

    def bare_command(self, devices):
        return [self.built("bench/bare_loop"), *self.eal_options(devices, self.options.core), "--",
                self.case.buffers, self.case.buffer_bytes]

    def testpmd_command(self, devices):
        return ["dpdk-testpmd", *self.eal_options(devices, self.options.core), "--",
                "--forward-mode=io", "--burst=64", "--nb-cores=1", "--auto-start", "--no-flush-rx",
                "--rxd=1024", "--txd=1024", f"--total-num-mbufs={self.case.buffers}",
                "--mbcache=256", f"--mbuf-size={self.case.buffer_bytes + HEADROOM}",
                "--stats-period=1"]

    def dataplane_command(self, devices):
        config = self.directory / "maglev.yaml"
        config.write_text(f"""
directory: {self.directory}
dataplane:
  main_core: "0@{self.options.main_core}"
  cores: ["1@{self.options.core}"]
  memory_mib: {self.case.memory_mib}
  packet_buffers: {self.case.buffers}
  packet_buffer_bytes: {self.case.buffer_bytes}
  flow_entries: {self.case.flow_entries}
  flow_store: {self.directory / HUGEPAGES / "flows"}
  ports:
    - {{name: in, device: "{devices[0]}"}}
    - {{name: out, device: "{devices[1]}", queues: 0}}
""")
        (self.directory / "report").unlink(missing_ok=True)
        return [self.built("dataplane/maglev-dataplane"), config]

    # --- their rates -------------------------------------------------------------------------

    def bare(self):
        with self.running(self.bare_command(self.devices())) as process:
            first = process.stdout.readline()
            if not first:
                raise self.ended(process)
            self.hz = int(first)

            def count():
                line = process.stdout.readline()
                if not line:
                    raise self.ended(process)
                return tuple(map(int, line.split()))

            start = count()
            while (now := count())[0] < start[0] + WARM_UP_S * 1e9:
                pass
            thread = PollingThread(process)
            start = now
            while (now := count())[0] < start[0] + self.options.seconds * 1e9:
                pass
            return thread.run((now[1] - start[1]) / (now[0] - start[0]) * 1e9)

    def counts(self, process):
        """From the dataplane's report: time in ns, packets received, packets forwarded, and the
        generation in use."""
        deadline = time.monotonic() + 300
        while not (self.directory / "report").exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise self.ended(process)
            time.sleep(0.05)
        done = self.run(self.built("bench/pps_rig"), "count", self.directory)
        return tuple(map(int, done.stdout.split()))

    def dataplane(self):
        with self.running(self.dataplane_command(self.devices())) as process:
            self.counts(process)
            time.sleep(WARM_UP_S)
            thread = PollingThread(process)
            start = self.counts(process)
            time.sleep(self.options.seconds)
            end = self.counts(process)
            seconds, received, forwarded, _ = (b - a for a, b in zip(start, end))
            if forwarded == 0:
                raise Failure(f"nothing was forwarded within {self.options.seconds} s")
            if received != forwarded:
                raise Failure(f"of {received} packets received {forwarded} were forwarded")
            return thread.run(forwarded / seconds * 1e9)

    def testpmd(self):
        with self.running(self.testpmd_command(self.devices())) as process:
            rates, thread = [], None
            for line in process.stdout:
                if found := re.search(r"Tx-pps:\s+(\d+)", line):
                    rates.append(int(found[1]))  # of port 0, which sends nothing, and 1, in turn
                warm_up = 2 + 2 * WARM_UP_S  # the first pair is of no time
                if len(rates) == warm_up:
                    thread = thread or PollingThread(process)
                if len(rates) == warm_up + 2 * self.options.seconds:
                    return thread.run(statistics.mean(rates[warm_up + 1::2]))
            raise self.ended(process)

    # --- what makes the figures worth something ------------------------------------------------

    def verify(self):
        """The same binary and flows with a capture file as the way out: each packet sent is what the
        twin says. Returns how many were compared."""
        sample = self.sample()
        sent = self.directory / "sent.pcap"
        devices = self.devices(sample.name, sent)
        with self.running(self.dataplane_command(devices)) as process:
            deadline = time.monotonic() + 60
            while self.counts(process)[1] < SAMPLE and time.monotonic() < deadline:
                time.sleep(0.1)
        count, difference = twin.differences(self.directory / "rig.json", sample, sent,
                                             self.case.new_flows)
        if difference:
            raise Failure(f"the figures are void: {difference}")
        return count

    def sample(self):
        """A file of SAMPLE packets: every n-th flow, or each of fewer flows several times."""
        path = self.directory / "sample.pcap"
        if not path.exists():
            step = max(1, self.case.flows // SAMPLE)
            frames = itertools.islice(twin.read_pcap(self.directory / "flows.pcap"), 0, None, step)
            twin.write_pcap(path, itertools.islice(itertools.cycle(frames), SAMPLE))
        return path

    def instructions(self):
        """Per packet, counted by callgrind."""
        done = self.run("valgrind", "--tool=callgrind", "--collect-atstart=no",
                        "--callgrind-out-file=/dev/null", self.built("bench/pipeline_alone"),
                        "instructions", self.directory, self.sample())
        collected = int(re.search(r"Collected : (\d+)", done.stderr)[1])
        return collected / int(done.stdout)

    def stage_ticks(self):
        """Ticks a packet of each stage of the pipeline alone, without a device."""
        many = self.case.flows > SAMPLE
        flows = self.directory / "flows.pcap" if many else self.sample()
        done = self.run("taskset", "--cpu-list", str(self.options.core),
                        self.built("bench/pipeline_alone"), "ticks", self.directory, flows)
        return json.loads(done.stdout)

    def round(self):
        """{program: runs}, in the order A B C C B A; None where the bare loop disagrees with itself."""
        order = [self.bare, self.dataplane, self.testpmd]
        runs = {}
        for measure in order + order[::-1]:
            runs.setdefault(measure.__name__, []).append(measure())
            run = runs[measure.__name__][-1]
            print(f"  {measure.__name__}: {run.packets_per_s / 1e6:.2f} Mpps, "
                  f"{self.hz / run.packets_per_s:.1f} ticks, {run.core_share:.1%} of the core, "
                  f"{run.involuntary_switches} involuntary switches", file=sys.stderr)
        first, last = (run.packets_per_s for run in runs["bare"])
        if abs(first - last) > AGREEMENT * min(first, last):
            print(f"  this round does not count: the bare loop did {first / 1e6:.2f} and "
                  f"{last / 1e6:.2f} Mpps", file=sys.stderr)
            return None
        return runs


@contextlib.contextmanager
def hugetlbfs(directory):
    directory.mkdir()
    subprocess.run(["mount", "-t", "hugetlbfs", "none", directory], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", directory], check=True)


@contextlib.contextmanager
def prepared(options, case, programs_at_once=1):
    """A rig for the case, and the hugepages that its programs need. Told to stop, it still ends the
    programs and gives the hugepages back."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="maglev-bench-") as path:
        directory = pathlib.Path(path)
        note = directory / "hugepages-added"
        try:
            hugepages.provide(programs_at_once * case.memory_mib + case.flow_mib, note)
            with hugetlbfs(directory / HUGEPAGES):
                yield Rig(options, case, directory)
        finally:
            hugepages.give_back(note)


def measure_alone(options, case):
    """The pipeline's own ticks, without a device or another program."""
    with prepared(options, case) as rig:
        return {"case": case.name, "flows": case.flows, "backends": case.backends,
                "vips": case.vips, "stage_ticks": rig.stage_ticks()}


def measure(options, case):
    """The figures of one case: medians over the rounds that count."""
    with prepared(options, case) as rig:
        verified = rig.verify()
        instructions = rig.instructions()
        stage_ticks = rig.stage_ticks()
        attempts = []
        while len(attempts) - attempts.count(None) < options.rounds and \
                len(attempts) < 3 * options.rounds:
            attempts.append(rig.round())
    rounds = [attempt for attempt in attempts if attempt]
    if not rounds:
        raise Failure(f"in none of {len(attempts)} rounds did the bare loop agree with itself "
                      f"within {AGREEMENT:.0%}: the machine is too busy")

    def rate(program):  # of each round
        return [statistics.mean(run.packets_per_s for run in r[program]) for r in rounds]

    bare, ours, testpmd = (rate(program) for program in ("bare", "dataplane", "testpmd"))
    ticks = [rig.hz / r for r in ours]
    bare_ticks = [rig.hz / r for r in bare]
    median = statistics.median
    runs = [run for r in rounds for of_program in r.values() for run in of_program]
    return {"case": case.name, "flows": case.flows, "backends": case.backends, "vips": case.vips,
            "mpps": round(median(ours) / 1e6, 2), "ticks": round(median(ticks), 1),
            "bare_mpps": round(median(bare) / 1e6, 2), "bare_ticks": round(median(bare_ticks), 1),
            "difference_ticks": round(median(a - b for a, b in zip(ticks, bare_ticks)), 1),
            "testpmd_mpps": round(median(testpmd) / 1e6, 2),
            "testpmd_ticks": round(median(rig.hz / r for r in testpmd), 1),
            "ratio": round(median(a / b for a, b in zip(ours, testpmd)), 3),
            "instructions": round(instructions, 1), "stage_ticks": stage_ticks,
            "verified_packets": verified, "rounds": len(rounds),
            "rejected_rounds": len(attempts) - len(rounds),
            "involuntary_switches": sum(run.involuntary_switches for run in runs),
            "core_share": round(min(run.core_share for run in runs), 3), "tsc_hz": rig.hz}


def add_arguments(parser):
    parser.add_argument("--build", type=pathlib.Path,
                        default=os.environ.get("MAGLEV_BUILD", ROOT / "build"))
    parser.add_argument("--rounds", type=int, default=5, help="that count, per case (%(default)s)")
    parser.add_argument("--seconds", type=int, default=2, help="length of a run (%(default)s)")
    parser.add_argument("--core", type=int, default=1, help="processor of the polling core (%(default)s)")
    parser.add_argument("--main-core", type=int, default=0,
                        help="processor of the sleeping rest (%(default)s)")
    parser.add_argument("--json", action="store_true", help="one line of JSON per case")


def check_root():
    if os.geteuid() != 0:
        sys.exit("needs root, for hugepages and pinned cores: run it with sudo")
