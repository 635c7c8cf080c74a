"""The queues that the API shows, and the actions on them, most of which have no request on the wire."""

import math
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from operator import attrgetter
from pathlib import Path
from typing import Any

from dms import records
from dms.actions import CHANGE, OPTIONS
from dms.dmsq_file import SUFFIX, DmsqWriter, import_into, read
from dms.engine import Consumer, Engine, Queue
from dms.options import check_options
from dms.records import DeadLetter, Reason, RecordKind
from dms.wire import PAYLOAD_BYTES_MAX, Refusal, Status, name_untrusted
from shared.access import ASKER, WRITE, Guard, asker_may
from shared.actions import (
    DISCARD,
    MOVE,
    PEEK,
    PEEK_MAX,
    PURGE,
    REDRIVE,
    SIFTED_MAX,
    action,
    changing,
    putting,
)
from shared.errors import EXIT_MISSING, BrokerError, StoreError
from shared.objects import (
    CONSUMERS,
    QUEUES,
    SEARCHED_MAX,
    Argument,
    BadArgument,
    MessageRows,
    Objects,
    a_body,
    a_count,
    a_text,
    an_optional_count,
    key_of,
)
from shared.queues import pausing
from shared.queues.runs import RUN_MOST, Run, first_of, split_after, split_by, to_spans
from shared.storage.log import Log, RecordTimes, Ticket, read_records
from shared.task_turns import TaskTurn
from shared.turns import Turn, taken_out

READ_BYTES = 1 << 20

GoesTo = Callable[[int, bytes], Queue | None]
"""By sequence and body: the queue that a message goes to."""
Shown = tuple[int, bytes, int, int | None]
"""A message: sequence, body, deliveries, and when it arrived (Unix ms), if its record was read."""


class FileMissing(BrokerError):
    """There is no such file to import."""

    exit_code = EXIT_MISSING


