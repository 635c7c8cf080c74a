"""After a crash anywhere a queue with jobs has what was acknowledged, once, in its place, and no more.

`make trial-states` runs all pairs of requests, and all that may be in one commit.
"""

import pytest

from tests.support.promises import BrokenPromiseError
from tests.support.queue_crashes import OPERATIONS, Amqp, Dms, Subject, check
from tests.trials.sim.bugs import BUGS

RUNS_MAX = 8
ONE = [
    *((name,) for name in OPERATIONS if name not in ("produce of a key", "time passes")),
    ("time passes", "give back"),
]
TOGETHER = [
    ("produce", "acknowledge", "produce by name"),
    ("produce for later", "give back", "acknowledge"),
    ("produce by name", "produce again", "acknowledge", "acknowledge"),
]
BOTH = pytest.mark.parametrize("kind", [Dms, Amqp])


@BOTH
@pytest.mark.parametrize("operations", ONE, ids=", ".join)
def test_a_request_is_done_as_a_whole_or_not_at_all(kind: type[Subject], operations: tuple[str, ...]) -> None:
    tally = check(kind, operations, runs_max=RUNS_MAX)
    assert tally.runs >= tally.cuts > 0


@BOTH
@pytest.mark.parametrize("operations", TOGETHER, ids=", ".join)
def test_of_requests_in_one_commit_none_is_there_without_those_before_it(
    kind: type[Subject], operations: tuple[str, ...]
) -> None:
    tally = check(kind, operations, len(operations), RUNS_MAX)
    assert tally.runs > tally.cuts


@BOTH
def test_a_crash_amid_a_start_changes_nothing(kind: type[Subject]) -> None:
    assert check(kind, ("acknowledge",), runs_max=1, again=3).runs > 30
    with BUGS["recovery-not-synced"].planted(), pytest.raises(BrokenPromiseError):
        check(kind, ("acknowledge",), runs_max=1, again=3)


@pytest.mark.parametrize(
    ("bug", "kind", "operations"),
    [
        ("acknowledge-before-sync", Dms, ("acknowledge",)),
        ("acknowledge-before-sync", Amqp, ("produce",)),
        ("dms-dead-left-behind", Dms, ("time passes", "give back")),
        ("jobs-come-back-from-the-log", Dms, ("acknowledge",)),
        ("jobs-are-left-out-of-snapshots", Dms, ("tidy up",)),
        ("replay-skips-last-batch", Amqp, ("give back",)),
    ],
)
def test_a_planted_bug_is_found(bug: str, kind: type[Subject], operations: tuple[str, ...]) -> None:
    with BUGS[bug].planted(), pytest.raises(BrokenPromiseError):
        check(kind, operations, runs_max=RUNS_MAX)
