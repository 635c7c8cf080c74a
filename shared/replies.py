"""Answers in request order, although some of them wait: for the disk, for new records, for a cold read.

A session gives each answer to its `Replies`, in request order. An answer that waits for a ticket is pending.
Neighbours with the same ticket are one entry, joined and written once: a run of a thousand requests costs one
entry. An answer that comes from elsewhere has a `ReplySlot`. An answer is written when all before it are.

Session code runs here when a commit ends or a read completes. A bug in it ends its own connection only
(`Connection.attempt`, `Connection.guarded`).

No I/O and no protocol; all of it runs in the trio thread.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from shared.errors import StoreError
from shared.file_range import FileRange
from shared.net.connection import Connection

if TYPE_CHECKING:
    from shared.storage.store import Ticket

Part = bytes | FileRange

PENDING_BYTES_MAX = 1024 * 1024
"""Pending bytes on one connection above which its input waits: as much as its outbox may hold."""
PENDING_ENTRIES_MAX = 256
"""Pending entries on one connection (tickets, slots) above which its input waits."""
PART_BYTES = 64
"""Memory of a pending answer beside its bytes: an object's header, and its places in two lists."""
FILE_BYTES = 256
"""Memory of a pending file range: the object, and what releases it."""
TOLD_BYTES = 16 * 1024
"""The owner is told of pending bytes when they change by this much."""


class ReplyOwner(Protocol):
    """A session, as its `Replies` see it."""

    @property
    def connection(self) -> Connection: ...

    def store_failed(self, error: StoreError, reply: bytes, count: int) -> bytes:
        """The reply in place of `reply`, which answered `count` requests whose ticket failed."""

    def replies_full(self, full: bool) -> None:
        """True: too much is pending, take no more requests. False: half of that is left."""

    def count_held(self) -> None:
        """`pending_bytes` has changed: report it to the process's backlogs."""


class _Nobody:
    """The owner once the connection is gone: to let go of the session breaks their cycle."""

    def store_failed(self, error: StoreError, reply: bytes, count: int) -> bytes:
        return reply

    def replies_full(self, full: bool) -> None:
        pass

    def count_held(self) -> None:
        pass


_NOBODY = _Nobody()


class ReplySlot:
    """The place of an answer that comes later. Resolve it exactly once."""

    __slots__ = ("_replies", "in_turn", "on_turn", "parts", "ready", "size")

    def __init__(self, replies: "Replies", on_turn: "Callable[[ReplySlot], None] | None") -> None:
        self._replies = replies
        self.on_turn = on_turn
        self.parts: list[Part] = []
        self.in_turn = False
        """Everything before it has been written."""
        self.ready = False
        self.size = 0

    def write(self, data: bytes) -> None:
        """Write a part of the answer now; only while `in_turn`, and before `resolve`."""
        assert self.in_turn, "an answer was written out of turn"
        assert not self.ready, "an answer was written after its end"
        self._replies.write(data)

    def resolve(self, answer: bytes | FileRange | Sequence[Part]) -> None:
        """Give the answer or the rest of it, written at once if `in_turn`. `Replies` releases file ranges."""
        assert not self.ready, "an answer was resolved twice"
        self.ready = True
        self.parts = [answer] if isinstance(answer, bytes | FileRange) else list(answer)
        self._replies.resolved(self)


