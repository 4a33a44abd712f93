"""HTTP requests from the lab's client, each on a connection of its own with a chosen source."""

import dataclasses
import itertools
import socket
import threading
import time

import netns
from network import CLIENT_ADDRESSES, VIPS


@dataclasses.dataclass
class Request:
    source: str
    source_port: int
    started: float  # time.monotonic()
    ended: float = 0.0
    server: str = ""  # the name on the page; empty: not answered
    error: str = ""


def fetch(source, source_port, target=VIPS[0], timeout_s=3.0, body=b""):
    """One request, from the namespace that the calling thread is in."""
    request = Request(source, source_port, time.monotonic())
    try:
        request.server = exchange(source, source_port, target, timeout_s, body)
    except OSError as error:
        request.error = str(error) or type(error).__name__
    request.ended = time.monotonic()
    return request


def exchange(source, source_port, target, timeout_s, body):
    with socket.socket(socket.AF_INET6 if ":" in target else socket.AF_INET) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        connection.settimeout(timeout_s)
        connection.bind((source, source_port))
        connection.connect((target, 80))
        method = "POST" if body else "GET"
        connection.sendall(f"{method} / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n"
                           f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = b""
        while part := connection.recv(65536):
            answer += part
    head, _, page = answer.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200 "):
        raise OSError(f"not an answer: {head[:40]!r}")
    return page.decode().strip()


class Traffic:
    """Steady requests by some threads at `rate` a second in all; each ended one goes to `done`,
    which the threads call one at a time."""

    def __init__(self, lab, rate, done, threads=8, timeout_s=3.0):
        self.namespace = lab.network.namespace("client")
        self.interval_s = threads / rate
        self.done = done
        self.timeout_s = timeout_s
        self.stopping = threading.Event()
        self.lock = threading.Lock()
        # Each source is used again only after all others.
        self.sources = itertools.cycle((address, port) for port in range(10000, 60000)
                                       for address in CLIENT_ADDRESSES)
        self.threads = [threading.Thread(target=self.work, args=(n / rate,), daemon=True)
                        for n in range(threads)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *error):
        self.stopping.set()
        for thread in self.threads:
            thread.join()

    def work(self, first_delay_s):
        netns.enter(self.namespace)
        due = time.monotonic() + first_delay_s
        while not self.stopping.wait(max(0.0, due - time.monotonic())):
            with self.lock:
                source, port = next(self.sources)
            request = fetch(source, port, timeout_s=self.timeout_s)
            with self.lock:
                self.done(request)
            # What a slow answer delayed is not made up for.
            due = max(due + self.interval_s, time.monotonic())
