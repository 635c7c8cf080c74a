"""What the administration does with AMQP's messages: how the actions of all protocols find and move them."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from heapq import merge, nsmallest
from itertools import chain
from typing import TYPE_CHECKING

import attrs
import trio

from dmp import shown_properties
from dmp.bodies import part_bytes
from dmp.cold_records import IN_ROW
from dmp.dead_letters import REASONS
from dmp.exchanges import DEFAULT_IN_RULES
from dmp.queue_records import operations
from dmp.queues import Queue, resolve_when_written
from dmp.refusals import shown
from dmp.tries import timed
from shared.access import WRITE, asker_may
from shared.errors import BrokerError, StoreError
from shared.objects import SHOWN_BYTES_MAX, BadArgument, MessageRows, ObjectMissing, time_text
from shared.queues.cold import is_cold
from shared.queues.deaths import Death
from shared.queues.naming import MessageName, NewTime
from shared.queues.runs import Run
from shared.queues.sifting import MessageActions
from shared.storage.log import RecordTimes, Ticket, read_records
from shared.task_turns import TaskTurn

if TYPE_CHECKING:
    from dmp.amqp.channel import Channel
    from dmp.broker import Broker

DEFAULT_NAME = DEFAULT_IN_RULES.decode()
READ_BYTES = 256 << 10
_LOOKED_AT = 8192
"""Numbers between two looks at the clock: a millisecond."""


class Messages(MessageActions[Queue]):
    """The messages of one broker."""

    reasons = REASONS

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker.work)
        self._broker = broker

    def find(self, name: str) -> Queue | None:
        return self._broker.queues.get(name.encode())

    def may_write(self, queue: Queue) -> bool:
        return asker_may(self._broker.access, WRITE, queue.name)

    def waiting(self, queue: Queue) -> int:
        return queue.depth

    async def look(self, queue: Queue, most: int, least: int) -> AsyncGenerator[tuple[Run, int | None]]:
        """Those that are ready, then those that wait in the log: in memory as they were when this began."""
        records = _ColdRecords(queue)
        async with aclosing(self._places(queue, records, most, least)) as places:
            async for message in places:
                shown = await records.read(message.first) if is_cold(message) else message
                if shown is not None:
                    if not most:
                        return
                    most -= 1
                    yield shown, arrived_ms(queue, shown)

    async def _places(
        self, queue: Queue, records: _ColdRecords, most: int, least: int
    ) -> AsyncGenerator[Run]:
        """Each message as a run, which may be cold."""
        cold, log = queue.row.cold, queue.log
        due = map(_place, await records.numbers(least, most, due=True))
        ready: list[Run] = []  # what is ready may be cut meanwhile
        count = 0
        for run in chain(*queue.aside, queue.ready, queue.later):
            if count >= most:
                break
            if run.end > least and not is_cold(run):
                ready.append(run.part(max(least - run.first, 0), len(run)))
                count += len(ready[-1])
        row = merge(ready, due) if queue.ready.in_order else chain(ready, due)
        following = next(row, None)

        def before(end: float) -> Iterator[Run]:
            nonlocal following
            while following is not None and following.first < end:
                yield from following.singles()
                following = next(row, None)

        first, left, offset = (cold.first, cold.count, cold.offset) if cold is not None else (0, 0, 0)
        while left and log is not None and cold is not None:
            data = await read_records(log.log, offset, READ_BYTES)
            if not data:
                break
            for record in cold.messages_in(data, offset, first):
                if isinstance(record, Run) and left:
                    left -= 1
                    first = record.end
                    if record.first >= least:
                        for message in before(record.first):
                            yield message
                        yield record
            offset += len(data)
        for message in before(math.inf):
            yield message
        for number in await records.numbers(least, most):
            yield _place(number)

    async def show(self, rows: MessageRows, queue: Queue, message: Run, time_ms: int | None) -> None:
        head, body = message.head, message.bodies[0]
        rows.add(
            message.first,
            await self._beginning(body) if head.large else body,
            time_ms,
            size=head.body_bytes,
            properties=shown_properties.show(head.properties),
            exchange=head.exchange.decode(errors="replace") or DEFAULT_NAME,
            key=head.key.decode(errors="replace"),
            redelivered=message.tries > 0,
            **({"due": time_text(head.due_ms)} if (head.due_ms or 0) > self.now_ms() else {}),
        )

    async def _beginning(self, reference: bytes) -> bytes:
        """The beginning of a large body, as much as is shown. Raises StoreError."""
        log = self._broker.bodies[reference].log
        parts: list[bytes] = []
        offset = log.first
        while sum(map(len, parts)) < SHOWN_BYTES_MAX:
            data = await read_records(log, offset, SHOWN_BYTES_MAX)
            if not data:
                break
            parts += [part_bytes(op, data, start, end) for op, start, end in operations(data)]
            offset += len(data)
        return b"".join(parts)

    def now_ms(self) -> int:
        return int(self._broker.wall_seconds() * 1000)

    def death(self, queue: Queue, run: Run, place: int) -> Death[Queue] | None:
        return self._broker.dead_letters.death(queue, run.head)

    async def ready_to_sift(self, queue: Queue) -> None:
        pass

    async def load(self, queue: Queue) -> bool:
        """False, too, where there is no memory for more."""
        if self._broker.memory.full or not queue.row.is_loading:
            return False
        warm = trio.Event()
        queue.row.when_loaded(warm.set)
        await warm.wait()
        return True

    def take_front(self, queue: Queue, most: int) -> list[Run]:
        return [] if self._broker.memory.full else queue.take_front(most)

    def return_front(self, queue: Queue, runs: list[Run]) -> None:
        queue.return_front(runs)

    def room(self, target: Queue, run: Run | None) -> float:
        if run is None or not target.capacity.capped:
            return math.inf
        return target.capacity.room_for(run.head, len(run))

    def send(self, queue: Queue, run: Run, target: Queue) -> Ticket | None:
        return self._broker.dead_letters.send_to(queue, run, target)

    def drop(self, queue: Queue, run: Run) -> Ticket | None:
        queue.leave((run,))
        return _whole(queue)

    async def named(self, queue: Queue, name: MessageName) -> tuple[Run, int | None, str]:
        number = _number_of(queue, name)
        run, state = queue.later.find(number), "waiting"
        while run is not None and is_cold(run):
            place = run.offset
            state = "waiting" if run.head.due_ms > queue.later.now_ms else "ready"
            run = await _ColdRecords(queue).read(number) or queue.later.find(number)
            if run is not None and is_cold(run) and run.offset == place:
                run = None  # what its record says cannot be read
        if run is None:
            run, state = queue.ready.find(number), "ready"
            if run is None or is_cold(run):
                run = await self._in_row(queue, number)
        if run is None:
            run, state = _held_in(queue, number), "held"
        if run is None:
            raise _not_there(queue, name)
        message = run.part(number - run.first, number - run.first + 1)
        return message, arrived_ms(queue, message), state

    async def _in_row(self, queue: Queue, number: int) -> Run | None:
        """A message of the row that is in the log alone; it stays. None: there is none of this number."""
        cold, log = queue.row.cold, queue.log
        offset = None if cold is None or log is None else cold.offset
        while offset is not None and cold is not None and log is not None:
            if not (cold.count and cold.first <= number < cold.end):
                return None
            data = await read_records(log.log, offset, READ_BYTES)
            for record in cold.messages_in(data, offset, number):
                if isinstance(record, Run):
                    return record if record.first == number else None
            offset = offset + len(data) if data else None
        return None

    async def cancel_named(self, queue: Queue, name: MessageName) -> Ticket | None:
        run = await self._taken_out(queue, name)
        queue.leave((run,), taken=False)
        self._broker.counts.cancelled += 1
        return _whole(queue)

    async def reschedule_named(self, queue: Queue, name: MessageName, time: NewTime) -> Ticket | None:
        run, now_ms = await self._taken_out(queue, name), queue.later.now_ms
        due_ms = time.due_ms(now_ms)
        run.head = timed(run.head, due_ms if due_ms > now_ms else 0, by_clock=time.delay_ms is None)
        queue.put_off(run)
        return _whole(queue)

    def take_back(self, queue: Queue, name: MessageName, *, dry_run: bool) -> None:
        """AMQP has no words for it: an acknowledgement of what is not held any more ends the channel."""
        raise BadArgument(f"{name} is held by a client: kick its connection, and all that it holds goes back")

    async def _taken_out(self, queue: Queue, name: MessageName) -> Run:
        """The message, which nobody holds and which may be cold, out of its place. Raises BadArgument."""
        number = _number_of(queue, name)
        while (run := queue.later.take_out(number) or queue.row.take_out(number)) is None:
            found = await self._in_row(queue, number)
            if found is None:
                break
            if queue.row.cold is not None and queue.row.cold.take_out(found):  # else it is in memory by now
                queue.charge_runs((found,))
                queue.row.put_back((found,))
        if run is not None:
            if not queue.row.is_loading:  # what was on its way may have been this one
                queue.row.tell_loaded()
            return run
        if _held_in(queue, number) is not None:
            raise BadArgument(f"{name} is held by a client")
        raise _not_there(queue, name)

    async def settle(self, ticket: Ticket | None = None) -> None:
        await settled(self._broker, ticket)

    async def shown(self, target: Queue) -> None:
        there = trio.Event()
        target.arrivals.when_synced(there.set)
        await settled(self._broker, None)
        await there.wait()


def _place(number: int) -> Run:
    """A message that is in the log alone."""
    return Run(IN_ROW, [b""], number)


@attrs.define(eq=False)
class _ColdRecords:
    """Reads messages of a queue that wait in its log alone, or have waited there; they stay."""

    _queue: Queue
    _start: int = 0
    _data: bytes = b""

    async def numbers(self, least: int, most: int, *, due: bool = False) -> list[int]:
        """The first so many from there on, ascending: of those whose time has come, or of the others."""
        log, turn = self._queue.log, TaskTurn()
        numbers = [] if log is None else [*log.waiting.due] if due else log.waiting.waiting
        first: list[int] = []
        for at in range(0, len(numbers), _LOOKED_AT):
            first = nsmallest(most, [*first, *[n for n in numbers[at : at + _LOOKED_AT] if n >= least]])
            if turn.over_now():
                await turn.others()
        return first

    async def read(self, number: int) -> Run | None:
        """A message as it is there. None: it has left, or is lost. Raises StoreError."""
        log = self._queue.log
        while log is not None and (waiting := log.waiting.get(number)) is not None:
            place = waiting.offset
            if not self._start <= place < self._start + len(self._data):
                try:
                    self._start, self._data = place, await read_records(log.log, place, READ_BYTES)
                except StoreError:
                    if log.waiting.place_of(number) == place:
                        raise
                    continue  # its record was moved meanwhile
            return self._queue.later.message_in(self._data, self._start, waiting)
        return None


def _whole(queue: Queue) -> Ticket:
    """Done when what was changed in the queue is written."""
    whole = Ticket()
    resolve_when_written(whole, queue.log)
    return whole


def _number_of(queue: Queue, name: MessageName) -> int:
    """Raises BadArgument, ObjectMissing."""
    if not name.dedup:
        return name.number
    if queue.once is None:
        raise BadArgument("dedup: the queue knows no names: it has no x-message-deduplication")
    number = queue.once.number_of(name.dedup)
    if number is None:
        raise ObjectMissing(f"no message {name} is in {shown(queue.name)}")
    return number


def _held_in(queue: Queue, number: int) -> Run | None:
    """The message, if a consumer of the queue holds it."""
    for taker in queue.takers:
        channel: Channel | None = getattr(taker, "channel", None)
        for _, holder, run in () if channel is None else channel.unacked:
            if holder.queue is queue and number in run.numbers:
                return run
    return None


def _not_there(queue: Queue, name: MessageName) -> BrokerError:
    """Why a message cannot be found: a name is known, and then it is somewhere."""
    if name.dedup:
        return BadArgument(f"{name} is held by a client that took it by basic.get, or on its way to the disk")
    return ObjectMissing(f"no message {name} waits in {shown(queue.name)}, nor does a consumer of it hold it")


async def settled(broker: Broker, ticket: Ticket | None) -> None:
    """What was changed goes to the disk, and what waits for it goes on. Raises StoreError."""
    broker.flush()
    broker.store.commit_pending()
    await broker.store.wait(ticket)


def arrived_ms(queue: Queue, message: Run) -> int | None:
    """When the first message of a run arrived, in Unix ms; None where no record says so."""
    log = queue.log
    place: int | None = message.offset
    if log is not None and is_cold(message):
        place = log.waiting.place_of(message.first)
    if log is None or place is None or place < 0 or log.is_copy(message.first):
        return None
    return RecordTimes(log.log, place, place + 1).at(place)
