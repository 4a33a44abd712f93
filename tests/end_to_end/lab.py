"""A laboratory on one machine: real clients, the two daemons and real web servers in namespaces.

    with Lab() as lab:
        lab.start_all()
        lab.control.patch("/v1/pools/web/backends/b2?wait=adopted", {"state": "drain"})

One thread uses a Lab. All it makes is named after it, NAME = maglev-KIND-PID.N: the namespaces
NAME-client, NAME-router, NAME-lb, NAME-b1, ..., the directory /run/NAME with configuration, sockets
and logs, and /dev/shm/NAME.flows. It is removed again on the way out, whatever the reason; what a
killed lab left behind is removed by the next one, which knows it by the lock that died with it.
"""

import contextlib
import fcntl
import json
import os
import pathlib
import re
import select
import shutil
import signal
import subprocess
import time

import hugepages
import netns
from control_api import ControlApi
from network import LAN_MTU, VIPS, Network

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = pathlib.Path(os.environ.get("MAGLEV_BUILD", ROOT / "build"))
RUN = pathlib.Path("/run")
NAME = re.compile(r"maglev-(?:test|quickstart)-\d+\.\d+")
HASH_SEED = 0x9E3779B97F4A7C15
TABLE_SIZE = 65537
UDP_PORT = 9000

NGINX_CONFIGURATION = """\
daemon off;
worker_processes 1;
pid {directory}/pid;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  client_body_temp_path {directory}/body;
  proxy_temp_path {directory}/proxy;
  fastcgi_temp_path {directory}/fastcgi;
  uwsgi_temp_path {directory}/uwsgi;
  scgi_temp_path {directory}/scgi;
  server {{
    {listen}
    default_type text/plain;
    return 200 "{name}\\n";
  }}
}}
"""


class Process:
    def __init__(self, label, command, log):
        self.label = label
        self.log = log
        with open(log, "ab") as output:
            # A session of its own: Ctrl-C in a terminal is for the lab, which ends all in order.
            self.popen = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL,
                                          stdout=output, stderr=subprocess.STDOUT,
                                          start_new_session=True)

    def wait(self, timeout_s):
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(timeout_s)
        return self.popen.returncode

    def log_tail(self):
        return "".join(self.log.read_text(errors="replace").splitlines(True)[-15:])


