"""Inputs to start fuzzing from: every kind of packet, every verdict, every encapsulation, by way of
steps as steps.h, frames.h and configurations.h describe them.

    tests/fuzz/seeds.py DIRECTORY      writes one file for each
"""

import itertools
import pathlib
import struct
import sys

(FRAME, RAW, PATCH, RESIZE, REPEAT, BURST, WAIT, CLOCK, PUBLISH, _RECORDS, PATCH_RECORD,
 BUFFERS) = range(12)
SERVED, TCP, UDP, ECHO, ICMP_ERROR, OTHER_ICMP, OTHER_PROTOCOL, NOT_IP = range(8)
WHOLE, FIRST, LATER, LAST = range(4)
PORT_BESIDE, OTHER_FAMILY, ADDRESS_BESIDE = 5, 6, 7
VIPS = 10
(VIP4, VIP4_UDP, VIP4_ANY, PREFIX4, PREFIX4_ANY, VIP6, VIP6_UDP, VIP6_ANY, PREFIX6,
 PREFIX6_ANY) = range(VIPS)
FROM_START, FROM_IP, FROM_TRANSPORT = range(3)
MILLISECONDS, TENTHS, SECONDS = 1, 2, 3
WHOLE_BURST = 0  # transmit room without a limit


def step(kind, a=0, b=0, c=0, d=0, e=0):
    return struct.pack("<BBBBHH", kind, a, b, c, d & 0xffff, e & 0xffff)


def begin(workers=1, answers_per_second=1000):
    return step(0, a=workers - 1, d=answers_per_second)


def frame(payload=SERVED, vip=0, fragment=WHOLE, headers=0, aside=0, source=0, datagram=0, length=20,
          tags=0, hop=0, dont_fragment=0, trailer=0, partial=0, traffic=0, lie=0, segmented=0,
          group=0):
    options = (tags | hop << 2 | dont_fragment << 4 | trailer << 5 | partial << 7 | traffic << 8 |
               lie << 12 | segmented << 14 | group << 15)
    return step(FRAME, payload | fragment << 3 | headers << 5, vip | aside << 5,
                source | datagram << 4, length, options)


def raw(data):
    return step(RAW, d=len(data)) + data + bytes(-len(data) % 8)


def patch(base, offset, value):
    return step(PATCH, a=base, d=offset, e=value)


def cut_by(count):
    return step(RESIZE, a=1, d=count)


def repeat(times, base=FROM_TRANSPORT, offset=0, stride=1):
    return step(REPEAT, a=times - 1, b=base, d=offset, e=stride)


def burst(worker=0, port=0, partial=0, transmit_room=None):
    return step(BURST, a=worker, b=port, c=partial,
                d=WHOLE_BURST if transmit_room is None else transmit_room + 1)


def wait(worker=0):
    return step(WAIT, a=worker)


def clock(count, unit=MILLISECONDS):
    return step(CLOCK, a=unit, d=count - 1)


def publish(backends=2, encapsulation=0, fragments_by_address=0, hash_source=0, flags=0, mtu=0,
            prefix=0, unowned=0, off_link=0, seed=42):
    return step(PUBLISH, d=(backends | encapsulation << 2 | fragments_by_address << 5 |
                            hash_source << 6 | flags << 7 | mtu << 11 | prefix << 13 |
                            unowned << 14 | off_link << 15), e=seed)


def publish_wide():
    return step(PUBLISH, a=0xff)


def patch_record(record, offset, value):
    return step(PATCH_RECORD, a=record, b=offset, d=value)


def buffers(count):
    return step(BUFFERS, d=count)


