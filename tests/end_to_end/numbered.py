"""Numbered UDP packets at a steady pace from the client to the servers; what is missing is a gap."""

import selectors
import socket
import struct
import threading
import time

import netns
from lab import UDP_PORT
from network import CLIENT_ADDRESSES, VIPS

FLOWS = 64
TICK_S = 0.002


class NumberedPackets:
    """Sends from entering until leaving the block; then `sent`, `missing` and `twice` tell."""

    def __init__(self, lab, rate):
        self.per_tick = max(1, round(rate * TICK_S))
        with netns.inside(lab.network.namespace("client")):
            self.senders = [udp_socket(CLIENT_ADDRESSES[n % len(CLIENT_ADDRESSES)], 20000 + n)
                            for n in range(FLOWS)]
        self.selector = selectors.DefaultSelector()
        for server in lab.network.servers:
            with netns.inside(lab.network.namespace(server)):
                receiver = udp_socket(VIPS[0], UDP_PORT)
            self.selector.register(receiver, selectors.EVENT_READ, server)
        self.sent = 0
        self.arrivals = {}  # number: how often
        self.by_server = dict.fromkeys(lab.network.servers, 0)
        self.stop_sending = threading.Event()
        self.stop_receiving = threading.Event()
        self.threads = [threading.Thread(target=self.send), threading.Thread(target=self.receive)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *error):
        self.stop_sending.set()
        self.threads[0].join()
        time.sleep(0.5)  # what is on its way arrives
        self.stop_receiving.set()
        self.threads[1].join()
        for key in list(self.selector.get_map().values()):
            key.fileobj.close()
        for sender in self.senders:
            sender.close()

    def send(self):
        # Ticks that come very late are not made up for: a burst would test the queues' length.
        due = time.monotonic()
        while not self.stop_sending.wait(max(0.0, due - time.monotonic())):
            due = max(due, time.monotonic() - 5 * TICK_S) + TICK_S
            for _ in range(self.per_tick):
                payload = struct.pack("!Q", self.sent)
                self.senders[self.sent % FLOWS].sendto(payload, (VIPS[0], UDP_PORT))
                self.sent += 1

    def receive(self):
        while not self.stop_receiving.is_set():
            for key, _ in self.selector.select(timeout=0.1):
                try:
                    while True:
                        number, = struct.unpack("!Q", key.fileobj.recv(64))
                        self.arrivals[number] = self.arrivals.get(number, 0) + 1
                        self.by_server[key.data] += 1
                except BlockingIOError:
                    pass

    @property
    def missing(self):
        return [number for number in range(self.sent) if number not in self.arrivals]

    @property
    def twice(self):
        return [number for number, times in self.arrivals.items() if times > 1]


def udp_socket(address, port):
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    made.setsockopt(socket.SOL_SOCKET, 33, 8 << 20)  # SO_RCVBUFFORCE
    made.bind((address, port))
    return made
