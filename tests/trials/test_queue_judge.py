"""The judgement of queues: what keeps a queue's promises passes, and whatever breaks one is found."""

import math
from typing import Any

import pytest

from tests.trials.peers import Asked
from tests.trials.queue_judge import judge_queue, settle_queue
from tests.trials.queue_ledger import QueueBook
from tests.trials.tally import Verdict

Sent = dict[str, dict[str, Any]]
"""What is known of each message, by its body, which is one letter."""


class Queue:
    def __init__(self) -> None:
        self.book = QueueBook("jobs", "always", position=1)

    def send(self, sent: Sent) -> None:
        """One after the other."""
        for body, known in sent.items():
            message = self.book.send(body.encode(), known.get("writer", "w"), known.get("queued", 10.0))
            message.answered = known.get("answered", 20.0)
            message.shown, message.ack = known.get("shown"), known.get("ack")

    def judge(self, letters: str, until: float = math.inf) -> Verdict:
        """What is found, and no fault, is taken for granted from then on."""
        bodies = [letter.encode() for letter in letters]
        verdict = judge_queue(self.book, bodies, until)
        if not verdict.faults:
            settle_queue(self.book, bodies, 1)
        return verdict


@pytest.fixture
def queue() -> Queue:
    return Queue()


UNKNOWN = {"answered": None}
OTHERS_UNKNOWN = {"answered": None, "writer": "v"}
ACKED = {"ack": Asked(25.0, 30.0)}
PERHAPS_ACKED = {"ack": Asked(25.0)}
MIXED: Sent = {"a": {}, "b": ACKED, "c": UNKNOWN}
NOT_ANSWERED: Sent = {"a": UNKNOWN, "b": UNKNOWN, "c": OTHERS_UNKNOWN}
SHOWN: Sent = {"a": {"answered": None, "shown": 15.0}}
CUT = 100.0
AT_THE_CUT: Sent = {"a": {}, "b": {"answered": CUT + 1}}
BEHIND: Sent = {"a": {"writer": "v"}, "b": {"queued": 40.0, "answered": 50.0}}


@pytest.mark.parametrize(
    ("sent", "found", "what"),
    [
        (MIXED, "", "1 acknowledged messages lost, the first b'a'"),
        (MIXED, "ab", "1 acknowledged ACKs undone"),
        (MIXED, "aa", "twice"),
        (MIXED, "ax", "nobody sent"),
        (MIXED, "ca", "out of order"),
        ({**NOT_ANSWERED, "c": UNKNOWN}, "ac", "a hole"),
        (SHOWN, "", "lost"),
        (AT_THE_CUT, "b", "lost"),
        (BEHIND, "ba", "before one that was acknowledged when it was sent"),
    ],
)
def test_whatever_breaks_one_is_found(queue: Queue, sent: Sent, found: str, what: str) -> None:
    queue.send(sent)
    (told,) = queue.judge(found, CUT).faults
    assert what in told


@pytest.mark.parametrize(
    ("found", "until", "what"),
    [
        ("baed", math.inf, "no longer in its place"),
        ("abde", math.inf, "no longer in its place"),
        ("bacde", math.inf, "back, "),
        ("bae", math.inf, "lost"),
        ("bde", math.inf, "lost"),
        ("bade", math.inf, ""),
        ("b", -math.inf, ""),
    ],
)
def test_what_was_found_once_keeps_its_place_and_what_was_not_is_gone_for_good(
    queue: Queue, found: str, until: float, what: str
) -> None:
    queue.send({"a": OTHERS_UNKNOWN, "b": {}, "c": {"answered": None, "writer": "x"}, "d": PERHAPS_ACKED})
    assert not queue.judge("bad").faults
    queue.send({"e": {"queued": 60.0, "answered": 61.0}})
    told = "\n".join(queue.judge(found, until).faults)
    assert what in told if what else not told
