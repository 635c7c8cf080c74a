"""A few seeds of the simulation; `make trial-sim` plays many, and plants every bug."""

import pytest

from tests.trials.sim.bugs import BUGS, find
from tests.trials.sim.run import play

SEEDS = {
    "queues": 2,
    "queues that answer": 2,
    "queues that are read": 2,
    "queues with snapshots": 2,
    "queues that need no sync": 2,
    "one worker": 2,
    "queues of mortals": 4,
    "queues of jobs": 3,
    "queues of jobs by AMQP": 2,
    "bridges": 2,
    "bridges by AMQP": 2,
    "bridges to logs that drop": 1,
    "limited files": 2,
}
"""By profile."""


@pytest.mark.parametrize("profile", SEEDS)
def test_queues_keep_their_promises(profile: str) -> None:
    for seed in range(SEEDS[profile]):
        verdict = play(seed, profile=profile)
        assert verdict.broken is None, f"python -m tests.trials.sim --seed {seed} --profile {profile!r}"


def test_a_seed_settles_everything() -> None:
    assert len({play(3, profile="queues").digest for _ in range(3)}) == 1


@pytest.mark.parametrize(
    "bug",
    [
        *("dms-produce-before-sync", "dms-snapshot-forgets-older", "dms-nack-loses-place"),
        *("dms-dead-left-behind", "dms-times-run-on", "dms-nack-costs-no-time", "dms-tries-never-end"),
        *("jobs-come-early", "jobs-have-no-name", "jobs-are-left-out-of-snapshots"),
        "jobs-outlive-their-lives",
        *("jobs-deadlines-never-end", "jobs-deadlines-do-not-begin-anew", "keys-jobs-have-no-priority"),
        *("amqp-messages-have-no-priority", "amqp-messages-outlive-their-lives"),
        *("keys-jobs-pass-each-other", "keys-take-no-turns"),
        *("schedules-forget-what-was-missed", "schedules-forget-what-is-done"),
        *("amqp-keys-go-at-once", "amqp-keys-take-no-turns", "amqp-confirms-before-sync"),
        *("amqp-names-are-forgotten-with-their-messages", "amqp-queues-without-keys-have-no-priority"),
        *("amqp-consumers-have-any-time", "amqp-consumers-have-half-their-time"),
        "amqp-messages-that-come-back-lose-their-places",
        *("bridge-position-is-late", "refused-tail-forgotten", "tail-cut-within-a-record"),
        "tail-forgotten-where-the-front-is-dropped",
    ],
)
def test_a_planted_bug_is_found(bug: str) -> None:
    verdict, _ = find(BUGS[bug])
    assert verdict is not None
