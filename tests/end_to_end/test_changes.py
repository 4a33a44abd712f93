"""Backends drained, removed, added and killed under steady requests.

Every request is held against the tables that the independent computation gives for each moment:
between the call of a change and the answer that it is adopted, the old or the new one may serve;
before and after, only one."""

import collections
import dataclasses
import time

import expected
from http_client import Traffic

RATE = 300


@dataclasses.dataclass
class Change:
    what: str
    called: float
    adopted: float
    table: list  # from then on


class Timeline:
    """The tables of one run in order; the first is there from the start."""

    def __init__(self, weights):
        self.weights = dict(weights)
        self.changes = [Change("start", 0.0, 0.0, expected.table(self.weights))]

    def record(self, what, act, **weights):
        """Runs `act`, which returns once the change is adopted; a weight of 0 takes one out."""
        called = time.monotonic()
        act()
        self.weights.update(weights)
        self.changes.append(Change(what, called, time.monotonic(), expected.table(self.weights)))

    def owners(self, request):
        """All owners that the request's slot may have had between its start and its end."""
        slot = expected.tcp_slot(request.source, request.source_port)
        ends = [change.adopted for change in self.changes[1:]] + [float("inf")]
        return {change.table[slot] for change, end in zip(self.changes, ends)
                if change.called <= request.ended and request.started <= end}

    def change(self, what):
        return next(change for change in self.changes if change.what == what)


def kill_and_wait(lab, server):
    """Returns when checks have found it dead and all workers use tables without it."""
    lab.kill_server(server)

    def is_out():
        backend = lab.control.get(f"/v1/pools/web")["backends"]
        status = lab.control.get("/v1/status")
        return (not next(b for b in backend if b["name"] == server)["in_table"]
                and status["adopted_generation"] == status["generation"])

    lab.wait_until(is_out, f"{server} out of the tables")


def test_no_request_fails_or_goes_astray_that_the_change_did_not_move(lab):
    requests = []
    backends = "/v1/pools/web/backends"
    timeline = Timeline(expected.EQUAL_WEIGHTS)
    with Traffic(lab, RATE, requests.append, timeout_s=2.0):
        time.sleep(2)
        timeline.record("drain b2", lambda: lab.control.patch(
            f"{backends}/b2?wait=adopted", {"state": "drain"}), b2=0)
        time.sleep(2)
        timeline.record("remove b2", lambda: lab.control.delete(f"{backends}/b2?wait=adopted"))
        time.sleep(2)
        added = {"name": "b4", "address": lab.network.address("b4")}

        def add():
            lab.control.post(f"{backends}?wait=adopted", added)
            lab.wait_until_serving()

        timeline.record("add b4", add, b4=1)
        time.sleep(2)
        timeline.record("kill b3", lambda: kill_and_wait(lab, "b3"), b3=0)
        time.sleep(2)
    report(requests, timeline)
    check(requests, timeline)


def report(requests, timeline):
    outcomes = collections.Counter(request.server or "failed" for request in requests)
    print(f"\n{len(requests)} requests: {dict(outcomes)}")
    before = timeline.changes[0]
    for change in timeline.changes[1:]:
        moved = sum(a != b for a, b in zip(before.table, change.table))
        started = sum(change.called <= r.started < change.adopted for r in requests)
        print(f"{change.what}: adopted after {(change.adopted - change.called) * 1000:.0f} ms, "
              f"{moved} slots moved, {started} requests started meanwhile")
        before = change
    for request in requests:
        if not request.server:
            print(f"failed: {request} owners {sorted(timeline.owners(request))}")


def check(requests, timeline):
    killed = timeline.change("kill b3")
    for request in requests:
        owners = timeline.owners(request)
        if request.server:
            assert request.server in owners, (request, owners)
        else:
            on_killed = "b3" in owners and request.ended >= killed.called
            assert len(owners) > 1 or on_killed, request
    for server, what in (("b2", "drain b2"), ("b3", "kill b3")):
        after = [request for request in requests
                 if request.started > timeline.change(what).adopted]
        assert len(after) > 100
        assert server not in {request.server for request in after}
    last = {request.server for request in requests if request.started > killed.adopted}
    assert last == {"b1", "b4"}
