"""A broker on a store in memory, and takers that a test looks into."""

import errno
from collections.abc import Sequence
from typing import Any

import structlog

from dmp.bodies import BODIES, REFERENCE_BYTES, part_bytes
from dmp.broker import Broker
from dmp.declarations import QueueArguments, QueueKind
from dmp.listener import open_broker
from dmp.message import Head
from dmp.properties import NO_PROPERTIES
from dmp.queue_records import operations
from dmp.queues import Queue
from dmp.settings import DmpSettings
from shared import turns
from shared.access import Guard
from shared.budget import Account, unbounded
from shared.errors import StoreError
from shared.plugin import Context
from shared.queues.cold import is_cold
from shared.queues.runs import Run
from shared.storage.store import Store
from tests.support.fake_disk import FakeDisk, Operation
from tests.support.stores import HandClock, open_store

LOG = structlog.stdlib.get_logger("test")
WALL_MS = 1_700_000_000_000
PERSISTENT = b"\x10\x00\x02"
LARGE_PART_BYTES = 100
"""Of a large body that `World.publish` writes."""


class World:
    """A broker whose clock is the test's, and whose disk takes what `settle` gives it."""

    def __init__(self, store: Store, disk: FakeDisk, broker: Broker, clock: "Clock", budget: Account) -> None:
        self.store = store
        self.budget = budget
        self.disk = disk
        self.broker = broker
        self.topology = broker.topology
        self.clock = clock
        self.owner = broker.new_application("guest")

    @classmethod
    async def open(
        cls,
        settings: DmpSettings | None = None,
        disk: FakeDisk | None = None,
        budget: Account | None = None,
        access: Guard | None = None,
        wall_ms: int = WALL_MS,
    ) -> "World":
        disk = disk or FakeDisk()
        store = await open_store(disk, clock=HandClock(wall_ms))
        clock = Clock()
        turns.CLOCK.now = clock.look
        budget = budget or unbounded()
        context = Context(store, LOG, budget=budget, access=access)
        broker = await open_broker(context, settings or DmpSettings(), now=clock.look)
        return cls(store, disk, broker, clock, budget)

    async def again(self, budget: Account | None = None, *, later_seconds: float = 0.0) -> "World":
        """The process dies, and another one starts on what it wrote."""
        self.store.abandon()
        wall_ms = self.store.clock.wall_ms() + round(later_seconds * 1000)
        return await World.open(self.broker.settings, self.disk.kill(), budget, wall_ms=wall_ms)

    def queue(self, name: bytes = b"q", *, durable: bool = False, **arguments: Any) -> Queue:
        """One of this name, with these `QueueArguments`."""
        kind = QueueKind(durable=durable, arguments=QueueArguments(**arguments))
        return self.topology.declare_queue(name, kind, self.owner)[0]

    def advance(self, seconds: float) -> None:
        self.clock.now += seconds
        clock = self.store.clock
        assert isinstance(clock, HandClock)
        clock.wall += round(seconds * 1000)
        while self.broker.timers.next <= self.clock.now:
            self.broker.timers.run_due()

    def finish_work(self) -> None:
        """Until nothing is due, whatever the clock says at each look."""
        self.clock.step = min(self.clock.step, 0.01)
        while self.broker.timers.next <= self.clock.now or self.broker.work.busy:
            self.broker.timers.run_due()

    def publish(self, exchange: bytes, key: bytes, *bodies: bytes, properties: bytes = NO_PROPERTIES) -> Any:
        ticket = None
        for body in bodies:
            large = len(body) > self.broker.settings.message_bytes_max
            of = Head(exchange, key, len(body), properties, reference_bytes=REFERENCE_BYTES * large)
            queues = self.broker.route(exchange, of)
            if not large:
                ticket = self.broker.publish(of, queues, [body])
                continue
            arriving = self.broker.bodies.begin(len(body), of.persistent)
            for start in range(0, len(body), LARGE_PART_BYTES):
                arriving.add(body[start : start + LARGE_PART_BYTES])
            reference = arriving.finish()
            ticket = self.broker.publish(of, queues, [reference])
            self.broker.bodies.let_go(reference)
        return ticket

    def holder(self, queue: Queue, *bodies: bytes, properties: bytes = NO_PROPERTIES) -> "Taker":
        """Who has messages of the queue that were published just now, and has not acknowledged them."""
        taker = Taker(no_ack=False)
        queue.add_consumer(taker)
        self.publish(b"", queue.name, *bodies, properties=properties)
        self.settle()
        return taker

    def body(self, message: Run) -> bytes:
        """Of one that may be large."""
        if not message.head.large:
            return message.bodies[0]
        log, parts = self.broker.bodies[message.bodies[0]].log, list[bytes]()

        def came(data: bytes | StoreError) -> None:
            assert isinstance(data, bytes)
            parts.extend(part_bytes(op, data, start, end) for op, start, end in operations(data))

        log.read(log.first, 1 << 30, came)
        return b"".join(parts)

    @property
    def body_logs(self) -> list[str]:
        """Of large bodies."""
        return sorted(self.store.namespace(BODIES, self.broker.settings.durability).logs)

    def break_disk(self) -> None:
        """It takes nothing more, until `disk.before` is None again."""

        def fail(operation: Operation) -> None:
            raise OSError(5, "disk")

        self.disk.before = fail

    def refuse_a_write(self) -> None:
        """The disk refuses the next write, as under `ulimit -f`, and takes all others."""

        def refuse(operation: Operation) -> None:
            if operation.kind == "write":
                self.disk.before = None
                raise OSError(errno.EFBIG, "File too large")

        self.disk.before = refuse

    def settle(self) -> None:
        self.broker.flush()
        self.store.commit_pending()


