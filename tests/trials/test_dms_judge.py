"""The judgement of DMS, beside what it shares with DMP's: lives of a queue, its dead, times and tries."""

import math

from tests.support.dms_model import Ages
from tests.trials.peers import Asked
from tests.trials.queue_judge import judge_queue, settle_queue
from tests.trials.queue_ledger import DmsBook, Message, QueueBook, Step
from tests.trials.tally import Verdict


def queue(*messages: Message, steps: tuple[Step, ...] = ()) -> QueueBook:
    """A queue that was there, and what was sent to it."""
    book = QueueBook("jobs", "always", position=1, steps=list(steps))
    for place, message in enumerate(messages):
        message.place = place
        book.messages[message.key] = message
    return book


def message(body: bytes, answered: float | None = 20.0, *, life: int = 0) -> Message:
    return Message(10.0, answered, key=body, writer="w", life=life)


def faults(verdict: Verdict) -> str:
    return "\n".join(verdict.faults)


def test_a_deleted_queue_is_gone_and_its_successor_holds_nothing_of_it() -> None:
    ended, made = Step(30.0, 31.0, position=2), Step(32.0, 33.0, position=3)
    assert "gone" in faults(judge_queue(queue(message(b"a")), None))
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


def test_a_queue_whose_delete_was_refused_holds_what_came_before_and_after() -> None:
    refused = Step(21.0, 22.0, "not written", position=2), Step(23.0, 24.0, "exists already", position=3)
    book = queue(message(b"a"), message(b"b", life=1), steps=refused)
    for until in (math.inf, 20.0):
        verdict = judge_queue(book, [b"a", b"b"], until)
        assert (verdict.faults, verdict.life, verdict.kept) == ([], 1, 2)
    assert judge_queue(book, [b"b"]).life == 3  # it took place all the same
    assert "lost" in faults(judge_queue(book, [b"a"]))
    assert "lost" in faults(judge_queue(book, []))
    refused[0].refused = ""
    assert "of a queue that was deleted" in faults(judge_queue(book, [b"a", b"b"]))


def test_a_message_is_in_its_queue_or_once_among_the_dead() -> None:
    book = queue(message(b"a"), message(b"b"), message(b"c"))
    book.messages[b"c"].ack = Asked(25.0, 30.0)
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
