"""Real connections: each reaches the server that the golden rules name, whole."""

import collections

import expected
import netns
from http_client import fetch
from lab import TABLE_SIZE
from network import CLIENT_ADDRESSES

REQUESTS = 2000
WEIGHTS = {"b1": 1, "b2": 2, "b3": 3}


def test_each_of_2000_connections_is_answered_by_the_server_that_the_rules_name(make_lab):
    lab = make_lab()
    for backend in lab.settings["pools"][0]["backends"]:
        backend["weight"] = WEIGHTS[backend["name"]]
    lab.start_all()
    with netns.inside(lab.network.namespace("client")):
        requests = [fetch(CLIENT_ADDRESSES[0], 20000 + n) for n in range(REQUESTS)]
    failed = [request for request in requests if not request.server]
    assert not failed
    table = expected.table(WEIGHTS)
    wrong = [request for request in requests
             if request.server != table[expected.tcp_slot(request.source, request.source_port)]]
    assert not wrong
    counts = collections.Counter(request.server for request in requests)
    print(f"{REQUESTS} requests, each where it belongs: {dict(counts)}")
    assert set(counts) == set(WEIGHTS)


def test_the_slots_and_shares_shown_are_those_of_the_independent_table(make_lab):
    lab = make_lab()
    for backend in lab.settings["pools"][0]["backends"]:
        backend["weight"] = WEIGHTS[backend["name"]]
    lab.start_all()
    slots = collections.Counter(expected.table(WEIGHTS))
    for backend in lab.control.get("/v1/pools/web")["backends"]:
        name = backend["name"]
        assert backend["slots"] == slots[name]
        assert abs(backend["share"] - slots[name] / TABLE_SIZE) < 1e-4
        assert abs(backend["wanted_share"] - WEIGHTS[name] / sum(WEIGHTS.values())) < 1e-4


def test_full_size_segments_of_a_client_pass(lab):
    body = b"x" * 1_000_000
    with netns.inside(lab.network.namespace("client")):
        requests = [fetch(CLIENT_ADDRESSES[0], 30000 + n, body=body) for n in range(12)]
    assert [request.error for request in requests if request.error] == []
    assert {request.server for request in requests} == {"b1", "b2", "b3"}
