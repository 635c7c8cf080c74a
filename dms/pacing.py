"""What a connection says, and why its input is held back.

What is said while input is applied is gathered, and written once.
"""

from typing import TYPE_CHECKING

from dms import runs
from dms.wire import refusal_for
from shared.errors import StoreError
from shared.net import pacing
from shared.net.connection import Connection
from shared.replies import Replies
from shared.storage.store import Ticket

if TYPE_CHECKING:
    from dms.broker import Broker

STOP_OWED = 1  # too many answers wait
STOP_OUTBOX = 2  # the peer does not take its answers
STOP_STORE = 4  # the disk is behind
STOP_OTHERS = 8  # other connections have their turn


class Pacing(pacing.Pacing):
    """What a session's pace hangs on, and how its answers leave."""

    __slots__ = ("_out", "broker", "replies")

    def __init__(self, connection: Connection, broker: "Broker") -> None:
        super().__init__(connection)
        self.broker = broker
        self.replies = Replies(self)
        self._out: list[bytes] | None = None  # gathered while input is applied; nothing else goes on then
        connection.on_drained = self._drained

    def say(self, reply: bytes) -> None:
        """An answer, in its turn."""
        if self.replies.owed:
            self.replies.reply(reply)
        else:
            self.push(reply)

    def push(self, frames: bytes) -> None:
        """Something that has no turn."""
        if self._out is None:
            self.connection.write(frames)
        else:
            self._out.append(frames)

    def owe(self, ticket: "Ticket", reply: bytes, count: int = 1) -> None:
        """Replies without payload, once `ticket` is done."""
        if ticket.done and ticket.error is None:
            self.say(reply)
        else:
            self.replies.reply_after(ticket, reply, count)

    def flush(self) -> None:
        """Write what was gathered."""
        out, self._out = self._out, None
        if out:
            self.connection.write(out[0] if len(out) == 1 else b"".join(out))

    def is_crowded(self) -> bool:
        """Stop where answers pile up."""
        outbox = self.connection.outbox
        if outbox.size > outbox.bound:
            self._stops |= STOP_OUTBOX
        if self.replies.full:
            self._stops |= STOP_OWED
        store = self.broker.durable
        if store is not None and store.congested and not self._stops & STOP_STORE:
            self._stops |= STOP_STORE
            store.when_uncongested(self.connection.guarded(self._uncongested))
        return self._stops != 0

    def _let_others(self) -> None:
        self._stops |= STOP_OTHERS
        self.wake_by(self.connection.now)

    def _uncongested(self) -> None:
        self.go(STOP_STORE)

    def replies_full(self, full: bool) -> None:
        if not full:
            self.go(STOP_OWED)

    def _drained(self) -> None:
        self.go(STOP_OUTBOX)

    def store_failed(self, error: StoreError, replies: bytes, count: int) -> bytes:
        """The disk would not take what these replies confirm."""
        if self.broker.best_effort and self.broker.disk_failed is not None:
            self.broker.unkept(count)
            return replies
        refusal = refusal_for(error)
        self.broker.refusals.tell(self.connection, refusal, count)
        return refusal.frames(runs.answered(replies))
