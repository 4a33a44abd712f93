"""The balancer's counters: that they add up, and what a test has added to them.

    with Account(lab) as account:
        ...                        # traffic
    assert account.verdicts == {"forwarded": 3}

At the end it waits until the counters stand still, so all that was sent by then is in them.
"""

import collections
import time
import weakref


def check_worker(worker):
    taken = worker["received"]["packets"] + worker["taken_over"]
    assert taken == sum(worker["verdicts"].values()) + worker["held"] + worker["handed_over"], worker


def check_sums(stats):
    """Of counters that stand still: workers, VIPs and backends tell of the same packets."""
    for worker in stats["workers"]:
        check_worker(worker)
    workers = stats["workers"]
    assert total(workers, "handed_over") == total(workers, "taken_over"), workers
    assert sum(worker["received"]["packets"] for worker in workers) == stats["received"]["packets"]
    for verdict, packets in stats["verdicts"].items():
        assert sum(worker["verdicts"][verdict] for worker in workers) == packets, verdict
    for kind in ("vips", "backends"):
        forwarded = sum(one["forwarded"]["packets"] for one in stats[kind])
        assert forwarded == stats["verdicts"]["forwarded"], (kind, stats[kind])
    bytes_of = {kind: sum(one["forwarded"]["bytes"] for one in stats[kind])
                for kind in ("vips", "backends")}
    assert bytes_of["vips"] == bytes_of["backends"], bytes_of


def total(items, name):
    return sum(item[name] for item in items)


def of_vips(stats):
    """What moves only with packets for VIPs; some ports see all that passes their interface."""
    verdicts = {verdict: packets for verdict, packets in stats["verdicts"].items()
                if verdict not in ("no_vip", "not_ip")}
    return verdicts, stats["events"], total(stats["workers"], "held")


def settled_stats(lab):
    """/v1/stats, once two reports in a row, both written from now on, show the same packets."""
    last = {"written_ns": time.clock_gettime_ns(time.CLOCK_BOOTTIME)}

    def stand_still():
        stats = lab.control.get("/v1/stats")
        if stats["written_ns"] <= last["written_ns"]:
            return None
        still = "verdicts" in last and of_vips(stats) == of_vips(last)
        last.update(stats)
        return stats if still else None

    return lab.wait_until(stand_still, "counters that stand still")


class Account:
    """Begins where the lab's last one ended: what is sent between the two is in the second."""

    last = weakref.WeakKeyDictionary()

    def __init__(self, lab):
        self.lab = lab

    def __enter__(self):
        self.before = self.last.get(self.lab) or settled_stats(self.lab)
        return self

    def __exit__(self, error_type, error, trace):
        self.last.pop(self.lab, None)
        if error_type is not None:
            return
        self.after = settled_stats(self.lab)
        check_sums(self.after)
        self.last[self.lab] = self.after

    def added(self, name):
        """Of `received`, `verdicts` or `events`, what is not zero."""
        return +(collections.Counter(self.after[name]) - collections.Counter(self.before[name]))

    @property
    def received(self):
        return self.added("received")["packets"]

    @property
    def verdicts(self):
        return self.added("verdicts")

    @property
    def events(self):
        return self.added("events")

    def of_workers(self, name):
        return total(self.after["workers"], name) - total(self.before["workers"], name)

    def forwarded(self, kind):
        """Packets by the name of a VIP or a backend (`vips`, `backends`), where there are any."""
        added = collections.Counter()
        for stats, sign in ((self.before, -1), (self.after, 1)):
            for one in stats[kind]:
                added[one["name"]] += sign * one["forwarded"]["packets"]
        return +added
