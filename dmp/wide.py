"""Messages for very many queues: put into them in slices, and others have their turn in between.

What is persistent goes to all durable queues in one entry of the journal, which a crash keeps or loses as a
whole. `WideAppend` first has messages made, and counted. Then each queue gets numbers, a record and a place
for them, all at once. So it has them in the order of its records, whatever else comes to it. The store holds
the entry until all queues have theirs. At last they are ready, and given out. All of that goes in slices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

import attrs

from dmp.message import Head, Message
from dmp.queue_log import QueueLog
from dmp.queue_records import put_bytes, putter
from dmp.queues import Queue
from shared.errors import StoreError
from shared.garbage import paused
from shared.queues.sliced_work import SlicedWork, batched, taken_out
from shared.storage.log import Log, Ticket
from shared.storage.settings import Durability

if TYPE_CHECKING:
    from dmp.bodies import Bodies
    from shared.storage.committer import Held
    from shared.storage.store import Store

QUEUES_PER_STEP = 128  # that get a message, or are about to: half a millisecond

_Expected: TypeAlias = tuple[Queue, Log, list[Message]]
_Placed: TypeAlias = tuple[Queue, list[Message], int, int]
"""The number of the first message, and its offset in the log."""


class WideContext(Protocol):
    """What both ask of the broker."""

    bodies: Bodies
    sliced_work: SlicedWork
    store: Store

    def with_room(self, head: Head, queues: Sequence[Queue]) -> list[Queue]:
        """Without those that are full."""

    def publish_to(self, head: Head, queues: Sequence[Queue], bodies: Sequence[bytes]) -> Ticket | None:
        """To all of them."""


@attrs.define(eq=False)
class WideAppend:
    """A run on its way to very many durable queues: have these `expect` it, in slices; then go through
    `steps`, or `append` it at once.

    `done`: all have it, or none will. That is later than the store's own ticket, for they hear of it in
    slices, too.
    """

    _broker: WideContext
    _head: Head
    _bodies: Sequence[bytes]
    done: Ticket = attrs.field(factory=Ticket, init=False)
    _stored: Ticket = attrs.field(factory=Ticket, init=False)
    _expected: list[_Expected] = attrs.field(factory=list, init=False)
    _modes: set[Durability] = attrs.field(factory=set, init=False)
    _coming: list[_Placed] = attrs.field(factory=list, init=False)
    _gone: list[_Expected] = attrs.field(factory=list, init=False)

    def expect(self, queues: Iterable[tuple[Queue, QueueLog]]) -> None:
        """These are to have it, unless they are deleted before they get it."""
        for queue, log in queues:
            self._modes.add(log.log.mode)
            self._expected.append((queue, log.log, queue.expect(self._head, self._bodies)))

    def append(self, taken: Sequence[tuple[Log, bytes, int]] = ()) -> None:
        """The same as `steps`, all at once; `taken`: records of what leaves other queues."""
        size = sum([len(records) for _, records, _ in taken])
        for _ in self.steps(size, lambda held: held.append(taken) if taken else None):
            pass

    def steps(
        self, leaving_bytes: int = 0, leave: Callable[[Held], object] = lambda held: None
    ) -> Iterator[None]:
        """Write it. `leave` appends the records, of so many bytes, of what leaves other queues. Raises
        StoreError at once; then no queue has got anything.
        """
        head, bodies, broker = self._head, self._bodies, self._broker
        expected = self._expected  # what is done with is let go of, for that takes as long
        whole = broker.bodies.whole_records(bodies) if head.large else []
        count, pack = len(bodies), putter(head, bodies)
        size = put_bytes(head) * count * len(expected) + sum([len(records) for _, records, _ in whole])
        left = taken_out(expected.pop, expected, QUEUES_PER_STEP)
        held: Held | None = None

        def complete() -> None:
            if held is not None and not held.released:
                for some in left:
                    self._append(held, some, pack, count)
                leave(held)
                held.release()

        try:
            held = broker.store.hold(
                size + leaving_bytes,
                len(expected) + len(whole) + 1,
                self._modes,
                complete,
                reserved=bool(leaving_bytes),
            )
        except StoreError as error:
            broker.sliced_work.add(_not_coming(expected))
            self.done.resolve(error)
            raise
        try:
            if whole:
                held.append(whole)
                broker.bodies.whole_appended(bodies, held.ticket)
            for some in left:
                self._append(held, some, pack, count)
                yield
        finally:  # also where nobody goes on with this, or a bug ends it
            try:
                complete()
            except Exception as error:
                held.release(error)
                raise
            if self._gone:
                broker.sliced_work.add(_not_coming(self._gone))
            held.ticket.when_done(lambda done: broker.sliced_work.add(self._tell(done.error)))

    def _append(
        self, held: Held, some: Iterable[_Expected], pack: Callable[[int], bytes], count: int
    ) -> None:
        """Give these queues numbers, records and places."""
        coming: list[_Expected] = []
        firsts: list[int] = []
        parts: list[tuple[Log, bytes, int]] = []
        for each in some:
            queue = each[0]
            if queue.deleted:
                self._gone.append(each)
                continue
            first = queue.numbered
            queue.numbered = first + count
            firsts.append(first)
            parts.append((each[1], pack(first), count))
            coming.append(each)
        offsets = held.append(parts)
        for (queue, _, messages), first, offset in zip(coming, firsts, offsets, strict=True):
            queue.place(messages, self._stored)
            self._coming.append((queue, messages, first, offset))

    def _tell(self, error: StoreError | None) -> Iterator[None]:
        """The disk has it, or refuses it. Whatever came to the queues later waits until all is told here."""
        size = put_bytes(self._head)
        for those in batched(self._coming, QUEUES_PER_STEP):
            for _, messages, first, offset in those:
                for place, message in enumerate(messages):
                    message.number, message.offset = first + place, offset + place * size
            yield
        self._stored.resolve(error)
        for those in taken_out(self._coming.pop, self._coming, QUEUES_PER_STEP):
            for queue, _, _, _ in those:
                queue.synced(self._stored)
            yield
        self.done.resolve(error)


def _not_coming(expected: Iterable[_Expected]) -> Iterator[None]:
    for some in batched(expected, QUEUES_PER_STEP):
        for queue, _, messages in some:
            queue.not_coming(messages)
        yield


@attrs.define(eq=False)
class Publication:
    """A run on its way to very many queues, one message after the other: go through `steps`.

    `whole`: all have it. Its error says that some queue rejects what it has no room for, or that the store
    refuses a message. Then `on_refused` was called, too, and no queue has got that one, nor any behind it.
    `send_return`: of what nobody can take at once, which then goes nowhere else (`immediate`).
    """

    _broker: WideContext
    _head: Head
    _queues: Sequence[Queue]
    _bodies: Sequence[bytes]
    _on_refused: Callable[[StoreError], None]
    _send_return: Callable[[bytes], None] | None = None
    whole: Ticket = attrs.field(factory=Ticket, init=False)
    _last: Ticket | None = attrs.field(default=None, init=False)
    _failed: StoreError | None = attrs.field(default=None, init=False)
    _taken: bool = attrs.field(default=False, init=False)  # some queue has the message

    def __attrs_post_init__(self) -> None:
        if self._head.large:
            for body in self._bodies:
                self._broker.bodies.refer(body)

    def steps(self) -> Iterator[None]:
        """Of half a millisecond each."""
        try:
            for body in self._bodies:
                yield from self._publish(body)
        except StoreError as error:
            self._failed = error
            self._on_refused(error)
        if self._head.large:
            for body in self._bodies:
                self._broker.bodies.let_go(body)
        failed = self._failed
        if self._last is None:
            self.whole.resolve(failed)
        else:
            self._last.when_done(lambda done: self.whole.resolve(failed or done.error))

    def _publish(self, body: bytes) -> Iterator[None]:
        """Raises StoreError."""
        self._taken = False
        queues = self._queues
        if self._head.persistent:
            queues = []
            yield from self._append(body, queues)
        for some in batched(queues, QUEUES_PER_STEP):
            try:
                self._last = self._broker.publish_to(self._head, self._open(some), (body,)) or self._last
            except StoreError as error:  # of a queue that is paged
                self._failed = error
            yield
        if not self._taken and self._send_return is not None:
            self._send_return(body)

    def _append(self, body: bytes, others: list[Queue]) -> Iterator[None]:
        """To the durable queues; `others` gets those that are not. Raises StoreError."""
        wide = WideAppend(self._broker, self._head, (body,))
        with paused(len(self._queues)):
            for some in batched(self._queues, QUEUES_PER_STEP):
                others += [queue for queue in some if not queue.durable]
                open_ = self._open([queue for queue in some if queue.durable])
                wide.expect([(queue, queue.log) for queue in open_ if queue.log is not None])
                yield
            yield from wide.steps()
        self._last = wide.done

    def _open(self, queues: Sequence[Queue]) -> Sequence[Queue]:
        """Those that will have the message."""
        queues = [queue for queue in queues if not queue.deleted]
        if self._send_return is not None:
            queues = [queue for queue in queues if queue.takes_now]
        for queue in queues:
            if queue.capped and queue.kind.arguments.rejects and not queue.room_for(self._head, 1):
                self._failed = self._failed or StoreError("a queue is full")
        open_ = self._broker.with_room(self._head, queues)
        self._taken = self._taken or bool(queues)
        return open_
