"""DMS as an end of bridges: a queue's consumer as a source, its producer as a target.

A source holds deliveries until they are carried. The ACK is in the journal entry that has what was written.
"""

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING

import attrs

from dms.engine import Credit
from dms.job_requests import JobRequest, may_be_text
from dms.wire import NAME_BYTES_MAX, PAYLOAD_BYTES_MAX, Refusal, Status
from shared.access import READ, WRITE
from shared.addresses import MessageOrigin, NameTemplate, unescaped
from shared.bridging import (
    BridgeContext,
    BridgeRefusal,
    BridgeSource,
    BridgeTarget,
    MessageRun,
    Positions,
    may_be,
    missing,
    target_template,
)
from shared.queues.runs import Run

if TYPE_CHECKING:
    from dms.engine import Engine, Queue
    from dms.listener import DmsService

CREDITS_MAX = 1024
"""Messages that a source asks for ahead: at most 4 MiB, half of what a bridge may hold."""
CREDITS_LEAST = 64
"""The bridge asks for at least so many messages at once."""
_CREDIT = b"\0\0\0\0"
"""Request ids of its credits; nobody answers them."""
_WAITS = {Status.QUEUE_FULL: "full", Status.QUEUE_NOT_FOUND: "missing"}


class DmsSource:
    """A `BridgeSource`, and the engine's `DeliveryReceiver`."""

    gives_back = True

    def __init__(self, engine: "Engine", queue: "Queue", context: BridgeContext) -> None:
        self._engine = engine
        self._queue = queue
        self._context = context
        self._origin = MessageOrigin("dms", queue.name)
        self._consumer = engine.consumer(self, prefetches=True)
        self._asked = 0
        """Waiting credits."""
        self._held = 0
        """Unconfirmed deliveries."""
        self._closed = False
        self._ended: BridgeRefusal | None = None
        """Why it gets nothing more; None: it may."""
        if not engine.admit(self._consumer):
            raise BridgeRefusal("full", f"there are clients_max = {engine.settings.clients_max} already")
        self._consumer.consume(queue)
        self.refill()

    @property
    def durable(self) -> bool:
        # As `dms.disk_failed` has it a queue goes on in memory; its log goes with its next change.
        return self._queue.log is not None and not self._engine.memory_only

    def take(self, count: int) -> MessageRun | None:
        if self._ended is not None:
            raise self._ended
        return self._context.inbox.take(count)

    def confirm(self, run: MessageRun) -> None:
        outcomes = self._engine.ack(self._consumer, run.handles)
        if not outcomes:
            raise BridgeRefusal("source", f"what queue {self._queue.text} gave is not held any more")
        for _, outcome in outcomes:
            if isinstance(outcome, Refusal):
                raise BridgeRefusal("source", str(outcome))
        self._held -= len(run)

    def seal(self) -> None:
        """Nothing to do: each confirmation is noted at once."""

    def refill(self) -> None:
        room = CREDITS_MAX - self._asked - self._held
        if room < CREDITS_LEAST or self._closed or self._ended is not None:
            return
        self._asked += room
        self._queue.line_up(Credit(self._consumer, self._queue, (_CREDIT,) * room, inf))

    def lag(self) -> int:
        return self._queue.depth

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._engine.gone(self._consumer)

    # Calls of the engine.

    def deliver(self, ids: Sequence[bytes], run: Run) -> None:
        self._asked -= len(ids)
        self._held += len(ids)
        plain = [*map(bytes, run.bodies)]  # a dead letter is a message like any other where it arrives
        key = "" if run.head is None else run.head.key
        origin = attrs.evolve(self._origin, key=key.encode()) if key else self._origin
        self._context.inbox.hold(MessageRun(origin, plain, ids, job_key=key))

    def end_credits(self, ids: Sequence[bytes], refusal: Refusal) -> None:
        """The queue was deleted, or cannot be read now."""
        self._asked -= len(ids)
        self._end(missing("queue", self._queue.name) if self._queue.deleted else _refused(refusal))

    def fail(self, error: Exception) -> None:
        self._context.warn(
            "a bug: the bridge's consumer ended, and begins anew; report this", reason=repr(error)
        )
        self._end(BridgeRefusal("source", f"a bug ended the consumer of queue {self._queue.text}"))

    def _end(self, why: BridgeRefusal) -> None:
        self._ended = why
        self._context.wake()


