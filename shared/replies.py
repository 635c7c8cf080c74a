"""Answers in request order, although some of them wait: for the disk, for new records, for a cold read.

A session says each answer through its `Replies`, in the order of the requests. What waits for a ticket is
owed; everything that shares a ticket and stands side by side is one entry, joined once and written once, so
a run of a thousand requests costs one entry and not a thousand. What comes from elsewhere is held. An answer
leaves when everything before it has left.

A session's own code runs here at times that no driver chose: when a commit ends, when bytes have been read. A
bug in it costs its own connection, and nobody else's (`Connection.attempt`, `Connection.guarded`).

Nothing here does I/O or knows any protocol; it all runs in the trio thread.
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

OWED_BYTES_MAX = 1024 * 1024
"""What may wait in memory on one connection before its input waits too: as much as its outbox holds."""
OWED_ENTRIES_MAX = 256
"""Waits of different kinds on one connection (commits, reads, holds) before its input waits too."""
PART_BYTES = 64
"""What an answer that waits takes beside its bytes: an object's header, and its places in two lists."""
FILE_BYTES = 256
"""A range of a file that waits: the object, and what releases it."""
TOLD_BYTES = 16 * 1024
"""The owner hears of what waits once it differs by so much."""


class ReplyOwner(Protocol):
    """Whose answers they are: a session."""

    @property
    def connection(self) -> Connection: ...

    def store_failed(self, error: StoreError, reply: bytes, count: int) -> bytes:
        """What is said in place of `reply`, the answers to `count` requests whose ticket failed."""

    def replies_full(self, full: bool) -> None:
        """More waits than should, or half of that and less: no more requests are to be taken, or again."""

    def count_held(self) -> None:
        """`owed_bytes` is another: it counts with the process's backlogs."""


class ReplySlot:
    """The place of an answer that comes later. Resolve it exactly once."""

    __slots__ = ("_on_turn", "_parts", "_replies", "in_turn", "ready", "size")

    def __init__(self, replies: "Replies", on_turn: "Callable[[ReplySlot], None] | None") -> None:
        self._replies = replies
        self._on_turn = on_turn
        self._parts: list[Part] = []
        self.in_turn = False
        """Everything before it has left."""
        self.ready = False
        self.size = 0

    def write(self, data: bytes) -> None:
        """Say a part of the answer now. Only in turn, and before `resolve`."""
        assert self.in_turn, "an answer was written out of turn"
        assert not self.ready, "an answer was written after its end"
        self._replies.write(data)

    def resolve(self, answer: bytes | FileRange | Sequence[Part]) -> None:
        """The answer, or the rest of it; it leaves at once if it is its turn. File ranges become ours."""
        assert not self.ready, "an answer was resolved twice"
        self.ready = True
        self._parts = [answer] if isinstance(answer, bytes | FileRange) else list(answer)
        self._replies._resolved(self)


class _Owed:
    """Answers that wait for one ticket, and what was said behind them. It is the ticket's callback itself.

    `counts`: for each part the number of requests that it answers, 0 for a part that does not depend on the
    ticket.
    """

    __slots__ = ("counts", "parts", "plain", "ready", "replies", "size", "ticket")

    def __init__(self, replies: "Replies", ticket: "Ticket", reply: bytes, count: int) -> None:
        self.replies = replies
        self.ticket = ticket
        self.parts: list[Part] = [reply]
        self.counts = [count]
        self.size = PART_BYTES + len(reply)
        self.plain = True  # no file among them
        self.ready = False

    def __call__(self, ticket: "Ticket") -> None:
        self.ready = True
        replies = self.replies
        try:
            if ticket.error is not None:
                self.parts = replies.with_refusals(ticket.error, self.parts, self.counts)
            entries = replies._entries
            if entries and len(entries) == 1 and entries[0] is self and self.plain and not replies._advancing:
                # All that is owed are answers from memory to one commit, as nearly always.
                entries.clear()
                replies.owed_bytes -= self.size
                answers: Sequence[bytes] = self.parts  # type: ignore[assignment]
                replies._connection.write(answers[0] if len(answers) == 1 else b"".join(answers))
                if replies.full or replies._when_empty or replies._told_bytes:
                    replies._after(entries)
            else:
                replies._advance()
        except Exception as error:
            replies._connection.fail(error)


class _Said:
    """Answers that are ready, behind others that are not."""

    __slots__ = ("parts", "ready", "size")

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.size = 0
        self.ready = True


