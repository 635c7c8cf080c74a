"""When a connection's input is held back (`logmq.states`, STOP_*), and when others have their turn."""

from collections.abc import Callable

from logmq.states import STOP_OTHERS, STOP_OUTBOX, STOP_OWED, STOP_TURN
from shared.errors import StoreError
from shared.net import pacing
from shared.net.connection import Connection
from shared.replies import Replies

READS_PER_ROUND = 32
"""Reads of a log by one connection before others have their turn; a listing counts as all of them."""


class Pacing(pacing.Pacing):
    """What a session's pace hangs on, and what it does a little later."""

    __slots__ = ("_applying", "_reads", "_soon", "replies")

    def __init__(self, connection: Connection, failed: Callable[[StoreError], bytes]) -> None:
        super().__init__(connection)
        self.replies = Replies(connection, failed, on_room=self._has_room)
        self._applying = False  # input is being applied just now: it will see by itself what stops it
        self._reads = 0
        self._soon: list[Callable[[], None]] | None = None

    def stop_if_crowded(self) -> bool:
        """Stop where answers pile up."""
        outbox = self.connection.outbox
        if outbox.size > outbox.bound:
            self._stops |= STOP_OUTBOX
        if self.replies.full:
            self._stops |= STOP_OWED
        return self._stops != 0

    def has_read(self, reads: int = 1) -> None:
        """Count what takes long: after so much in one round others have their turn."""
        self._reads += reads
        if self._reads >= READS_PER_ROUND:
            self._let_others()

    def soon(self, callback: Callable[[], None]) -> None:
        if self._soon is None:
            self._soon = []
        self._soon.append(callback)
        self.wake_by(self.connection.now)

    def _turn_has_come(self) -> None:
        self.go(STOP_TURN)

    def _has_room(self) -> None:
        self.go(STOP_OWED)

    def _let_others(self) -> None:
        if not self._stops & STOP_OTHERS:
            self.stop(STOP_OTHERS)
            self.soon(self._others_had_their_turn)

    def _others_had_their_turn(self) -> None:
        self._reads = 0
        self.go(STOP_OTHERS)
