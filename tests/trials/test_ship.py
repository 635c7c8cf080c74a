"""A machine is lost and comes back from its bucket; `make trial-ship` loses many."""

from pathlib import Path

import pytest

from tests.trials.ship import Planted, ShipPlan, run_lane


def plan(folder: Path, planted: Planted = "", works: tuple[str, ...] = ("dms",)) -> ShipPlan:
    rounds = 8 if planted else 1  # at an end all may just have been shipped
    return ShipPlan(
        rounds, "1/0", folder, works=works, hows=("restored",), acks=("bucket",), planted=planted, load=0.3
    )


def test_what_was_acknowledged_comes_back_from_the_bucket(tmp_path: Path) -> None:
    tally, losses = run_lane(plan(tmp_path, works=("logmq", "dmp")))
    assert tally.verdict.faults == []
    assert tally.verdict.kept
    assert losses.promise["bucket"]


@pytest.mark.parametrize("planted", ["object", "ack"])
def test_an_object_that_is_missing_and_an_answer_that_is_early_are_found(
    tmp_path: Path, planted: Planted
) -> None:
    tally, _ = run_lane(plan(tmp_path, planted))
    assert tally.verdict.faults != []