class Lab:
    instances = 0

    def __init__(self, kind="test", servers=("b1", "b2", "b3", "b4"), pool=("b1", "b2", "b3"),
                 lans=1, memory_mib=256, network=Network):
        Lab.instances += 1
        self.name = f"maglev-{kind}-{os.getpid()}.{Lab.instances}"
        self.directory = RUN / self.name
        self.network = network(self.name, servers, lans)
        self.memory_mib = memory_mib
        self.processes = {}
        self.control = ControlApi(self.directory / "control.sock")
        self.choose_processors()
        self.settings = self.default_settings(pool)
        self.decap_arguments = []

    # --- what there is ------------------------------------------------------------------------

    def choose_processors(self):
        """Workers poll without pause, so all else stays off their processor where it can."""
        self.all_processors = os.sched_getaffinity(0)
        first, *others = sorted(self.all_processors)
        self.worker_processor = others[0] if others else first
        self.main_processor = first

    def default_settings(self, pool):
        """The configuration file's content; tests change it before start_all()."""
        network = self.network
        ports = [{"name": f"lan{lan}", "device": f"net_af_xdp{lan},iface=eth{lan}",
                  "interface": f"eth{lan}"} for lan in range(network.lans)]
        return {
            "directory": str(self.directory / "shared"),
            "state": str(self.directory / "state"),
            "hash_seed": f"{HASH_SEED:016x}",
            "control": {"socket": str(self.control.path)},
            "dataplane": {
                "main_core": f"0@{self.main_processor}",
                "cores": [f"{n + 1}@{self.worker_processor}" for n in range(network.lans)],
                "memory_mib": self.memory_mib,
                "flow_store": str(flow_store(self.name)),
                "steering_program": str(BUILD / "dataplane/bpf/steering.bpf.o"),
                "ports": ports,
            },
            "pools": [{
                "name": "web", "table_size": TABLE_SIZE,
                "health": {"type": "tcp", "port": 80, "interval_ms": 300, "timeout_ms": 1000,
                           "rise": 2, "fall": 2},
                "backends": [{"name": name, "address": network.address(name)} for name in pool],
            }],
            # The slot alone decides, so that a request's backend can be told from the table.
            "vips": [
                {"name": f"{protocol}-{lan}", "address": VIPS[lan], "protocol": protocol,
                 "port": port, "pool": "web", "tracking": "none"}
                for lan in range(network.lans) for protocol, port in (("tcp", 80),
                                                                     ("udp", UDP_PORT))],
        }

    @property
    def configuration(self):
        return self.directory / "maglev.yaml"

    def program(self, name):
        path = BUILD / {"maglev-control": "control", "maglevctl": "control",
                        "maglev-dataplane": "dataplane",
                        "maglev-decap": "dataplane/bpf", "connections": "tests/end_to_end",
                        "flood": "tests/end_to_end"}[name] / name
        if not path.exists():
            raise RuntimeError(f"{path} is not built: run meson setup {BUILD} and "
                               f"ninja -C {BUILD}")
        return path

    # --- making and removing it ---------------------------------------------------------------

    def __enter__(self):
        try:
            self.prepare()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error):
        self.close()

    def prepare(self):
        if os.geteuid() != 0:
            raise RuntimeError("network namespaces and XDP need root: run it with sudo")
        with machine_lock():
            remove_stale_labs()
            self.directory.mkdir()
            self.lock = take_lock(self.directory / "lock")
            hugepages.provide(self.memory_mib, self.directory / "hugepages-added")
        os.sched_setaffinity(0, self.all_processors - {self.worker_processor}
                             or self.all_processors)
        (self.directory / "logs").mkdir()
        self.network.build()

    def close(self):
        """Ends and removes all; signals wait meanwhile."""
        held = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
        before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
        try:
            for process in self.processes.values():
                process.popen.terminate()
            for process in self.processes.values():
                if process.wait(5) is None:
                    process.popen.kill()
                    process.wait(5)
            self.processes.clear()
            with machine_lock():
                remove(self.name)
            os.sched_setaffinity(0, self.all_processors)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def keep_logs(self, target):
        target.mkdir(parents=True, exist_ok=True)
        shutil.copytree(self.directory / "logs", target, dirs_exist_ok=True)
        if self.configuration.exists():
            shutil.copy(self.configuration, target)

    # --- processes ----------------------------------------------------------------------------

    def start(self, label, host, *command):
        """Starts a long-running program on a host; its output goes to logs/LABEL."""
        process = Process(label, ("ip", "netns", "exec", self.network.namespace(host), *command),
                          self.directory / "logs" / label)
        self.processes[label] = process
        return process

    def stop(self, label, how=signal.SIGTERM):
        process = self.processes.pop(label)
        process.popen.send_signal(how)
        if process.wait(10) is None:
            process.popen.kill()
            process.wait(5)
            raise AssertionError(f"{label} was still there 10 s after signal {how.name}")
        return process

    def start_servers(self):
        for server in self.network.servers:
            self.start_web_server(server)
            self.start_decap(server)

    def start_web_server(self, server):
        directory = self.directory / f"nginx-{server}"
        directory.mkdir()
        configuration = directory / "nginx.conf"
        listen = " ".join(f"listen {socket} backlog=1024;" for socket in self.network.web_sockets)
        configuration.write_text(NGINX_CONFIGURATION.format(directory=directory, name=server,
                                                            listen=listen))
        self.start(f"nginx-{server}", server, "nginx", "-p", directory, "-c", configuration,
                   "-e", self.directory / "logs" / f"nginx-{server}")

    def start_decap(self, server):
        sources = [word for source in self.network.outer_sources(server)
                   for word in ("--from", source)]
        self.start(f"decap-{server}", server, self.program("maglev-decap"),
                   "--interface", "eth0", *sources, *self.decap_arguments)

    def kill_server(self, server):
        """The machine is gone: its processes and its link at once."""
        self.network.set_link("router", f"lan{self.network.lan_of(server)}-{server}", "down")
        for pid in netns.process_ids(self.network.namespace(server)):
            os.kill(pid, signal.SIGKILL)
        for label in (f"nginx-{server}", f"decap-{server}"):
            self.processes.pop(label).wait(5)

    def show_link(self, host, interface):
        return netns.run("ip", "-json", "-n", self.network.namespace(host), "link", "show",
                         interface)

    def start_control(self):
        return self.start("control", "lb", self.program("maglev-control"), self.configuration)

    def start_dataplane(self):
        return self.start("dataplane", "lb", self.program("maglev-dataplane"), self.configuration)

    def start_all(self):
        self.configuration.write_text(to_yaml(self.settings))
        self.start_servers()
        self.start_control()
        self.start_dataplane()
        self.wait_until_serving()

    # --- waiting ------------------------------------------------------------------------------

    def status(self, control=None):
        """GET /v1/status, of the lab's own load balancer unless another is named; None while control
        does not answer."""
        try:
            return (control or self.control).get("/v1/status")
        except OSError:
            return None

    def is_serving(self, control=None):
        """All backends of the pools are in the tables, with next hops, and all workers use them."""
        status = self.status(control)
        return (status is not None and status["dataplane"]["running"]
                and status["generation"] > 0
                and status["adopted_generation"] == status["generation"]
                and status["backends_in_tables"] == status["backends"]
                and status["next_hops_unresolved"] == 0)

    def wait_until_serving(self, timeout_s=20):
        self.wait_until(self.is_serving, "all backends served by all workers", timeout_s)

    def wait_until(self, condition, what, timeout_s=10):
        """Polls until the condition holds; fails when a process ends or time is up."""
        deadline = time.monotonic() + timeout_s
        while not (value := condition()):
            self.check_processes()
            if time.monotonic() > deadline:
                raise AssertionError(f"after {timeout_s} s still not: {what}; "
                                     f"status: {self.status()}")
            time.sleep(0.02)
        return value

    def check_processes(self):
        for process in self.processes.values():
            if process.popen.poll() is not None:
                raise AssertionError(f"{process.label} ended with {process.popen.returncode}; the "
                                     f"end of its log:\n{process.log_tail()}")


