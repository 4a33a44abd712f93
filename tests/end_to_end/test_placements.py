"""Each placement that can fill a table really forwards: a request is answered by the server that
`maglevctl simulate` puts in its slot."""

import subprocess

import expected
import netns
from http_client import fetch
from lab import TABLE_SIZE
from network import CLIENT_ADDRESSES, VIPS

WEIGHTS = {"b1": 1, "b2": 2, "b3": 3}
PLACEMENTS = ("ring", "rendezvous", "bounded")


def simulated_table(lab, placement):
    path = lab.directory / f"{placement}.table"
    subprocess.run([lab.program("maglevctl"), "simulate", "--placement", placement,
                    "--hash", "xxh64", "--size", str(TABLE_SIZE), "--count", "1",
                    "--nodes", ",".join(WEIGHTS), "--weights", ",".join(map(str, WEIGHTS.values())),
                    "--table-out", path],
                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60)
    return path.read_text().split()


def test_requests_go_where_the_simulator_says(make_lab):
    lab = make_lab()
    web = lab.settings["pools"][0]
    for backend in web["backends"]:
        backend["weight"] = WEIGHTS[backend["name"]]
    lab.settings["pools"] += [web | {"name": name, "placement": name} for name in PLACEMENTS]
    lab.start_all()
    for n, placement in enumerate(PLACEMENTS):
        lab.control.delete("/v1/vips/tcp-0?wait=adopted")
        lab.control.post("/v1/vips?wait=adopted", {
            "name": "tcp-0", "address": VIPS[0], "protocol": "tcp", "port": 80, "pool": placement})
        table = simulated_table(lab, placement)
        with netns.inside(lab.network.namespace("client")):
            for i in range(60):
                request = fetch(CLIENT_ADDRESSES[i % len(CLIENT_ADDRESSES)], 10000 + 100 * n + i)
                owner = table[expected.tcp_slot(request.source, request.source_port)]
                assert request.server == owner, (placement, request)
