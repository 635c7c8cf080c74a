"""`kill -9` of the real server under load, a few times; `make trial-kill` does it a thousand times."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.trials.folder import MODES
from tests.trials.kill import Plan, run_lane
from tests.trials.logmq_stand_in import command
from tests.trials.tally import Tally

SHORT = 0.25
"""Of the load that the long trial makes each time."""
UNTIL_FOUND = 300
"""Kills at most: a few show each fault, but on a busy machine some are seldom seen, and the first ends it."""


def test_twelve_kills_under_load_lose_nothing_acknowledged_in_any_mode(tmp_path: Path) -> None:
    plans = [Plan(6, f"suite/{lane}", MODES, tmp_path, load=SHORT, least=50, keep=False) for lane in range(2)]
    tally = Tally()
    with ThreadPoolExecutor(len(plans)) as lanes:
        for one in lanes.map(run_lane, plans):
            tally.add(one)
    assert not tally.verdict.faults, "\n".join(tally.verdict.faults)
    assert tally.cuts == 12
    assert tally.verdict.kept > 100  # there was something to lose
    assert tally.verdict.lost == 0


@pytest.mark.parametrize(
    ("fault", "told_by"),
    [
        ("late", "acknowledged records lost"),
        ("forget-batches", "sent again at"),
        ("forget-deletes", "though deleted|nobody wrote"),
    ],
)
def test_a_server_that_breaks_a_promise_is_found_out(fault: str, told_by: str, tmp_path: Path) -> None:
    plan = Plan(
        UNTIL_FOUND, "suite/fault", ("always",), tmp_path, command=command(fault), load=SHORT, keep=False
    )
    tally = run_lane(plan)
    assert re.search(told_by, "\n".join(tally.verdict.faults))
