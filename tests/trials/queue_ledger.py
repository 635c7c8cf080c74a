"""What was asked of queues, of DMS or AMQP, and what was answered and delivered.

It is kept in the trial's memory: no cut reaches it.

A message is known by its body, which is never the same twice. A queue either lives for good, with any number
of producers and consumers, or is one connection's own, who deletes it and makes it again. In DMS some of the
former have a fate: time and tries act on their messages, and the dead of each mode share a queue.
"""

import math
from collections.abc import Iterator, Sequence

import attrs

from tests.support.dms_model import Ages, Course, Fate
from tests.trials.peers import Asked

DEAD = "dead"
FATES = {
    "mortal": Fate(ttl_ms=400, dead_letter=DEAD),
    "tries": Fate(max_deliveries=6, dead_letter=DEAD),
    "late": Fate(delay_ms=100),
    "patient": Fate(retry_ms=30, retry_max_ms=150, max_deliveries=20, dead_letter=DEAD),
}
"""By kind of queue; the queue of the dead is that of the same mode."""
LATE_SECONDS = 2.0
"""What is due happens with the next turn of the server's loop: so late at most on a busy machine."""


@attrs.define(eq=False)
class Message(Asked):
    """A message in a queue, and the request that put it there. `key`: its body."""

    key: bytes = b""
    writer: str = ""
    place: int = 0
    """In the order in which messages were sent."""
    shown: float | None = None
    """When a consumer first got it."""
    ack: Asked | None = None
    """The last ACK that was sent for it."""
    held: bool = False
    """Delivered, on a connection that lives, and neither acknowledged nor given back."""
    others: list["Message"] = attrs.field(factory=list, repr=False)
    """Those of the same publish in other queues."""
    life: int = 0
    """Of its queue: how many DELETEs were asked for before it."""
    sent: float = 0.0
    told: float = math.inf
    """When it was acknowledged, where a verification has made `answered` 0 since; inf: nobody knows."""
    course: Course = attrs.Factory(Course)

    def must_stand(self, until: float) -> bool:
        """Acknowledged by then, or shown to a consumer, who is shown nothing that a crash could take back."""
        return self.promised(until) or (self.shown is not None and self.shown <= until)


@attrs.define(eq=False)
class Step(Asked):
    """A CREATE_QUEUE or DELETE_QUEUE: it leads to `position`: twice the life, odd if it is there."""

    position: int = 0


@attrs.define(eq=False)
class QueueBook:
    """One queue. `settled` is what the last verification found there, in order."""

    name: str
    mode: str
    """`always`, `interval` or `none`."""
    position: int = 0
    """Where the last verification found it, as in `Step`,"""
    most: int = 0
    """and the furthest that it ever was asked to be: a mode that promises nothing may bring that back."""
    settled: list[Message] = attrs.field(factory=list)
    messages: dict[bytes, Message] = attrs.field(factory=dict)
    """All that may be there: those settled, and what was sent since."""
    gone: set[bytes] = attrs.field(factory=set)
    """Bodies that a verification has not found any more, or of lives that are over."""
    steps: list[Step] = attrs.field(factory=list)
    """Since the last verification."""
    fate: Fate | None = None
    sources: list["QueueBook"] = attrs.field(factory=list)
    """The queues whose dead it takes."""
    kept: list[float] = attrs.field(factory=list)
    """When PRODUCEs were sent that were acknowledged: the server is that old at least, whatever happens."""

    @property
    def asked_position(self) -> int:
        """Where it will be once all that is queued is done."""
        return self.steps[-1].position if self.steps else self.position

    def lives(self) -> dict[int, range]:
        """By the life that a message was sent in, those that it may be in: a refused DELETE may have ended
        the one before, or not.
        """
        refused = {step.position // 2 for step in self.steps if step.refused and step.position % 2 == 0}
        found = {}
        for life in {message.life for message in self.messages.values()}:
            first = life
            while first in refused:
                first -= 1
            found[life] = range(first, life + 1)
        return found

    def in_order(self, bodies: Sequence[bytes]) -> list[bytes]:
        """Of arrival, as far as anybody knows it: settled ones first, what nobody sent last."""
        settled = {message.key: place for place, message in enumerate(self.settled)}

        def place(body: bytes) -> tuple[float, float]:
            message = self.messages.get(body)
            return settled.get(body, math.inf), math.inf if message is None else message.place

        return sorted(bodies, key=place)

    def find(self, body: bytes) -> "tuple[Message | None, QueueBook]":
        """What was sent to it, or to a queue whose dead it takes; and to which."""
        for queue in (self, *self.sources):
            if body in queue.messages:
                return queue.messages[body], queue
        return None, self

    def send(self, body: bytes, writer: str, now: float) -> Message:
        message = Message(now, sent=now, key=body, writer=writer, life=self.asked_position // 2)
        message.place = len(self.messages) + len(self.gone)
        self.messages[body] = message
        return message


@attrs.define(eq=False)
class DmsBook:
    """All queues of one data folder."""

    queues: dict[str, QueueBook] = attrs.field(factory=dict)
    ages: Ages = attrs.field(factory=Ages)

    def open_mortals(self, mode: str) -> list[QueueBook]:
        """The mode's queues with a fate, and, last, the queue of their dead."""
        found = [self.open(f"{mode}-{kind}", mode) for kind in FATES]
        dead = self.open(f"{mode}-{DEAD}", mode)
        for queue, fate in zip(found, FATES.values(), strict=True):
            queue.fate = attrs.evolve(fate, dead_letter=dead.name if fate.dead_letter else "")
        dead.sources = [queue for queue in found if queue.fate is not None and queue.fate.dead_letter]
        return [*found, dead]

    def deliveries_wrong(
        self,
        place: QueueBook,
        message: Message,
        owner: QueueBook,
        asked: float,
        now: float,
        *,
        leaving: bool = False,
    ) -> Iterator[str]:
        """What is wrong with a delivery from `place`, read at `now`, to a CONSUME sent at `asked`. `leaving`:
        its connection will end while it holds this and more, so it may not count."""
        fate = owner.fate
        if fate is None:
            return
        shown = f"{place.name}: {message.key[:48]!r}"
        age = now - message.sent  # of the server's time no more, whatever it was
        if place is not owner:
            if not fate.may_be_dead(age):
                yield f"{shown}: among the dead after {age:.3f} s"
            return
        known = owner.mode == "always"
        least = self.ages.least(message.answered or message.told, asked, owner.kept) if known else 0.0
        course, life = message.course, self.ages.life
        broken = course.delivered(fate, life, now, most=age, least=least, late=LATE_SECONDS, leaving=leaving)
        yield from (f"{shown}: {what}" for what in broken)

    def open(self, name: str, mode: str) -> QueueBook:
        queue = self.queues.get(name)
        if queue is None:
            queue = self.queues[name] = QueueBook(name, mode)
        return queue
