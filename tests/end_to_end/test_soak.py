"""The soak in short; tests/soak is the long one."""

import random

import soak


def test_connections_outlive_changes_where_flows_are_tracked_and_only_there(make_lab):
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"\nseed {seed}")
    result = soak.run(make_lab, connections=300, seconds=20, seed=seed, patience_s=5)
    print(result.report())
    assert not result.failures()
