"""The quickstart as a user meets it, and what it leaves behind: nothing."""

import contextlib
import ctypes
import os
import pathlib
import re
import signal
import subprocess
import time

import pytest

import lab as laboratory
import netns

PR_SET_CHILD_SUBREAPER = 36


def traces():
    """What a quickstart could leave behind on the machine, apart from processes."""
    return {
        "namespaces": {name for name in netns.names() if "quickstart" in name},
        "directories": {str(path) for path in pathlib.Path("/run").glob("maglev-quickstart-*")},
        "mounts": {line.split(" - ")[0].split()[4] + " " + line.split(" - ")[1]
                   for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines()
                   if "maglev-test" not in line},
        "pinned": {str(path) for path in pathlib.Path("/sys/fs/bpf").rglob("*")},
        "hugepage files": {str(path) for path in pathlib.Path("/dev/hugepages").rglob("*")},
        "shared memory": {str(path) for path in pathlib.Path("/dev/shm").iterdir()},
        "nr_hugepages": pathlib.Path("/proc/sys/vm/nr_hugepages").read_text(),
    }


def children():
    """Processes that this one has to wait for, adopted ones too; ended ones are waited for."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    tasks = pathlib.Path("/proc/self/task").glob("*/children")
    return {int(pid) for task in tasks for pid in task.read_text().split()}


@pytest.fixture
def nothing_left(whole_machine):
    """Compares before and after. As subreaper this process becomes the parent of every process
    that the quickstart forgets, even of a daemon."""
    assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    before = traces(), children()
    yield
    deadline = time.monotonic() + 5
    while (after := (traces(), children())) != before and time.monotonic() < deadline:
        time.sleep(0.1)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    assert after == before


class Quickstart:
    def __init__(self, *arguments):
        self.output = []
        self.popen = subprocess.Popen([laboratory.ROOT / "quickstart", *arguments], text=True,
                                      stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, start_new_session=True)

    def read_until(self, wanted):
        for line in self.popen.stdout:
            self.output.append(line)
            if wanted in line:
                return
        raise AssertionError(f"no '{wanted}' in its output:\n{''.join(self.output)}")

    def finish(self):
        self.output += self.popen.stdout.readlines()
        return self.popen.wait(timeout=60)

    def interrupt(self):
        """As Ctrl-C does: to all of the terminal's foreground processes."""
        os.killpg(self.popen.pid, signal.SIGINT)

    def text(self):
        return "".join(self.output)


@pytest.fixture
def quickstart():
    started = []

    def start(*arguments):
        started.append(Quickstart(*arguments))
        return started[-1]

    yield start
    for one in started:
        if one.popen.poll() is None:
            one.interrupt()
        one.finish()


def test_it_serves_takes_the_commands_it_prints_and_leaves_nothing(nothing_left, quickstart):
    first = quickstart("--seconds", "10")
    first.read_until("Stop with Ctrl-C")
    second = quickstart("--seconds", "10")
    assert second.finish() == 1
    assert "already running" in second.text()

    commands = [line.strip() for line in first.output if "maglevctl" in line or "curl" in line]
    assert len(commands) == 6
    for command in commands:
        watching = "--watch" in command
        done = subprocess.run(f"timeout 2 {command}" if watching else command, shell=True,
                              cwd=laboratory.ROOT, capture_output=True, text=True, timeout=20)
        assert done.returncode == (124 if watching else 0), done
        assert done.stdout

    assert first.finish() == 0, first.text()
    summary = re.search(r"([\d,]+) requests answered \((.*)\), ([\d,]+) failed", first.text())
    assert summary, first.text()
    print("\n" + summary.group())
    assert all(f"{name} " in summary.group(2) for name in ("b1", "b2", "b3", "b4"))


def test_ctrl_c_ends_it_and_leaves_nothing(nothing_left, quickstart):
    running = quickstart()
    running.read_until("Stop with Ctrl-C")
    time.sleep(1.5)
    running.interrupt()
    running.finish()
    assert "requests answered" in running.text()


def test_what_a_killed_one_left_the_next_one_removes(nothing_left, quickstart):
    killed = quickstart()
    killed.read_until("Stop with Ctrl-C")
    os.killpg(killed.popen.pid, signal.SIGKILL)
    killed.finish()
    assert any("quickstart" in name for name in netns.names())
    following = quickstart("--seconds", "3")
    assert following.finish() == 0, following.text()


@pytest.mark.parametrize("arguments", [["--seconds"], ["--seconds", "0"], ["--seconds", "x"],
                                       ["--seconds", "-1"], ["5"], ["--help"]])
def test_wrong_arguments_are_told_before_anything_is_built(arguments):
    done = subprocess.run([laboratory.ROOT / "quickstart", *arguments], capture_output=True,
                          text=True, timeout=20)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: ") and not done.stdout


def test_without_root_it_says_what_to_do(whole_machine):
    done = subprocess.run(["unshare", "--user", laboratory.ROOT / "quickstart"],
                          capture_output=True, text=True, timeout=20)
    assert done.returncode == 1
    assert "sudo" in done.stderr
