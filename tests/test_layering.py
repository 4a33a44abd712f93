"""Who may include whom.

    tables ← dataplane, tables ← control; dataplane and control never include each other; nothing
    includes tests/ or bench/; DPDK is known to a few files of the dataplane only.
"""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]', re.MULTILINE)
FORBIDDEN = {
    "tables": ("dataplane", "control", "tests", "bench"),
    "dataplane": ("control", "tests", "bench"),
    "control": ("dataplane", "tests", "bench"),
}
# The pipeline and all it needs must compile, and be tested, without DPDK.
MAY_USE_DPDK = re.compile(
    r"(dataplane|tests/dataplane|bench)/"
    r"(dataplane|environment|hugepage_memory|port|publication|worker)\w*\.(h|cc)|"
    r"bench/(bare_loop|burst_gaps|latency_generator|new_flows)\.cc")


def complaint(file, included):
    """Why `file` may not include `included`; None when it may. Paths are relative to the root."""
    folder, other = file.split("/")[0], included.split("/")[0]
    if other in FORBIDDEN.get(folder, ()):
        return f"{file} includes {included}: {folder}/ must not know {other}/"
    if other.startswith("rte_") and not MAY_USE_DPDK.fullmatch(file):
        return f"{file} includes {included}: this file must not know DPDK"
    return None


def test_no_file_includes_what_its_layer_must_not_know():
    complaints, files = [], 0
    for folder in (*FORBIDDEN, "tests", "bench"):
        for path in (ROOT / folder).rglob("*.[ch]*"):
            file = path.relative_to(ROOT).as_posix()
            files += 1
            complaints += [why for included in INCLUDE.findall(path.read_text())
                           if (why := complaint(file, included))]
    assert files > 10
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize("file, included", [
    ("tables/maglev.cc", "control/planner.h"),
    ("tables/maglev.cc", "rte_mbuf.h"),
    ("dataplane/worker.cc", "control/planner.h"),
    ("dataplane/pipeline.h", "rte_ether.h"),
    ("dataplane/bpf/port.cc", "rte_ether.h"),
    ("control/planner.cc", "dataplane/pipeline.h"),
    ("control/planner.cc", "tests/control/fake.h"),
    ("dataplane/main.cc", "bench/rig.h"),
])
def test_the_check_sees_each_kind_of_wrong_include(file, included):
    assert complaint(file, included)
