"""Bodies too large for memory: each is a log of its own, written as it comes in and read as it goes out.

A message has a *reference* in place of such a body, in memory and in the logs of queues. Several queues may
refer to one body. When none does any more and their logs say so, the body's log is deleted.

| op | |
|---|---|
| 1 PART | the next bytes of the body |
| 2 WHOLE | `[length u64]`: the body's. In one batch with the first record of a queue that refers to it |
| 3 LEFT | `[length u64]`: no queue refers to it any more, but it is still being sent to a client |

The next start removes logs without WHOLE, whose publish did not end and was not confirmed, and logs with
LEFT. It also removes logs whose names begin with `t`: their messages are not persistent. A whole body that no
queue refers to is kept, and a log line says so: a queue's log may have lost the message.

A reference is `[length u64][name]`. Names are random, so a reference from a damaged log finds its own body or
none.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING

import attrs

from dmp.memory import check
from dmp.refusals import Code, Refusal
from shared.budget import Account
from shared.errors import NotARecord, StoreError
from shared.queues.runs import split_by
from shared.storage.format import LENGTH_BYTES
from shared.storage.settings import Durability

if TYPE_CHECKING:
    import structlog

    from shared.queues.runs import Run
    from shared.storage.store import Log, Namespace, Store, Ticket

BODIES = "dmp-bodies"  # where their logs stand
PART_BYTES = 256 << 10  # so much is gathered before it is written
UNWRITTEN_BYTES_MAX = 16 << 20
"""The bound of large bodies in memory, all together. A commit of so much keeps a disk busy while the next one
gathers."""
BODY_BYTES = 2700  # memory of a large body, measured: mostly its log
NAME_BYTES = 18
REFERENCE_BYTES = 8 + NAME_BYTES

_UNJOURNALED = Durability("none")
_PERSISTENT, _PASSING = "p-", "t-"
_RANDOM_BYTES = (NAME_BYTES - len(_PERSISTENT)) // 2
_PART = struct.Struct(">IB")
_END = struct.Struct(">IBQ")
_LENGTH = struct.Struct(">Q")


class BodyOp(IntEnum):
    """What a record says."""

    PART = 1
    WHOLE = 2
    LEFT = 3


@attrs.define(eq=False)
class Body:
    """A large body that has come."""

    log: Log
    length: int
    references: int
    """How many refer to the body: messages in queues (`held`), clients that it is being sent to, the
    publisher."""
    written: Ticket | None = None  # done once all of it can be read
    held: int = 0  # by messages in queues
    whole: bool = False  # its log has WHOLE
    left: bool = False  # its log has LEFT
    damaged: bool = False  # some of it cannot be read

    def told(self, ticket: Ticket) -> None:
        """WHOLE is on the disk, or could not be written."""
        if ticket.error is not None:
            self.whole = False


@attrs.define(eq=False)
class Arriving:
    """A body that is coming. Its log is made with its first bytes."""

    _bodies: Bodies
    length: int
    persistent: bool
    _log: Log | None = None
    _end: int = 0
    _ticket: Ticket | None = None

    def add(self, part: bytes) -> None:
        """Add its next bytes. Raises StoreError; then it cannot be finished."""
        if self._log is None:
            self._log = self._bodies.new_log(self.persistent)
        offset, self._ticket = self._log.append_framed(_PART.pack(1 + len(part), BodyOp.PART), part)
        if offset != self._end:
            raise StoreError("what came before could not be written")
        self._end = self._log.end
        self._bodies.appended(len(part), self._ticket)

    def finish(self) -> bytes:
        """All of it has come. Returns its reference, which the publisher holds until it calls `let_go`."""
        assert self._log is not None
        self._bodies.begun_bytes -= self.length
        return self._bodies.add(Body(self._log, self.length, 1, self._ticket))

    def give_up(self) -> None:
        """Drop a body that will not be finished."""
        self._bodies.given_up(self.length)
        if self._log is not None:
            self._bodies.remove(self._log)


@attrs.define(eq=False, repr=False)
class Bodies:
    """All large bodies. `begun_bytes`: of those that have not come whole yet. `unclaimed`: how many are kept
    though no queue refers to them.
    """

    _store: Store
    _logs: Namespace
    _log: structlog.stdlib.BoundLogger
    begun_bytes_max: int
    _memory: Account
    begun_bytes: int = 0
    unclaimed: int = 0
    _bodies: dict[bytes, Body] = attrs.Factory(dict)
    _left: dict[Body, None] = attrs.Factory(dict)  # no queue, or nobody at all, refers to these any more
    _removed: list[Log] = attrs.Factory(list)  # to be deleted
    _unwritten_bytes: int = 0
    _waiting: list[Callable[[], None]] = attrs.Factory(list)

    def __len__(self) -> int:
        return len(self._bodies)

    # -- coming

    def begin(self, length: int, persistent: bool) -> Arriving:
        """Raises Refusal (RESOURCE_ERROR)."""
        if self.begun_bytes + length > self.begun_bytes_max:
            raise Refusal(Code.RESOURCE_ERROR, "too many large bodies have begun: begun_bytes_max is reached")
        check(self._memory, BODY_BYTES, Code.RESOURCE_ERROR)
        self._memory.charge(BODY_BYTES)
        self.begun_bytes += length
        return Arriving(self, length, persistent)

    def given_up(self, length: int) -> None:
        """Give back the memory of a body that has begun and will not be finished."""
        self.begun_bytes -= length
        self._memory.give(BODY_BYTES)

    def appended(self, size: int, ticket: Ticket) -> None:
        """Count bytes that stay in memory until the ticket is done."""
        self._unwritten_bytes += size
        ticket.when_done(partial(self._written, size))

    def _written(self, size: int, _: Ticket) -> None:
        self._unwritten_bytes -= size
        if self._waiting and self._unwritten_bytes * 2 <= UNWRITTEN_BYTES_MAX:
            waiting, self._waiting = self._waiting, []
            for callback in waiting:
                callback()

    @property
    def behind(self) -> bool:
        """Whether so much waits for the disk that input of large bodies is held back."""
        return self._unwritten_bytes > UNWRITTEN_BYTES_MAX

    def when_caught_up(self, callback: Callable[[], None]) -> None:
        """Call it once, when `behind` is over. Only while it is true."""
        self._waiting.append(callback)

    def new_log(self, persistent: bool) -> Log:
        """Raises StoreError."""
        name = (_PERSISTENT if persistent else _PASSING) + secrets.token_hex(_RANDOM_BYTES)
        return self._logs.create(name, None if persistent else _UNJOURNALED)[0]

    def add(self, body: Body) -> bytes:
        name = body.log.name.encode()
        self._bodies[name] = body
        return _LENGTH.pack(body.length) + name

    def whole_records(self, references: Iterable[bytes]) -> list[tuple[Log, bytes, int]]:
        """WHOLE for those that lack it, for `Store.append_all` with a queue's record that refers to them."""
        bodies = [self[reference] for reference in references]
        return [(body.log, _end_record(BodyOp.WHOLE, body), 1) for body in bodies if not body.whole]

    def whole_appended(self, references: Iterable[bytes], ticket: Ticket) -> None:
        """Note that WHOLE is appended for these bodies."""
        for reference in references:
            body = self[reference]
            if not body.whole:
                body.whole = True
                ticket.when_done(body.told)

    # -- there

    def __getitem__(self, reference: bytes) -> Body:
        return self._bodies[reference[_LENGTH.size :]]

    def unwritten(self, reference: bytes) -> Ticket | None:
        """The ticket that its messages wait for, or that has failed. None: all of it can be read."""
        written = self[reference].written
        return written if written is not None and (not written.done or written.error is not None) else None

    def hold(self, reference: bytes) -> None:
        """Count a message in a queue that has it."""
        self.refer(reference).held += 1

    def drop(self, reference: bytes) -> None:
        """Let go of the body of a message that has left its queue."""
        body = self[reference]
        body.held -= 1
        if not body.held:
            self._left[body] = None
        self.let_go(reference)

    def drop_all(self, runs: Iterable[Run]) -> None:
        """Let go of the large bodies among messages that have left their queue."""
        for run in runs:
            if run.head.large:
                for body in run.bodies:
                    self.drop(body)

    def damaged_in(self, run: Run) -> Iterator[tuple[bool, Run]]:
        """The stretches of messages with large bodies, and whether these cannot be read."""
        return split_by(run, [self[body].damaged for body in run.bodies])

    def refer(self, reference: bytes) -> Body:
        """Count one more reference."""
        body = self[reference]
        body.references += 1
        return body

    def let_go(self, reference: bytes) -> None:
        """Count one reference less."""
        body = self[reference]
        body.references -= 1
        if not body.references:  # until the next `flush` somebody may refer to it again
            self._left[body] = None

    def remove(self, log: Log) -> None:
        """Have the next `flush` delete it."""
        self._removed.append(log)

    @property
    def some_left(self) -> bool:
        """The next `flush` has something to do."""
        return bool(self._left)

    def flush(self) -> None:
        """Delete what nobody refers to, now that the logs of queues say so. What fails is tried again."""
        try:
            while self._removed:
                if not self._removed[-1].deleted:  # else it could not be made
                    self._logs.delete(self._removed[-1].name)
                self._removed.pop()
            while self._left:
                body = next(iter(self._left))
                if not body.references:
                    if not body.log.deleted:
                        self._logs.delete(body.log.name)
                    del self._bodies[body.log.name.encode()]
                    self._memory.give(BODY_BYTES)
                elif body.whole and not (body.held or body.left):
                    body.log.append(_end_record(BodyOp.LEFT, body), 1, reserved=True)
                    body.left = True
                del self._left[body]
        except StoreError:
            pass  # the store says so itself

    # -- a start

    async def restore(self) -> None:
        """Find what there is; queues then `claim` what they refer to."""
        for name, log in tuple(self._logs.logs.items()):
            if name.startswith(_PASSING):
                self.remove(log)
            else:
                self._bodies[name.encode()] = await _found(log)
                self._memory.charge(BODY_BYTES)

    def claim(self, reference: bytes) -> bool:
        """Note that a queue's log refers to this body. False: there is no such body."""
        body = self._bodies.get(reference[_LENGTH.size :])
        if body is None:
            return False
        length = length_in(reference)
        if not body.whole:  # WHOLE is damaged: a queue refers to no body without it
            body.length = length
        if body.length != length:
            return False
        self.hold(reference)
        return True

    def restored(self) -> None:
        """Every queue has claimed what it refers to."""
        journal_damaged = self._store.statistics().journal_damages > 0
        unclaimed: list[Log] = []
        for name, body in tuple(self._bodies.items()):
            if not body.references:
                del self._bodies[name]
                if not body.left and (body.whole or body.damaged or journal_damaged):
                    unclaimed.append(body.log)
                else:
                    self.remove(body.log)
                    self._memory.give(BODY_BYTES)
        self.flush()
        self.unclaimed = len(unclaimed)
        if unclaimed:
            self._log.error(
                "large bodies belong to no queue: a queue's log may have lost their messages; they are kept, "
                "and a backup may have what is missing",
                bodies=len(unclaimed),
                bytes=sum(log.visible for log in unclaimed),
                path=unclaimed[0].file.path,
            )


def length_in(reference: bytes) -> int:
    """The body's. Raises struct.error."""
    length: int = _LENGTH.unpack_from(reference)[0]
    return length


def part_bytes(op: int, data: bytes, start: int, end: int) -> bytes:
    """What a record [start, end) holds of the body."""
    return data[start + 1 : end] if op == BodyOp.PART else b""


async def _found(log: Log) -> Body:
    """A body as its log says."""
    from shared.storage.log import read_records  # waits for the disk, as a start alone may

    body = Body(log, 0, 0)
    at = log.visible - _END.size
    if at < log.first:
        return body
    try:
        size, op, length = _END.unpack(await read_records(log, at, _END.size))
    except NotARecord:
        return body  # it ends with a part
    except (StoreError, struct.error):
        body.damaged = True
        return body
    if size == _END.size - LENGTH_BYTES and op in (BodyOp.WHOLE, BodyOp.LEFT):
        body.length, body.whole, body.left = length, True, op == BodyOp.LEFT
    return body


def _end_record(op: BodyOp, body: Body) -> bytes:
    return _END.pack(_END.size - LENGTH_BYTES, op, body.length)
