"""The judgement of DMP, beside what it shares with DMS's: bodies, several queues, queues that are gone."""

import math

from tests.trials.dmp_judge import judge
from tests.trials.dmp_ledger import FANOUT, QUEUES, DmpBook
from tests.trials.queue_ledger import Step

EMPTY: dict[str, tuple[bytes, ...]] = dict.fromkeys(QUEUES, ())


def book(*sent: tuple[str, str], confirmed: float | None = 1.0) -> DmpBook:
    """Messages by body and queue ("both": two queues), sent one after the other."""
    found = DmpBook()
    for each in found.queues.values():
        each.steps.append(Step(0.4, 0.5, position=1))
    for body, queue in sent:
        for copy in found.send(body.encode(), FANOUT if queue == "both" else (queue,), "w", 0.9):
            copy.answered = confirmed
    return found


def shown(*bodies: str, queue: str = "mails") -> dict[str, tuple[bytes, ...]]:
    return EMPTY | {queue: tuple(body.encode() for body in bodies)}


def test_what_one_publish_put_into_two_queues_is_in_both_or_in_none() -> None:
    both: dict[str, tuple[bytes, ...]] = dict.fromkeys(FANOUT, (b"a",))
    assert judge(book(("a", "both"), confirmed=None), EMPTY | both).faults == []
    assert judge(book(("a", "both"), confirmed=None), EMPTY).faults == []
    (told,) = judge(book(("a", "both"), confirmed=None), shown("a", queue="audit")).faults
    assert "not in the other queue" in told


def test_a_power_cut_takes_no_queue_that_was_made_before() -> None:
    gone = {name: () for name in QUEUES if name != "mails"}
    assert judge(book(), gone, until=0.1).faults == []
    assert judge(book(), gone, until=2.0).faults == ["mails: gone; it may be at 1 to 1"]
    nothing = book(("a", "mails"))
    assert judge(nothing, gone, until=-math.inf).faults == []
    assert judge(nothing, shown("a"), until=-math.inf).faults == [], "an older state"


def test_those_of_a_key_stand_in_order_and_keys_among_each_other_in_any() -> None:
    sent = DmpBook()
    for queue in sent.queues.values():
        queue.steps.append(Step(0.4, 0.5, position=1))
    for body, key in (("a1", "a"), ("b1", "b"), ("a2", "a")):
        sent.send_keyed(body.encode(), "keyed", key, "w", 0.9)
    assert "out of order" in "".join(judge(sent, shown("b1", "a2", "a1", queue="keyed")).faults)
    assert judge(sent, shown("a1", "a2", "b1", queue="keyed")).faults == []
