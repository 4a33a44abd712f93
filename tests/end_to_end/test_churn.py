"""VIPs and backends that come and go in a loop, as fast as control takes it, while packets flow."""

import itertools
import socket
import threading
import time

import netns
from http_client import Traffic
from network import VIPS

CHURN_S = 8
PORT = 7777


def flood(lab, stopping):
    """Datagrams to the VIP that comes and goes."""
    netns.enter(lab.network.namespace("client"))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        while not stopping.is_set():
            for _ in range(50):
                sender.sendto(b"x" * 64, (VIPS[0], PORT))
            time.sleep(0.005)


def churn(lab):
    """Returns the number of changes made."""
    pools, vips = "/v1/pools", "/v1/vips"
    vip = {"name": "passing", "address": VIPS[0], "protocol": "udp", "port": PORT, "pool": "other"}
    backend = {"name": "b4", "address": lab.network.address("b4")}
    lab.control.post(pools, {"name": "other", "table_size": 251})
    end = time.monotonic() + CHURN_S
    for round_number in itertools.count(1):
        if time.monotonic() > end:
            return 4 * round_number
        lab.control.post(vips, vip)
        lab.control.post(f"{pools}/other/backends", backend)
        lab.control.delete(f"{vips}/passing" if round_number % 2 else f"{pools}/other/backends/b4")
        lab.control.delete(f"{pools}/other/backends/b4" if round_number % 2 else f"{vips}/passing")


def test_vips_and_backends_that_come_and_go_disturb_nobody_else(lab):
    requests = []
    stopping = threading.Event()
    flooding = threading.Thread(target=flood, args=(lab, stopping))
    with Traffic(lab, 100, requests.append):
        flooding.start()
        try:
            changes = churn(lab)
        finally:
            stopping.set()
            flooding.join()
    failed = [request for request in requests if request.error]
    print(f"\n{changes} changes, {len(requests)} requests, {len(failed)} failed")
    assert changes > 100
    assert len(requests) > CHURN_S * 50
    assert not failed
    lab.check_processes()
    lab.wait_until(lambda: lab.control.get("/v1/status")["adopted_generation"]
                   == lab.control.get("/v1/status")["generation"], "the last generation in use")
    stats = lab.control.get("/v1/stats")
    assert stats["received"]["packets"] == sum(stats["verdicts"].values())
    # Both fates of a passing VIP's packets were seen: none when it had no backend.
    assert stats["verdicts"]["forwarded"] > len(requests)
    assert stats["verdicts"]["no_backend"] + stats["verdicts"]["unresolved"] > 0
