"""Messages for very many queues: put into them in slices, and others have their turn in between.

What is persistent goes to all durable queues in one entry of the journal, which a crash keeps or loses as a
whole. `WideAppend` first has messages made, and counted. Then each queue gets numbers, a record and a place
for them, all at once. So it has them in the order of its records, whatever else comes to it. The store holds
the entry until all queues have theirs. At last they are ready, and given out. All of that goes in slices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
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
Leaving: TypeAlias = tuple[Queue, QueueLog, Message]
"""A message that has a record in its queue's log."""


class WideContext(Protocol):
    """What both ask of the broker."""

    bodies: Bodies
    sliced_work: SlicedWork
    store: Store

    def with_room(self, head: Head, queues: Sequence[Queue]) -> list[Queue]:
        """Without those that are full."""

    def publish_to(self, head: Head, queues: Sequence[Queue], bodies: Sequence[bytes]) -> Ticket | None:
        """To all of them."""

    def report_crash(self, error: Exception) -> None:
        """A bug."""


@attrs.define(eq=False)
class WideAppend:
    """A run on its way to very many durable queues: go through `steps`, or `append` it at once.

    `leaving`: what leaves its queue in the same batch. `done`: all have it, or none will. That is later than
    the store's own ticket, for they hear of it in slices, too.
    """

    _broker: WideContext
    _head: Head
    _bodies: Sequence[bytes]
    _leaving: Leaving | None = None
    done: Ticket = attrs.field(factory=Ticket, init=False)
    _stored: Ticket = attrs.field(factory=Ticket, init=False)
    _expected: list[_Expected] = attrs.field(factory=list, init=False)
    _modes: set[Durability] = attrs.field(factory=set, init=False)
    _coming: list[_Placed] = attrs.field(factory=list, init=False)
    _gone: list[_Expected] = attrs.field(factory=list, init=False)  # deleted before they got it
    _held: Held | None = attrs.field(default=None, init=False)
    _pack: Callable[[int], bytes] = attrs.field(init=False)
    _taken: bytes = attrs.field(default=b"", init=False)  # the record of what leaves

    def append(self, queues: Sequence[tuple[Queue, QueueLog]]) -> None:
        """The same as `steps`, all at once."""
        for _ in self.steps((queues,)):
            pass

    def steps(self, slices: Iterable[Iterable[tuple[Queue, QueueLog]]]) -> Iterator[None]:
        """Have the queues of one slice after the other expect it, then write it to those that are not deleted
        meanwhile.

        Raises StoreError where the store refuses it, and whatever a bug may raise. Either way no queue has
        got anything, and hears of that in slices. A bug amid the records leaves the store read-only.
        """
        broker, bodies = self._broker, self._bodies
        try:
            for queues in slices:
                for queue, log in queues:
                    self._modes.add(log.log.mode)
                    self._expected.append((queue, log.log, queue.expect(self._head, bodies)))
                yield
            whole = broker.bodies.whole_records(bodies) if self._head.large else []
            held = self._hold(whole)
        except Exception as error:
            self._tell_later(error if isinstance(error, StoreError) else bug(error))
            raise
        held.ticket.when_done(lambda done: self._tell_later(done.error))
        try:
            if whole:
                held.append(whole)
                broker.bodies.whole_appended(bodies, held.ticket)
            while self._expected and not held.released:
                self._append(held)
                yield
        except Exception as error:
            held.release(error)
            raise
        finally:  # also where nobody goes on with this
            self._complete()

    def _hold(self, whole: Sequence[tuple[Log, bytes, int]]) -> Held:
        """Raises StoreError."""
        head, bodies = self._head, self._bodies
        self._pack = putter(head, bodies)
        count = len(self._expected)
        size = put_bytes(head) * len(bodies) * count + sum([len(records) for _, records, _ in whole])
        if self._leaving is not None:
            _, log, message = self._leaving
            self._taken = log.leaving([message])
            size += len(self._taken)
        self._held = self._broker.store.hold(
            size, count + len(whole) + 1, self._modes, self._complete, reserved=bool(self._taken)
        )
        return self._held

    def _complete(self) -> None:
        """Append the rest: the store calls it where it cannot wait."""
        held = self._held
        if held is None or held.released:
            return
        try:
            while self._expected:
                self._append(held)
            if self._leaving is not None:
                queue, log, message = self._leaving
                if not queue.deleted:
                    held.append([(log.log, self._taken, 1)])
                log.left([message])
        except Exception as error:
            held.release(error)
            raise
        held.release()

    def _append(self, held: Held) -> None:
        """Give the next queues numbers, records and places. Each is expected until it has all that."""
        expected, count = self._expected, len(self._bodies)
        some = expected[: -QUEUES_PER_STEP - 1 : -1]
        firsts: list[int] = []
        parts: list[tuple[Log, bytes, int]] = []
        for queue, log, _ in some:
            if not queue.deleted:
                first = queue.numbered
                queue.numbered = first + count
                firsts.append(first)
                parts.append((log, self._pack(first), count))
        places = zip(firsts, held.append(parts), strict=True)
        for each in some:
            queue, _, messages = each
            if queue.deleted:
                self._gone.append(each)
            else:
                first, offset = next(places)
                queue.place(messages, self._stored)
                self._coming.append((queue, messages, first, offset))
            expected.pop()  # let go of here, for that takes as long

    def _tell_later(self, error: StoreError | None) -> None:
        self._broker.sliced_work.add(self._tell(error))

    def _tell(self, error: StoreError | None) -> Iterator[None]:
        """The disk has it, or it cannot be written. Whatever came to the queues later waits until all is told
        here."""
        for those in batched(self._coming, QUEUES_PER_STEP):
            size = put_bytes(self._head)
            for _, messages, first, offset in those:
                for place, message in enumerate(messages):
                    message.number, message.offset = first + place, offset + place * size
            yield
        self._stored.resolve(error)
        for those in taken_out(self._coming.pop, self._coming, QUEUES_PER_STEP):
            for queue, _, _, _ in those:
                queue.synced(self._stored)
            yield
        for some in batched(chain(self._gone, self._expected), QUEUES_PER_STEP):
            for queue, _, messages in some:
                queue.not_coming(messages)
            yield
        self.done.resolve(error)