class Admin:
    """The administrative operations of one engine."""

    def __init__(self, engine: Engine, access: Guard | None = None) -> None:
        self._engine = engine
        self._access = access
        self.objects: Sequence[Objects] = (
            Objects(
                QUEUES,
                lambda: list(engine.queues.values()),
                lambda queue: key_of(queue.text),
                self._find,
                self._row,
                (
                    *(self._peek, self._put, self._change, self._move, self._redrive, self._discard),
                    *(self._purge, self._delete, self._export),
                    *pausing.actions(self._set_paused, lambda queue: queue.text, engine.log),
                ),
                (self._create, self._import),
                begin="brokers dms create jobs",
                totals=_totals,
                values={**_VALUES, "oldest_seconds": self._recovered_age},
            ),
            Objects(
                CONSUMERS,
                lambda: [each for each in engine.consumers.values() if each.queue is not None],
                lambda consumer: f"dms-{consumer.number}",
                lambda parts: self._find_consumer(parts[0]),
                _consumer,
                begin="brokers dms consume jobs",
                totals=lambda consumer: (consumer.delivered, consumer.delivered, None),
                values={"queue": _queue_of},
            ),
        )

    def _find_consumer(self, name: str) -> Consumer | None:
        protocol, _, number = name.partition("-")
        known = protocol == "dms" and number.isdecimal() and len(number) < 20
        consumer = self._engine.consumers.get(int(number)) if known else None
        return None if consumer is None or consumer.queue is None else consumer

    def _find(self, parts: Sequence[str]) -> Queue | None:
        return self._engine.find(parts[0])

    def _row(self, queue: Queue) -> dict[str, Any] | None:
        if queue.deleted:
            return None
        return {
            **{name: read(queue) for name, read in _VALUES.items()},
            "oldest_seconds": self._recovered_age(queue),
            "settings": _settings(queue),
        }

    def _recovered_age(self, queue: Queue) -> float | None:
        """Seconds that the next message of the row has been there, if it came before this process; by its
        log's index, to 64 KiB.
        """
        cold = queue.cold
        if (
            cold is None
            or queue.ready.requeued
            or not queue.head < min(queue.end, queue.recovered, queue.released)
        ):
            return None
        start = cold.row_start()
        came = RecordTimes(cold.log, start, start + 1).at(start)
        return None if came is None else max(self._engine.times.unix_ms() - came, 0) / 1000

    @PEEK
    async def _peek(self, queue: Queue, arguments: Mapping[str, Any], _: bool) -> dict[str, Any]:
        rows = MessageRows(a_count(arguments, "limit", 10, 1, PEEK_MAX), a_text(arguments, "contains", ""))
        least = a_count(arguments, "from", 0, 0, 1 << 63)
        following = None
        turn = TaskTurn()
        most = SEARCHED_MAX if rows.is_search else rows.left
        async with aclosing(self._first(queue, most, least)) as messages:
            async for seq, body, deliveries, time_ms in messages:
                if not rows.left:
                    following = seq
                    break
                more = {"dead_letter": body.about} if isinstance(body, DeadLetter) else {}
                rows.add(seq, body, time_ms, properties={"deliveries": deliveries, **more})
                await turn.item()
            else:
                if rows.items and rows.items[-1]["position"] + 1 < queue.end:
                    following = rows.items[-1]["position"] + 1
        return {"items": rows.items, "next": following}

    @changing(
        "create",
        "Make a queue.",
        takes={"name": Argument("up to 255 bytes", required=True), **OPTIONS},
        answers=("created",),
        named_by=("name",),
    )
    async def _create(self, _: Any, arguments: Mapping[str, Any], dry_run: bool) -> dict[str, Any]:
        name = name_untrusted(a_text(arguments, "name").encode())
        asked, user = _asked(arguments, name), ASKER.get()
        if dry_run:
            self._engine.check_new(name, asked, user)
        else:
            _, ticket = self._engine.create(name, asked, user)
            await self._engine.store.wait(ticket)
        return {"created": 1}

    @CHANGE
    async def _change(self, queue: Queue, arguments: Mapping[str, Any], dry_run: bool) -> dict[str, Any]:
        before = self._engine.asked_of(queue)
        new = _asked(arguments, queue.text)
        kept = {name: value for name, value in before.items() if _shown_name(name) not in arguments}
        asked = {**kept, **new}
        if dry_run:
            self._engine.check_options(queue.text, asked)
        elif asked != before:
            await self._engine.store.wait(self._engine.change(queue, asked))
        return {"changed": sum(asked.get(name) != before.get(name) for name in {*asked, *before})}

    @PURGE
    async def _purge(self, queue: Queue, _: Mapping[str, Any], dry_run: bool) -> dict[str, Any]:
        if dry_run:
            return {"purged": queue.depth - queue.held, "held": queue.held}
        await self._confirm(queue)
        row = queue.end - queue.head
        returned = [run for run, _ in queue.returned_runs()]
        purged = row + sum(map(len, returned))
        spans = to_spans(returned)
        if row:
            spans.append((queue.head, row))
        ticket = queue.log_gone(spans, Reason.PURGED) if spans else None
        queue.drop_front(row)
        queue.take_returned()
        queue.drop(returned)
        self._engine.counts.purged += purged
        self._engine.sync_budget()
        await self._engine.store.wait(ticket)
        return {"purged": purged, "held": queue.held}

    @REDRIVE
    async def _redrive(self, queue: Queue, arguments: Mapping[str, Any], dry_run: bool) -> dict[str, Any]:
        """Move dead letters back. Others stay, and so do those whose queue is missing or full, or not to be
        written to by who asks."""
        wanted = an_optional_count(arguments, "position")

        def goes_to(seq: int, body: bytes) -> Queue | None:
            return self._origin(queue, body) if wanted in (None, seq) else None

        moved, left = await self._sift(queue, goes_to, None if wanted is None else 1, dry_run=dry_run)
        if wanted is not None and not moved:
            raise BadArgument(f"position: {wanted} is no dead letter that waits here and can go back")
        return {"moved": moved, "left": left}

    @MOVE
    async def _move(self, queue: Queue, arguments: Mapping[str, Any], dry_run: bool) -> dict[str, Any]:
        name, wanted = a_text(arguments, "to"), an_optional_count(arguments, "position")
        target = self._engine.find(name)
        if target is None or target is queue:
            raise BadArgument(f"to: there is no other queue {name}")
        if not asker_may(self._access, WRITE, name):
            raise BadArgument(f"to: the user may not write to {name}")
        room = max(target.room, 0)
        most = room if wanted is None else min(room, 1)
        if "limit" in arguments:
            most = min(most, a_count(arguments, "limit", 0, 1, 1 << 63))
        chosen = 0

        def goes_to(seq: int, _: bytes) -> Queue | None:
            nonlocal chosen
            chosen += (goes := chosen < most and wanted in (None, seq))
            return target if goes else None

        if wanted is None and dry_run:  # nobody needs to look at each
            moved = min(most, queue.depth - queue.held)
            return {"moved": moved, "left": queue.depth - queue.held - moved}
        moved, left = await self._sift(queue, goes_to, most, dry_run=dry_run)
        if wanted is not None and not moved:
            raise BadArgument(f"position: {wanted} does not wait here, or {name} is full")
        return {"moved": moved, "left": left}

    @DISCARD
    async def _discard(self, queue: Queue, arguments: Mapping[str, Any], dry_run: bool) -> dict[str, Any]:
        wanted = a_count(arguments, "position", -1, 0, 1 << 63)
        discarded, _ = await self._sift(
            queue, lambda seq, _: queue if seq == wanted else None, 1, dry_run=dry_run
        )
        if not discarded:
            raise BadArgument(f"position: {wanted} does not wait among the first {SIFTED_MAX:,} here")
        return {"discarded": discarded}

    async def _sift(
        self, queue: Queue, goes_to: GoesTo, most: int | None, *, dry_run: bool
    ) -> tuple[int, int]:
        """Take `most` waiting messages out, or all that go somewhere: (how many, how many are left).

        `goes_to`: the queue that gets a message; the queue itself: none, it is deleted; None: it stays. With
        `most` only the first messages are looked at, `SIFTED_MAX` and those that go.
        """
        sifted = math.inf if most is None else SIFTED_MAX + most
        gone = looked = 0
        if dry_run:
            turn = TaskTurn()
            async with aclosing(self._first(queue, queue.depth)) as messages:
                async for seq, body, _, _ in messages:
                    looked += 1
                    gone += goes_to(seq, body) is not None
                    if gone == most or looked >= sifted:
                        break
                    await turn.item()
            return gone, queue.depth - queue.held - gone
        await self._confirm(queue)
        end = queue.end
        stay: list[Run] = []
        tickets: list[Ticket] = []
        queue.aside.append(stay)
        try:
            turns = Turn()
            while not queue.deleted and gone != most and looked < sifted:
                if queue.is_cold and not queue.ready.loaded and queue.head < end:
                    await self._load(queue)
                if queue.ready.requeued:
                    taken = [queue.ready.take_requeued(RUN_MOST)]
                else:
                    taken = queue.take_front(min(end - queue.head, RUN_MOST))
                if not taken:
                    break
                looked += sum(map(len, taken))
                gone += self._send_away(queue, taken, goes_to, stay, tickets)
                if turns.over_now():
                    self._engine.commit_pending()
                    await self._pause()
                    turns.begin()
        finally:
            queue.await_returns()
            self._engine.long_work.add(_place_in_slices(queue, stay))
        self._engine.commit_pending()
        await self._engine.store.wait(tickets[-1] if tickets else None)
        return gone, queue.depth - queue.held

    @changing(
        "delete",
        "Delete it, with its messages; those who wait for one are told.",
        answers=("deleted", "messages"),
    )
    async def _delete(self, queue: Queue, _: Mapping[str, Any], dry_run: bool) -> dict[str, Any]:
        messages = queue.depth
        ticket = None if dry_run else self._engine.delete(queue)
        await self._engine.store.wait(ticket)
        return {"deleted": 1, "messages": messages}

    async def _set_paused(self, queue: Queue, paused: bool) -> None:
        ticket = self._engine.set_paused(queue, paused)
        await self._engine.store.wait(ticket)

    @putting("an empty table: messages of DMS have none")
    async def _put(self, queue: Queue, arguments: Mapping[str, Any], dry_run: bool) -> dict[str, Any]:
        body = a_body(arguments)
        if arguments.get("properties", {}) != {}:
            raise BadArgument("properties: messages of DMS have none")
        if len(body) > PAYLOAD_BYTES_MAX - len(queue.name) - 1:
            raise BadArgument(f"a message, with its queue's name, has at most {PAYLOAD_BYTES_MAX} bytes")
        if queue.room < 1:
            raise Refusal(Status.QUEUE_FULL, f"{queue.text} is full")
        ticket = None if dry_run else queue.produce([body], len(body))
        await self._engine.store.wait(ticket)
        return {"published": 1}

    @action(
        "export",
        "Write its messages to a .dmsq file, held ones too; all stay in the queue.",
        takes={
            "target": Argument(
                "a path on the server's machine; over TCP a name in the data folder's backups", required=True
            )
        },
        answers=("messages",),
        paths=("target",),
    )
    async def _export(self, queue: Queue, arguments: Mapping[str, Any], dry_run: bool) -> dict[str, Any]:
        target = Path(a_text(arguments, "target"))
        store = self._engine.store
        try:
            writer: DmsqWriter = await store.in_thread(DmsqWriter, target)
        except OSError as error:
            raise Refusal(Status.INTERNAL, f"{target}: {error.strerror}") from None
        try:
            batch: list[bytes] = []
            size = 0
            async for _, body, _, _ in self._messages(queue):
                batch.append(body)
                size += len(body)
                if size >= READ_BYTES:
                    await store.in_thread(writer.add, batch)
                    batch, size = [], 0
            await store.in_thread(writer.add, batch)
            await store.in_thread(writer.finish)
        except OSError as error:
            await store.in_thread(writer.abandon)
            raise Refusal(Status.INTERNAL, f"{target}: {error.strerror}") from None
        except BaseException:
            writer.abandon()
            raise
        return {"messages": writer.count}

    @action(
        "import",
        "Put a .dmsq file's messages into a queue, which is made where it is missing.",
        takes={
            "source": Argument(
                "the file's path on the server's machine; over TCP a name in the data folder's backups",
                required=True,
            ),
            "queue": "the queue's name; unless said, it is named after the file",
        },
        answers=("messages",),
        tells=("queue",),
        named_by=("source",),
        paths=("source",),
    )
    async def _import(self, _: Any, arguments: Mapping[str, Any], dry_run: bool) -> dict[str, Any]:
        source = Path(a_text(arguments, "source"))
        name = a_text(arguments, "queue", source.name.removesuffix(SUFFIX))
        try:
            file = await self._engine.store.in_thread(read, source)
        except FileNotFoundError as error:
            raise FileMissing(f"{source}: {error.strerror}") from None
        except OSError as error:
            raise Refusal(Status.INTERNAL, f"{source}: {error.strerror}") from None
        queue, ticket = import_into(self._engine, name, file)
        await self._engine.store.wait(ticket)
        if queue.line:
            queue.dispatch()
        return {"messages": len(file.bodies), "queue": queue.text}

    # -- helpers

    async def _messages(self, queue: Queue) -> AsyncGenerator[Shown]:
        """All messages as of now, also unacknowledged ones, oldest first."""
        loaded_end, end = queue.loaded_end, queue.end
        runs = [*(run for run, _ in queue.returned_runs()), *queue.held_runs(), *queue.ready.runs]
        copies = [run.part(0, len(run)) for run in runs]  # what waits may be cut meanwhile
        offset = queue.cold.row_start() if queue.cold is not None else 0
        for run, place in first_of(copies, queue.depth):
            yield run.first + place, run.bodies[place], run.tries, None
        if queue.cold is not None:
            async for entry in self._logged(queue.cold.log, offset, loaded_end, end):
                yield entry

    async def _first(self, queue: Queue, limit: int, least: int = 0) -> AsyncGenerator[Shown]:
        """The first `limit` messages from the sequence `least` on that no consumer holds, oldest first. Those
        of the row that are on disk are read from there, with their times.
        """
        head, end, cold = max(queue.head, least), queue.end, queue.cold
        runs = [part for run, _ in queue.returned_runs() for part in _from(run, least)]
        if queue.log is None or cold is None:
            runs += [part for run in queue.ready.runs for part in _from(run, least)]
            head = end
        offset = cold.row_start() if cold is not None else 0
        if cold is not None and least:
            offset = max([at for first, at in cold.positions if first <= head], default=offset)
        first = [(run.first + place, run.bodies[place], run.tries) for run, place in first_of(runs, limit)]
        for shown in first:
            yield *shown, None
        if cold is not None and len(first) < limit:
            stop = min(end, head + limit - len(first))
            async for entry in self._logged(cold.log, offset, head, stop):
                yield entry

    async def _logged(self, log: Log, offset: int, seq: int, end: int) -> AsyncGenerator[Shown]:
        """The messages from `seq` to `end`, which are in the log from `offset` on."""
        while seq < end:
            try:
                data = await read_records(log, offset, READ_BYTES)
            except StoreError as error:
                raise Refusal(Status.INTERNAL, str(error)) from None
            if not data:
                return
            for record in records.unpack(data):
                last = record.seq + record.entries
                if record.kind in (RecordKind.ENQUEUED, RecordKind.LETTERS) and last > seq:
                    bodies = records.messages_in(data, record)
                    for number in range(max(seq, record.seq), min(last, end)):
                        yield number, bodies[number - record.seq], 0, record.time_ms
                    seq = last
            offset += len(data)

    async def _load(self, queue: Queue) -> None:
        """Read the front of the row into memory."""
        cold = queue.cold
        assert cold is not None
        cold.fetch()
        while queue.is_cold and not queue.ready.loaded and not cold.ended and not queue.deleted:
            await self._pause()
            cold.fetch()

    async def _confirm(self, queue: Queue) -> None:
        """Wait until the disk has accepted or refused what is in the queue now."""
        tail = queue.tail
        while queue.end < min(tail, queue.tail) and not queue.deleted:
            if queue.log is None:
                return
            self._engine.commit_pending()
            await self._pause()

    async def _pause(self) -> None:
        await self._engine.store.in_thread(_nothing)

    def _send_away(
        self,
        queue: Queue,
        runs: Sequence[Run],
        goes_to: GoesTo,
        stay: list[Run],
        tickets: list[Ticket],
    ) -> int:
        """Move messages to where they go, or delete them (`_sift`); returns how many. What stays is added to
        `stay`, and what is deleted once a ticket is done to `tickets`. Raises Refusal."""
        moving: dict[Queue, list[Run]] = {}
        for run in runs:
            for target, part in split_by(run, list(map(goes_to, run.numbers, run.bodies))):
                if target is None:
                    stay.append(part)
                else:
                    moving.setdefault(target, []).append(part)
        gone = 0
        refused: Refusal | None = None
        for target, parts in moving.items():
            fitting, left = (parts, []) if target is queue else split_after(parts, max(target.room, 0))
            stay += left
            letters = [bytes(body) for part in fitting for body in part.bodies]
            try:
                if target is queue:
                    ticket = queue.log_gone(to_spans(fitting), Reason.PURGED)
                    tickets += [ticket] if ticket is not None else []
                    queue.drop(fitting)
                    self._engine.counts.purged += len(letters)
                elif letters:
                    self._engine.move(queue, target, fitting, letters, Reason.REDRIVEN)
                gone += len(letters)
            except Refusal as refusal:
                stay += fitting
                refused = refusal
        if refused is not None:
            raise refused
        return gone

    def _origin(self, queue: Queue, body: bytes) -> Queue | None:
        """The other queue that a dead letter came from; None where that is gone, or who asks may not write to
        it; or it is no dead letter."""
        if not isinstance(body, DeadLetter):
            return None
        origin = self._engine.find(body.origin)
        if origin is queue or not asker_may(self._access, WRITE, body.origin):
            return None
        return origin


