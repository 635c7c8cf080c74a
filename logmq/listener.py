"""The service: LogMQ on a store, as the host runs it."""

import contextlib
from collections.abc import Iterable, Sequence
from heapq import nlargest

import trio

from logmq.admin import Admin
from logmq.broker import Broker
from logmq.definitions import definitions_of
from logmq.groups import Committed, Groups
from logmq.metrics import GAUGES, LAGS_SHOWN, lag_sample
from logmq.retentions import Retentions
from logmq.session import Session
from logmq.settings import GROUPS, NAMESPACE, TABLES_NAMESPACE, WRITERS, LogmqSettings
from logmq.topics import Topics
from logmq.windows import Windows
from logmq.writers import Writers
from shared.budget import Caches
from shared.errors import StoreError
from shared.metrics import Sample, ack_sample, samples
from shared.net.connection import Connection
from shared.plugin import Context, TcpEndpoint, UdpEndpoint
from shared.storage.format import LENGTH_BYTES, length_at
from shared.storage.log import Log, read_records
from shared.storage.table import Table
from shared.task_turns import TaskTurn
from shared.tracing import Tap

LAGS_SECONDS = 15.0
"""How often groups are checked; 50,000 commits take 50 ms, in slices."""
EXPIRY_SECONDS = 3600.0
"""How often idle groups are looked for, at least; so long a group may take to come back after a start."""
TRACE_SECONDS = 0.25
TRACE_BYTES = 64 * 1024
"""Records shown per topic and look; more that arrived since the last look are left out."""


async def open_broker(context: Context, settings: LogmqSettings) -> Broker:
    """Load topics, groups and writers, and repair what a crash left. Raises StoreError."""
    store, log, budget = context.store, context.log, context.budget
    namespace = store.namespace(
        NAMESPACE,
        settings.durability,
        plain_names=True,
        retention=settings.retention_usual,
    )
    tables = store.namespace(TABLES_NAMESPACE, settings.durability)
    broker = Broker(
        store=store,
        log=log,
        settings=settings,
        topics=Topics(namespace, settings, budget, await Retentions.open(tables)),
        groups=Groups(await Table.open(tables, GROUPS), settings.commits_max, budget.account("names")),
        writers=Writers(
            store,
            await Table.open(tables, WRITERS),
            writers_max=settings.writers_max,
            memory=budget.account("names"),
        ),
        windows=Windows(Caches(budget.account("caches", budget.limit_bytes // 4))),
        access=context.access,
    )
    if store.read_only is None:
        by_id = broker.topics.by_id()
        for log_id in tuple(broker.groups.tombstones):
            broker.clear_tombstone(log_id)
        commits, past = broker.groups.repair(by_id.get)
        writers = broker.writers.orphaned(by_id.get)
        if commits or writers:
            log.warning(
                "logmq: commits or writers belong to topics that are missing and were not deleted; they are "
                "kept, and count again once the topics are restored from a backup",
                commits=commits,
                writers=writers,
            )
        for row in past:
            log.warning(
                "logmq: a topic lost its newest records in a crash, and a group had committed past its end; "
                "the group was set to the end, nothing needs to be done",
                group=row.group,
                topic=row.topic,
                offset=row.offset,
                end=row.end,
            )
    return broker


class LogmqService:
    """LogMQ on its one endpoint."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._worst: Sequence[Committed] = ()
        self.endpoints: Sequence[TcpEndpoint | UdpEndpoint] = (
            TcpEndpoint("logmq", broker.settings.port, self._open_session, pushes=True),
        )
        self.objects = Admin(broker).objects
        self.definitions = definitions_of(broker)

    async def look_anew(self) -> None:
        await self.broker.topics.look_anew()

    async def take_settings(self, settings: LogmqSettings) -> None:
        await self.broker.take_settings(settings)

    async def run(self) -> None:
        """Serve readers in slices, and check groups."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._serve_readers)
            nursery.start_soon(self._check_groups)
            nursery.start_soon(self._expire_groups)

    async def _serve_readers(self) -> None:
        waiters, turn = self.broker.topics.waiters, TaskTurn()
        while True:
            if waiters.work.busy:
                await turn.others()
            else:
                behind = trio.Event()
                waiters.on_behind = behind.set
                await behind.wait()
            waiters.work.expire(0)
            self.broker.store.commit_pending()  # requests behind what was answered may have written

    async def _check_groups(self) -> None:
        """Note regularly which groups are far behind."""
        while True:
            rows, turn = [], TaskTurn()
            for row in self.broker.groups.each(self.broker.topics.by_id().get):
                rows.append(row)
                await turn.item()
            self._worst = nlargest(LAGS_SHOWN, rows, key=lambda row: row.behind_bytes)
            await trio.sleep(LAGS_SECONDS)

    async def _expire_groups(self) -> None:
        broker = self.broker
        while True:
            seconds = broker.settings.group_seconds
            await trio.sleep(min(max(seconds / 10, 1), EXPIRY_SECONDS))
            now_ms = broker.store.trusted_wall_ms()
            if not seconds or now_ms is None or broker.store.read_only is not None:
                continue
            with contextlib.suppress(StoreError):  # it is tried again
                await self._expire(now_ms - round(seconds * 1000))

    async def _expire(self, since_ms: int) -> None:
        """Delete the commits of groups that are idle since then. Raises StoreError."""
        broker, turn = self.broker, TaskTurn()
        for group, log in broker.groups.idle(broker.topics.by_id().get, since_ms):
            broker.groups.delete(group, log)
            broker.counts.commits_expired += 1
            broker.log.info(
                "a group's commit expired: it had records to read and committed nothing for "
                "logmq.group_seconds; when it comes back it begins where it is told to",
                group=group,
                topic=log.name,
            )
            await turn.item()
        broker.store.commit_pending()

    def drain(self) -> None:
        self.broker.draining = True

    def samples(self) -> Iterable[Sample]:
        yield from samples("logmq", self.broker.counts, GAUGES, self.broker)
        for row in self._worst:
            yield lag_sample(row.group, row.topic, row.behind_bytes)
        yield ack_sample("logmq", self.broker.store.ack_seconds(NAMESPACE))

    async def trace(self, tap: Tap) -> None:
        """Read from the logs what became visible since the last look: writers are not involved."""
        ends: dict[int, int] | None = None
        while True:
            before, ends = ends, {}
            turn = TaskTurn()
            for log in self.broker.topics.all():
                await turn.item()
                if log.deleted or not tap.matches(log.name):
                    continue
                end = ends[log.id] = log.visible
                begin = end if before is None else before.get(log.id, log.first)
                if begin < end:
                    await self._show(tap, log, begin)
            await trio.sleep(TRACE_SECONDS)

    async def _show(self, tap: Tap, log: Log, offset: int) -> None:
        with contextlib.suppress(StoreError):  # the log was deleted or trimmed
            data = await read_records(log, offset, TRACE_BYTES)
            at = 0
            while at < len(data):
                body = at + LENGTH_BYTES
                end = body + length_at(data, at)[0]
                tap.copy(log.name, data[body:end], position=offset + at)
                at = end

    def _open_session(self, connection: Connection) -> Session:
        return Session(connection, self.broker)


async def open_service(context: Context, settings: LogmqSettings) -> LogmqService:
    return LogmqService(await open_broker(context, settings))
