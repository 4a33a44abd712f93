"""Queues, ports and devices other than the usual one."""

import expected
from network import VIPS


def workers(lab):
    return {(worker["lcore"], worker["port"], worker["queue"]): worker["received"]["packets"]
            for worker in lab.control.get("/v1/stats")["workers"]}


def set_core_ids(lab, *ids):
    """Ids with gaps, all on the processor that is left to workers."""
    lab.settings["dataplane"]["cores"] = [f"{core}@{lab.worker_processor}" for core in ids]


def test_two_queues_have_a_worker_each(make_lab):
    lab = make_lab()
    set_core_ids(lab, 3, 7)
    # DPDK 22.11 gives an AF_XDP port on veth one queue; packet sockets spread flows over two.
    lab.settings["dataplane"]["ports"] = [
        {"name": "lan0", "device": "net_af_packet0,iface=eth0,qpairs=2", "interface": "eth0",
         "queues": 2}]
    lab.start_all()
    expected.check_requests(lab, expected.EQUAL_WEIGHTS, 31000, VIPS[0], count=200)
    received = workers(lab)
    assert set(received) == {(3, "lan0", 0), (7, "lan0", 1)}
    assert all(packets > 100 for packets in received.values()), received


def test_two_ports_serve_backends_behind_either(make_lab):
    lab = make_lab(lans=2)
    set_core_ids(lab, 3, 7)
    lab.start_all()
    expected.check_requests(lab, expected.EQUAL_WEIGHTS, 32000, VIPS[0], count=200)
    expected.check_requests(lab, expected.EQUAL_WEIGHTS, 33000, VIPS[1], count=200)
    received = workers(lab)
    assert set(received) == {(3, "lan0", 0), (7, "lan1", 0)}
    assert all(packets > 100 for packets in received.values()), received


def test_a_port_without_af_xdp_serves_too(make_lab):
    lab = make_lab()
    lab.settings["dataplane"]["ports"] = [
        {"name": "capture", "device": "net_pcap0,rx_iface_in=eth0,tx_iface=eth0",
         "interface": "eth0"}]
    lab.start_all()
    expected.check_requests(lab, expected.EQUAL_WEIGHTS, 34000, VIPS[0], count=200)


def test_a_port_without_any_hardware_starts_in_ordinary_memory(make_lab):
    lab = make_lab(memory_mib=0)
    lab.settings["dataplane"] |= {
        "hugepages": False, "memory_mib": 128,
        "ports": [{"name": "ring", "device": "net_ring0", "interface": "eth0"}]}
    lab.start_all()
    first = lab.control.get("/v1/stats")["workers"][0]["polls"]
    lab.wait_until(lambda: lab.control.get("/v1/stats")["workers"][0]["polls"] > first,
                   "the worker polls")
