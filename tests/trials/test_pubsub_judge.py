"""The judgement of the pub/sub trials: what it lets pass, and the faults that it must find."""

import math
import random

import pytest

from tests.trials.pubsub_judge import KEPT, NONE, PLAIN, PROMISED_SECONDS, AwayBook, PubsubBook, Subscription

CUT = 10.0
UNTIL = CUT - PROMISED_SECONDS
Asked = list[tuple[float, str, str]]


def book(*asked: tuple[float, str, str]) -> PubsubBook:
    """One client's commands: when, for which topic, and what it was to be."""
    made = PubsubBook()
    for at, topic, state in asked:
        made.ask("c", topic, state, at)
    return made


def states(**topics: str) -> dict[Subscription, str]:
    return {("c", topic): state for topic, state in topics.items()}


@pytest.mark.parametrize(
    ("asked", "shown", "told"),
    [
        pytest.param([(5, "a", PLAIN)], {}, "1 of 1 promised commands undone", id="lost"),
        pytest.param(
            [(5, "a", PLAIN), (6, "a", NONE)], {"a": PLAIN}, "1 of 2 promised commands undone", id="came back"
        ),
        pytest.param([(5, "a", KEPT)], {"a": PLAIN}, "no first part", id="keeps no more"),
        pytest.param([(5, "a", PLAIN)], {"a": KEPT}, "no first part", id="keeps, unasked"),
        pytest.param([], {"a": PLAIN}, "no first part", id="nobody asked"),
        pytest.param(
            [(5, "a", PLAIN), (8, "a", NONE), (9.5, "a", KEPT)],
            {"a": PLAIN},
            "1 of 2 promised commands undone",
            id="an older state, between newer ones",
        ),
        pytest.param(
            [(9.2, "a", PLAIN), (9.5, "b", PLAIN)],
            {"b": PLAIN},
            "a hole",
            id="a later one without an earlier",
        ),
    ],
)
def test_a_planted_fault_is_found(asked: Asked, shown: dict[str, str], told: str) -> None:
    faults = book(*asked).judge(states(**shown), UNTIL).faults
    assert len(faults) == 1
    assert told in faults[0]


def test_what_a_recovery_has_shown_must_stay() -> None:
    made = book((9.5, "a", PLAIN))
    assert not made.judge(states(a=PLAIN), UNTIL).faults
    assert made.judge({}, UNTIL).faults


def test_one_command_left_out_or_one_state_turned_over_in_a_long_row_is_found() -> None:
    """Wherever it was, among eighty random ones of which all are promised."""
    source = random.Random(4)
    for _ in range(50):
        asked = [
            (float(n) / 10, f"t{source.randrange(8)}", source.choice((PLAIN, KEPT, NONE))) for n in range(80)
        ]
        shown = play(asked)
        assert not book(*asked).judge(shown, UNTIL).faults
        last = {topic: number for number, (_, topic, _) in enumerate(asked)}
        for number in last.values():  # to leave out one that a later one has replaced changes nothing
            without = play(asked[:number] + asked[number + 1 :])
            assert without == shown or book(*asked).judge(without, math.inf).faults
        turned = ("c", source.choice(sorted(last)))
        other = {**shown, turned: PLAIN if shown.get(turned) == KEPT else KEPT}
        assert book(*asked).judge(other, math.inf).faults


def play(asked: Asked) -> dict[Subscription, str]:
    last = {("c", topic): state for _, topic, state in asked}
    return {subscription: state for subscription, state in last.items() if state != NONE}


def away(*given: tuple[float, list[int]]) -> AwayBook:
    """Ten messages, one a second, and visits."""
    made = AwayBook()
    for number in range(10):
        made.sent.append(float(number))
        for at, numbers in given:
            if number < at <= number + 1:
                assert not list(made.visit(numbers, at))
    return made


@pytest.mark.parametrize(
    ("visits", "numbers", "told"),
    [
        pytest.param([], [*range(10)], "", id="all"),
        pytest.param([], [*range(9)], "is promised", id="but the one before the last second"),
        pytest.param([(5.5, [0, 1, 2, 3, 4])], [*range(5, 10)], "", id="the rest"),
        pytest.param([(5.5, [0, 1, 2, 3, 4])], [*range(4, 10)], "came again, the first 4", id="one twice"),
        pytest.param([(5.5, [0, 1, 2, 3, 4])], [*range(6, 10)], "1 of 10 kept messages are lost", id="lost"),
        pytest.param([], [0, 1, 3, 2, *range(4, 10)], "out of order", id="turned over"),
        pytest.param([(9.5, [*range(10)])], [*range(3, 10)], "", id="a visit that was cut off"),
        pytest.param([(9.5, [0])], [], "", id="and what it was given is not known"),
    ],
)
def test_what_is_kept_comes_once_and_none_is_lost(
    visits: list[tuple[float, list[int]]], numbers: list[int], told: str
) -> None:
    faults = away(*visits).judge(numbers, 20.0, CUT, UNTIL).faults
    if told == "is promised":
        assert faults == ["1 of 10 kept messages are lost, the first 9"]
    else:
        assert [told in fault for fault in faults] == [True] * bool(told)
