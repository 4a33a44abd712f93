"""One of two load balancers dies, in short; tests/ecmp is the long form."""

import ecmp


def test_an_untracked_connection_outlives_its_load_balancer_if_its_slot_kept_its_owner(make_lab):
    row = ecmp.run(make_lab(lab_class=ecmp.EcmpLab), connections=400, delay_s=2)
    print(f"\n{ecmp.HEADING}\n{ecmp.report(row)}")
    assert not ecmp.failures(row)
    for age in ("old", "young"):
        assert row.groups["none", age].opened == 200
        assert row.groups["none", age].at_the_kill == 0
    assert row.groups["none", "old"].at_the_change > 20
