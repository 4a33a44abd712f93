"""Which backend a flow belongs to, worked out from the rules in tests/golden alone.

It shares no code with the product, so that agreement of the two means something. test_reference.py
checks it against every golden vector.
"""

import ipaddress
import struct

import xxhash


def maglev_table(weights, size):
    """The owner's name for each slot (None: no owner); weights maps names to weights."""
    names = sorted((name for name, weight in weights.items() if weight > 0), key=str.encode)
    slots = [None] * size
    if not names:
        return slots
    largest = max(weights[name] for name in names)
    position = [xxhash.xxh64_intdigest(name, 0) % size for name in names]
    skip = [xxhash.xxh64_intdigest(name, 1) % (size - 1) + 1 for name in names]
    target = [0] * len(names)
    left = size
    turn = 0
    while left:
        turn += 1
        for i, name in enumerate(names):
            if turn * weights[name] < target[i]:
                continue
            target[i] += largest
            while slots[position[i]] is not None:
                position[i] = (position[i] + skip[i]) % size
            slots[position[i]] = name
            left -= 1
            if not left:
                break
    return slots


def flow_bytes(protocol, source, source_port, destination, destination_port):
    return (ipaddress.ip_address(source).packed + ipaddress.ip_address(destination).packed
            + struct.pack("!HHB", source_port, destination_port, protocol))


def slot_of(flow_hash, size):
    return ((flow_hash >> 32) * size) >> 32


def flow_slot(seed, size, protocol, source, source_port, destination, destination_port):
    key = flow_bytes(protocol, source, source_port, destination, destination_port)
    return slot_of(xxhash.xxh3_64_intdigest(key, seed), size)


def source_slot(seed, size, source):
    """By the hash of the source alone."""
    return slot_of(xxhash.xxh3_64_intdigest(ipaddress.ip_address(source).packed, seed), size)
