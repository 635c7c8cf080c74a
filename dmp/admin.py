"""What the API shows of the broker, and what can be done with it: queues, exchanges, bindings, leases."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from itertools import chain, islice
from operator import attrgetter
from typing import Any

import attrs
import trio

from dmp import shown_properties
from dmp.bodies import part_bytes
from dmp.broker import Broker
from dmp.data_types import EMPTY_TABLE, SHORT_BYTES_MAX
from dmp.declarations import Binding, QueueArguments
from dmp.exchanges import DEFAULT, DEFAULT_IN_RULES, TYPES, Exchange
from dmp.leases import Lease
from dmp.message import Head
from dmp.queue_records import operations
from dmp.queues import Queue
from dmp.refusals import Code, Refusal, shown
from dmp.wire import RECORDED_PUBLISHES, envelope
from shared.access import ASKER
from shared.actions import BODY, PEEK, PEEK_MAX, PURGE, REDRIVE, changing, putting
from shared.definitions import DefinitionSection
from shared.objects import (
    BINDINGS,
    EXCHANGES,
    LEASES,
    QUEUES,
    SHOWN_BYTES_MAX,
    Argument,
    BadArgument,
    MessageRows,
    Objects,
    a_body,
    a_count,
    a_table,
    a_text,
    key_of,
)
from shared.queues import pausing
from shared.queues.runs import Run
from shared.storage.log import RecordTimes, read_records
from shared.storage.store import Ticket
from shared.task_turns import TaskTurn

DEFAULT_NAME = DEFAULT_IN_RULES.decode()
READ_BYTES = 256 << 10
STAY_MAX = 10_000
"""Messages that a redrive may find and has to leave: they are in memory until it ends."""
NOT_ASKED = attrs.asdict(QueueArguments())
PROPERTIES = "AMQP's, by name; where a queue is durable delivery_mode is 2 unless said"
ARGUMENTS: Mapping[str, Argument] = {
    "x-message-ttl": Argument("milliseconds after which a message is dead", "number"),
    "x-max-length": Argument("messages at most", "number"),
    "x-max-length-bytes": Argument("bytes of messages at most", "number"),
    "x-overflow": Argument("what goes where it is full", choices=("drop-head", "reject-publish")),
    "x-dead-letter-exchange": Argument("the exchange for dead messages; none: they are dropped"),
    "x-dead-letter-routing-key": Argument("their routing key; unless said the one that they have"),
    "x-max-priority": Argument("the highest priority; none: there are no priorities", "number"),
    "x-expires": Argument("milliseconds after which the queue goes, while nobody uses it", "number"),
    "x-single-active-consumer": Argument("whether one consumer at a time gets messages", "flag"),
}
"""AMQP's arguments of a queue that have a field of their own."""