def _from(run: Run, least: int) -> Sequence[Run]:
    """What a run has from the sequence `least` on."""
    if run.first >= least:
        return (run,)
    return (run.part(least - run.first, len(run)),) if run.end > least else ()


def _ready_in_row(queue: Queue) -> int:
    expiry = queue.expiry
    if expiry is None:
        return max(min(queue.released, queue.end) - queue.head, 0)
    return max(min(expiry.released, queue.end) - max(queue.head, expiry.expired), 0)


def _delayed(queue: Queue) -> int:
    expiry, in_row = queue.expiry, queue.end - queue.head
    if expiry is None:
        return in_row - _ready_in_row(queue)
    dead_in_row = min(max(expiry.expired - queue.head, 0), in_row)
    return in_row - _ready_in_row(queue) - dead_in_row + expiry.delayed


def _bytes(queue: Queue) -> int:
    cold = queue.cold
    return cold.log.end - cold.log.first if cold is not None and queue.is_cold else queue.payload_bytes


_VALUES: Mapping[str, Callable[[Queue], Any]] = {
    "name": attrgetter("text"),
    "ready": lambda queue: _ready_in_row(queue) + sum([len(run) for _, run in queue.ready.requeued]),
    "held": attrgetter("held"),
    "delayed": _delayed,
    "dead": lambda queue: 0 if queue.expiry is None else queue.expiry.dead,
    "dead_obstacle": lambda queue: queue.engine.dead_obstacle(queue),
    "consumers": attrgetter("consumers"),
    "paused": attrgetter("paused"),
    "bytes": _bytes,
    "full_percent": lambda queue: 100 * queue.depth // queue.options.depth,
    "durable": lambda queue: queue.log is not None,
}
"""Columns of a queue: its messages by state."""


