"""What the end-to-end tests share: one at a time on a machine, and the logs of a failed one kept."""

import contextlib
import fcntl
import os
import pathlib
import signal
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import accounts  # noqa: E402
import lab as laboratory  # noqa: E402


def pytest_configure():
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.default_int_handler)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    report = (yield).get_result()
    for node in item.listchain():
        node.failed = getattr(node, "failed", False) or report.failed


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


@contextlib.contextmanager
def making_labs(user):
    """Yields a function that makes labs with Lab's arguments, or those of a kind of Lab. They end with their user, a test or a
    module, and must then account for every packet."""
    labs = []

    def make(lab_class=laboratory.Lab, **arguments):
        made = lab_class(**arguments)
        labs.append(made)
        return made.__enter__()

    yield make
    for made in labs:
        failed = getattr(user, "failed", False)
        try:
            if not failed:
                check_counters(made)
        finally:
            if failed:
                target = laboratory.BUILD / "end-to-end-logs" / pathlib.Path(user.name).name
                made.keep_logs(target)
                print(f"logs are kept in {target}")
            made.close()


@pytest.fixture
def make_lab(whole_machine, request):
    with making_labs(request.node) as make:
        yield make


@pytest.fixture(scope="module")
def make_shared_lab(whole_machine, request):
    with making_labs(request.node) as make:
        yield make


def check_counters(lab):
    """Every packet that a worker received ended in exactly one verdict, or lives on."""
    if {"control", "dataplane"} - lab.processes.keys():
        return
    for worker in lab.control.get("/v1/stats")["workers"]:
        accounts.check_worker(worker)


@pytest.fixture
def lab(make_lab):
    """The usual lab, serving."""
    made = make_lab()
    made.start_all()
    return made
