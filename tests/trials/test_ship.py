"""A machine is lost and comes back from its bucket; `make trial-ship` loses many."""

from pathlib import Path

from tests.trials.ship import ShipPlan, run_lane


def test_what_was_acknowledged_comes_back_from_the_bucket(tmp_path: Path) -> None:
    tally = run_lane(ShipPlan(1, "1/0", tmp_path, works=("dms",), load=0.3))
    assert tally.verdict.faults == []
    assert tally.verdict.kept


def test_an_object_that_is_missing_is_found(tmp_path: Path) -> None:
    tally = run_lane(ShipPlan(1, "1/0", tmp_path, works=("dms",), planted=True, load=0.3))
    assert tally.verdict.faults != []
