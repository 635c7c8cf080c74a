"""The judgement of DMP's queues finds each broken promise, and nothing else."""

import math

import pytest

from tests.trials.dmp_judge import judge
from tests.trials.dmp_ledger import FANOUT, QUEUES, Copy, DmpBook
from tests.trials.peers import Asked

EMPTY: dict[str, tuple[bytes, ...]] = dict.fromkeys(QUEUES, ())


def book(*sent: tuple[str, str], confirmed: float | None = 1.0) -> DmpBook:
    """Messages by body and queue ("both": two queues), sent one after the other."""
    found = DmpBook()
    for each in found.queues.values():
        each.made = 0.5
    for body, queue in sent:
        for copy in found.send(body.encode(), FANOUT if queue == "both" else (queue,), "w", 0.9):
            copy.answered = confirmed
    return found


def copy_of(found: DmpBook, body: str, queue: str = "mails") -> Copy:
    return found.queues[queue].copies[body.encode()]


def shown(*bodies: str, queue: str = "mails") -> dict[str, tuple[bytes, ...]]:
    return EMPTY | {queue: tuple(body.encode() for body in bodies)}


def test_what_was_confirmed_is_there_in_order_and_an_acknowledged_message_is_gone() -> None:
    found = book(("a", "mails"), ("b", "mails"), ("c", "mails"))
    copy_of(found, "b").ack = Asked(1.5, 2.0)
    verdict = judge(found, shown("a", "c"))
    assert (verdict.faults, verdict.kept, verdict.commits) == ([], 2, 1)
    assert judge(found, shown("a", "c")).faults == []


def test_what_was_not_confirmed_may_be_there_or_not_from_the_end_on() -> None:
    for there, extra in (("ab", 2), ("a", 1), ("", 0)):
        verdict = judge(book(("a", "mails"), ("b", "mails"), confirmed=None), shown(*there))
        assert (verdict.faults, verdict.extra) == ([], extra)


def test_an_acknowledgement_that_is_not_known_to_be_taken_may_be_undone() -> None:
    found = book(("a", "mails"))
    copy_of(found, "a").ack = Asked(1.5)
    assert judge(found, shown("a")).faults == []


@pytest.mark.parametrize(
    ("there", "fault"),
    [
        ("ab", "1 acknowledged messages lost, the first b'c'"),
        ("acb", "out of order"),
        ("abbc", "twice"),
        ("abcd", "nobody sent"),
        (["a", "b changed", "c"], "not as it was sent"),
    ],
)
def test_a_broken_promise_is_told(there: str, fault: str) -> None:
    (told,) = judge(book(("a", "mails"), ("b", "mails"), ("c", "mails")), shown(*there)).faults
    assert fault in told


def test_an_acknowledgement_undone_and_a_hole_are_told() -> None:
    found = book(("a", "mails"))
    copy_of(found, "a").ack = Asked(1.5, 2.0)
    assert "1 acknowledged ACKs undone" in judge(found, shown("a")).faults[0]
    found = book(("a", "mails"), ("b", "mails"), confirmed=None)
    assert "a hole" in judge(found, shown("b")).faults[0]
    found = book(("a", "mails"), confirmed=None)
    copy_of(found, "a").shown = 1.0
    assert "lost" in judge(found, EMPTY).faults[0], "a consumer was shown it"


def test_what_was_confirmed_before_another_was_sent_stands_before_it() -> None:
    found = book(("a", "mails"), ("b", "mails"))
    later = copy_of(found, "b")
    later.writer, later.queued = "v", 1.5
    assert "when it was sent" in judge(found, shown("b", "a")).faults[0]
    found = book(("a", "mails"), ("b", "mails"))
    copy_of(found, "b").writer = "v"
    assert judge(found, shown("b", "a")).faults == []


def test_what_one_publish_put_into_two_queues_is_in_both_or_in_none() -> None:
    both: dict[str, tuple[bytes, ...]] = dict.fromkeys(FANOUT, (b"a",))
    assert judge(book(("a", "both"), confirmed=None), EMPTY | both).faults == []
    assert judge(book(("a", "both"), confirmed=None), EMPTY).faults == []
    (told,) = judge(book(("a", "both"), confirmed=None), shown("a", queue="audit")).faults
    assert "not in the other queue" in told


def test_what_a_verification_has_shown_stays_and_what_it_has_not_never_comes_back() -> None:
    found = book(("a", "mails"), ("b", "mails"), confirmed=None)
    assert judge(found, shown("a")).faults == []
    assert "lost" in judge(found, EMPTY).faults[0]
    assert "though it was gone" in judge(found, shown("b")).faults[0]


def test_a_power_cut_takes_what_its_mode_lets_it_and_no_queue_that_was_made_before() -> None:
    found = book(("a", "mails"), ("b", "mails"))
    copy_of(found, "b").answered = 3.0
    verdict = judge(found, shown("a"), until=2.0)
    assert (verdict.faults, verdict.lost, verdict.oldest_lost) == ([], 1, 3.0)
    gone = {name: () for name in QUEUES if name != "mails"}
    assert judge(book(), gone, until=0.1).faults == []
    assert judge(book(), gone, until=2.0).faults == ["mails: a durable queue that is gone"]
    nothing = book(("a", "mails"))
    assert judge(nothing, gone, until=-math.inf).faults == []
    assert judge(nothing, shown("a"), until=-math.inf).faults == [], "an older state"
