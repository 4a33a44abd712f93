"""Servers inside namespaces, on threads of the test."""

import contextlib
import hashlib
import selectors
import socket
import struct
import threading

import netns
from lab import UDP_PORT

FAMILY = {4: socket.AF_INET, 6: socket.AF_INET6}


@contextlib.contextmanager
def serving(namespace, kind, address, port, handler):
    """A server of the socketserver module, of a kind and with a handler."""
    class Server(kind):
        address_family = socket.AF_INET6 if ":" in address else socket.AF_INET

    with netns.inside(namespace):
        server = Server((address, port), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


IP_PKTINFO = 8  # linux/in.h; Python names it from 3.14 on
# What the kernel tells about a datagram, and is told about the answer.
PACKET_INFO = {4: (socket.IPPROTO_IP, IP_PKTINFO), 6: (socket.IPPROTO_IPV6, socket.IPV6_PKTINFO)}


def digest(payload):
    return hashlib.sha256(payload).hexdigest()


def answer_information(family, information):
    """For an answer from the address that the question went to."""
    if family == 4:
        return struct.pack("=i4s4x", 0, information[8:12])
    return struct.pack("=16si", information[:16], 0)


class Answerers:
    """Answers datagrams to the port at any address on all hosts, with `HOST:` and the digest of what
    came: an answer fits any link."""

    def __init__(self, network, hosts, port=UDP_PORT):
        self.selector = selectors.DefaultSelector()
        self.stop_reading, self.stop_writing = socket.socketpair()
        self.selector.register(self.stop_reading, selectors.EVENT_READ)
        for host in hosts:
            for family in FAMILY:
                with netns.inside(network.namespace(host)):
                    listener = socket.socket(FAMILY[family], socket.SOCK_DGRAM)
                if family == 6:
                    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
                else:
                    listener.setsockopt(*PACKET_INFO[4], 1)
                listener.bind(("", port))
                listener.setblocking(False)
                self.selector.register(listener, selectors.EVENT_READ, (host, family))
        self.thread = threading.Thread(target=self.work, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *error):
        self.stop_writing.close()
        self.thread.join()
        for key in list(self.selector.get_map().values()):
            key.fileobj.close()
        self.selector.close()

    def work(self):
        while True:
            for key, _ in self.selector.select():
                if key.fileobj is self.stop_reading:
                    return
                self.answer(key.fileobj, *key.data)

    def answer(self, listener, host, family):
        payload, ancillary, _, client = listener.recvmsg(65536, 256)
        (_, _, information), = ancillary
        listener.sendmsg([f"{host}:{digest(payload)}".encode()],
                         [(*PACKET_INFO[family], answer_information(family, information))], 0,
                         client)
