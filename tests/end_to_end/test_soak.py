"""The soak in short; tests/soak is the long one."""

import random

import pytest

import soak
from connections import Connection


def test_connections_outlive_changes_where_flows_are_tracked_and_only_there(make_lab):
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"\nseed {seed}")
    result = soak.run(make_lab, connections=300, seconds=20, seed=seed, idle_s=6, patience_s=5)
    print(result.report())
    assert not result.failures()


class Patience:
    patience_s = 5

    @staticmethod
    def broke_at(connection):
        return connection.ended


@pytest.mark.parametrize("what, server, connected, ended, excused", [
    ("when its server went", "b1", 10, 21, True),
    ("when another's server went", "b2", 10, 21, False),
    ("before its server went", "b1", 10, 19, False),
    ("long after its server was back", "b1", 10, 46, False),
    ("on the server that is back", "b1", 41, 42, False),
    ("without an answer, when a server went", "", 20.5, 21, True),
    ("without an answer, while all were there", "", 5, 6, False)])
def test_what_broke_is_excused_by_its_own_server_alone(what, server, connected, ended, excused):
    changes = soak.Changes(None, None)
    changes.gone["b1"] = [[20, 40]]
    connection = Connection(1, connected, "198.18.1.2", 20000, server, ended, "reset")
    assert changes.excuse(Patience, connection) == excused, what
