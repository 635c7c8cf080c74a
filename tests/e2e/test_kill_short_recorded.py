"""`kill -9` of a server that records, a few times; `make trial-kill` and `make trial-power` go on longer."""

from pathlib import Path

from tests.trials.kill import Plan, run_lane


def test_three_kills_lose_nothing_that_was_counted_as_recorded(tmp_path: Path) -> None:
    plan = Plan(
        3, "suite/recorded", ("interval",), tmp_path, load=0.25, least=100, keep=False, works=("kqmsgq",)
    )
    tally = run_lane(plan)
    assert not tally.verdict.faults, "\n".join(tally.verdict.faults)
    assert tally.cuts == 3
    assert tally.verdict.kept + tally.verdict.extra > 100  # there was something to lose
