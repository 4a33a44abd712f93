"""What the end-to-end tests share: one at a time on a machine, and the logs of a failed one kept."""

import fcntl
import os
import pathlib
import signal
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import lab as laboratory  # noqa: E402


def pytest_configure():
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.default_int_handler)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    report = (yield).get_result()
    item.failed = getattr(item, "failed", False) or report.failed


@pytest.fixture(scope="session")
def whole_machine():
    """Two runs at once would measure each other's load: the second waits."""
    if os.geteuid() != 0:
        pytest.skip("needs root: run it with sudo")
    with open("/run/lock/maglev-end-to-end.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("\nwaiting for another run of the end-to-end tests", file=sys.__stderr__)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture
def make_lab(whole_machine, request):
    """Makes labs with Lab's arguments. At the end of the test each must account for every packet."""
    labs = []

    def make(**arguments):
        made = laboratory.Lab(**arguments)
        labs.append(made)
        return made.__enter__()

    yield make
    for made in labs:
        failed = getattr(request.node, "failed", False)
        try:
            if not failed:
                check_counters(made)
        finally:
            if failed:
                target = laboratory.BUILD / "end-to-end-logs" / request.node.name
                made.keep_logs(target)
                print(f"logs are kept in {target}")
            made.close()


def check_counters(lab):
    """Every packet that a worker received ended in exactly one verdict."""
    if {"control", "dataplane"} - lab.processes.keys():
        return
    for worker in lab.control.get("/v1/stats")["workers"]:
        assert worker["received"]["packets"] == sum(worker["verdicts"].values()), worker


@pytest.fixture
def lab(make_lab):
    """The usual lab, serving."""
    made = make_lab()
    made.start_all()
    return made