def bug(error: Exception) -> StoreError:
    """What is told to who waits for what a bug has kept from being written."""
    return StoreError(f"a bug in the broker: {type(error).__name__}")


@attrs.define(eq=False)
class Publication:
    """A run on its way to very many queues, one message after the other: go through `steps`.

    `whole`: all have it. Its error says that some queue rejects what it has no room for, or that the store
    refuses a message. Then `on_refused` was called, too, and no queue has got that one, nor any behind it.
    `send_return`: of what nobody can take at once, which then goes nowhere else (`immediate`). `leaving`:
    what leaves its queue in the batch of the durable ones; the message is persistent.
    """

    _broker: WideContext
    _head: Head
    _queues: Sequence[Queue]
    _bodies: Sequence[bytes]
    _on_refused: Callable[[StoreError], None]
    _send_return: Callable[[bytes], None] | None = None
    _leaving: Leaving | None = None
    whole: Ticket = attrs.field(factory=Ticket, init=False)
    _last: Ticket | None = attrs.field(default=None, init=False)
    _failed: StoreError | None = attrs.field(default=None, init=False)
    _taken: bool = attrs.field(default=False, init=False)  # some queue has the message

    def __attrs_post_init__(self) -> None:
        if self._head.large:
            for body in self._bodies:
                self._broker.bodies.refer(body)

    def steps(self) -> Iterator[None]:
        """Of half a millisecond each. A bug refuses a message as the store does, and is reported."""
        failed: StoreError | None = None
        try:
            for body in self._bodies:
                yield from self._publish(body)
        except StoreError as error:
            failed = error
        except Exception as error:
            self._broker.report_crash(error)
            failed = bug(error)
        if failed is not None:
            self._failed = failed
            self._on_refused(failed)
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
            wide = WideAppend(self._broker, self._head, (body,), self._leaving)
            with paused(len(self._queues)):
                yield from wide.steps(self._durable(queues))
            self._last = wide.done
        for some in batched(queues, QUEUES_PER_STEP):
            try:
                self._last = self._broker.publish_to(self._head, self._open(some), (body,)) or self._last
            except StoreError as error:  # of a queue that is paged
                self._failed = error
            yield
        if not self._taken and self._send_return is not None:
            self._send_return(body)

    def _durable(self, others: list[Queue]) -> Iterator[list[tuple[Queue, QueueLog]]]:
        """Those that have a log, in slices; `others` gets those that have none."""
        for some in batched(self._queues, QUEUES_PER_STEP):
            others += [queue for queue in some if not queue.durable]
            open_ = self._open([queue for queue in some if queue.durable])
            yield [(queue, queue.log) for queue in open_ if queue.log is not None]

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
