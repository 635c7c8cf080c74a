"""What time and tries do to the messages of some queues, and what nobody may see of it.

A message whose queue has such options is still in one place, once: its own queue, or that of the dead. It
does not die before its time, and does not go out when that is over; a delay or the pause before another try
is not cut short; nobody gets it oftener than it may be delivered. A restart changes none of it but this: the
server is as old as its newest record says, so times may last a little longer, and deliveries of an earlier
life may have been forgotten.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from tests.support.dms_model import Ages, Fate
from tests.trials.sim.network import Wire
from tests.trials.sim.world import BrokenPromise, World

if TYPE_CHECKING:
    from tests.trials.sim.dms_model import Message

DEAD = "x"
"""The queue that the dead move to. Nobody deletes it, or what it has dead of."""

LATE_SECONDS = 0.02
"""What is due happens with the next turn of the server's loop, and that may hang in a sync of its own."""


SET = {
    "t": Fate(ttl_ms=80, dead_letter=DEAD),
    "e": Fate(ttl_ms=50),
    "m": Fate(max_deliveries=2, dead_letter=DEAD),
}
"""These the settings say, by the queue's name;"""
ASKED = {
    "d": Fate(delay_ms=60),
    "r": Fate(retry_ms=20, retry_max_ms=60, max_deliveries=4, dead_letter=DEAD),
}
"""these CREATE_QUEUE asks for."""
FATES: Mapping[str, Fate] = {**SET, **ASKED}


@attrs.define
class Nack:
    """A NACK of the last delivery: sent when, in which life of the server."""

    wire: Wire
    sent: float
    life: int
    answered: bool = False


@attrs.define
class Course:
    """A message's, as far as clients know. `deliveries`: in the life `life`."""

    life: int = 0
    deliveries: int = 0
    deliveries_ever: int = 0
    nack: Nack | None = None


class Fates:
    """Judges what happens to messages of queues that have one."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.ages = Ages()
        self._unread: dict[str, int] = {}
        self._kept: dict[str, list[float]] = {}

    # -- what clients do

    def asked(self, queue: str, count: int = 1) -> None:
        """CONSUMEs went out; whoever sent them may never read what is delivered to them."""
        self._unread[queue] = self._unread.get(queue, 0) + count

    def stored(self, queue: str, begun: int) -> None:
        """A PRODUCE that was sent then was acknowledged, so a record of that age is on disk."""
        self._kept.setdefault(queue, []).append(self._world.time_of(begun))
        self._kept[queue].sort()

    def nacked(self, message: "Message", wire: Wire) -> None:
        course = message.course
        course.nack = Nack(wire, self._world.now(), self.ages.life)

    # -- what may be

    def may_be_dead(self, message: "Message") -> bool:
        """Or on its way there."""
        fate = FATES.get(message.queue)
        return fate is not None and (
            self._may_be_past(message, fate) or self._may_be_exhausted(message, fate)
        )

    def _may_be_past(self, message: "Message", fate: Fate) -> bool:
        return fate.may_be_past(self._most(message))

    def _may_be_exhausted(self, message: "Message", fate: Fate) -> bool:
        return fate.may_be_exhausted(message.course.deliveries_ever + self._unread.get(message.queue, 0))

    def may_wait(self, message: "Message") -> bool:
        """For another try."""
        fate = FATES.get(message.queue)
        return fate is not None and bool(fate.retry_ms) and message.course.nack is not None

    def is_ready(self, message: "Message") -> bool:
        """Its delay is over for certain."""
        fate = FATES[message.queue]
        return self._served_since(message, self._world.now()) > fate.delay_ms / 1000 + LATE_SECONDS

    # -- what is seen

    def delivered(self, message: "Message", place: str, begun: int) -> None:
        """A DELIVER answers a CONSUME of the queue `place` that was sent at `begun`."""
        self._unread[place] = self._unread.get(place, 0) - 1
        fate = FATES.get(message.queue)
        if fate is None:
            return
        if place != message.queue:
            self._died(message, place, fate)
            return
        course = message.course
        if course.life != self.ages.life:
            course.life, course.deliveries = self.ages.life, 0
        course.deliveries += 1
        course.deliveries_ever += 1
        lived = self._served_since(message, self._world.time_of(begun))
        broken = fate.broken_by_delivery(
            most=self._most(message),
            least=0.0 if message.wire.excused() else lived,
            late=LATE_SECONDS,
            deliveries=course.deliveries,
            since_nack=self._since_nack(message),
        )
        for what in broken:
            raise BrokenPromise(f"{message} is {what}")

    def _since_nack(self, message: "Message") -> float:
        nack, message.course.nack = message.course.nack, None
        if nack is None or nack.life != self.ages.life:
            return math.inf
        if not nack.answered and (nack.wire.left or nack.wire.server_done.is_set()):
            return math.inf  # its connection may have been lost first, and that costs no time
        return self._world.now() - nack.sent

    def _died(self, message: "Message", place: str, fate: Fate) -> None:
        if place != fate.dead_letter:
            raise BrokenPromise(f"{message} is delivered from {place}")
        if not self.may_be_dead(message):
            raise BrokenPromise(f"{message} is among the dead before its time")

    def found_dead(self, message: "Message", about: Mapping[str, Any]) -> None:
        """A look at the queue of the dead shows this of it."""
        fate = FATES[message.queue]
        past = self._may_be_past(message, fate) and about["reason"] == "ttl"
        tries = about["deliveries"] >= fate.max_deliveries and self._may_be_exhausted(message, fate)
        if about["origin"] != message.queue or not (past or (tries and about["reason"] == "max_deliveries")):
            raise BrokenPromise(f"{message} is among the dead, and it says {about}")

    def _most(self, message: "Message") -> float:
        """It is no older."""
        return self.ages.most(self._world.time_of(message.begun), self._world.now())

    def _served_since(self, message: "Message", until: float) -> float:
        """Since it had come, at least."""
        if message.ended == math.inf:
            return 0.0
        ended = self._world.time_of(int(message.ended))
        return self.ages.least(ended, until, self._kept.get(message.queue, ()))
