"""DMP and AMQP as ends of bridges: queues and bindings as sources, queues and exchanges as targets.

A queue's source is a consumer of it that acknowledges. What it was given is unacknowledged until the bridge
has written it. Its ACK is in the journal's entry that has what was written. A binding's source has a queue of
its own, which ends with it.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from dmp.data_types import SHORT_BYTES_MAX, field_table
from dmp.declarations import QueueKind
from dmp.exchanges import DEFAULT, DEFAULT_IN_RULES, TOPIC_WORDS
from dmp.message import KEY, Head
from dmp.properties import NO_PROPERTIES, PERSISTENT, UNREADABLE, unpack, with_headers
from dmp.refusals import Refusal
from dmp.shown_properties import show_value
from shared.access import READ, WRITE
from shared.addresses import MessageOrigin, NameTemplate, exchange_and_key, unescaped
from shared.bridging import (
    BridgeContext,
    BridgeRefusal,
    BridgeSource,
    BridgeTarget,
    MessageRun,
    Positions,
    globs_meet,
    may_be,
    missing,
)
from shared.errors import StoreError
from shared.queues.runs import Run
from shared.queues.unacked import Unacked
from shared.routing.index import RoutingIndex

if TYPE_CHECKING:
    from dmp.broker import Broker
    from dmp.exchanges import Exchange
    from dmp.listener import DmpService
    from dmp.queues import Queue
    from shared.storage.store import Ticket

UNACKED_MAX = 2048
"""Messages that a source holds."""
HEADS_MAX = 256
"""Heads that a target remembers, by routing key, length, trail and job's key."""
_SHOWN = attrgetter("head.key", "head.properties", "head.trail", "head.large")
"""What a bridge shows of a run beside its bodies."""


class _Taking:
    """What both have: a `BridgeSource` and a `takers.Taker`."""

    durable = gives_back = False
    no_ack = True
    priority = 0
    pool = None

    def __init__(self, broker: "Broker", queue: "Queue", context: BridgeContext) -> None:
        self._broker = broker
        self._queue = queue
        self._context = context
        self._held: Unacked[int, Queue] = Unacked()
        self._given = 0
        """Messages that it has got, which are numbered so in `_held`."""
        self._closed = self._failed = False
        queue.add_consumer(self)
        queue.dispatch()

    def take(self, count: int) -> MessageRun | None:
        if self._failed:
            raise missing("queue", self._queue.name)
        return self._context.inbox.take(count)

    def seal(self) -> None:
        self._broker.flush()

    def refill(self) -> None:
        if not self._failed and not self._closed:
            self._queue.dispatch()

    def lag(self) -> int:
        return self._queue.depth + self._queue.held + self._context.inbox.waiting * self.no_ack

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if not self._queue.deleted:
            self._queue.remove_consumers(self)

    # What the queue calls.

    def room(self) -> tuple[int, int]:
        room_bytes = self._context.inbox.room_bytes
        return (0, 0) if room_bytes <= 0 or self._closed else (UNACKED_MAX - self._held.count, room_bytes)

    def deliver(self, runs: list[Run]) -> None:
        for _, alike in groupby(runs, _SHOWN):
            first, bodies = self._given, list[bytes]()
            for run in alike:
                bodies += run.bodies
                ids = range(self._given, self._given + len(run.bodies))
                self._given = ids.stop
                if not self.no_ack:
                    self._held.add(ids, self._queue, run)
            self._put(run.head, bodies, range(first, self._given))

    def deliver_run(self, head: Head, bodies: Sequence[bytes]) -> None:
        self._put(head, bodies, ())

    def cancelled(self) -> None:
        self._failed = True
        self._context.wake()

    def fail(self, error: Exception) -> None:
        self._failed = True
        self._context.warn(
            "a bug: the bridge's consumer ended, and begins anew; report this", reason=repr(error)
        )
        self._context.wake()

    def _put(self, head: Head, bodies: Sequence[bytes], handles: Sequence[int]) -> None:
        arguments = self._queue.kind.arguments
        job_key = head.text_in(arguments.key_header or KEY)
        run = MessageRun(
            MessageOrigin("dmp", head.key, job_key.encode() if arguments.keyed else head.key),
            [b""] * len(bodies) if head.large else bodies,
            handles,
            properties=None if head.properties == NO_PROPERTIES else lambda: _properties(head),
            trail=head.trail,
            job_key=job_key,
            too_large=head.large,
        )
        if self.no_ack:
            self._context.inbox.put(run)
        else:
            self._context.inbox.hold(run)