class DmsTarget:
    """A `BridgeTarget`; it does not create queues."""

    def __init__(self, engine: "Engine", context: BridgeContext) -> None:
        self._engine = engine
        self._context = context

    @property
    def durable(self) -> bool:
        return self._engine.persistent and not self._engine.memory_only

    def check(self, name: bytes, body: bytes) -> None:
        self._queue(name, body)

    def _queue(self, name: bytes, body: bytes) -> "Queue":
        """The queue, if it can take this message next. Raises BridgeRefusal."""
        if not 1 <= len(name) <= NAME_BYTES_MAX:
            raise BridgeRefusal("bad_name", f"a queue's name is 1 to {NAME_BYTES_MAX} bytes", lasting=True)
        queue = self._engine.queues.get(name)
        if queue is None:
            raise missing("queue", name)
        self._context.require(WRITE, name)
        if len(body) > PAYLOAD_BYTES_MAX:
            text = f"a body of {len(body)} bytes; DMS has at most {PAYLOAD_BYTES_MAX}"
            raise BridgeRefusal("too_large", text, lasting=True)
        if queue.room <= 0:
            raise BridgeRefusal("full", f"queue {queue.text} is full: depth = {queue.options.depth}")
        return queue

    def write(self, name: bytes, bodies: Sequence[bytes], trail: tuple[str, ...], job_key: str = "") -> int:
        queue = self._queue(name, bodies[0])
        options = queue.options
        if job_key and (options.per_key or options.fair) and may_be_text(job_key):
            return self._write_jobs(queue, bodies, JobRequest(key=job_key))
        count = min(queue.room, len(bodies))
        size = 0
        for at, body in enumerate(bodies if count == len(bodies) else bodies[:count]):
            if len(body) > PAYLOAD_BYTES_MAX:
                count = at
                break
            size += len(body)
        try:
            queue.produce(bodies if count == len(bodies) else bodies[:count], size)
        except Refusal as refusal:
            raise _refused(refusal) from None
        return count

    def _write_jobs(self, queue: "Queue", bodies: Sequence[bytes], asked: JobRequest) -> int:
        """Write them as jobs; returns how many. Raises BridgeRefusal if not even one can be written."""
        jobs, count = queue.made_for_jobs(), 0
        try:
            for body in bodies:
                if len(body) > PAYLOAD_BYTES_MAX:
                    break
                jobs.produce(asked, body)
                count += 1
        except Refusal as refusal:
            if not count:
                raise _refused(refusal) from None
        return count

    def flush(self) -> bool:
        return True

    def close(self) -> None:
        """Nothing is open."""


def _refused(refusal: Refusal) -> BridgeRefusal:
    return BridgeRefusal(_WAITS.get(Status(refusal.status), "store"), str(refusal))


class DmsBridgeEnds:
    """See `shared.bridging.BridgeEnds`."""

    keeps_position = False

    def check_source(self, place: str) -> None:
        if not 1 <= len(unescaped(place)) <= NAME_BYTES_MAX:
            raise ValueError(f"a queue's name is 1 to {NAME_BYTES_MAX} bytes: dms:jobs")

    def target_name(self, place: str) -> NameTemplate:
        return target_template(place, self.check_source)

    def gives_back(self, source: str) -> bool:
        return True

    def may_feed(self, target: str, source: str) -> bool:
        return may_be(NameTemplate.parse(target), source)

    def open_source(self, service: "DmsService", place: str, context: BridgeContext) -> BridgeSource:
        name = unescaped(place)
        context.require(READ, name)
        queue = service.engine.queues.get(name)
        if queue is None:
            raise missing("queue", name)
        return DmsSource(service.engine, queue, context)

    def open_target(self, service: "DmsService", place: str, context: BridgeContext) -> BridgeTarget:
        return DmsTarget(service.engine, context)

    def lag_of(self, service: "DmsService", place: str, positions: Positions) -> int | None:
        queue = service.engine.queues.get(unescaped(place))
        return None if queue is None else queue.depth


ENDS = DmsBridgeEnds()
