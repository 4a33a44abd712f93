"""The independent computation against the golden vectors: the other tests rely on it."""

import hashlib
import ipaddress
import json
import pathlib
import struct

import pytest
import xxhash

import reference

GOLDEN = pathlib.Path(__file__).parent.parent / "golden"
TABLES = json.loads((GOLDEN / "maglev_tables.json").read_text())["tables"]
FLOWS = json.loads((GOLDEN / "flow_hash.json").read_text())["flows"]


@pytest.mark.parametrize("golden", TABLES, ids=lambda golden: golden["name"])
def test_tables_are_the_golden_ones(golden):
    weights = {backend["name"]: backend["weight"] for backend in golden["backends"]}
    index = {name: i for i, name in enumerate(sorted(weights, key=str.encode))}
    table = [index[name] for name in reference.maglev_table(weights, golden["size"])]
    packed = struct.pack(f"<{len(table)}H", *table)
    assert hashlib.sha256(packed).hexdigest() == golden["sha256_u16le"]


def test_flow_hashes_and_slots_are_the_golden_ones():
    for golden in FLOWS:
        seed = int(golden["seed"])
        flow = [golden[part] for part in
                ("protocol", "source", "source_port", "destination", "destination_port")]
        key = reference.flow_bytes(*flow)
        assert key.hex() == golden["bytes"]
        assert f"{xxhash.xxh3_64_intdigest(key, seed):016x}" == golden["hash"]
        for size, slot in golden["slots"].items():
            assert reference.flow_slot(seed, int(size), *flow) == slot
        source_hash = xxhash.xxh3_64_intdigest(ipaddress.ip_address(flow[1]).packed, seed)
        for size, slot in golden["source_only_slots"].items():
            assert reference.slot_of(source_hash, int(size)) == slot