class DmpSource(_Taking):
    """Takes messages from a queue."""

    no_ack = False
    gives_back = True

    def __init__(self, broker: "Broker", queue: "Queue", context: BridgeContext) -> None:
        self.durable = queue.log is not None
        self._confirmed: list[Run] = []
        """Of the entry that is being made."""
        super().__init__(broker, queue, context)

    def confirm(self, run: MessageRun) -> None:
        taken = self._held.take(run.handles)
        assert taken is not None, "a bridge confirms what it holds"
        self._confirmed += [confirmed for _, _, confirmed in taken]

    def seal(self) -> None:
        """All that was confirmed leaves the queue by one record of the entry, or is back where the disk
        refuses that. Written apart, as for other consumers, it would leave without what the target got.
        """
        runs, self._confirmed = self._confirmed, []
        queue, log = self._queue, self._queue.log
        record = b"" if log is None or queue.deleted else log.leaving(runs)
        if log is None or not record:
            queue.settle(runs)
        else:
            try:
                _, ticket = log.log.append(record, 1, reserved=True)
            except StoreError:
                queue.requeue(runs, seen=False)
                raise
            log.part(runs)
            ticket.when_done(lambda done: self._written(runs, done))
        super().seal()

    def _written(self, runs: list[Run], done: "Ticket") -> None:
        queue, broker = self._queue, self._broker
        if broker.was_taken_back(done):
            queue.requeue(runs, seen=False)
            if not queue.deleted:
                queue.dispatch()
            return
        broker.counts.acknowledged += sum(map(len, runs))
        queue.settle_written(runs)

    def close(self) -> None:
        if self._closed:
            return
        queue = self._queue
        queue.await_returns()  # the next consumer gets what was held first
        super().close()
        held = [run for _, _, run in self._held.take_all()]
        if held:
            queue.requeue(held, seen=False)
        queue.all_returned()
        if not queue.deleted:
            self._broker.topology.consumer_left(queue)


class BindingSource(_Taking):
    """Takes what a binding matches, through a queue of its own. What the bridge has no room for is lost and
    counted."""

    def __init__(self, broker: "Broker", exchange: "Exchange", key: bytes, context: BridgeContext) -> None:
        self._exchange = exchange
        self._owner = broker.new_application(context.user)
        try:
            queue, _ = broker.topology.declare_queue(b"", QueueKind(exclusive=True), self._owner)
            broker.topology.bind(exchange.name, queue, key)
        except Refusal as refusal:
            self._owner.release()
            raise BridgeRefusal("source", str(refusal)) from None
        super().__init__(broker, queue, context)

    def take(self, count: int) -> MessageRun | None:
        if self._exchange.deleted:
            raise missing("exchange", self._exchange.name)
        return super().take(count)

    def confirm(self, run: MessageRun) -> None:
        """Nothing to do: what was taken has left its queue."""

    def room(self) -> tuple[int, int]:
        return 1 << 30, 1 << 30  # the inbox counts what is lost

    def close(self) -> None:
        if not self._closed:
            super().close()
            self._owner.release()


class DmpTarget:
    """A `BridgeTarget`; the default exchange leads to the queue that a message's name is. `name`: that of
    its one queue; None: it may lead to several."""

    def __init__(self, broker: "Broker", exchange: bytes, name: bytes | None, context: BridgeContext) -> None:
        self._broker = broker
        self._exchange = exchange
        self._name = name
        self._context = context
        self._payer = broker.memory.of(context.user)
        self._heads: dict[tuple[bytes, int, tuple[str, ...], str], Head] = {}
        self._all_durable = exchange == DEFAULT
        """Whether all queues are durable that it has led to. An exchange may lead to others at any time."""

    @property
    def durable(self) -> bool:
        if self._name is None:
            return self._all_durable
        queue = self._broker.queues.get(self._name)  # as it is declared now
        return queue is not None and queue.log is not None

    def check(self, name: bytes, body: bytes) -> None:
        self._routed(name, len(body), ())

    def _routed(
        self, name: bytes, size: int, trail: tuple[str, ...], job_key: str = ""
    ) -> "tuple[Head, tuple[Queue, ...]]":
        """A message's head, and the queues that it goes to. Raises BridgeRefusal."""
        broker = self._broker
        if len(name) > SHORT_BYTES_MAX:
            raise BridgeRefusal(
                "bad_name", f"a routing key has at most {SHORT_BYTES_MAX} bytes", lasting=True
            )
        if not name and self._exchange == DEFAULT:
            raise BridgeRefusal("bad_name", "no queue has an empty name", lasting=True)
        bytes_max = broker.settings.message_bytes_max
        if size > bytes_max:
            text = f"a body of {size} bytes; message_bytes_max is {bytes_max}"
            raise BridgeRefusal("too_large", text, lasting=True)
        self._context.require(WRITE, self._exchange or DEFAULT_IN_RULES)
        head = self._head(name, size, trail, job_key)
        try:
            queues = broker.route(self._exchange, head)
        except Refusal as refusal:
            raise BridgeRefusal("missing", str(refusal)) from None
        if not queues and self._exchange == DEFAULT:
            raise missing("queue", name)
        memory = self._payer or broker.memory
        if memory.full:
            raise BridgeRefusal("full", memory.why)
        if any(queue.capacity.capped and not queue.capacity.room_for(head, 1) for queue in queues):
            raise BridgeRefusal("full", "a queue has no room, and rejects what comes")
        return head, queues

    def write(self, name: bytes, bodies: Sequence[bytes], trail: tuple[str, ...], job_key: str = "") -> int:
        broker, size, count = self._broker, len(bodies[0]), len(bodies)
        head, queues = self._routed(name, size, trail, job_key)
        other = (at for at, body in enumerate(bodies) if len(body) != size)
        count = next(other, count)
        for queue in queues:
            if queue.capacity.capped:
                count = min(count, queue.capacity.room_for(head, count))
        some = bodies if count == len(bodies) else bodies[:count]
        broker.counts.published += count
        broker.counts.published_bytes += count * size
        if queues:
            self._all_durable = self._all_durable and queues[0].log is not None
            broker.append([(queue, head, some) for queue in queues])
        else:
            broker.counts.unroutable += count
        return count

    def flush(self) -> bool:
        self._broker.flush()
        return True

    def close(self) -> None:
        """Nothing is open."""

    def _head(self, key: bytes, size: int, trail: tuple[str, ...], job_key: str) -> Head:
        found = self._heads.get((key, size, trail, job_key))
        if found is None:
            if len(self._heads) >= HEADS_MAX:
                self._heads.clear()
            properties = PERSISTENT
            if job_key:
                properties = with_headers(properties, field_table({KEY.decode(): job_key}))
            found = self._heads[key, size, trail, job_key] = Head(self._exchange, key, size, properties)
            found.trail, found.payer = trail, self._payer
        return found


