"""The judgement of DMS: what keeps the promises passes, and whatever breaks one is found."""

import math

import pytest

from tests.trials.dms_judge import judge_queue, settle_queue
from tests.trials.dms_ledger import Asked, Message, QueueBook, Step
from tests.trials.judge import Verdict

CUT = 100.0


def queue(*messages: Message, position: int = 1, steps: tuple[Step, ...] = ()) -> QueueBook:
    """A queue that was there, and what was sent to it."""
    book = QueueBook("jobs", "always", position=position, steps=list(steps))
    for place, message in enumerate(messages):
        message.place = place
        book.messages[message.body] = message
    return book


def message(body: bytes, answered: float | None = 20.0, *, writer: str = "w", life: int = 0) -> Message:
    return Message(10.0, answered, body=body, writer=writer, life=life)


def acked(body: bytes, answered: float | None = 30.0) -> Message:
    one = message(body)
    one.ack = Asked(25.0, answered)
    return one


def faults(verdict: Verdict) -> str:
    return "\n".join(verdict.faults)


def test_what_was_acknowledged_is_there_until_it_is_acknowledged_again() -> None:
    book = queue(message(b"a"), acked(b"b"), message(b"c", None))
    for found in ([b"a"], [b"a", b"c"]):
        verdict = judge_queue(book, found)
        assert not verdict.faults
        assert (verdict.kept, verdict.extra, verdict.commits) == (1, len(found) - 1, 1)


@pytest.mark.parametrize(
    ("found", "what"),
    [
        ([], "1 acknowledged messages lost"),
        ([b"a", b"b"], "1 acknowledged ACKs undone"),
        ([b"a", b"a"], "twice"),
        ([b"a", b"x"], "nobody sent"),
        ([b"c", b"a"], "out of order"),
        (None, "gone"),
    ],
)
def test_whatever_else_is_there_is_found(found: list[bytes] | None, what: str) -> None:
    book = queue(message(b"a"), acked(b"b"), message(b"c", None))
    assert what in faults(judge_queue(book, found))


def test_an_ack_that_was_not_answered_happened_or_not() -> None:
    book = queue(acked(b"a", None), message(b"b"))
    assert not judge_queue(book, [b"a", b"b"]).faults
    assert not judge_queue(book, [b"b"]).faults


def test_a_hole_is_no_suffix() -> None:
    book = queue(message(b"a", None), message(b"b", None), message(b"c", None))
    assert not judge_queue(book, [b"a"]).faults
    assert "a hole" in faults(judge_queue(book, [b"a", b"c"]))
    other = queue(message(b"a", None, writer="v"), message(b"b", None))
    assert not judge_queue(other, [b"b"]).faults


def test_what_a_consumer_was_shown_stays_though_its_producer_heard_nothing() -> None:
    book = queue(message(b"a", None))
    book.messages[b"a"].shown = 15.0
    assert "lost" in faults(judge_queue(book, []))
    assert not judge_queue(book, [], until=14.0).faults


def test_what_was_answered_after_the_cut_may_be_gone() -> None:
    late = message(b"b", CUT + 1)
    book = queue(message(b"a"), late)
    assert not judge_queue(book, [b"a"], CUT).faults
    assert judge_queue(book, [b"a"], CUT).lost == 1
    assert "lost" in faults(judge_queue(book, [b"b"], CUT))


def test_of_two_writers_the_one_that_was_answered_before_the_other_asked_comes_first() -> None:
    first, second = message(b"a", 20.0, writer="v"), message(b"b", 50.0)
    second.queued = 40.0
    assert not judge_queue(queue(first, second), [b"a", b"b"]).faults
    assert "when it was sent" in faults(judge_queue(queue(first, second), [b"b", b"a"]))
    second.queued = 15.0
    assert not judge_queue(queue(first, second), [b"b", b"a"]).faults


def test_what_was_found_once_keeps_its_place_and_what_was_not_is_gone_for_good() -> None:
    book = queue(message(b"a", writer="v"), message(b"b"), message(b"c", None, writer="x"), acked(b"d", None))
    assert not judge_queue(book, [b"b", b"a", b"d"]).faults
    settle_queue(book, [b"b", b"a", b"d"], 1)
    assert not judge_queue(book, [b"b", b"a", b"d"]).faults
    assert "no longer in its place" in faults(judge_queue(book, [b"a", b"b", b"d"]))
    assert "back, which was gone" in faults(judge_queue(book, [b"b", b"a", b"c", b"d"]))
    assert "lost" in faults(judge_queue(book, [b"b", b"a"]))
    newer = book.send(b"e", "w", 60.0)
    newer.answered = 61.0
    assert "no longer in its place" in faults(judge_queue(book, [b"b", b"a", b"e", b"d"]))
    assert not judge_queue(book, [b"b", b"a", b"d", b"e"]).faults
    assert not judge_queue(book, [b"b"], -math.inf).faults, "where nothing was promised"


def test_a_deleted_queue_is_gone_and_its_successor_holds_nothing_of_it() -> None:
    ended, made = Step(30.0, 31.0, position=2), Step(32.0, 33.0, position=3)
    assert not judge_queue(queue(message(b"a"), steps=(ended,)), None).faults
    assert "though deleted" in faults(judge_queue(queue(message(b"a"), steps=(ended,)), [b"a"]))
    again = queue(message(b"a"), message(b"b", None, life=1), steps=(ended, made))
    assert judge_queue(again, []).life == judge_queue(again, [b"b"]).life == 3
    assert "of a queue that was deleted" in faults(judge_queue(again, [b"a"]))
    assert "gone" in faults(judge_queue(again, None))
    ended.answered = made.answered = None
    for found, life in (([b"a"], 1), (None, 2), ([b"b"], 3)):
        verdict = judge_queue(again, found)
        assert not verdict.faults
        assert verdict.life == life
