"""The judgement of the pub/sub trial: what it lets pass, and what it must not."""

import pytest

from tests.trials.pubsub_folder import PubsubBook

ONE = ("client-0", "hall/1/+")


def book(*asked: tuple[float, str]) -> PubsubBook:
    """Asked for at these times; the cut is at 10."""
    made = PubsubBook()
    for at, state in asked:
        made.asked(ONE, state, at)
    made.cut = 10.0
    return made


@pytest.mark.parametrize(
    ("asked", "shown", "good"),
    [
        ([(5, "plain")], "plain", True),
        ([(5, "plain")], "none", False),
        ([(5, "plain")], "kept", False),
        ([(9.5, "plain")], "none", True),
        ([(9.5, "plain")], "plain", True),
        ([(5, "plain"), (9.2, "none"), (9.5, "kept")], "plain", True),
        ([(5, "plain"), (9.2, "none"), (9.5, "kept")], "kept", True),
        ([(5, "plain"), (8, "none"), (9.5, "kept")], "plain", False),
        ([], "plain", False),
    ],
)
def test_a_second_is_promised_and_what_came_later_may_have_happened(
    asked: list[tuple[float, str]], shown: str, good: bool
) -> None:
    verdict = book(*asked).judge({ONE: shown} if shown != "none" else {})
    assert (not verdict.faults) is good


def test_what_a_recovery_has_shown_must_stay() -> None:
    made = book((9.5, "plain"))
    assert not made.judge({ONE: "plain"}).faults
    assert made.judge({}).faults
