"""One of two load balancers dies, in short; tests/ecmp is the long form."""

import ecmp


def test_older_connections_outlive_their_load_balancer_and_untracked_ones_if_their_slots_stayed(
        make_lab):
    row = ecmp.run(make_lab(lab_class=ecmp.EcmpLab, idle_s=30), connections=400, delay_s=2)
    print(f"\n{ecmp.HEADING}\n{ecmp.report(row)}")
    assert not ecmp.failures(row)
    for age in ("old", "young"):
        assert row.groups["none", age].opened == 200
        assert row.groups["none", age].at_the_kill == 0
    assert row.groups["none", "old"].at_the_change > 20
    assert row.groups["full", "old"].at_the_change == 0
    # Within the window the other load balancer knows whose an older connection is.
    assert row.groups["changed", "old"].at_the_change == 0
    assert row.groups["changed", "old"].at_the_kill == 0