class DmpBridgeEnds:
    """See `shared.bridging.BridgeEnds`."""

    keeps_position = False

    def check_source(self, place: str) -> None:
        if not place:
            raise ValueError("a queue, or an exchange and a binding key, is missing: dmp:amq.topic/orders.#")
        parts = exchange_and_key(place)
        if parts is not None and parts[0] == DEFAULT:
            raise ValueError("the default exchange has no bindings; a queue's messages are dmp:<queue>")

    def target_name(self, place: str) -> NameTemplate:
        parts = exchange_and_key(place)
        if parts is None:
            return NameTemplate.parse(place)
        if "{" in place.partition("/")[0]:
            raise ValueError("an exchange's name has no fields; its routing key may")
        return NameTemplate.parse(parts[1]) if parts[1] else NameTemplate("", frozenset(), ())

    def gives_back(self, source: str) -> bool:
        return exchange_and_key(source) is None

    def may_feed(self, target: str, source: str) -> bool:
        to, of = exchange_and_key(target), exchange_and_key(source)
        template = self.target_name(target)
        if of is None:
            return (to is None or to[0] == DEFAULT) and may_be(template, source)
        if to is None or to[0] != of[0]:
            return False
        pattern = unescaped(of[1])
        if not template.fields:
            index: RoutingIndex[int] = RoutingIndex(TOPIC_WORDS)
            index.subscribe(1, pattern)
            return bool(index.match(template.name_for(MessageOrigin("", b""))))
        return globs_meet(template.as_glob(), pattern.decode("latin-1").replace("#", "*").replace(".*", "*"))

    def open_source(self, service: "DmpService", place: str, context: BridgeContext) -> BridgeSource:
        broker = service.broker
        parts = exchange_and_key(place)
        if parts is not None:
            context.require(READ, parts[0])
            exchange = broker.exchanges.get(parts[0])
            if exchange is None:
                raise missing("exchange", parts[0])
            return BindingSource(broker, exchange, unescaped(parts[1]), context)
        name = unescaped(place)
        context.require(READ, name)
        queue = broker.queues.get(name)
        if queue is None:
            raise missing("queue", name)
        if queue.owner is not None or queue.takers.exclusive:
            raise BridgeRefusal("locked", f"queue {place} is exclusive to another")
        return DmpSource(broker, queue, context)

    def open_target(self, service: "DmpService", place: str, context: BridgeContext) -> BridgeTarget:
        parts, template = exchange_and_key(place), self.target_name(place)
        exchange = DEFAULT if parts is None else parts[0]
        one = exchange == DEFAULT and not template.fields
        name = template.name_for(MessageOrigin("", b"")) if one else None
        return DmpTarget(service.broker, exchange, name, context)

    def lag_of(self, service: "DmpService", place: str, positions: Positions) -> int | None:
        queue = None if exchange_and_key(place) else service.broker.queues.get(unescaped(place))
        return None if queue is None else queue.depth + queue.held


ENDS = DmpBridgeEnds()


def _properties(head: Head) -> Mapping[str, Any]:
    """The properties that were set, as JSON has them."""
    found = {}
    with suppress(StoreError, *UNREADABLE):
        for name, value in dict(unpack(head.properties)).items():
            if value is not None and value != "":
                found[name] = show_value(value)
    return found
