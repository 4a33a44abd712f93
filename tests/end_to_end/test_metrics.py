"""Prometheus can scrape a load balancer, and reads there what it did."""

import pathlib
import re
import subprocess

import netns
from accounts import settled_stats
from http_client import fetch
from network import CLIENT_ADDRESSES

ADDRESS = "127.0.0.1:9655"
DOCUMENT = pathlib.Path(__file__).resolve().parents[2] / "docs/metrics.md"


def scrape(lab):
    return netns.run("ip", "netns", "exec", lab.network.namespace("lb"), "curl", "--silent",
                     "--show-error", "--fail", f"http://{ADDRESS}/metrics")


def value(text, line):
    (found,) = re.findall(rf"^{re.escape(line)} (\S+)$", text, re.MULTILINE)
    return float(found)


def test_prometheus_reads_what_was_forwarded_and_finds_nothing_to_mend(make_lab):
    lab = make_lab()
    lab.settings["control"] |= {"read_only_address": ADDRESS}
    lab.start_all()
    with netns.inside(lab.network.namespace("client")):
        for number in range(10):
            fetch(CLIENT_ADDRESSES[number % 8], 40000 + number)
    lab.wait_until(lambda: "maglev_sweep_age_seconds" in scrape(lab), "flows looked at")
    stats = settled_stats(lab)
    text = scrape(lab)
    for verdict, packets in stats["verdicts"].items():
        assert value(text, f'maglev_packets_total{{verdict="{verdict}"}}') == packets
    assert value(text, 'maglev_packets_total{verdict="forwarded"}') >= 10 * 5
    assert value(text, "maglev_adopted_generation") == stats["adopted_generation"] > 0

    checked = subprocess.run(["promtool", "check", "metrics"], input=text, text=True,
                             capture_output=True, timeout=30)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
    documented = set(re.findall(r"`(maglev_[a-z_]+)`", DOCUMENT.read_text()))
    assert set(re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE)) == documented


def test_what_is_read_only_takes_no_change(make_lab):
    lab = make_lab()
    lab.settings["control"] |= {"read_only_address": ADDRESS}
    lab.start_all()
    before = lab.control.get("/v1/status")["generation"]
    answer = netns.run("ip", "netns", "exec", lab.network.namespace("lb"), "curl", "--silent",
                       "-X", "PATCH", "-d", '{"state": "drain"}',
                       f"http://{ADDRESS}/v1/pools/web/backends/b1")
    assert "read_only" in answer
    assert lab.control.get("/v1/status")["generation"] == before
