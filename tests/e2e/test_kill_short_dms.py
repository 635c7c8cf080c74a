"""`kill -9` of a real DMS server under load, a few times; `make trial-kill` does it a thousand times."""

import re
from pathlib import Path

import pytest

from tests.trials.dms_stand_in import command
from tests.trials.folder import MODES
from tests.trials.kill import Plan, run_lane

SHORT = 0.25
"""Of the load that the long trial makes each time."""
UNTIL_FOUND = 300
"""Kills at most: a few show each fault, but on a busy machine some are seldom seen, and the first ends it."""


def test_six_kills_under_load_lose_and_undo_nothing_acknowledged_in_any_mode(tmp_path: Path) -> None:
    plan = Plan(6, "suite/dms", MODES, tmp_path, load=SHORT, least=200, keep=False, works=("dms",))
    tally = run_lane(plan)
    assert not tally.verdict.faults, "\n".join(tally.verdict.faults)
    assert tally.cuts == 6
    assert tally.verdict.kept > 100  # there was something to lose
    assert tally.verdict.commits > 10  # and to undo: how much is the machine's affair
    assert tally.verdict.lost == 0


@pytest.mark.parametrize(
    ("fault", "told_by"),
    [
        ("late", "acknowledged messages lost|acknowledged ACKs undone|gone"),  # any answer comes too early
        ("forget-acks", "acknowledged ACKs undone"),
        ("forget-deletes", "though deleted|was deleted"),
        ("swap", "out of order|in its place|when it was sent"),
        ("skip", "acknowledged messages lost"),
        ("greedy", "while it is held|after an ACK was sent"),
        # One that dies of its age between two recoveries is missed in the second.
        ("die-lost", "acknowledged messages lost|another recovery changed it"),
        ("hasty", "before its delay is over"),
    ],
)
def test_a_server_that_breaks_a_promise_is_found_out(fault: str, told_by: str, tmp_path: Path) -> None:
    plan = Plan(
        UNTIL_FOUND,
        "suite/fault",
        ("always",),
        tmp_path,
        command=command(fault),
        load=SHORT,
        keep=False,
        works=("dms",),
    )
    tally = run_lane(plan)
    assert re.search(told_by, "\n".join(tally.verdict.faults))
