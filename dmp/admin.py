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
from dmp.takers import Taker, room_of
from dmp.wire import RECORDED_PUBLISHES, envelope
from shared.access import ASKER, WRITE, asker_may
from shared.actions import (
    BODY,
    DISCARD,
    MOVE,
    PEEK,
    PEEK_MAX,
    PURGE,
    REDRIVE,
    SIFTED_MAX,
    changing,
    putting,
)
from shared.definitions import DefinitionSection
from shared.objects import (
    BINDINGS,
    CONSUMERS,
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
    an_optional_count,
    key_of,
)
from shared.queues import pausing
from shared.queues.runs import Run
from shared.storage.log import RecordTimes, read_records
from shared.storage.store import Ticket
from shared.task_turns import TaskTurn

DEFAULT_NAME = DEFAULT_IN_RULES.decode()
READ_BYTES = 256 << 10
NOT_ASKED = attrs.asdict(QueueArguments())
ANY_NUMBER = 1 << 20
"""A consumer with room for so many has no limit of its own."""
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
                    *(self._peek, self._put, self._move, self._redrive, self._discard),
                    *(self._purge, self._delete_queue),
                    *pausing.actions(self._set_paused, lambda queue: shown(queue.name), broker.log),
                ),
                (self._declare_queue,),
                begin="brokers dmp declare queue jobs",
                totals=_totals,
                values=self._values,
            ),
            Objects(
                CONSUMERS,
                lambda: [
                    (queue, taker)
                    for queue in broker.queues.values()
                    if queue.takers.in_use
                    for taker in queue.takers
                ],
                lambda found: key_of(_consumer_id(*found)),
                self._find_consumer,
                _consumer,
                begin="brokers dmp consume jobs",
                totals=lambda found: (count := getattr(found[1], "delivered", 0), count, None),
                values={"queue": lambda found: _text(found[0].name)},
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

    def _find_consumer(self, parts: Sequence[str]) -> tuple[Queue, Taker] | None:
        _, _, rest = parts[0].partition("~")
        queue = self._broker.queues.get(rest.partition("~")[2].replace("%7E", "~").encode())
        takers = () if queue is None else queue.takers
        found = ((queue, taker) for taker in takers if queue and _consumer_id(queue, taker) == parts[0])
        return next(found, None)

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
            return {"purged": queue.depth, "held": queue.held}
        count, ticket = self._broker.topology.purge_queue(queue)
        await self._settled(ticket)
        return {"purged": count, "held": queue.held}

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
        rows = MessageRows(a_count(arguments, "limit", 10, 1, PEEK_MAX), a_text(arguments, "contains", ""))
        least = a_count(arguments, "from", 0, 0, 1 << 63)
        following = None
        turn = TaskTurn()
        async with aclosing(self._waiting(queue, queue.depth)) as messages:
            async for message in messages:
                await turn.item()
                if message.first < least:
                    continue
                if not rows.left:
                    following = message.first
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
        return {"items": rows.items, "next": following}

    async def _waiting(self, queue: Queue, most: int) -> AsyncGenerator[Run]:
        """The first of what is ready, as it was when this began, each as a run: those in memory, then those
        in the log."""
        cold, log = queue.row.cold, queue.log
        copies: list[Run] = []  # what is ready may be cut meanwhile
        count = 0
        for run in queue.row.ready:
            if count >= most:
                break
            copies.append(run.part(0, len(run)))
            count += len(run)
        ready = islice(chain.from_iterable(run.singles() for run in copies), most)
        count = min(count, most)
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
    async def _redrive(self, queue: Queue, arguments: Mapping[str, Any], dry_run: bool) -> dict[str, Any]:
        letters, wanted = self._broker.dead_letters, an_optional_count(arguments, "position")

        def goes_to(message: Run) -> Queue | None:
            return letters.origin(queue, message) if wanted in (None, message.first) else None

        moved, left = await self._sift(queue, goes_to, None if wanted is None else 1, dry_run=dry_run)
        if wanted is not None and not moved:
            raise BadArgument(f"position: {wanted} is no dead letter that waits here and can go back")
        return {"moved": moved, "left": left}

    @MOVE
    async def _move(self, queue: Queue, arguments: Mapping[str, Any], dry_run: bool) -> dict[str, Any]:
        name, wanted = a_text(arguments, "to"), an_optional_count(arguments, "position")
        target = self._find_queue([name])
        if target is None or target is queue:
            raise BadArgument(f"to: there is no other queue {name}")
        if not asker_may(self._broker.access, WRITE, target.name):
            raise BadArgument(f"to: the user may not write to {name}")
        most = a_count(arguments, "limit", 0, 1, 1 << 63) if "limit" in arguments else queue.depth

        def goes_to(message: Run) -> Queue | None:
            return target if wanted in (None, message.first) else None

        if wanted is None and dry_run:
            moved = min(most, queue.depth)
            return {"moved": moved, "left": queue.depth - moved}
        moved, left = await self._sift(queue, goes_to, most if wanted is None else 1, dry_run=dry_run)
        if wanted is not None and not moved:
            raise BadArgument(f"position: {wanted} does not wait here, or {name} is full")
        return {"moved": moved, "left": left}

    @DISCARD
    async def _discard(self, queue: Queue, arguments: Mapping[str, Any], dry_run: bool) -> dict[str, Any]:
        wanted = a_count(arguments, "position", -1, 0, 1 << 63)
        discarded, _ = await self._sift(
            queue, lambda message: queue if message.first == wanted else None, 1, dry_run=dry_run
        )
        if not discarded:
            raise BadArgument(f"position: {wanted} does not wait among the first {SIFTED_MAX:,} here")
        return {"discarded": discarded}

    async def _sift(
        self,
        queue: Queue,
        goes_to: Callable[[Run], Queue | None],
        most: int | None,
        *,
        dry_run: bool,
    ) -> tuple[int, int]:
        """Take `most` waiting messages out, or all that go somewhere: (how many, how many are left).

        `goes_to`: the queue that gets a message; the queue itself: none, it is deleted; None: it stays.
        """
        letters = self._broker.dead_letters
        gone = 0
        turn = TaskTurn()
        if dry_run:
            async with aclosing(self._waiting(queue, SIFTED_MAX)) as messages:
                async for message in messages:
                    gone += goes_to(message) is not None
                    if gone == most:
                        break
                    await turn.item()
            return gone, queue.depth - gone
        moving: Ticket | None = None
        stay: list[Run] = []

        def refused(done: Ticket) -> None:
            nonlocal gone
            gone -= done.error is not None

        def on_moving(ticket: Ticket) -> None:
            nonlocal moving
            moving = ticket
            ticket.when_done(refused)

        left = queue.depth
        queue.await_returns()  # what is ready keeps its order, whatever others do meanwhile
        try:
            while left and gone != most and len(stay) < SIFTED_MAX:
                if queue.deleted or self._broker.memory.full:
                    break
                front = queue.take_front(1)
                if not front and not await self._loaded(queue):
                    break
                left -= len(front)
                stay += front  # also where the disk refuses to move it
                target = goes_to(front[0]) if front else None
                if target is queue:
                    queue.leave(front)
                if target is queue or (target and letters.send_to(queue, front[0], target, on_moving)):
                    gone += 1
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
        return gone, queue.depth

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


def _connection_of(taker: Taker) -> Any:
    """The connection that a taker is of; None: it is a bridge's."""
    channel = getattr(taker, "channel", None)
    return getattr(taker, "connection", None) if channel is None else channel.mux.connection


def _consumer_id(queue: Queue, taker: Taker) -> str:
    """Its connection, its number there, and its queue."""
    number = getattr(_connection_of(taker), "number", None)
    owner = f"bridge-{id(taker):x}" if number is None else f"dmp-{number}"
    channel, tag = getattr(taker, "channel", None), getattr(taker, "tag", b"feed")
    which = "feed" if channel is None else f"{channel.number}.{_text(tag).replace('~', '%7E')}"
    return "~".join((owner, which, _text(queue.name).replace("~", "%7E")))


def _consumer(found: tuple[Queue, Taker]) -> dict[str, Any] | None:
    queue, taker = found
    connection, channel = _connection_of(taker), getattr(taker, "channel", None)
    if queue.deleted or taker not in list(queue.takers):
        return None
    room = room_of(taker)[0]
    number = getattr(connection, "number", None)
    return {
        "id": _consumer_id(queue, taker),
        "queue": _text(queue.name),
        "connection": None if number is None else f"dmp-{number}",
        "peer": getattr(connection, "peer", None),
        "user": None if channel is None else channel.mux.session.user,
        "client": (channel.mux.client or None) if channel is not None else None,
        "held": getattr(taker, "unacked", 0),
        "room": room if room < ANY_NUMBER else None,
        "delivered": getattr(taker, "delivered", None),
    }


_QUEUE_VALUES: Mapping[str, Callable[[Queue], Any]] = {
    "name": lambda queue: _text(queue.name),
    "ready": attrgetter("depth"),
    "held": attrgetter("held"),
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
    return arrived, arrived - queue.depth - queue.held - queue.arrivals.count, oldest


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