class Admin:
    """The objects of one broker."""

    def __init__(self, broker: Broker, definitions: Sequence[DefinitionSection]) -> None:
        self._broker = broker
        self._definitions = definitions
        self._values = {
            **_QUEUE_VALUES,
            "oldest_seconds": self._oldest_seconds,
            "dead_obstacle": self._dead_obstacle,
        }
        self.objects: Sequence[Objects] = (
            Objects(
                QUEUES,
                lambda: list(broker.queues.values()),
                lambda queue: key_of(_text(queue.name)),
                self._find_queue,
                self._queue,
                (
                    *(self._peek, self._put, self._purge, self._redrive, self._delete_queue),
                    *pausing.actions(self._set_paused, lambda queue: shown(queue.name), broker.log),
                ),
                (self._declare_queue,),
                begin="brokers dmp declare queue jobs",
                totals=_totals,
                values=self._values,
            ),
            Objects(
                EXCHANGES,
                lambda: list(broker.exchanges.values()),
                lambda exchange: key_of(_text(exchange.name) or DEFAULT_NAME),
                lambda parts: broker.exchanges.get(_exchange_name(parts[0])),
                self._exchange,
                (self._publish, self._delete_exchange),
                (self._declare,),
            ),
            Objects(
                BINDINGS,
                lambda: [binding for each in broker.exchanges.values() for binding in each.bindings],
                lambda binding: key_of(_binding_id(binding)),
                self._find_binding,
                self._binding,
                (self._unbind,),
                (self._bind,),
                begin="brokers dmp bind jobs amq.topic -k 'orders.#'",
            ),
            Objects(
                LEASES,
                lambda: list(broker.leases),
                _lease_id,
                lambda parts: next((each for each in broker.leases if _lease_id(each) == parts[0]), None),
                self._lease,
            ),
        )

    # Queues.

    def _find_queue(self, parts: Sequence[str]) -> Queue | None:
        return self._broker.queues.get(parts[0].encode())

    def _oldest_seconds(self, queue: Queue) -> float | None:
        arrived_ms = _arrived_ms(queue, queue.row.ready.first()) if queue.row.ready else None
        if arrived_ms is None:
            return None
        return round(max(self._broker.wall_seconds() - arrived_ms / 1000, 0.0), 3)

    def _queue(self, queue: Queue) -> dict[str, Any] | None:
        if queue.deleted:
            return None
        kind = queue.kind
        given = {
            name: shown_properties.show_value(value)
            for name, value in attrs.asdict(kind.arguments).items()
            if value != NOT_ASKED[name]
        }
        if kind.arguments.dead_letter_exchange == DEFAULT:
            given["dead_letter_exchange"] = DEFAULT_NAME
        return {
            **{name: read(queue) for name, read in self._values.items()},
            "settings": {"exclusive": kind.exclusive, "auto_delete": kind.auto_delete, **given},
        }

    def _dead_obstacle(self, queue: Queue) -> str | None:
        """Why dead letters of a queue are lost, as far as a name that is not there tells."""
        arguments = queue.kind.arguments
        exchange, key = arguments.dead_letter_exchange, arguments.dead_letter_key
        if exchange is None:
            return None
        if exchange not in self._broker.exchanges:
            return f"there is no exchange {shown(exchange)}"
        if exchange == DEFAULT and key is not None and key not in self._broker.queues:
            return f"there is no queue {shown(key)}"
        return None

    @changing(
        "declare",
        "Declare a durable queue; one just like it may be there.",
        takes={
            "name": Argument("up to 255 bytes", required=True),
            **ARGUMENTS,
            "auto_delete": Argument("whether it goes with its last consumer", "flag"),
            "arguments": Argument("more of AMQP's arguments", "table"),
        },
        answers=("declared",),
        named_by=("name",),
    )
    async def _declare_queue(self, _: Any, arguments: Mapping[str, Any], dry_run: bool) -> dict[str, Any]:
        row = {name: value for name, value in arguments.items() if name not in ARGUMENTS}
        own = {name: value for name, value in arguments.items() if name in ARGUMENTS}
        table = {**a_table(row, "arguments"), **own}
        return {"declared": await self._made("queues", {**row, "arguments": table}, dry_run)}

    @PURGE
    async def _purge(self, queue: Queue, _: Mapping[str, Any], dry_run: bool) -> dict[str, Any]:
        if dry_run:
            return {"purged": queue.depth, "held": queue.unacked}
        count, ticket = self._broker.topology.purge_queue(queue)
        await self._settled(ticket)
        return {"purged": count, "held": queue.unacked}

    @changing(
        "delete", "Delete it, with its messages and bindings.", answers=("deleted", "messages", "bindings")
    )
    async def _delete_queue(self, queue: Queue, _: Mapping[str, Any], dry_run: bool) -> dict[str, Any]:
        messages, bindings = queue.depth, len(queue.bound)
        if not dry_run:
            messages, ticket = self._broker.topology.delete_queue(queue)
            await self._settled(ticket)
        return {"deleted": 1, "messages": messages, "bindings": bindings}

    @PEEK
    async def _peek(self, queue: Queue, arguments: Mapping[str, Any], _: bool) -> dict[str, Any]:
        rows = MessageRows(a_count(arguments, "limit", 10, 1, PEEK_MAX))
        async with aclosing(self._waiting(queue, rows.left)) as messages:
            async for message in messages:
                if not rows.left:
                    break
                head = message.head
                rows.add(
                    message.first,
                    await self._beginning(message.bodies[0]) if head.large else message.bodies[0],
                    _arrived_ms(queue, message),
                    size=head.body_bytes,
                    properties=shown_properties.show(head.properties),
                    exchange=_text(head.exchange) or DEFAULT_NAME,
                    key=_text(head.key),
                    redelivered=message.tries > 0,
                )
        return {"items": rows.items}

    async def _waiting(self, queue: Queue, most: int) -> AsyncGenerator[Run]:
        """The first of what is ready, as it was when this began, each as a run: those in memory, then those
        in the log."""
        cold, log = queue.row.cold, queue.log
        ready = list(islice(chain.from_iterable(run.singles() for run in queue.row.ready), most))
        count = len(ready)
        first, left, offset = (cold.first, cold.count, cold.offset) if cold is not None else (0, 0, 0)
        for message in ready:
            yield message
        while left and count < most and log is not None and cold is not None:
            data = await read_records(log.log, offset, READ_BYTES)
            if not data:
                return
            for record in cold.messages_in(data, offset, first):
                if isinstance(record, Run) and left and count < most:
                    count += 1
                    left -= 1
                    first = record.end
                    yield record
            offset += len(data)

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

    @putting(PROPERTIES)
    async def _put(self, queue: Queue, arguments: Mapping[str, Any], dry_run: bool) -> dict[str, Any]:
        body = a_body(arguments)
        properties = shown_properties.read(arguments, persistent=queue.log is not None)
        await self._published(Head(b"", queue.name, len(body), properties), [queue], body, dry_run)
        return {"published": 1}

    async def _published(self, head: Head, queues: Sequence[Queue], body: bytes, dry_run: bool) -> None:
        """Put a message into these queues. Raises BadArgument, Refusal and StoreError."""
        broker = self._broker
        if len(body) > broker.settings.message_bytes_max:
            raise BadArgument(
                f"a message has at most message_bytes_max = {broker.settings.message_bytes_max}"
            )
        head.payer = broker.memory.of(ASKER.get())
        memory = head.payer or broker.memory
        if memory.full:
            raise Refusal(Code.RESOURCE_ERROR, memory.why)
        for queue in queues:
            if queue.capped and not queue.room_for(head, 1):
                raise Refusal(Code.RESOURCE_ERROR, f"queue {shown(queue.name)} is full")
        if dry_run:
            return
        broker.counts.published += 1
        broker.counts.published_bytes += len(body)
        for observe in broker.observers:
            observe(head.exchange, head, queues, [body])
        if broker.recorder is not None:
            track = broker.recorder.track(RECORDED_PUBLISHES, name=head.exchange, source=b"api")
            track.record(1, envelope(head.exchange, head.key, head.properties, len(body)) + body)
        if queues:
            await self._settled(broker.publish(head, queues, [body]))
        else:
            broker.counts.unroutable += 1

    @REDRIVE
    async def _redrive(self, queue: Queue, _: Mapping[str, Any], dry_run: bool) -> dict[str, Any]:
        letters = self._broker.dead_letters
        moved = 0
        turn = TaskTurn()
        if dry_run:
            async with aclosing(self._waiting(queue, STAY_MAX)) as messages:
                async for message in messages:
                    moved += letters.origin(queue, message) is not None
                    await turn.item()
            return {"moved": moved, "left": queue.depth - moved}
        moving: Ticket | None = None
        stay: list[Run] = []

        def refused(done: Ticket) -> None:
            nonlocal moved
            moved -= done.error is not None

        def on_moving(ticket: Ticket) -> None:
            nonlocal moving
            moving = ticket
            ticket.when_done(refused)

        left = queue.depth
        queue.await_returns()  # what is ready keeps its order, whatever others do meanwhile
        try:
            while left and len(stay) < STAY_MAX and not (queue.deleted or self._broker.memory.full):
                front = queue.take_front(1)
                if not front and not await self._loaded(queue):
                    break
                left -= len(front)
                stay += front  # also where the disk refuses to move it
                if front and letters.send_back(queue, front[0], on_moving):
                    moved += 1
                    stay.pop()
                if turn.over():
                    await self._settled(None)
                    await turn.others()
        finally:
            if queue.deleted:
                queue.forget(stay)
            else:
                queue.return_front(stay)
            queue.all_returned()
        await self._settled(moving)
        return {"moved": moved, "left": queue.depth}

    async def _loaded(self, queue: Queue) -> bool:
        """Wait for messages that are on their way from the log. False: none are."""
        if not queue.row.is_loading:
            return False
        warm = trio.Event()
        queue.row.when_loaded(warm.set)
        await warm.wait()
        return True

    async def _set_paused(self, queue: Queue, paused: bool) -> None:
        await self._settled(self._broker.topology.set_paused(queue, paused))

    # Exchanges.

    def _exchange(self, exchange: Exchange) -> dict[str, Any] | None:
        if exchange.deleted:
            return None
        kind = exchange.kind
        return {
            "name": _text(exchange.name) or DEFAULT_NAME,
            "type": kind.type,
            "durable": kind.durable,
            "auto_delete": kind.auto_delete,
            "internal": kind.internal,
            "alternate": None if kind.alternate is None else _text(kind.alternate),
            "bindings": len(exchange.bindings),
        }

    @changing(
        "declare",
        "Declare an exchange; one just like it may be there.",
        takes={
            "name": Argument("up to 255 bytes", required=True),
            "type": Argument("how it routes", choices=TYPES, usual="direct"),
            "durable": Argument("whether it outlives the process", "flag", usual=True),
            "auto_delete": Argument("whether it goes with its last binding", "flag"),
            "internal": Argument("whether only exchanges may publish to it", "flag"),
            "alternate": "the exchange that gets what it cannot route",
        },
        answers=("declared",),
        named_by=("name",),
    )
    async def _declare(self, _: Any, arguments: Mapping[str, Any], dry_run: bool) -> dict[str, Any]:
        return {"declared": await self._made("exchanges", {"durable": False, **arguments}, dry_run)}

    @changing(
        "messages",
        "Publish a message; `queues` is how many take it, and 0 that it goes nowhere.",
        takes={
            **BODY,
            "key": "the routing key; empty unless said",
            "properties": Argument(PROPERTIES, "table"),
        },
        answers=("published", "queues"),
    )
    async def _publish(
        self, exchange: Exchange, arguments: Mapping[str, Any], dry_run: bool
    ) -> dict[str, Any]:
        body, key = a_body(arguments), a_text(arguments, "key", "").encode()
        if len(key) > SHORT_BYTES_MAX:
            raise BadArgument(f"key has at most {SHORT_BYTES_MAX} bytes")
        properties = shown_properties.read(arguments, persistent=True)
        head = Head(exchange.name, key, len(body), properties)
        self._broker.topology.open_exchange(exchange.name)  # one that is internal refuses
        queues = self._broker.route(exchange.name, head)
        await self._published(head, queues, body, dry_run)
        return {"published": 1, "queues": len(queues)}

    @changing("delete", "Delete it, with its bindings.", answers=("deleted", "bindings"))
    async def _delete_exchange(
        self, exchange: Exchange, _: Mapping[str, Any], dry_run: bool
    ) -> dict[str, Any]:
        self._broker.topology.check_deletable(exchange.name)
        bindings = len(exchange.bindings) + len(exchange.bound)
        if not dry_run:
            await self._settled(self._broker.topology.delete_exchange(exchange.name))
        return {"deleted": 1, "bindings": bindings}

    # Bindings.

    def _find_binding(self, parts: Sequence[str]) -> Binding | None:
        source = parts[0].partition("~")[0].replace("%7E", "~").encode()
        exchange = self._broker.exchanges.get(source)
        bindings = () if exchange is None else exchange.bindings
        return next((binding for binding in bindings if _binding_id(binding) == parts[0]), None)

    def _binding(self, binding: Binding) -> dict[str, Any] | None:
        exchange = self._broker.exchanges.get(binding.source)
        if exchange is None or binding not in exchange.bindings:
            return None
        destination = _text(binding.destination)
        return {
            "id": _binding_id(binding),
            "exchange": _text(binding.source),
            "queue": None if binding.to_exchange else destination,
            "to_exchange": destination if binding.to_exchange else None,
            "key": _text(binding.key),
            "arguments": {
                name: shown_properties.show_value(value) for name, value in binding.read_arguments().items()
            },
        }

    @changing(
        "bind",
        "Bind a queue, or an exchange, to an exchange.",
        takes={
            "exchange": Argument("its source", required=True),
            "queue": "where it leads",
            "to_exchange": "the exchange where it leads, in place of a queue",
            "key": "the routing key; empty unless said",
            "arguments": Argument("a table beside it, as a headers exchange has them", "table"),
        },
        answers=("bound",),
        named_by=("exchange", "queue", "key"),
    )
    async def _bind(self, _: Any, arguments: Mapping[str, Any], dry_run: bool) -> dict[str, Any]:
        return {"bound": await self._made("bindings", arguments, dry_run)}

    @changing("delete", "Unbind.", answers=("unbound",))
    async def _unbind(self, binding: Binding, _: Mapping[str, Any], dry_run: bool) -> dict[str, Any]:
        broker = self._broker
        destination = broker.topology.destinations_of(binding.to_exchange).get(binding.destination)
        if not dry_run:
            await self._settled(
                broker.topology.unbind(binding.source, destination, binding.key, binding.arguments)
            )
        return {"unbound": 1}

    # Leases.

    def _lease(self, lease: Lease) -> dict[str, Any]:
        return {
            "id": _lease_id(lease),
            "kind": "sink" if isinstance(lease.target, Exchange) else "feed",
            "target": _text(lease.target.name),
            "age_seconds": round(self._broker.timers.now() - lease.given, 1),
        }

    async def _made(self, section: str, row: Mapping[str, Any], dry_run: bool) -> int:
        """Create what a row of a definitions document describes; returns how many were missing."""
        (make,) = (each.make for each in self._definitions if each.section == section)
        made = await make(row, dry_run, lambda *_: None)
        await self._settled(made.ticket)
        return int(made.new)

    async def _settled(self, ticket: Ticket | None) -> None:
        """What was changed goes to the disk, and what waits for it goes on."""
        self._broker.flush()
        self._broker.store.commit_pending()
        await self._broker.store.wait(ticket)


