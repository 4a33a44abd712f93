"""What the documents show works as it stands there."""

import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("MAGLEV_BUILD", ROOT / "build"))


@pytest.mark.parametrize("daemon", ["control/maglev-control", "dataplane/maglev-dataplane"])
def test_the_configuration_file_of_the_document_is_valid(daemon, tmp_path):
    document = (ROOT / "docs/configuration.md").read_text()
    (example,) = re.findall(r"^```yaml\n(.*?)^```", document, re.DOTALL | re.MULTILINE)
    file = tmp_path / "maglev.yaml"
    file.write_text(example)
    done = subprocess.run([BUILD / daemon, "--check", file], capture_output=True, text=True,
                          timeout=30)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("program", [
    "control/maglev-control", "control/maglevctl", "dataplane/maglev-dataplane",
    "dataplane/maglev-replay", "dataplane/bpf/maglev-decap"])
def test_a_wrong_command_line_ends_with_code_2(program):
    def run(option):
        return subprocess.run([BUILD / program, option], capture_output=True, text=True, timeout=30)

    wrong = run("--no-such-option")
    assert wrong.returncode == 2 and wrong.stderr, wrong
    assert run("--help").returncode == 0


def test_the_options_of_maglev_decap_are_those_of_the_document():
    document = (ROOT / "docs/backends.md").read_text()
    documented = set(re.findall(r"^\| `(--[a-z-]+)", document, re.MULTILINE))
    help_text = subprocess.run([BUILD / "dataplane/bpf/maglev-decap", "--help"], check=True,
                               capture_output=True, text=True, timeout=30).stdout
    assert documented == set(re.findall(r"^ +(--[a-z-]+)", help_text, re.MULTILINE))


def test_each_alert_rule_fires_when_it_should_and_only_then():
    tests = ROOT / "tests/alerts_test.yml"
    done = subprocess.run(["promtool", "test", "rules", tests], capture_output=True, text=True,
                          timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    rules = re.findall(r"alert: (\w+)", (ROOT / "docs/prometheus/alerts.yml").read_text())
    assert sorted(rules) == re.findall(r'alertname="(\w+)"', tests.read_text())
    metrics = set(re.findall(r"`(maglev_[a-z_]+)`", (ROOT / "docs/metrics.md").read_text()))
    used = set(re.findall(r"maglev_[a-z_]+", (ROOT / "docs/prometheus/alerts.yml").read_text()))
    assert used <= metrics
