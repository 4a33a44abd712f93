"""Starts that must not happen: each says why, and what runs goes on."""

import mmap
import signal
import subprocess
import time

import pytest

import expected
import hugepages
from lab import to_yaml

MAP_HUGETLB = 0x40000  # which the module mmap does not name


def run_to_its_end(lab, program, *arguments):
    return subprocess.run(
        ["ip", "netns", "exec", lab.network.namespace("lb"), lab.program(program), *arguments],
        capture_output=True, text=True, timeout=20)


def other_configuration(lab):
    """A second configuration file with the present settings."""
    path = lab.directory / "other.yaml"
    path.write_text(to_yaml(lab.settings))
    return path


def check_unharmed(lab):
    lab.check_processes()
    assert lab.is_serving()
    expected.check_requests(lab, expected.EQUAL_WEIGHTS, 35000)


@pytest.mark.parametrize("program", ["maglev-control", "maglev-dataplane"])
def test_a_second_daemon_beside_a_running_one_says_so_and_harms_nothing(lab, program):
    second = run_to_its_end(lab, program, lab.configuration)
    assert second.returncode > 0
    assert f"another {program}" in second.stderr, second
    check_unharmed(lab)


def test_a_second_dataplane_on_the_same_interface_is_refused(lab):
    lab.settings["directory"] = str(lab.directory / "elsewhere")
    lab.settings["dataplane"] |= {"hugepages": False, "memory_mib": 64}
    lab.settings["dataplane"]["flow_store"] += "-other"
    second = run_to_its_end(lab, "maglev-dataplane", other_configuration(lab))
    assert second.returncode > 0
    assert "eth0" in second.stderr
    check_unharmed(lab)


@pytest.mark.parametrize("change, message", [
    ({"steering_program": "/nowhere/steering.bpf.o"}, "cannot read the steering program"),
    ({"ports": [{"name": "uplink", "device": "net_af_xdp0,iface=nowhere"}]},
     "there is no interface 'nowhere'"),
    ({"ports": [{"name": "uplink", "device": "net_af_packet0,iface=nowhere"}]},
     "there is no interface 'nowhere'")])
def test_what_a_port_lacks_is_named(lab, change, message):
    lab.settings["directory"] = str(lab.directory / "elsewhere")
    lab.settings["dataplane"] |= {"hugepages": False, "memory_mib": 64} | change
    lab.settings["dataplane"]["flow_store"] += "-other"
    lacking = run_to_its_end(lab, "maglev-dataplane", other_configuration(lab))
    assert lacking.returncode == 1
    assert message in lacking.stderr


def test_sighup_leaves_the_dataplane_forwarding(lab):
    dataplane = lab.processes["dataplane"]
    dataplane.popen.send_signal(signal.SIGHUP)
    lab.wait_until(lambda: "SIGHUP changes nothing" in dataplane.log.read_text(), "an answer")
    check_unharmed(lab)


def test_an_xdp_program_that_is_not_ours_to_remove_is_refused_by_name_and_stays(make_lab):
    lab = make_lab()
    lab.configuration.write_text(to_yaml(lab.settings))
    lab.start("foreign", "lb", lab.program("maglev-decap"), "--interface", "eth0",
              "--from", "203.0.113.1")
    lab.wait_until(lambda: "xdp" in lab.show_link("lb", "eth0"), "its program attached")
    lab.stop("foreign", signal.SIGKILL)  # which leaves the program where it is
    refused = run_to_its_end(lab, "maglev-dataplane", lab.configuration)
    assert refused.returncode > 0
    assert "maglev_decap" in refused.stderr
    assert "xdp" in lab.show_link("lb", "eth0")


def test_too_few_hugepages_are_told_with_the_number_needed(make_lab):
    lab = make_lab(memory_mib=0)
    lab.settings["dataplane"]["memory_mib"] = 1 << 20
    lab.configuration.write_text(to_yaml(lab.settings))
    refused = run_to_its_end(lab, "maglev-dataplane", lab.configuration)
    assert refused.returncode > 0
    wanted = int(hugepages.NUMBER.read_text()) + (1 << 20) // hugepages.PAGE_MIB
    assert "1048576 MiB" in refused.stderr
    assert f"write {wanted - hugepages.free_pages()} to {hugepages.NUMBER}" in refused.stderr
    assert "xdp" not in lab.show_link("lb", "eth0")


def test_hugepages_that_come_free_meanwhile_are_waited_for(make_lab):
    """The kernel gives back the memory of an AF_XDP socket only after its process has ended."""
    lab = make_lab()
    lab.configuration.write_text(to_yaml(lab.settings))
    pages = hugepages.free_pages()
    assert pages
    held = mmap.mmap(-1, pages * hugepages.PAGE_MIB << 20,
                     flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_HUGETLB)
    dataplane = lab.start("dataplane", "lb", lab.program("maglev-dataplane"), lab.configuration)
    time.sleep(0.5)
    assert dataplane.popen.poll() is None
    held.close()
    lab.wait_until(lambda: "ready" in dataplane.log.read_text(), "the dataplane ready")


@pytest.mark.parametrize("program", ["maglev-control", "maglev-dataplane"])
def test_a_mistake_in_the_configuration_is_told_with_its_place(make_lab, program):
    lab = make_lab(memory_mib=0)
    text = to_yaml(lab.settings).replace('main_core: "0@', 'main_core: "zero@')
    lab.configuration.write_text(text)
    line = 1 + text[:text.index("main_core")].count("\n")
    refused = run_to_its_end(lab, program, lab.configuration)
    assert refused.returncode > 0
    assert f"{lab.configuration}:{line}:" in refused.stderr