_QUEUE_VALUES: Mapping[str, Callable[[Queue], Any]] = {
    "name": lambda queue: _text(queue.name),
    "ready": attrgetter("depth"),
    "held": attrgetter("unacked"),
    "delayed": lambda _: 0,
    "dead": lambda _: 0,
    "consumers": lambda queue: queue.takers.number,
    "paused": attrgetter("paused"),
    "bytes": lambda queue: queue.row.all_body_bytes,
    "full_percent": attrgetter("full_percent"),
    "durable": attrgetter("durable"),
}


def _totals(queue: Queue) -> tuple[int, int, int | None]:
    """As of `Objects`: messages are numbered as they come."""
    arrived = queue.numbered
    oldest = None
    if queue.row.ready:
        oldest = queue.row.ready.first().first
    elif queue.row.cold is not None and queue.row.has_cold:
        oldest = queue.row.cold.first
    return arrived, arrived - queue.depth - queue.unacked - queue.arrivals.count, oldest


def _exchange_name(text: str) -> bytes:
    return DEFAULT if text == DEFAULT_NAME else text.encode()


def _binding_id(binding: Binding) -> str:
    kind = "exchange" if binding.to_exchange else "queue"
    more = "" if binding.arguments == EMPTY_TABLE else binding.arguments.hex()
    names = (_text(name).replace("~", "%7E") for name in (binding.source, binding.destination, binding.key))
    source, destination, key = names
    return "~".join((source, kind, destination, key, more))


def _lease_id(lease: Lease) -> str:
    return lease.digest[:8].hex()


def _text(name: bytes) -> str:
    return name.decode(errors="replace")


def _arrived_ms(queue: Queue, message: Run) -> int | None:
    """When the first message of a run arrived, in Unix ms; None where no record says so."""
    log = queue.log
    if log is None or message.offset < 0 or log.is_copy(message.first):
        return None
    return RecordTimes(log.log, message.offset, message.offset + 1).at(message.offset)
