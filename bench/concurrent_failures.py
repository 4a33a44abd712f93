#!/usr/bin/python3 -B
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

import plot

ROOT = pathlib.Path(__file__).resolve().parent.parent
BACKENDS = [f"backend-{i:04}" for i in range(1000)]
SIZES = (65537, 655373)
FAILURES = (1, 2, 3, 5, 7, 10, 15, 20, 30, 40, 50, 60, 70, 80, 90, 100)


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


def chart(result):
    return plot.line_chart(
        "Slots of live backends that change hands, 1000 backends", "backends that fail at once",
        {failures: failures for failures in range(0, 101, 20)},
        {f"{size} slots": [(failures, mean) for failures, mean, _ in points]
         for size, points in result.items()}, unit=" %")


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
        arguments.plot.write_text(chart(result))


if __name__ == "__main__":
    main()
