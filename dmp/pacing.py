"""Why a connection's input is held back, AMQP's or a sink's, and what its deadlines are for."""

import math
from enum import IntFlag

from shared.net import pacing
from shared.net.connection import Connection

WORK_PER_STRETCH = 4096
"""Messages put into queues, counted once for each, before other connections have their turn."""


class Stop(IntFlag):
    """Why input is held back."""

    OWED = 1
    """Too many answers wait for the disk."""
    OUTBOX = 2
    """The peer does not take its answers."""
    MEMORY = 4
    """Queues hold as much as they may."""
    STORE = 8
    """The disk is behind."""
    OTHERS = 16
    """Others have their turn."""
    BODIES = 64
    """Large bodies come faster than the disk takes them."""
    READY = 32
    """What is asked for is read from a queue's log, or comes when what was deleted has gone."""


class Due(IntFlag):
    """What a deadline is for."""

    BEAT = 1
    SILENCE = 2
    FRAME = 4
    LOGIN = 8
    CLOSE = 16
    SOON = 32
    LARGE = 64
    """A large body has not come nearer its end."""


class Pacing(pacing.Pacing):
    """A session is one; it says in `_take_up` how it goes on and in `_due_now` what comes at its time."""

    __slots__ = ("_deadlines",)

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._deadlines: dict[Due, float] = {}

    @property
    def stopped(self) -> bool:
        return self._stops != 0

    def stop(self, reason: int) -> None:
        if not self._stops:
            self.connection.pause_reading()
        super().stop(reason)

    def _go_soon(self, reason: Stop) -> None:
        """As `go`, called from deep within a queue or the store: go on when that is done."""
        if not self.lost and self._stops & reason:
            self._stops = (self._stops & ~reason) | Stop.OTHERS
            self.due(Due.SOON, self.connection.now)

    def due(self, what: Due, at: float) -> None:
        """Have `_due_now(what)` called at that time; replaces the one before, inf: not any more."""
        if at == math.inf:
            self._deadlines.pop(what, None)
            return  # the wake-up that was set finds nothing to do
        self._deadlines[what] = at
        self.wake_by(at)

    def forget_deadlines(self) -> None:
        self._deadlines.clear()

    def on_deadline(self, now: float) -> None:
        self._wake = math.inf
        for what, at in tuple(self._deadlines.items()):
            if at <= now and self._deadlines.get(what) == at:
                del self._deadlines[what]
                self._due_now(what, now)
        self.wake_by(min(self._deadlines.values(), default=math.inf))

    def _continue(self) -> None:
        self.connection.resume_reading()
        self._take_up()

    def _take_up(self) -> None:
        """Apply what was read and not applied."""
        raise NotImplementedError

    def _due_now(self, what: Due, now: float) -> None:
        raise NotImplementedError
