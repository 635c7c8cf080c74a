"""Why the input of a connection is held back, beside the reasons of all protocols: AMQP's and sinks'."""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from shared.net.session import STOP_WORDS, SessionBase, Stop

if TYPE_CHECKING:
    from shared.queues.timers import Timers

STOP_MEMORY = Stop.FIRST_OWN
"""Queues hold as much as they may."""
STOP_BODIES = Stop.FIRST_OWN << 1
"""Large bodies come faster than the disk takes them."""
STOP_READY = Stop.FIRST_OWN << 2
"""What is asked for is being read from a queue's log, or waits for the disk."""

OWN_STOP_WORDS = STOP_WORDS | {
    STOP_MEMORY: "memory for messages",
    STOP_BODIES: "the disk to take large bodies",
    STOP_READY: "its queues",
}


def stop_until(session: SessionBase, reason: int, when: Callable[[Callable[[], None]], None]) -> None:
    """Hold input back until `when` calls what it is given, which it does once.

    That does not keep the session in memory, which may end before: the wait may be long, and clients come and
    go meanwhile.
    """
    reference = weakref.ref(session)

    def go_on() -> None:
        session = reference()
        if session is not None:
            session.connection.attempt(session.go_soon, reason)

    session.stop(reason)
    when(go_on)


TURN_SECONDS = 2e-3
ITEMS_PER_LOOK = 32


class Turn:
    """A stretch of work, which ends by the clock: others are served then."""

    __slots__ = ("_left", "_now", "_until")

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._until = now() + TURN_SECONDS
        self._left = ITEMS_PER_LOOK

    def over(self, items: int = 1) -> bool:
        """Whether the time is up, now that so many items more were handled. The clock is looked at for each
        32."""
        self._left -= items
        if self._left > 0:
            return False
        self._left = ITEMS_PER_LOOK
        return self._now() >= self._until


class LongWork:
    """Long work, in turns: each iterator is taken further until the turn is over. `deadline` and `scheduled`
    are the timers'."""

    def __init__(self, timers: Timers, on_crash: Callable[[Exception], None]) -> None:
        self.deadline = self.scheduled = math.inf
        self._timers = timers
        self._on_crash = on_crash
        self._left: deque[Iterator[None]] = deque()

    @property
    def busy(self) -> bool:
        return bool(self._left)

    def add(self, steps: Iterator[None]) -> None:
        """Do it: now what fits this turn, unless other work is before it."""
        self._left.append(steps)
        if len(self._left) == 1:
            self.expire(0)

    def expire(self, now: float) -> None:
        """The timers': go on."""
        left, turn = self._left, Turn(self._timers.now)
        while left and not turn.over():
            try:
                next(left[0])
            except StopIteration:
                left.popleft()
            except Exception as error:
                left.popleft()
                self._on_crash(error)
        if left:
            self._timers.set(self, self._timers.now())