class _Pending:
    """Answers that wait for one ticket, and ready ones behind them. The object is the ticket's callback: a
    method of `Replies` would cost 0.2 us more for each commit.

    `counts`: for each part, the number of requests that it answers; 0 where it does not depend on the ticket.
    """

    __slots__ = ("counts", "parts", "plain", "ready", "replies", "size", "ticket")

    def __init__(self, replies: "Replies", ticket: "Ticket", reply: bytes, count: int) -> None:
        self.replies = replies
        self.ticket = ticket
        self.parts: list[Part] = [reply]
        self.counts = [count]
        self.size = PART_BYTES + len(reply)
        self.plain = True  # no file range among the parts
        self.ready = False

    def __call__(self, ticket: "Ticket") -> None:
        self.ready = True
        replies = self.replies
        try:
            if ticket.error is not None:
                self.parts = replies.with_refusals(ticket.error, self.parts, self.counts)
            entries = replies.pending
            if entries and len(entries) == 1 and entries[0] is self and self.plain and not replies._advancing:
                # The usual case: all that is pending are answers from memory to one commit.
                entries.clear()
                replies.pending_bytes -= self.size
                answers: Sequence[bytes] = self.parts  # type: ignore[assignment]
                replies._connection.write(answers[0] if len(answers) == 1 else b"".join(answers))
                if replies.full or replies._when_empty or replies._told_bytes:
                    replies._after(entries)
            else:
                replies._advance()
        except Exception as error:
            replies._connection.fail(error)


class _Ready:
    """Ready answers behind an unresolved slot."""

    __slots__ = ("parts", "ready", "size")

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.size = 0
        self.ready = True


