"""The service: AMQP's principal and DMP on a store, as the host runs it."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import trio

from dmp.admin import Admin
from dmp.broker import Broker
from dmp.definitions import definitions_of
from dmp.exchanges import DEFAULT_IN_RULES
from dmp.known_keys import NAME as KNOWN
from dmp.known_keys import KnownKeys
from dmp.message import Head
from dmp.metrics import GAUGES
from dmp.properties import UNREADABLE, unpack
from dmp.queue_records import QUEUES
from dmp.queues import Queue
from dmp.session import ProtocolHeader
from dmp.settings import DmpSettings
from dmp.topology_table import TABLES, TopologyTable
from shared.metrics import Sample, ack_sample, samples, wait_sample
from shared.plugin import Context, TcpEndpoint, UdpEndpoint
from shared.storage.table import Table
from shared.task_turns import TaskTurn
from shared.tracing import Tap, shown

TRACED_PROPERTIES_BYTES = 4096
"""Larger ones are not shown."""


async def open_broker(
    context: Context,
    settings: DmpSettings,
    *,
    now: Callable[[], float] = trio.current_time,
) -> Broker:
    """Load what is durable, messages included. Raises StoreError."""
    tables = context.store.namespace(TABLES, settings.durability)
    topology_table = TopologyTable(await Table.open(tables, "definitions"))
    clock = context.store.clock
    known_keys = KnownKeys(partial(Table.create, tables, KNOWN))
    if KNOWN in tables.logs:
        known_keys.table = await Table.open(tables, KNOWN)
    broker = Broker(context, settings, topology_table, known_keys, now, lambda: clock.wall_ms() / 1000)
    await broker.topology.restore(topology_table.load())
    for queue in broker.queues.values() if context.store.follows else ():
        queue.stops += 1
    return broker


class DmpService:
    """DMP and AMQP, both on one endpoint."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.endpoints: Sequence[TcpEndpoint | UdpEndpoint] = (
            TcpEndpoint("dmp", broker.settings.port, partial(ProtocolHeader, broker=broker), pushes=True),
        )
        self.definitions = definitions_of(broker)
        self.objects = Admin(broker, self.definitions).objects

    async def take_settings(self, settings: DmpSettings) -> None:
        self.broker.take_settings(settings)
        turn = TaskTurn()
        for queue in list(self.broker.queues.values()):
            queue.capacity.changed(settings)
            await turn.item()

    async def run(self) -> None:
        """Messages and queues that expire."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.broker.waits.run, trio.sleep, trio.Event)
            await self.broker.timers.run(self._after_timers)

    def drain(self) -> None:
        broker = self.broker
        broker.draining = True
        while broker.work.busy:
            broker.work.expire(broker.timers.now())
        broker.flush()  # whole, from now on: what is not written is delivered again

    def samples(self) -> Iterable[Sample]:
        broker = self.broker
        yield from samples("dmp", broker.counts, GAUGES, broker)
        yield wait_sample("dmp", broker.waits.seconds)
        yield ack_sample("dmp", broker.store.ack_seconds(QUEUES))

    async def trace(self, tap: Tap) -> None:
        def take(exchange: bytes, head: Head, queues: Sequence[Queue], bodies: Sequence[bytes]) -> None:
            name, into = exchange or DEFAULT_IN_RULES, [queue.name for queue in queues]
            if tap.matches(name, head.key, *into):
                more: dict[str, Any] = {"key": shown(head.key), "queues": [shown(each) for each in into]}
                if len(head.properties) < TRACED_PROPERTIES_BYTES:
                    # Without properties that Python has no value for: the publisher must not pay for a trace.
                    with suppress(*UNREADABLE):
                        more["properties"] = {what: value for what, value in unpack(head.properties) if value}
                for body in bodies[: tap.room]:
                    tap.copy(name, body, **more)

        await tap.observe(self.broker.observers, take)

    def _after_timers(self) -> None:
        self.broker.flush()
        self.broker.store.commit_pending()


async def open_service(context: Context, settings: DmpSettings) -> DmpService:
    if settings.users != DmpSettings().users:
        context.log.warning(
            "dmp.users counts only without a users file, and goes with the next version; make its users with "
            "brokers user add, which writes users.toml in the data folder (access.users_file)"
        )
    return DmpService(await open_broker(context, settings))