class Clock:
    """`step`: what passes with each look at the clock."""

    now = 1000.0
    step = 0.0

    def look(self) -> float:
        self.now += self.step
        return self.now


class Taker:
    """Takes as much as it is told to."""

    def __init__(
        self, *, no_ack: bool = True, room: int = 1 << 30, room_bytes: int = 1 << 30, priority: int = 0
    ) -> None:
        self.no_ack = no_ack
        self.priority = priority
        self.pool: object | None = None
        self.count = room
        self.room_bytes = room_bytes
        self.messages: list[Run] = []
        """Each as a run."""
        self.bodies: list[bytes] = []
        self.ended = False

    def room(self) -> tuple[int, int]:
        return self.count, self.room_bytes

    def deliver(self, runs: list[Run]) -> None:
        messages = [message for run in runs for message in run.singles()]
        assert messages
        assert len(messages) <= self.count
        self.count -= len(messages)
        self.messages += messages
        self.bodies += [message.bodies[0] for message in messages]

    def deliver_run(self, head: Head, bodies: Sequence[bytes]) -> None:
        assert self.no_ack
        self.count -= len(bodies)
        self.bodies += bodies

    def cancelled(self) -> None:
        self.ended = True

    def fail(self, error: Exception) -> None:
        raise error


def head(key: bytes = b"", size: int = 0, properties: bytes = NO_PROPERTIES, exchange: bytes = b"") -> Head:
    return Head(exchange, key, size, properties)


def ready(queue: Queue) -> list[bytes]:
    """The bodies of what is ready, the next one out first, with those that have waited on disk alone."""
    while cold := [run for run in queue.row.ready if is_cold(run)]:
        queue.later.read_back(cold)
        assert not is_cold(cold[0])
    return [body for run in queue.row.ready for body in run.bodies]


def in_memory(queue: Queue) -> list[Run]:
    """The runs of what is ready that are not on disk alone."""
    return [run for run in queue.row.ready if not is_cold(run)]


def singles(queue: Queue) -> list[Run]:
    """What is ready in memory, each message as a run, the next one out first."""
    return [message for run in queue.row.ready for message in run.singles()]
