"""What the published files say of a pool's slots, read apart from the product's own readers."""
import dataclasses
import pathlib
import struct

HEADER_BYTES = 40
NO_OWNER_16 = 0xFFFF
NO_CHECKSUM = bytes(16)


@dataclasses.dataclass(frozen=True)
class Slots:
    generation: int
    backends: dict  # (index, incarnation): name
    owners: list    # by slot: (index, incarnation), or None
    unsettled: dict  # slot: (fallback, its incarnation, pending_until_ns, inherit_until_ns)


def _read(path, layout):
    content = path.read_bytes()
    return content, struct.unpack_from(layout, content, HEADER_BYTES), \
        HEADER_BYTES + struct.calcsize(layout)


def _padded(position):
    return (position + 7) // 8 * 8


def read_slots(directory):
    """Of the only pool in the directory's root."""
    directory = pathlib.Path(directory)
    content, (generation, _, _, pools, _, _, _), at = _read(directory / "root", "<QQIIIIQ")
    assert pools == 1
    pool, history = content[at:at + 16], content[at + 16:at + 32]
    backends, indices, table = _read_pool(directory / "pools" / pool.hex())
    owners = [None if owner == NO_OWNER_16 else indices[owner]
              for owner in _read_table(directory / "tables" / table.hex())]
    unsettled = {}
    if history != NO_CHECKSUM:
        unsettled = _read_history(directory / "histories" / history.hex())
    return Slots(generation, backends, owners, unsettled)


def _read_pool(path):
    content, (table, count, owners, name_length, _, _), at = _read(path, "<16sIIIIQ")
    records = [content[at + 48 * i:at + 48 * (i + 1)] for i in range(count)]
    at += 48 * count
    indices = struct.unpack_from(f"<{owners}I", content, at)
    at = _padded(at + 4 * owners) + name_length
    backends = {}
    for index, record in enumerate(records):
        incarnation, length = record[39], record[43]
        if length:
            backends[index, incarnation] = content[at:at + length].decode()
            at += length
    places = {index: (index, incarnation) for index, incarnation in backends}
    return backends, [places[index] for index in indices], table


def _read_table(path):
    content, (size, owners, _), at = _read(path, "<IIQ")
    at = _padded(_padded(at + 4 * owners) + 4 * owners)  # weights, lengths of names
    return struct.unpack_from(f"<{size}H", content, at)


def _read_history(path):
    content, (_, count), at = _read(path, "<16sQ")
    unsettled = {}
    for number in range(count):
        slot, fallback, pending, inherit, incarnation = struct.unpack_from(
            "<IIQQB", content, at + 32 * number)
        unsettled[slot] = (fallback, incarnation, pending, inherit)
    return unsettled
