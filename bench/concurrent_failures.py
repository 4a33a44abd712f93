#!/usr/bin/python3
"""The Maglev paper's figure of concurrent failures: of 1000 backends some fail at once; what share
of the slots that no failed backend owned changes hands?

    bench/concurrent_failures.py [--build DIRECTORY] [--trials N] [--plot FILE.svg]

Prints one line for each table size and number of failures: the mean over the trials, in which other
backends fail, and the largest. The trials are the same in every run."""

import argparse
import os
import pathlib
import random
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
BACKENDS = [f"backend-{i:04}" for i in range(1000)]
SIZES = (65537, 655373)
FAILURES = (1, 2, 3, 5, 7, 10, 15, 20, 30, 40, 50, 60, 70, 80, 90, 100)
COLOURS = dict(zip(SIZES, ("#c0392b", "#2471a3")))


def table(maglevctl, size, failed):
    """The owner of each slot without the failed backends."""
    with tempfile.NamedTemporaryFile() as file:
        alive = [name for name in BACKENDS if name not in failed]
        subprocess.run([maglevctl, "simulate", "--nodes", ",".join(alive), "--size", str(size),
                        "--count", "1", "--table-out", file.name],
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60)
        return file.read().decode().split("\n")[:-1]


def share_changed(before, after, failed):
    kept = changed = 0
    for old, new in zip(before, after, strict=True):
        if old not in failed:
            kept += 1
            changed += old != new
    return 100 * changed / kept


def measure(maglevctl, trials):
    """{size: [(failures, mean, largest)]}, shares in percent."""
    result = {}
    for size in SIZES:
        before = table(maglevctl, size, ())
        result[size] = []
        for failures in FAILURES:
            shares = []
            for trial in range(trials):
                failed = set(random.Random(1000 * failures + trial).sample(BACKENDS, failures))
                shares.append(share_changed(before, table(maglevctl, size, failed), failed))
            result[size].append((failures, sum(shares) / trials, max(shares)))
            print(f"{size:7} {failures:4} {sum(shares) / trials:7.3f} {max(shares):7.3f}", flush=True)
    return result


def plot(result):
    width, height, left, bottom = 640, 400, 60, 340
    top = max(mean for points in result.values() for _, mean, _ in points) * 1.1
    x = lambda failures: left + failures / 100 * (width - left - 30)
    y = lambda share: bottom - share / top * (bottom - 40)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
             'font-family="sans-serif" font-size="12">',
             '<rect width="100%" height="100%" fill="white"/>',
             f'<text x="{width / 2}" y="22" text-anchor="middle" font-size="14">'
             'Slots of live backends that change hands, 1000 backends</text>',
             f'<path d="M{left},40 V{bottom} H{width - 20}" fill="none" stroke="black"/>',
             f'<text x="{width / 2}" y="{height - 15}" text-anchor="middle">'
             'backends that fail at once</text>']
    for failures in range(0, 101, 20):
        parts.append(f'<text x="{x(failures)}" y="{bottom + 18}" text-anchor="middle">{failures}'
                     '</text>')
    step = next(s for s in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20) if top / s <= 8)
    for i in range(int(top / step) + 1):
        parts.append(f'<text x="{left - 8}" y="{y(i * step) + 4:.1f}" text-anchor="end">'
                     f'{i * step:g} %</text><path d="M{left},{y(i * step):.1f} H{width - 20}" '
                     'stroke="#ddd"/>')
    for row, (size, points) in enumerate(result.items()):
        line = " ".join(f"{x(failures):.1f},{y(mean):.1f}" for failures, mean, _ in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{COLOURS[size]}" '
                     'stroke-width="2"/>')
        parts.append(f'<text x="{left + 20}" y="{60 + 18 * row}" fill="{COLOURS[size]}">'
                     f'{size} slots</text>')
    return "\n".join(parts) + "\n</svg>\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.environ.get("MAGLEV_BUILD", ROOT / "build"))
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--plot", type=pathlib.Path)
    arguments = parser.parse_args()
    print("   size fail    mean largest")
    result = measure(pathlib.Path(arguments.build) / "control/maglevctl", arguments.trials)
    if arguments.plot:
        arguments.plot.write_text(plot(result))


if __name__ == "__main__":
    main()
