"""The queues that the API shows, and the actions on them, most of which have no request on the wire."""

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from operator import attrgetter
from pathlib import Path
from typing import Any

from dms import records
from dms.actions import CHANGE, OPTIONS
from dms.dmsq_file import SUFFIX, DmsqWriter, import_into, read
from dms.engine import Engine, Queue
from dms.options import check_options
from dms.records import DeadLetter, Reason, RecordKind
from dms.wire import PAYLOAD_BYTES_MAX, Refusal, Status, name_untrusted
from shared.access import ASKER, WRITE, Guard, asker_may
from shared.actions import PEEK, PEEK_MAX, PURGE, REDRIVE, action, changing, putting
from shared.errors import EXIT_MISSING, BrokerError, StoreError
from shared.objects import (
    QUEUES,
    Argument,
    BadArgument,
    MessageRows,
    Objects,
    a_body,
    a_count,
    a_text,
    key_of,
)
from shared.queues import pausing
from shared.queues.runs import RUN_MOST, Run, first_of, split_after, split_by, to_spans
from shared.storage.log import Log, RecordTimes, read_records
from shared.turns import Turn, taken_out

READ_BYTES = 1 << 20

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
                    *(self._peek, self._put, self._change, self._purge, self._redrive),
                    *(self._delete, self._export),
                    *pausing.actions(self._set_paused, lambda queue: queue.text, engine.log),
                ),
                (self._create, self._import),
                begin="brokers dms create jobs",
                totals=_totals,
                values={**_VALUES, "oldest_seconds": self._recovered_age},
            ),
        )

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
        limit = a_count(arguments, "limit", 10, 1, PEEK_MAX)
        rows = MessageRows(limit)
        async with aclosing(self._first(queue, limit)) as messages:
            async for seq, body, deliveries, time_ms in messages:
                if not rows.left:
                    break
                more = {"dead_letter": body.about} if isinstance(body, DeadLetter) else {}
                rows.add(seq, body, time_ms, properties={"deliveries": deliveries, **more})
        return {"items": rows.items}

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
        queue.drop_row()
        queue.take_returned()
        queue.drop(returned)
        self._engine.counts.purged += purged
        self._engine.sync_budget()
        await self._engine.store.wait(ticket)
        return {"purged": purged, "held": queue.held}

    @REDRIVE
    async def _redrive(self, queue: Queue, _: Mapping[str, Any], dry_run: bool) -> dict[str, Any]:
        """Move dead letters back. Others stay, and so do those whose queue is missing or full, or not to be
        written to by who asks."""
        if dry_run:
            moved = 0
            turn = Turn()
            returned = {seq for run, _ in queue.returned_runs() for seq in run.numbers}
            async with aclosing(self._messages(queue)) as messages:
                async for seq, body, _deliveries, _time in messages:
                    if turn.over():
                        await self._pause()
                        turn.begin()
                    if seq in returned or seq >= queue.head:
                        moved += self._origin(queue, body) is not None
            return {"moved": moved, "left": queue.depth - queue.held - moved}
        await self._confirm(queue)
        end = queue.end
        moved = 0
        stay: list[Run] = []
        queue.aside.append(stay)
        try:
            turn = Turn()
            while not queue.deleted:
                if queue.is_cold and not queue.ready.loaded and queue.head < end:
                    await self._load(queue)
                if queue.ready.requeued:
                    taken = [queue.ready.take_requeued(RUN_MOST)]
                else:
                    taken = queue.front(min(end - queue.head, RUN_MOST))
                if not taken:
                    break
                moved += self._send_back(queue, taken, stay)
                if turn.over_now():
                    self._engine.commit_pending()
                    await self._pause()
                    turn.begin()
        finally:
            left_there = sum(map(len, stay))
            queue.await_returns()
            self._engine.long_work.add(_place_in_slices(queue, stay))
        return {"moved": moved, "left": left_there}

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

    async def _first(self, queue: Queue, limit: int) -> AsyncGenerator[Shown]:
        """The first `limit` messages that no consumer holds, oldest first. Those of the row that are on disk
        are read from there, with their times.
        """
        head, end, cold = queue.head, queue.end, queue.cold
        runs = [run for run, _ in queue.returned_runs()]
        if queue.log is None or cold is None:
            runs += queue.ready.runs
            head += queue.ready.loaded
        offset = cold.row_start() if cold is not None else 0
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

    def _send_back(self, queue: Queue, runs: Sequence[Run], stay: list[Run]) -> int:
        """Move dead letters to the queues that they came from; returns how many. What stays is added to
        `stay`. Raises Refusal."""
        moving: dict[Queue, list[Run]] = {}
        for run in runs:
            for target, part in split_by(run, [self._origin(queue, body) for body in run.bodies]):
                if target is None:
                    stay.append(part)
                else:
                    moving.setdefault(target, []).append(part)
        moved = 0
        refused: Refusal | None = None
        for target, parts in moving.items():
            fitting, left = split_after(parts, max(target.room, 0))
            stay += left
            letters = [bytes(body) for part in fitting for body in part.bodies]
            try:
                if letters:
                    self._engine.move(queue, target, fitting, letters, Reason.REDRIVEN)
                    moved += len(letters)
            except Refusal as refusal:
                stay += fitting
                refused = refusal
        if refused is not None:
            raise refused
        return moved

    def _origin(self, queue: Queue, body: bytes) -> Queue | None:
        """The other queue that a dead letter came from; None where that is gone, or who asks may not write to
        it; or it is no dead letter."""
        if not isinstance(body, DeadLetter):
            return None
        origin = self._engine.find(body.origin)
        if origin is queue or not asker_may(self._access, WRITE, body.origin):
            return None
        return origin


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
