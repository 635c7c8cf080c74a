"""What the API shows of the broker, and what can be done with it: queues, exchanges, bindings, leases."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from dmp import shown_properties
from dmp.actions import ARGUMENTS, CHANGE
from dmp.amqp.channel import Channel
from dmp.amqp.consumer_timeouts import ConsumerTimeouts
from dmp.broker import Broker
from dmp.data_types import EMPTY_TABLE, SHORT_BYTES_MAX, read_table
from dmp.declarations import TYPES, Binding, QueueArguments
from dmp.exchanges import DEFAULT, Exchange
from dmp.leases import Lease
from dmp.message import KEY, Head
from dmp.messages import DEFAULT_NAME, Messages, arrived_ms, settled
from dmp.queues import Queue
from dmp.refusals import Code, Refusal, shown
from dmp.takers import Taker, room_of
from dmp.timing import MS_MAX
from dmp.wire import RECORDED_PUBLISHES, envelope
from shared.access import ASKER
from shared.actions import BODY, PURGE, WHEN, changing, putting
from shared.definitions import DefinitionSection
from shared.objects import (
    BINDINGS,
    CONSUMERS,
    EXCHANGES,
    LEASES,
    QUEUES,
    Argument,
    BadArgument,
    BadValue,
    Objects,
    a_body,
    a_count,
    a_table,
    a_text,
    key_of,
)
from shared.queues import pausing

READ_BYTES = 256 << 10
ANY_NUMBER = 1 << 20
"""A consumer with room for so many has no limit of its own."""
PROPERTIES = "AMQP's, by name; where a queue is durable delivery_mode is 2 unless said"


class Admin:
    """The objects of one broker."""

    def __init__(self, broker: Broker, definitions: Sequence[DefinitionSection]) -> None:
        self._broker = broker
        self._definitions = definitions
        messages = Messages(broker)
        self._values = {
            **_QUEUE_VALUES,
            "oldest_seconds": self._oldest_seconds,
            "dead": broker.dead_letters.waiting,
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
                    *messages.on_messages,
                    *(self._put, self._change, self._purge, self._delete_queue),
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
                (self._touch,),
                begin="brokers dmp consume jobs",
                totals=lambda found: (count := getattr(found[1], "delivered", 0), count, None),
                values={
                    "queue": lambda found: _text(found[0].name),
                    "held": lambda found: getattr(found[1], "unacked", 0),
                },
                holders=partial(_holders, broker),
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

    @changing("touch", "Have all its time again to acknowledge what it holds.", answers=("touched",))
    async def _touch(self, found: tuple[Queue, Taker], _: Mapping[str, Any], dry_run: bool) -> dict[str, Any]:
        deadlines: ConsumerTimeouts | None = getattr(getattr(found[1], "channel", None), "deadlines", None)
        if deadlines is None:
            return {"touched": 0}
        holds = deadlines.has_time(found[1])
        if holds and not dry_run:
            deadlines.begin_anew(found[1])
        return {"touched": int(holds)}

    # Queues.

    def _find_queue(self, parts: Sequence[str]) -> Queue | None:
        return self._broker.queues.get(parts[0].encode())

    def _oldest_seconds(self, queue: Queue) -> float | None:
        front = queue.row.oldest()
        arrived = arrived_ms(queue, front) if front is not None else None
        if arrived is None:
            return None
        return round(max(self._broker.wall_seconds() - arrived / 1000, 0.0), 3)

    def _queue(self, queue: Queue) -> dict[str, Any] | None:
        if queue.deleted:
            return None
        kind = queue.kind
        given = {**read_table(kind.table), **read_table(kind.changes)}
        if kind.arguments.dead_letter_exchange == DEFAULT:
            given["x-dead-letter-exchange"] = DEFAULT_NAME
        return {
            **{name: read(queue) for name, read in self._values.items()},
            "settings": {
                "exclusive": kind.exclusive,
                "auto_delete": kind.auto_delete,
                **{name: shown_properties.show_value(value) for name, value in given.items()},
            },
        }

    def _dead_obstacle(self, queue: Queue) -> str | None:
        """Why dead letters of a queue wait, or are lost, as far as a name that is not there tells."""
        arguments = queue.kind.arguments
        exchange, key = arguments.dead_letter_exchange, arguments.dead_letter_key
        obstacle = self._broker.dead_letters.obstacle(queue)
        if obstacle is not None or exchange is None:
            return obstacle
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

    @CHANGE
    async def _change(self, queue: Queue, arguments: Mapping[str, Any], dry_run: bool) -> dict[str, Any]:
        if queue.adopted:
            raise BadArgument("what it was declared with was lost: declare it again, and it has that")
        before = queue.kind
        kind = before.changed(arguments)
        dropped = _above(queue, kind.arguments)
        old, new = read_table(before.changes), read_table(kind.changes)
        if kind != before and not dry_run:
            await settled(self._broker, self._broker.topology.change_queue(queue, kind))
        changed = sum(old.get(name) != new.get(name) for name in {*old, *new})
        return {"changed": changed, "dropped": dropped}

    @PURGE
    async def _purge(self, queue: Queue, _: Mapping[str, Any], dry_run: bool) -> dict[str, Any]:
        if dry_run:
            return {"purged": queue.depth + queue.later.count, "held": queue.held}
        count, ticket = self._broker.topology.purge_queue(queue)
        await settled(self._broker, ticket)
        return {"purged": count, "held": queue.held}

    @changing(
        "delete", "Delete it, with its messages and bindings.", answers=("deleted", "messages", "bindings")
    )
    async def _delete_queue(self, queue: Queue, _: Mapping[str, Any], dry_run: bool) -> dict[str, Any]:
        messages, bindings = queue.depth, len(queue.bound)
        if not dry_run:
            messages, ticket = self._broker.topology.delete_queue(queue)
            await settled(self._broker, ticket)
        return {"deleted": 1, "messages": messages, "bindings": bindings}

    @putting(PROPERTIES)
    async def _put(self, queue: Queue, arguments: Mapping[str, Any], dry_run: bool) -> dict[str, Any]:
        body = a_body(arguments)
        header = _text(queue.kind.arguments.key_header or KEY)
        key = {header: a_text(arguments, "key")} if "key" in arguments else {}
        properties = shown_properties.read(_timed(arguments, key), persistent=queue.log is not None)
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
            if queue.capacity.capped and not queue.capacity.room_for(head, 1):
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
            await settled(self._broker, broker.publish(head, queues, [body]))
        else:
            broker.counts.unroutable += 1

    async def _set_paused(self, queue: Queue, paused: bool) -> None:
        await settled(self._broker, self._broker.topology.set_paused(queue, paused))

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
            **WHEN,
            "properties": Argument(PROPERTIES, "table"),
        },
        answers=("published", "queues"),
    )
    async def _publish(
        self, exchange: Exchange, arguments: Mapping[str, Any], dry_run: bool
    ) -> dict[str, Any]:
        body, key = a_body(arguments), a_text(arguments, "key", "").encode()
        if len(key) > SHORT_BYTES_MAX:
            raise BadValue(f"key has at most {SHORT_BYTES_MAX} bytes")
        properties = shown_properties.read(_timed(arguments, {}), persistent=True)
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
            await settled(self._broker, self._broker.topology.delete_exchange(exchange.name))
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
            await settled(
                self._broker,
                broker.topology.unbind(binding.source, destination, binding.key, binding.arguments),
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
        await settled(self._broker, made.ticket)
        return int(made.new)


def _above(queue: Queue, arguments: QueueArguments) -> int:
    """How many of its messages a queue with these arguments drops at once; by its bytes about so many."""
    row, above = queue.row, 0
    if arguments.rejects:
        return 0
    if arguments.messages_max is not None:
        above = len(row) - arguments.messages_max
    if arguments.bytes_max is not None and row.all_body_bytes > arguments.bytes_max:
        left = row.all_body_bytes - arguments.bytes_max
        above = max(above, -(-left * len(row) // row.all_body_bytes))
    return max(above, 0)


def _timed(arguments: Mapping[str, Any], headers: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments of a publish, with those of `WHEN`, and these headers, in their properties."""
    properties = dict(a_table(arguments, "properties"))
    if "priority" in arguments:
        properties["priority"] = arguments["priority"]
    if "delay_ms" in arguments:
        headers = {**headers, "x-delay": a_count(arguments, "delay_ms", 0, 0, MS_MAX)}
    if headers:
        properties["headers"] = {**a_table(properties, "headers"), **headers}
    return {**arguments, "properties": properties}


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
    "delayed": lambda queue: queue.later.count,
    "consumers": lambda queue: queue.takers.number,
    "ready_keys": lambda queue: None if queue.row.keys is None else queue.row.keys.ready_keys,
    "redelivered": lambda queue: queue.redelivered or {},
    "paused": attrgetter("paused"),
    "bytes": lambda queue: queue.row.all_body_bytes,
    "full_percent": attrgetter("capacity.full_percent"),
    "durable": attrgetter("durable"),
}


def _holders(broker: Broker) -> Iterator[tuple[Channel, int, Mapping[Any, int]]]:
    """As of `Objects`: delivery tags count a channel's deliveries. Bridges are not asked."""
    used = [queue for queue in broker.queues.values() if queue.takers.in_use]
    takers = (taker for queue in used for taker in queue.takers)
    channels = dict.fromkeys(getattr(taker, "channel", None) for taker in takers)
    for channel in channels:
        if channel is None:
            continue
        oldest: dict[Any, int] = {}
        for tags, holder, _ in channel.unacked:
            for owner in (holder.queue, (holder.queue, holder)):
                if tags[0] - 1 < oldest.get(owner, channel.delivered):
                    oldest[owner] = tags[0] - 1
        yield channel, channel.delivered, oldest


def _totals(queue: Queue) -> tuple[int, int, int | None]:
    """As of `Objects`: messages are numbered as they come."""
    arrived = queue.numbered
    oldest = None
    if (front := queue.row.oldest()) is not None:
        oldest = front.first
    elif queue.row.cold is not None and queue.row.has_cold:
        oldest = queue.row.cold.first
    there = queue.depth + queue.later.count + queue.held + queue.arrivals.count
    return arrived, arrived - there, oldest


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