def to_yaml(settings):
    """YAML in the manner of docs/configuration.md: flow style from the third level on."""
    lines = []
    for key, value in settings.items():
        if isinstance(value, dict):
            lines.append(f"{key}:")
            lines += [f"  {name}: {json.dumps(item)}" for name, item in value.items()]
        elif isinstance(value, list):
            lines.append(f"{key}:")
            lines += [f"  - {json.dumps(item)}" for item in value]
        else:
            lines.append(f"{key}: {json.dumps(value)}")
    return "\n".join(lines) + "\n"


# --- what is left of labs ------------------------------------------------------------------------


def take_lock(path):
    """The open file that holds the lock until this process ends; None when another has it."""
    file = open(path, "w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


@contextlib.contextmanager
def machine_lock():
    """One lab at a time makes or removes things. A directory serves, so no lock file is left."""
    descriptor = os.open(RUN, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def all_labs():
    found = {path.name for path in RUN.glob("maglev-*")} | set(netns.names())
    return {match.group() for name in found if (match := NAME.match(name))}


def is_running(name):
    lock = RUN / name / "lock"
    if not lock.exists():
        return False
    file = take_lock(lock)
    if file is not None:
        file.close()
    return file is None


def running_labs(kind):
    with machine_lock():
        return sorted(name for name in all_labs()
                      if name.startswith(f"maglev-{kind}-") and is_running(name))


def remove_stale_labs():
    for name in all_labs():
        if not is_running(name):
            remove(name)


def flow_store(name):
    """Of a lab. /run may be on a disk; a path below /dev/shm is not."""
    return pathlib.Path("/dev/shm") / f"{name}.flows"


def empty(namespace):
    """Kills all its processes and waits until all their threads have ended, as only then their
    hugepages are free. A server may still have replaced a worker that was killed before it."""
    deadline = time.monotonic() + 10
    while (pids := netns.process_ids(namespace)) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                process = os.pidfd_open(pid)
                with open(process):
                    signal.pidfd_send_signal(process, signal.SIGKILL)
                    select.select([process], [], [], 5)


def remove(name):
    """All that a lab of this name made: its processes first, the directory last."""
    namespaces = [namespace for namespace in netns.names() if namespace.startswith(f"{name}-")]
    for namespace in namespaces:
        empty(namespace)
    for namespace in namespaces:
        netns.run("ip", "netns", "delete", namespace)
    for store in flow_store(name).parent.glob(f"{flow_store(name).name}*"):
        store.unlink()
    directory = RUN / name
    hugepages.give_back(directory / "hugepages-added")
    shutil.rmtree(directory, ignore_errors=True)