def seeds():
    yield "no_tables", begin() + frame() + frame(vip=VIP6) + burst()

    for backends, encapsulation in itertools.product(range(3), range(6)):
        frames = b"".join(frame(vip=vip, source=vip, length=length, tags=vip % 4, trailer=vip % 3)
                          for vip in range(VIPS) for length in (0, 1, 101))
        for prefix, flags in ((0, 0), (1, 8)):
            yield (f"forward_{backends}_{encapsulation}_{prefix}", begin() +
                   publish(backends, encapsulation, flags=flags, prefix=prefix) + frames +
                   burst() + frame(vip=VIP4, length=600) + repeat(60) + burst(port=1) +
                   frame(vip=VIP6_UDP, length=900) + repeat(60) + burst(port=2, partial=1))

    for hash_source, by_address in itertools.product((0, 1), (0, 1)):
        frames = b"".join(frame(payload, vip, fragment, headers, datagram=fragment, source=headers)
                          for vip in (VIP4, VIP4_UDP, VIP4_ANY, VIP6, VIP6_UDP, VIP6_ANY)
                          for payload in (SERVED, ECHO, ICMP_ERROR, OTHER_PROTOCOL)
                          for fragment in range(4) for headers in range(8))
        yield (f"kinds_{hash_source}_{by_address}", begin(2) +
               publish(hash_source=hash_source, fragments_by_address=by_address) + frames)

    for flags in range(4):
        frames = b"".join(frame(payload, vip, aside=aside, tags=vip % 4)
                          for vip in range(VIPS) for payload in range(8) for aside in (0, 5, 6, 7))
        yield f"aside_{flags}", begin() + publish(flags=flags) + frames

    for mtu, flags in itertools.product((1, 2, 3), (0, 4)):
        frames = b"".join(frame(vip=vip, length=length, headers=headers, tags=headers % 4,
                                dont_fragment=dont_fragment, source=headers)
                          for vip in (VIP4, VIP4_UDP, VIP4_ANY, VIP6)
                          for length in (0, 8, 60, 500, 1300, 1460) for headers in (0, 1, 4, 7)
                          for dont_fragment in (0, 1))
        for encapsulation in (0, 3, 4):
            yield (f"too_big_{mtu}_{flags}_{encapsulation}", begin(answers_per_second=60000) +
                   publish(2, encapsulation, mtu=mtu, flags=flags) + frames)
    yield ("huge", begin() + publish(mtu=1) + frame(length=0xf800) + frame(vip=VIP6, length=0xf800) +
           frame(vip=VIP4_UDP, length=0xffff) + burst() + publish(mtu=2) + frame(length=0xf800))
    yield ("no_buffers", begin() + publish(mtu=2) + buffers(3) + frame(length=1400) + burst() +
           frame(ECHO) + frame(hop=1) + burst() + buffers(0xffff) + frame(length=1400))

    hops = b"".join(frame(payload, vip, hop=hop, group=group, headers=hop)
                    for vip in (VIP4, VIP6, VIP4_ANY, VIP6_ANY) for hop in (1, 2, 3)
                    for group in (0, 1) for payload in (SERVED, ECHO, ICMP_ERROR))
    yield "hops", begin(answers_per_second=60000) + publish() + hops
    yield "errors_limited", begin(answers_per_second=1) + publish() + frame(hop=1) + repeat(20)
    yield "errors_never", begin(answers_per_second=0) + publish() + frame(hop=1) + frame(ECHO)
    yield ("echo", begin(answers_per_second=20) + publish() + frame(ECHO) + repeat(40) + burst() +
           clock(2, SECONDS) + frame(ECHO, VIP6, tags=1, headers=4) + repeat(10) + burst() +
           frame(ECHO, partial=1) + frame(ECHO, VIP6, headers=5, length=1400))
    sources = b"".join(frame(hop=1) + patch(FROM_IP, 12, source << 8)
                       for source in (0, 127, 224, 255, 10))
    sources += frame(vip=VIP6, hop=1) + patch(FROM_IP, 8, 0xff02)
    sources += frame(vip=VIP6, hop=1) + b"".join(patch(FROM_IP, 8 + i, 0) for i in range(0, 16, 2))
    yield "sources_that_get_no_answer", begin(answers_per_second=60000) + publish() + sources

    yield ("unresolved", begin() + publish(backends=3) + frame() + repeat(60) + burst() +
           publish(2, 4, off_link=1) + frame() + repeat(30) + frame(vip=VIP6) + repeat(30))
    yield "no_backend", begin() + publish(unowned=1) + frame() + frame(vip=VIP6) + frame(vip=VIP4_ANY)
    yield ("wide_slots", begin() + publish_wide() + frame() + repeat(30) + burst() +
           publish() + frame() + repeat(30))
    yield ("transmit_full", begin() + publish() + frame() + repeat(40) + burst(transmit_room=7) +
           frame(vip=VIP6) + repeat(40) + burst(transmit_room=0))

    for vip, workers in itertools.product((VIP4_UDP, VIP4, VIP4_ANY, VIP6_UDP, VIP6_ANY), (1, 3)):
        looks = b"".join(wait(w) for w in range(workers))
        turns = itertools.cycle(range(workers))
        out_of_order = b"".join(frame(vip=vip, fragment=part, datagram=d, length=500, tags=d % 3) +
                                burst(next(turns), port=d % 3)
                                for d in range(8) for part in (LAST, LATER, FIRST, LATER))
        yield (f"fragments_{vip}_{workers}", begin(workers) + publish() + out_of_order + looks +
               clock(200) + looks + frame(vip=vip, fragment=LATER, datagram=9) + burst() + looks +
               publish(seed=43) + clock(1, SECONDS) + clock(500) + looks + frame(vip=vip) + looks)
    where = {VIP4_UDP: 4, VIP6_UDP: 46}
    for vip, offset in where.items():
        yield (f"hold_overflow_{vip}", begin() + publish() + b"".join(
            frame(vip=vip, fragment=LATER, datagram=d) + repeat(63, FROM_IP, offset) + burst() +
            patch(FROM_IP, offset, 64 * d) for d in range(6)) + clock(2, SECONDS) + wait() + wait())
        yield (f"datagram_overflow_{vip}", begin() + publish() + b"".join(
            frame(vip=vip, fragment=FIRST) + patch(FROM_IP, offset, 64 * d) +
            repeat(63, FROM_IP, offset) + burst() for d in range(96)) +
            frame(vip=vip, fragment=LATER, datagram=3) + burst() + clock(6, SECONDS) +
            frame(vip=vip, fragment=LATER, datagram=3) + repeat(63, FROM_IP, offset))
    yield ("inbox_overflow", begin(3) + publish() + frame(vip=VIP4_UDP, fragment=LATER) +
           repeat(63, FROM_IP, 4) + burst(0) + frame(vip=VIP4_UDP, fragment=FIRST) +
           repeat(63, FROM_IP, 4) + burst(1) + wait(2) + wait(1) + wait(0))
    yield ("fragments_of_nothing", begin() + publish() + frame(OTHER_PROTOCOL, fragment=FIRST) +
           frame(ECHO, fragment=LATER) + frame(vip=VIP4, fragment=LATER, aside=ADDRESS_BESIDE) +
           publish(fragments_by_address=1) + frame(TCP, VIP4_UDP, LATER) +
           patch_record(0, 20, 0x0111) + publish(fragments_by_address=1) +
           frame(UDP, PREFIX6_ANY, LATER) + frame(UDP, PREFIX6_ANY, FIRST))

    lies = b"".join(frame(payload, vip, headers=headers, lie=lie, trailer=2)
                    for vip in (VIP4, VIP4_UDP, VIP6, VIP6_UDP) for lie in (1, 2, 3)
                    for headers in (0, 1, 5) for payload in (SERVED, ECHO, ICMP_ERROR))
    yield "lies", begin() + publish() + lies
    for vip in (VIP4, VIP4_UDP, VIP6, VIP6_UDP):
        cuts = b"".join(frame(payload, vip, headers=headers, tags=tags, length=0) + cut_by(count)
                        for payload in (SERVED, ECHO) for headers, tags in ((0, 0), (5, 0), (0, 3))
                        for count in range(1, 64, 3))
        yield f"cut_short_{vip}", begin() + publish() + cuts + raw(b"") + raw(b"\x02") + raw(bytes(13))
    quotes = b""
    for vip, header in ((VIP4, 20), (VIP6, 40), (VIP4_UDP, 20)):
        for kept in (0, 1, 19, 20, 23, 24, 27, 28, 39, 40, 44, 48, 56):
            for headers in (0, 4):
                quotes += frame(ICMP_ERROR, vip, headers=headers, length=64, datagram=kept % 5)
                quotes += step(RESIZE, a=2, d=14 + header + 8 + kept)
                length_at, rest = (2, 28) if vip != VIP6 else (4, 8)
                quotes += patch(FROM_IP, length_at, rest + kept)
    yield "quotes_cut_short", begin() + publish(encapsulation=5) + quotes
    yield ("bad_options", begin(answers_per_second=60000) + publish(mtu=2, flags=4) + b"".join(
        frame(headers=headers, length=900) + patch(FROM_IP, at, value)
        for headers in (1, 3, 7) for at in (20, 21, 22, 24)
        for value in (0, 0x0101, 0x8200, 0x8201, 0x82ff, 0x8228)))
    yield ("segmented", begin() + publish() + frame(segmented=1) + frame() +
           frame(segmented=1, vip=VIP6))
    patches = ((0, 16, 0x2004), (0, 17, 0x0611), (1, 21, 0x0505), (5, 24, 0), (12, 32, 0x0102),
               (13, 42, 1), (14, 44, 0x0140), (10, 40, 2))
    for number, (record, offset, value) in enumerate(patches):
        yield (f"record_{number}", begin(2) + publish() + patch_record(record, offset, value) +
               publish(2, 5) + frame(vip=record) + frame(vip=VIP6))


def main():
    directory = pathlib.Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    for name, data in seeds():
        (directory / name).write_bytes(data)


if __name__ == "__main__":
    main()