def _settings(queue: Queue) -> dict[str, Any]:
    options = queue.options
    return {name: getattr(options, _OPTION_NAMES.get(name, name)) for name in OPTIONS}


_OPTION_NAMES = {"depth_limit": "depth"}
"""Where the API names an option in another way: `depth` is how many messages there are."""


def _shown_name(option: str) -> str:
    return {own: shown for shown, own in _OPTION_NAMES.items()}.get(option, option)


def _asked(arguments: Mapping[str, Any], queue: str) -> dict[str, Any]:
    """The options in an action's arguments, without those that are null. Raises Refusal."""
    given = {name: value for name, value in arguments.items() if name in OPTIONS and value is not None}
    return check_options({_OPTION_NAMES.get(name, name): value for name, value in given.items()}, queue)


def _queue_of(consumer: Consumer) -> str:
    return "" if consumer.queue is None else consumer.queue.text


def _consumer(consumer: Consumer) -> dict[str, Any] | None:
    if consumer.gone or consumer.queue is None:
        return None
    connection: Any = getattr(consumer.receiver, "connection", None)  # a bridge has none
    number = getattr(connection, "number", None)
    return {
        "id": f"dms-{consumer.number}",
        "queue": consumer.queue.text,
        "connection": None if number is None else f"dms-{number}",
        "peer": getattr(connection, "peer", None),
        "user": getattr(consumer.receiver, "user", None),
        "client": getattr(consumer.receiver, "client", None) or None,
        "held": len(consumer.unacked),
        "room": consumer.waiting,
        "delivered": consumer.delivered,
    }


def _totals(queue: Queue) -> tuple[int, int, int | None]:
    """A queue's totals, for `Objects`. Sequences count arrivals."""
    oldest = None
    if queue.end > queue.head < queue.released:
        oldest = queue.head
    if queue.ready.requeued:
        oldest = queue.ready.requeued[0][0]  # older than the row
    return queue.tail, queue.tail - queue.depth, oldest


def _place_in_slices(queue: Queue, runs: list[Run]) -> Iterator[None]:
    """Make messages that a redrive left aside deliverable again. Until then the queue delivers nothing."""
    runs.reverse()
    try:
        for batch in taken_out(runs.pop, runs):
            for run in batch:
                queue.place(run)
            yield
    finally:
        queue.aside = [aside for aside in queue.aside if aside is not runs]
        if queue.expiry is not None:
            queue.expiry.bury()
        queue.all_returned()


def _nothing() -> None:
    """A step that only lets other tasks run."""