class Replies:
    """What one connection is owed.

    While more than `bytes_max` bytes or `entries_max` waits are owed, `full` is True: the owner hears of it,
    and again once half of that is left. `owed_bytes`: the memory that answers take while they wait.
    """

    __slots__ = (
        "_advancing",
        "_bytes_max",
        "_connection",
        "_dropped",
        "_entries",
        "_entries_max",
        "_look_bytes",
        "_owner",
        "_told_bytes",
        "_when_empty",
        "full",
        "owed_bytes",
    )

    def __init__(
        self,
        owner: ReplyOwner,
        *,
        bytes_max: int = OWED_BYTES_MAX,
        entries_max: int = OWED_ENTRIES_MAX,
    ) -> None:
        self._owner = owner
        self._connection = owner.connection
        self._bytes_max = bytes_max
        self._entries_max = entries_max
        # Made when first needed: most of ten thousand connections are idle.
        self._entries: deque[_Owed | ReplySlot | _Said] | None = None
        self._when_empty: list[Callable[[], None]] | None = None
        self._advancing = False
        self._dropped = False
        self.full = False
        self.owed_bytes = 0
        self._told_bytes = 0  # of these the owner has heard
        self._look_bytes = min(bytes_max, TOLD_BYTES)

    @property
    def owed(self) -> bool:
        """Whether any answer still waits."""
        return bool(self._entries)

    def reply(self, reply: bytes | FileRange) -> None:
        """An answer that is ready: it leaves at once if nothing before it waits."""
        if not self._entries:
            self.write(reply)
            return
        last = self._entries[-1]
        if type(last) is _Owed and not last.ready:
            last.parts.append(reply)
            last.counts.append(0)
        else:
            if type(last) is not _Said:
                last = _Said()
                self._entries.append(last)
            last.parts.append(reply)
        self._grow(last, reply)

    def reply_after(self, ticket: "Ticket", reply: bytes, count: int = 1) -> None:
        """`reply`, the answers to `count` requests, once `ticket` is done; if it fails `count` refusals."""
        if ticket.done:
            if ticket.error is None:
                self.reply(reply)
            else:
                for refusal in self.with_refusals(ticket.error, [reply], [count]):
                    self.reply(refusal)
            return
        entries = self._entries
        if entries:
            last = entries[-1]
            if type(last) is _Owed and last.ticket is ticket:
                last.parts.append(reply)
                last.counts.append(count)
                self._grow(last, reply)
                return
        elif entries is None:
            entries = self._entries = deque()
        owed = _Owed(self, ticket, reply, count)
        entries.append(owed)
        self.owed_bytes += owed.size
        if self.owed_bytes > self._look_bytes or len(entries) > self._entries_max:
            self._check_full()
        ticket.when_done(owed)

    def slot(self, on_turn: Callable[[ReplySlot], None] | None = None) -> ReplySlot:
        """Keep a place for an answer that comes later.

        `on_turn` is called once everything before it has left, at once if nothing is owed; from then on the
        answer may be written in parts.
        """
        held = ReplySlot(self, on_turn)
        if self._entries is None:
            self._entries = deque()
        self._entries.append(held)
        self._check_full()
        if self._entries[0] is held:
            self._advance()
        return held

    def when_empty(self, callback: Callable[[], None]) -> None:
        """Call once when nothing is owed any more; at once if that is so now."""
        if not self._entries:
            callback()
        elif self._when_empty is None:
            self._when_empty = [callback]
        else:
            self._when_empty.append(callback)

    def drop(self) -> None:
        """The connection is gone: forget everything, let go of files, ignore what is resolved later."""
        self._dropped = True
        entries, self._entries = self._entries, None
        self._when_empty = None
        self.owed_bytes = 0
        for entry in entries or ():
            _release(entry._parts if type(entry) is ReplySlot else entry.parts)  # type: ignore[union-attr]

    def with_refusals(self, error: StoreError, parts: Sequence[Part], counts: Sequence[int]) -> list[Part]:
        """`parts`, with refusals for those that answer `counts` requests, where that is not 0."""
        failed = self._owner.store_failed
        return [
            failed(error, part, count) if count and isinstance(part, bytes) else part
            for part, count in zip(parts, counts, strict=True)
        ]

    def write(self, part: Part) -> None:
        """Straight to the connection: for what is in turn."""
        if isinstance(part, bytes):
            self._connection.write(part)
        else:
            self._connection.write_file(part)

    def _grow(self, entry: "_Owed | _Said", reply: Part) -> None:
        size = _size_of(reply)
        entry.size += size
        self.owed_bytes += size
        if type(entry) is _Owed and not isinstance(reply, bytes):
            entry.plain = False
        self._check_full()

    def _resolved(self, held: ReplySlot) -> None:
        if self._dropped:
            _release(held._parts)
            return
        held.size = sum(map(_size_of, held._parts))
        self.owed_bytes += held.size
        self._check_full()
        self._advance()

    def _check_full(self) -> None:
        if self.owed_bytes > self._told_bytes + TOLD_BYTES:
            self._tell()
        if self.full or self._entries is None:
            return
        if self.owed_bytes > self._bytes_max or len(self._entries) > self._entries_max:
            self.full = True
            self._owner.replies_full(True)

    def _advance(self) -> None:
        """Write what is ready at the front."""
        entries = self._entries
        if not entries or self._advancing:  # what resolves inside `on_turn` is picked up by the loop below
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
                    if entry._on_turn is None:
                        break
                    self._send(gathered)
                    entry._on_turn(entry)
                    continue
                entries.popleft()
                self.owed_bytes -= entry.size
                for part in entry._parts if isinstance(entry, ReplySlot) else entry.parts:
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
        self._told_bytes = self.owed_bytes
        self._look_bytes = min(self._bytes_max, self.owed_bytes + TOLD_BYTES)
        self._owner.count_held()

    def _after(self, entries: "deque[_Owed | ReplySlot | _Said]") -> None:
        if self._told_bytes and (not entries or self.owed_bytes + TOLD_BYTES < self._told_bytes):
            self._tell()
        if self.full and self.owed_bytes * 2 <= self._bytes_max and len(entries) * 2 <= self._entries_max:
            self.full = False
            self._owner.replies_full(False)
        while self._when_empty and not self._entries:
            callbacks, self._when_empty = self._when_empty, None
            for callback in callbacks:
                callback()


def _size_of(part: Part) -> int:
    return PART_BYTES + len(part) if isinstance(part, bytes) else FILE_BYTES


def _release(parts: Sequence[Part]) -> None:
    for part in parts:
        if isinstance(part, FileRange):
            part.release()
