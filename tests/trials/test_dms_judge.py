"""The judgement of DMS: what keeps the promises passes, and whatever breaks one is found."""

import math

import pytest

from tests.support.dms_model import Ages
from tests.trials.dms_judge import judge_queue, settle_queue
from tests.trials.dms_ledger import DmsBook, Message, QueueBook, Step
from tests.trials.peers import Asked
from tests.trials.tally import Verdict

CUT = 100.0


def queue(*messages: Message, position: int = 1, steps: tuple[Step, ...] = ()) -> QueueBook:
    """A queue that was there, and what was sent to it."""
    book = QueueBook("jobs", "always", position=position, steps=list(steps))
    for place, message in enumerate(messages):
        message.place = place
        book.messages[message.key] = message
    return book


def message(body: bytes, answered: float | None = 20.0, *, writer: str = "w", life: int = 0) -> Message:
    return Message(10.0, answered, key=body, writer=writer, life=life)


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


def test_a_message_is_in_its_queue_or_once_among_the_dead() -> None:
    book = queue(message(b"a"), message(b"b"), acked(b"c"))
    verdict = judge_queue(book, [b"a"], dead=[b"b"])
    assert (verdict.faults, verdict.kept, verdict.commits) == ([], 2, 1)
    assert "lost" in faults(judge_queue(book, [b"a"]))
    assert "twice" in faults(judge_queue(book, [b"a", b"b"], dead=[b"b"]))
    assert "twice" in faults(judge_queue(book, [b"a"], dead=[b"b", b"b"]))
    assert "undone" in faults(judge_queue(book, [b"a", b"b"], dead=[b"c"]))
    settle_queue(book, [b"a"], 1, [b"b"])
    assert not judge_queue(book, [b"a"], dead=[b"b"]).faults
    assert "lost" in faults(judge_queue(book, [b"a"]))
    assert "back, which was gone" in faults(judge_queue(book, [b"a", b"c"], dead=[b"b"]))


def test_what_time_and_tries_do_to_a_message_is_judged_where_it_is_delivered() -> None:
    book = DmsBook()
    book.ages.begins(0.0)
    book.ages.serves(1.0)
    mortal, tries, late, patient, dead = book.open_mortals("always")

    def wrong(place: QueueBook, owner: QueueBook, one: Message, *, asked: float, now: float) -> str:
        return "\n".join(book.deliveries_wrong(place, one, owner, asked, now))

    one = late.send(b"a", "w", 10.0)
    assert "before its delay" in wrong(late, late, one, asked=10.0, now=10.05)
    assert not wrong(late, late, one, asked=10.0, now=10.2)
    one = mortal.send(b"b", "w", 10.0)
    one.answered = 10.1
    assert "among the dead" in wrong(dead, mortal, one, asked=10.0, now=10.3)
    assert not wrong(dead, mortal, one, asked=10.0, now=10.5)
    assert not wrong(mortal, mortal, one, asked=10.3, now=20.0), "it may have gone out at once"
    assert "past its lifetime" in wrong(mortal, mortal, one, asked=13.0, now=20.0)
    one = patient.send(b"c", "w", 10.0)
    assert not wrong(patient, patient, one, asked=10.0, now=10.0)
    one.course.nacked = 10.0
    assert "after its NACK" in wrong(patient, patient, one, asked=10.0, now=10.02)
    one = tries.send(b"d", "w", 10.0)
    for number in range(7):
        assert bool(wrong(tries, tries, one, asked=10.0, now=11.0)) == (number == 6)


def test_a_server_has_served_for_less_than_the_time_that_passed_and_for_more_than_its_records_say() -> None:
    ages = Ages()
    for begun, serving, ended in ((0.0, 1.0, 10.0), (20.0, 22.0, 30.0), (40.0, 41.0, math.inf)):
        ages.begins(begun)
        ages.serves(serving)
        if ended < math.inf:
            ages.ends(ended)
    assert ages.life == 3
    assert ages.most(5.0, 50.0) == 5 + 10 + 10
    assert ages.least(5.0, 50.0, ()) == 9
    assert ages.least(5.0, 50.0, [4.0, 8.0, 25.0]) == 3 + 3 + 9
    assert ages.least(42.0, 43.0, ()) == 1
    assert ages.least(math.inf, 43.0, ()) == 0
