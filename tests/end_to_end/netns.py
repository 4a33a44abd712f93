"""Network namespaces: making them, and opening sockets inside them."""

import contextlib
import ctypes
import os
import pathlib
import subprocess

CLONE_NEWNET = 0x40000000
LIBC = ctypes.CDLL(None, use_errno=True)


def run(*command):
    """Runs a short command; what it printed becomes part of the error when it fails."""
    done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=30)
    if done.returncode:
        raise RuntimeError(f"{' '.join(done.args)} failed: {done.stdout.strip()}")
    return done.stdout


def names():
    directory = pathlib.Path("/run/netns")
    return [path.name for path in directory.iterdir()] if directory.is_dir() else []


def process_ids(namespace):
    return [int(pid) for pid in run("ip", "netns", "pids", namespace).split()]


def enter(namespace):
    """Moves the calling thread, and only it, into the namespace for good."""
    with open(f"/run/netns/{namespace}") as file:
        set_namespace(file)


@contextlib.contextmanager
def inside(namespace):
    """Sockets that the calling thread opens in this block belong to the namespace ever after."""
    with open("/proc/thread-self/ns/net") as home:
        enter(namespace)
        try:
            yield
        finally:
            set_namespace(home)


def set_namespace(file):
    if LIBC.setns(file.fileno(), CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), file.name)


def set_kernel_values(namespace, **values):
    """Kernel settings below /proc/sys/net; the two underscores in a name stand for a slash."""
    with inside(namespace):
        for name, value in values.items():
            pathlib.Path("/proc/sys/net", name.replace("__", "/")).write_text(str(value))
