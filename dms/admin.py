"""The queues that the API shows, and the actions on them, most of which have no request on the wire."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

from dms.actions import CHANGE, OPTIONS
from dms.dmsq_file import SUFFIX, DmsqWriter, import_into, read
from dms.engine import Consumer, Engine, Queue
from dms.job_requests import job_request_untrusted
from dms.messages import READ_BYTES, Messages
from dms.options import check_options
from dms.wire import DELIVERY_ID_BIT, PAYLOAD_BYTES_MAX, Refusal, Status, name_untrusted
from shared.access import ASKER, Guard
from shared.actions import (
    PURGE,
    action,
    changing,
    putting,
)
from shared.errors import EXIT_MISSING, BrokerError
from shared.objects import (
    CONSUMERS,
    QUEUES,
    Argument,
    BadArgument,
    Objects,
    a_body,
    a_table,
    a_text,
    key_of,
)
from shared.queues import pausing
from shared.queues.core import HELD_BYTES, MESSAGE_BYTES
from shared.storage.log import RecordTimes


class FileMissing(BrokerError):
    """There is no such file to import."""

    exit_code = EXIT_MISSING


class FileFailed(BrokerError):
    """A file of messages cannot be read or written; the text names it."""


class Admin:
    """The administrative operations of one engine."""

    def __init__(self, engine: Engine, access: Guard | None = None) -> None:
        self._engine = engine
        self._messages = messages = Messages(engine, access)
        self.objects: Sequence[Objects] = (
            Objects(
                QUEUES,
                lambda: list(engine.queues.values()),
                lambda queue: key_of(queue.text),
                self._find,
                self._row,
                (
                    *messages.on_messages,
                    *(self._put, self._change),
                    *(self._purge, self._delete, self._export),
                    *pausing.actions(self._set_paused, lambda queue: queue.text, engine.log),
                ),
                (self._create, self._import),
                begin="brokers dms create jobs",
                totals=_totals,
                values={**_VALUES, "oldest_seconds": self._known_age},
            ),
            Objects(
                CONSUMERS,
                lambda: [each for each in engine.consumers.values() if each.queue is not None],
                lambda consumer: f"dms-{consumer.number}",
                lambda parts: self._find_consumer(parts[0]),
                _consumer,
                begin="brokers dms consume jobs",
                totals=lambda consumer: (consumer.delivered, consumer.delivered, None),
                values={"queue": _queue_of, "held": lambda consumer: len(consumer.unacked)},
                holders=partial(_holders, engine),
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
            "oldest_seconds": self._known_age(queue),
            "settings": _settings(queue),
        }

    def _known_age(self, queue: Queue) -> float | None:
        """Seconds that a job has been ready, or that the next message of the row has been there, if that came
        before this process; of what is on disk alone by its log's index, to 64 KiB.
        """
        cold, jobs, times = queue.cold, queue.jobs, self._engine.times
        if jobs is not None and (run := jobs.ready_for_longest) is not None:
            came: int | None = run.head.produced_ms
            if not came and cold is not None and run.offset >= 0:
                came = RecordTimes(cold.log, run.offset, run.offset + 1).at(run.offset)
            since = max(came or times.unix_ms(), times.unix_ms_of(run.head.due) if run.head.due else 0)
            return max(times.unix_ms() - since, 0) / 1000
        if (
            cold is None
            or queue.ready.requeued
            or not queue.head < min(queue.end, queue.recovered, queue.released)
        ):
            return None
        start = cold.row_start()
        came = RecordTimes(cold.log, start, start + 1).at(start)
        return None if came is None else max(times.unix_ms() - came, 0) / 1000

    @changing(
        "create",
        "Make a queue.",
        takes={"name": Argument("1 to 64 bytes", required=True), **OPTIONS},
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
        purged = await self._messages.purge(queue)
        return {"purged": purged, "held": queue.held}

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

    @putting("what PRODUCE_WITH says of a job, as delay_ms, key, headers; empty: a plain message")
    async def _put(self, queue: Queue, arguments: Mapping[str, Any], dry_run: bool) -> dict[str, Any]:
        body = a_body(arguments)
        named = {name: arguments[name] for name in ("delay_ms", "priority", "key") if name in arguments}
        said = json.dumps({**a_table(arguments, "properties"), **named}).encode()
        try:
            asked = job_request_untrusted(said, self._engine.times.wall_ms()) if said != b"{}" else None
        except Refusal as refusal:
            raise BadArgument(f"properties: {refusal.text}") from None
        if len(body) > PAYLOAD_BYTES_MAX - len(queue.name) - 1:
            raise BadArgument(f"a message, with its queue's name, has at most {PAYLOAD_BYTES_MAX} bytes")
        if queue.room < 1:
            raise Refusal(Status.QUEUE_FULL, f"{queue.text} is full")
        if dry_run:
            ticket = None
        elif asked is None:
            ticket = queue.produce([body], len(body))
        else:
            ticket = queue.made_for_jobs().produce(asked, body)
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
            raise FileFailed(f"{target}: {error.strerror}") from None
        try:
            batch: list[bytes] = []
            size = 0
            async for message, _ in self._messages.look(queue, queue.depth, 0, held=True):
                batch += message.bodies
                size += len(message.bodies[0])
                if size >= READ_BYTES:
                    await store.in_thread(writer.add, batch)
                    batch, size = [], 0
            await store.in_thread(writer.add, batch)
            await store.in_thread(writer.finish)
        except OSError as error:
            await store.in_thread(writer.abandon)
            raise FileFailed(f"{target}: {error.strerror}") from None
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
            raise FileFailed(f"{source}: {error.strerror}") from None
        queue, ticket = import_into(self._engine, name, file)
        await self._engine.store.wait(ticket)
        if queue.line:
            queue.dispatch()
        return {"messages": len(file.bodies), "queue": queue.text}


def _ready(queue: Queue) -> int:
    jobs = 0 if queue.jobs is None else queue.jobs.count - len(queue.jobs.waiting)
    return _ready_in_row(queue) + sum([len(run) for _, run in queue.ready.requeued]) + jobs


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
    jobs = 0 if queue.jobs is None else len(queue.jobs.waiting)
    return in_row - _ready_in_row(queue) - dead_in_row + expiry.delayed + jobs


def _bytes(queue: Queue) -> int:
    cold = queue.cold
    if cold is not None and queue.is_cold:
        return cold.log.end - cold.log.first
    waiting, held = queue.ready.loaded + queue.returned, queue.held
    beside = MESSAGE_BYTES * waiting + (MESSAGE_BYTES + HELD_BYTES) * held
    return max(queue.loaded_bytes + queue.held_bytes - beside, 0)


_VALUES: Mapping[str, Callable[[Queue], Any]] = {
    "name": attrgetter("text"),
    "ready": _ready,
    "held": attrgetter("held"),
    "delayed": _delayed,
    "dead": lambda queue: 0 if queue.expiry is None else queue.expiry.dead,
    "dead_obstacle": lambda queue: queue.engine.dead_obstacle(queue),
    "consumers": attrgetter("consumers"),
    "ready_keys": lambda queue: (
        queue.jobs.ready.ready_keys
        if queue.jobs is not None and (queue.options.per_key or queue.options.fair)
        else None
    ),
    "redelivered": lambda queue: queue.redelivered or {},
    "paused": attrgetter("paused"),
    "bytes": _bytes,
    "full_percent": lambda queue: 100 * queue.depth // queue.options.depth,
    "durable": lambda queue: queue.log is not None,
}
"""Columns of a queue: its messages by state."""


def _settings(queue: Queue) -> dict[str, Any]:
    options = queue.options
    shown = {name: getattr(options, _OPTION_NAMES.get(name, name)) for name in OPTIONS}
    schedule = [each.said for each in options.schedule]
    return {**shown, "rate": str(options.rate or ""), "schedule": schedule}


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


def _holders(engine: Engine) -> Iterator[tuple[Consumer, int, Mapping[Any, int]]]:
    """As of `Objects`: ids count the deliveries of all consumers."""
    for consumer in [*engine.consumers.values()]:
        given, following = engine.counts.delivered, engine.delivery_ids.next
        oldest: dict[Any, int] = {}
        for ids, queue, _ in consumer.unacked:
            number = given - (following - int.from_bytes(ids[0])) % DELIVERY_ID_BIT
            for owner in (queue, consumer):
                if number < oldest.get(owner, given):
                    oldest[owner] = number
        yield consumer, given, oldest


def _totals(queue: Queue) -> tuple[int, int, int | None]:
    """A queue's totals, for `Objects`. Sequences count arrivals, those of the row and of jobs apart: so where
    there are both, a message of the row may have come earlier than its number says."""
    oldest, jobs = None, 0 if queue.jobs is None else queue.jobs.all_that_came
    if queue.end > queue.head < queue.released:
        oldest = queue.head + jobs
    if queue.ready.requeued:
        oldest = queue.ready.requeued[0][0] + jobs  # older than the row
    return queue.tail + jobs, queue.tail + jobs - queue.depth, oldest
