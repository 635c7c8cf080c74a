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
from dmp.queues import Queue
from dmp.series import QUEUES_PER_STEP, Leaving, Series, bug
from shared.errors import StoreError
from shared.garbage import paused
from shared.storage.log import Log, Ticket
from shared.storage.settings import Durability
from shared.turns import Work, batched, taken_out

if TYPE_CHECKING:
    from dmp.bodies import Bodies
    from shared.storage.committer import HeldBatch
    from shared.storage.store import Store


_Expected: TypeAlias = tuple[Queue, Series, list[Message]]
_Placed: TypeAlias = tuple[Queue, list[Message], int, int, int]
"""The number of the first message, its offset in the log, and how far the next one is behind it; of what has
no record -1 and 0."""


class WideContext(Protocol):
    """What both ask of the broker."""

    bodies: Bodies
    long_work: Work
    store: Store

    def with_room(self, head: Head, queues: Sequence[Queue]) -> list[Queue]:
        """The queues without those that are full."""

    def publish_to(self, head: Head, queues: Sequence[Queue], bodies: Sequence[bytes]) -> Ticket | None:
        """Publish to all of the queues."""

    def report_crash(self, error: Exception) -> None:
        """A bug."""


@attrs.define(eq=False)
class WideAppend:
    """Runs on their way to very many queues, in one batch of the journal: go through `steps`, or `append` all
    at once.

    What needs no record is ready when the others are. `leaving`: what leaves queues in the same batch; the
    slices may fill it. `reserved`: the batch may use the room that is kept for what leaves. `done`: all have
    it, or none will. That is later than the store's own ticket, for they hear of it in slices, too.
    """

    _broker: WideContext
    _leaving: list[Leaving] = attrs.field(factory=list)
    _reserved: bool = False
    done: Ticket = attrs.field(factory=Ticket, init=False)
    _stored: Ticket = attrs.field(factory=Ticket, init=False)
    _expected: list[_Expected] = attrs.field(factory=list, init=False)
    _logged: bool = attrs.field(default=False, init=False)  # some of it needs a record
    _modes: set[Durability] = attrs.field(factory=set, init=False)
    _bytes: int = attrs.field(default=0, init=False)  # of records, at most
    _large: dict[bytes, None] = attrs.field(factory=dict, init=False)  # references in records
    _coming: list[_Placed] = attrs.field(factory=list, init=False)
    _gone: list[_Expected] = attrs.field(factory=list, init=False)  # deleted before they got it
    _held: HeldBatch | None = attrs.field(default=None, init=False)
    _paged: Ticket | None = attrs.field(default=None, init=False)  # of records where no batch is held

    def append(self, entries: Iterable[tuple[Queue, Series]]) -> None:
        """Do what `steps` does, all at once."""
        for _ in self.steps((entries,)):
            pass

    def steps(self, slices: Iterable[Iterable[tuple[Queue, Series]]]) -> Iterator[None]:
        """Have the queues of one slice after the other expect it, then write it to those that are not deleted
        meanwhile. Each queue has its runs in this order.

        Raises StoreError where the store refuses it, and whatever the slices or a bug may raise. Either way
        no queue has got anything, and hears of that in slices. A bug amid the records leaves the store
        read-only.
        """
        try:
            for entries in slices:
                for queue, series in entries:
                    self._expect(queue, series)
                yield
            self._expected.reverse()  # to be taken off the end
            self._leaving.reverse()
            if not (self._logged or self._leaving):
                while self._expected:
                    self._append()
                    yield
                if self._paged is None:
                    self._tell_later(None)
                else:
                    self._paged.when_done(lambda done: self._tell_later(done.error))
                return
            whole = self._broker.bodies.whole_records(self._large)
            held = self._hold(whole)
        except Exception as error:
            self._tell_later(error if isinstance(error, StoreError) else bug(error))
            raise
        held.ticket.when_done(lambda done: self._tell_later(done.error))
        try:
            if whole:
                held.append(whole)
                self._broker.bodies.whole_appended(self._large, held.ticket)
            while (self._expected or self._leaving) and not held.released:
                self._append_more(held)
                yield
        except Exception as error:
            held.release(error)
            raise
        finally:  # also where nobody goes on with this
            self._complete()

    def _expect(self, queue: Queue, series: Series) -> None:
        head, log = series.head, queue.log
        if log is not None:
            self._bytes += series.record_bytes * len(series.bodies)
            if head.persistent or queue.paged:
                series.prepare()
                self._logged = True
                self._modes.add(log.log.mode)
                if head.large:
                    self._large.update(dict.fromkeys(series.bodies))
        self._expected.append((queue, series, queue.expect(head, series.bodies)))

    def _hold(self, whole: Sequence[tuple[Log, bytes, int]]) -> HeldBatch:
        """Raises StoreError."""
        size = self._bytes + sum([len(records) for _, records, _ in whole])
        size += sum([len(each.record) for each in self._leaving])
        count = len(self._expected) + len(whole) + len(self._leaving)
        self._modes.update([each.log.log.mode for each in self._leaving])
        reserved = self._reserved or not self._logged
        self._held = self._broker.store.hold(size, count, self._modes, self._complete, reserved=reserved)
        return self._held

    def _complete(self) -> None:
        """Append the rest: the store calls it where it cannot wait."""
        held = self._held
        if held is None or held.released:
            return
        try:
            while self._expected or self._leaving:
                self._append_more(held)
        except Exception as error:
            held.release(error)
            raise
        held.release()

    def _append_more(self, held: HeldBatch) -> None:
        if self._expected:
            self._append(held)
            return
        some = self._leaving[: -QUEUES_PER_STEP - 1 : -1]
        there = [each for each in some if each.record and not each.queue.deleted]
        held.append([(each.log.log, each.record, each.count) for each in there])
        for each in some:
            each.written()
            self._leaving.pop()

    def _append(self, held: HeldBatch | None = None) -> None:
        """Give the next queues numbers, records and places. Each is expected until it has all that.

        Where no batch is held nothing needs a record, but in queues that are paged since. Raises StoreError.
        """
        expected = self._expected
        some = expected[: -QUEUES_PER_STEP - 1 : -1]
        firsts: list[tuple[int, bool]] = []
        parts: list[tuple[Log, bytes, int]] = []
        for queue, series, _ in some:
            if not queue.deleted:
                first, count, log = queue.numbered, len(series.bodies), queue.log
                queue.numbered = first + count
                logged = log is not None and (series.head.persistent or queue.paged)
                firsts.append((first, logged))
                if log is not None and logged:
                    parts.append((log.log, series.pack(first), count))
        if held is not None:
            offsets = held.append(parts)
        elif parts:
            offsets, self._paged = self._broker.store.append_all(parts)
        else:
            offsets = []
        places, ends = iter(firsts), iter(offsets)
        for each in some:
            queue, series, messages = each
            if queue.deleted:
                self._gone.append(each)
            else:
                first, logged = next(places)
                queue.place(messages, self._stored, logged=logged)
                offset, size = (next(ends), series.record_bytes) if logged else (-1, 0)
                self._coming.append((queue, messages, first, offset, size))
            expected.pop()  # let go of here, for that takes as long

    def _tell_later(self, error: StoreError | None) -> None:
        self._broker.long_work.add(self._tell(error))

    def _tell(self, error: StoreError | None) -> Iterator[None]:
        """The disk has it, or it cannot be written. Whatever came to the queues later waits until all is told
        here."""
        for those in batched(self._coming):
            for _, messages, first, offset, size in those:
                for place, message in enumerate(messages):
                    message.number, message.offset = first + place, offset + place * size
            yield
        self._stored.resolve(error)
        for those in taken_out(self._coming.pop, self._coming):
            for queue, *_ in those:
                queue.synced(self._stored)
            yield
        for some in batched(chain(self._gone, self._expected)):
            for queue, _, messages in some:
                queue.not_coming(messages)
            yield
        self.done.resolve(error)


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
        """Publish in steps of half a millisecond each. A bug refuses a message as the store does, and is
        reported."""
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
            leaving = [] if self._leaving is None else [self._leaving]
            wide = WideAppend(self._broker, leaving, reserved=bool(leaving))
            with paused(len(self._queues)):
                yield from wide.steps(self._durable(Series(self._head, (body,)), queues))
            self._last = wide.done
        for some in batched(queues):
            try:
                self._last = self._broker.publish_to(self._head, self._open(some), (body,)) or self._last
            except StoreError as error:  # of a queue that is paged
                self._failed = error
            yield
        if not self._taken and self._send_return is not None:
            self._send_return(body)

    def _durable(self, series: Series, others: list[Queue]) -> Iterator[list[tuple[Queue, Series]]]:
        """The queues that have a log, in slices; `others` gets those that have none."""
        for some in batched(self._queues):
            others += [queue for queue in some if not queue.durable]
            yield [(queue, series) for queue in self._open([queue for queue in some if queue.durable])]

    def _open(self, queues: Sequence[Queue]) -> Sequence[Queue]:
        """The queues that will have the message."""
        queues = [queue for queue in queues if not queue.deleted]
        if self._send_return is not None:
            queues = [queue for queue in queues if queue.takes_now]
        for queue in queues:
            if queue.capped and queue.kind.arguments.rejects and not queue.room_for(self._head, 1):
                self._failed = self._failed or StoreError("a queue is full")
        open_ = self._broker.with_room(self._head, queues)
        self._taken = self._taken or bool(queues)
        return open_
