#!/usr/bin/python3 -B
"""What share of one core maglev-control needs to check many backends.

    bench/health_checks.py [--build DIRECTORY] [--backends N] [--interval-ms N] [--seconds N] [--core N]

In a network namespace of its own, maglev-control runs on one core with a pool of so many backends,
each with an address of 127.0.0.0/8, and nginx answers them all from elsewhere. For each kind of
check it prints, once every backend is up: checks a second as the kernel counted their answers, and
the CPU time of maglev-control, user and system, as a share of the core. Needs root."""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/end_to_end"))

import control_api  # noqa: E402

PORT = 8080
KINDS = {"tcp": {"port": PORT}, "http": {"port": PORT, "path": "/up", "status": [200]}, "icmp": {}}
NGINX = f"""
daemon off; worker_processes 1; pid nginx.pid; error_log stderr crit;
events {{ worker_connections 4096; }}
http {{ access_log off;
  server {{ listen {PORT} backlog=8192; location /up {{ return 200 "ok"; }} }} }}
"""


def configuration(directory, kind, backends, interval_ms):
    return {
        "directory": f"{directory}/run", "state": f"{directory}/state",
        "hash_seed": "9e3779b97f4a7c15",
        "dataplane": {"main_core": 0, "cores": [1],
                      "ports": [{"name": "uplink", "device": "net_null0", "interface": "lo"}]},
        "pools": [{"name": "web", "table_size": 1000003,
                   "health": {"type": kind, "interval_ms": interval_ms, "timeout_ms": 1000,
                              **KINDS[kind]},
                   "backends": [{"name": f"b{i}", "address": f"127.1.{i // 250}.{i % 250 + 1}"}
                                for i in range(backends)]}]}


def cpu_seconds(pid):
    """User and system time so far."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return [int(fields[i]) / os.sysconf("SC_CLK_TCK") for i in (11, 12)]


def checks_answered(kind):
    """Of this namespace, by the kernel: connections accepted, or echo requests answered."""
    name, protocol = ("OutEchoReps", "Icmp") if kind == "icmp" else ("PassiveOpens", "Tcp")
    lines = re.findall(rf"^{protocol}: (.*)$", pathlib.Path("/proc/net/snmp").read_text(),
                       re.MULTILINE)
    return int(dict(zip(lines[0].split(), lines[1].split()))[name])


def measure(arguments, kind, directory):
    file = pathlib.Path(directory, "maglev.yaml")
    file.write_text(json.dumps(configuration(directory, kind, arguments.backends,
                                             arguments.interval_ms)) + "\n")
    daemon = subprocess.Popen(["taskset", "-c", str(arguments.core),
                               arguments.build / "control/maglev-control", file],
                              stderr=subprocess.DEVNULL)
    try:
        api = control_api.ControlApi(f"{directory}/run/control.sock")
        end = time.monotonic() + 120
        while True:
            time.sleep(1)
            assert daemon.poll() is None and time.monotonic() < end, "not all backends came up"
            try:
                pool = api.get("/v1/pools/web")
            except OSError:
                continue
            if sum(backend["health"] == "up" for backend in pool["backends"]) == arguments.backends:
                break
        time.sleep(2 * arguments.interval_ms / 1000)
        before, answered, start = cpu_seconds(daemon.pid), checks_answered(kind), time.monotonic()
        time.sleep(arguments.seconds)
        after, then, seconds = cpu_seconds(daemon.pid), checks_answered(kind), \
            time.monotonic() - start
        user, system = (100 * (b - a) / seconds for a, b in zip(before, after))
        up = sum(b["health"] == "up" for b in api.get("/v1/pools/web")["backends"])
        print(f"{kind:6}{(then - answered) / seconds:10.0f}{user:8.1f}{system:8.1f}"
              f"{user + system:8.1f}{arguments.backends - up:6}", flush=True)
    finally:
        daemon.terminate()
        daemon.wait(timeout=10)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--backends", type=int, default=10000)
    parser.add_argument("--interval-ms", type=int, default=2000)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--core", type=int, default=1)
    arguments = parser.parse_args()
    arguments.build = arguments.build.resolve()
    if os.environ.get("MAGLEV_IN_NAMESPACE") is None:
        os.environ["MAGLEV_IN_NAMESPACE"] = "1"
        os.execvp("unshare", ["unshare", "--net", "--mount", "--kill-child", "--fork", sys.executable,
                              "-B", *sys.argv])
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    print(f"{arguments.backends} backends, {arguments.interval_ms} ms; CPU in percent of one core\n"
          f"kind  checks/s    user  system     all  down")
    with tempfile.TemporaryDirectory() as directory:
        pathlib.Path(directory, "nginx.conf").write_text(NGINX)
        nginx = subprocess.Popen(["taskset", "-c", str(1 - arguments.core), "nginx", "-p", directory,
                                  "-c", "nginx.conf"])
        try:
            for kind in KINDS:
                for name in ("run", "state"):
                    shutil.rmtree(pathlib.Path(directory, name), ignore_errors=True)
                measure(arguments, kind, directory)
        finally:
            nginx.terminate()
            nginx.wait(timeout=10)


if __name__ == "__main__":
    main()
