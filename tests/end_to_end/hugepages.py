"""Hugepages for one lab: raises their number when too few are free, gives back what it added."""

import pathlib

NUMBER = pathlib.Path("/proc/sys/vm/nr_hugepages")
PAGE_MIB = 2


def free_pages():
    return int(pathlib.Path("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages").read_text())


def provide(mib, note):
    """Makes `mib` MiB free. What was added is noted in the file `note` before it is added, so that
    it can be given back even after a kill."""
    short = mib // PAGE_MIB - free_pages()
    if short <= 0:
        return
    before = int(NUMBER.read_text())
    note.write_text(str(short))
    NUMBER.write_text(str(before + short))
    added = int(NUMBER.read_text()) - before
    if added < short:
        pathlib.Path("/proc/sys/vm/compact_memory").write_text("1")
        NUMBER.write_text(str(before + short))
        added = int(NUMBER.read_text()) - before
    note.write_text(str(added))
    if added < short:
        raise RuntimeError(
            f"{mib} MiB of hugepages are needed, and the kernel found memory for only "
            f"{(mib // PAGE_MIB - short + added) * PAGE_MIB} MiB: stop what uses memory, or "
            "reserve them when the machine starts (kernel option hugepages=N)")


def give_back(note):
    """Takes back what provide() added. Others may have added theirs meanwhile: theirs stays."""
    if note.exists():
        NUMBER.write_text(str(max(0, int(NUMBER.read_text()) - int(note.read_text()))))
        note.unlink()