class Replies:
    """The pending answers of one connection.

    Above `PENDING_BYTES_MAX` or `PENDING_ENTRIES_MAX` `full` is True and the owner is told; it is told again
    when half of that is left. `pending_bytes`: the memory of pending answers.
    """

    __slots__ = (
        "_advancing",
        "_connection",
        "_dropped",
        "_look_bytes",
        "_owner",
        "_told_bytes",
        "_when_empty",
        "full",
        "pending",
        "pending_bytes",
    )

    def __init__(self, owner: ReplyOwner) -> None:
        self._owner: ReplyOwner | _Nobody = owner
        self._connection = owner.connection
        # Made when first needed: most connections are idle.
        self.pending: deque[_Pending | ReplySlot | _Ready] | None = None
        self._when_empty: list[Callable[[], None]] | None = None
        self._advancing = False
        self._dropped = False
        self.full = False
        self.pending_bytes = 0
        self._told_bytes = 0  # `pending_bytes` when the owner was last told
        self._look_bytes = min(PENDING_BYTES_MAX, TOLD_BYTES)

    def reply(self, reply: bytes | FileRange) -> None:
        """Give an answer that is ready; it is written at once if nothing is pending."""
        if not self.pending:
            self.write(reply)
            return
        last = self.pending[-1]
        if type(last) is _Pending and not last.ready:
            last.parts.append(reply)
            last.counts.append(0)
        else:
            if type(last) is not _Ready:
                last = _Ready()
                self.pending.append(last)
            last.parts.append(reply)
        self._grow(last, reply)

    def reply_after(self, ticket: "Ticket", reply: bytes, count: int = 1) -> None:
        """Give `reply`, the answers to `count` requests, once `ticket` is done; if it fails, refusals."""
        if ticket.done:
            if ticket.error is None:
                self.reply(reply)
            else:
                for refusal in self.with_refusals(ticket.error, [reply], [count]):
                    self.reply(refusal)
            return
        entries = self.pending
        if entries is None:
            entries = self.pending = deque()
        last = entries[-1] if entries else None
        if type(last) is _Pending and last.ticket is ticket:
            last.parts.append(reply)
            last.counts.append(count)
            self._grow(last, reply)
            return
        pending = _Pending(self, ticket, reply, count)
        entries.append(pending)
        ticket.callbacks.append(pending)
        self.pending_bytes += PART_BYTES + len(reply)
        if self.pending_bytes > self._look_bytes or len(entries) > PENDING_ENTRIES_MAX:
            self._check_full()

    def slot(self, on_turn: Callable[[ReplySlot], None] | None = None) -> ReplySlot:
        """Reserve the place of an answer that comes later.

        `on_turn` is called when everything before it has been written, which may be now. From then on the
        answer may be written in parts.
        """
        held = ReplySlot(self, on_turn)
        if self.pending is None:
            self.pending = deque()
        self.pending.append(held)
        self._check_full()
        if self.pending[0] is held:
            self._advance()
        return held

    def when_empty(self, callback: Callable[[], None]) -> None:
        """Call once when nothing is pending, which may be now."""
        if not self.pending:
            callback()
        elif self._when_empty is None:
            self._when_empty = [callback]
        else:
            self._when_empty.append(callback)

    def drop(self) -> None:
        """The connection is gone: forget everything, release files, ignore what is resolved later."""
        self._dropped = True
        self._owner = _NOBODY
        entries, self.pending = self.pending, None
        self._when_empty = None
        self.pending_bytes = 0
        for entry in entries or ():
            _release(entry.parts)

    def with_refusals(self, error: StoreError, parts: Sequence[Part], counts: Sequence[int]) -> list[Part]:
        """`parts`, each that answers `count` > 0 requests replaced by its refusal."""
        failed = self._owner.store_failed
        return [
            failed(error, part, count) if count and isinstance(part, bytes) else part
            for part, count in zip(parts, counts, strict=True)
        ]

    def write(self, part: Part) -> None:
        """Write to the connection now: only for a slot that is `in_turn`."""
        if isinstance(part, bytes):
            self._connection.write(part)
        else:
            self._connection.write_file(part)

    def _grow(self, entry: "_Pending | _Ready", reply: Part) -> None:
        size = _size_of(reply)
        entry.size += size
        self.pending_bytes += size
        if type(entry) is _Pending and not isinstance(reply, bytes):
            entry.plain = False
        self._check_full()

    def resolved(self, held: ReplySlot) -> None:
        """`held` has its answer."""
        if self._dropped:
            _release(held.parts)
            return
        held.size = sum(map(_size_of, held.parts))
        self.pending_bytes += held.size
        self._check_full()
        self._advance()

    def _check_full(self) -> None:
        if self.pending_bytes > self._told_bytes + TOLD_BYTES:
            self._tell()
        if self.full or self.pending is None:
            return
        if self.pending_bytes > PENDING_BYTES_MAX or len(self.pending) > PENDING_ENTRIES_MAX:
            self.full = True
            self._owner.replies_full(True)

    def _advance(self) -> None:
        """Write what is ready at the front."""
        entries = self.pending
        if not entries or self._advancing:  # the loop below also writes what `on_turn` resolves
            return
        self._advancing = True
        gathered: list[bytes] = []
        try:
            while entries:
                entry = entries[0]
                if not entry.ready:
                    if type(entry) is not ReplySlot or entry.in_turn:
                        break
                    entry.in_turn = True
                    if entry.on_turn is None:
                        break
                    self._send(gathered)
                    entry.on_turn(entry)
                    continue
                entries.popleft()
                self.pending_bytes -= entry.size
                for part in entry.parts:
                    if isinstance(part, bytes):
                        gathered.append(part)
                    else:
                        self._send(gathered)
                        self._connection.write_file(part)
            self._send(gathered)
        finally:
            self._advancing = False
        self._after(entries)

    def _send(self, gathered: list[bytes]) -> None:
        if gathered:
            self._connection.write(gathered[0] if len(gathered) == 1 else b"".join(gathered))
            gathered.clear()

    def _tell(self) -> None:
        self._told_bytes = self.pending_bytes
        self._look_bytes = min(PENDING_BYTES_MAX, self.pending_bytes + TOLD_BYTES)
        self._owner.count_held()

    def _after(self, entries: "deque[_Pending | ReplySlot | _Ready]") -> None:
        if self._told_bytes and (not entries or self.pending_bytes + TOLD_BYTES < self._told_bytes):
            self._tell()
        few = self.pending_bytes * 2 <= PENDING_BYTES_MAX and len(entries) * 2 <= PENDING_ENTRIES_MAX
        if self.full and few:
            self.full = False
            self._owner.replies_full(False)
        while self._when_empty and not self.pending:
            callbacks, self._when_empty = self._when_empty, None
            for callback in callbacks:
                callback()


def _size_of(part: Part) -> int:
    return PART_BYTES + len(part) if isinstance(part, bytes) else FILE_BYTES


def _release(parts: Sequence[Part]) -> None:
    for part in parts:
        if isinstance(part, FileRange):
            part.release()
