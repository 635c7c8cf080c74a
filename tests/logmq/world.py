"""LogMQ without sockets: a broker on a real store over a fake disk, and connections driven by hand."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from typing import Any
from unittest import mock

import attrs
import structlog
import trio

from logmq.broker import Broker
from logmq.listener import open_broker
from logmq.session import Session
from logmq.settings import LogmqSettings
from shared.budget import Account, unbounded
from shared.file_range import FileRange
from shared.plugin import Context
from shared.storage.format import record
from shared.storage.settings import StorageSettings
from shared.storage.store import Log, Store
from tests.support.connections import MemoryConnection
from tests.support.fake_disk import FakeDisk, Operation
from tests.support.hand_peer import HandPeer
from tests.support.stores import ALWAYS, SMALL, HandClock, open_store, payloads, records

LOG = structlog.stdlib.get_logger("test")

__all__ = ["TIGHT", "Peer", "World", "record", "records", "slow_reads"]

TIGHT = attrs.evolve(SMALL, pending_bytes_max=1)
READ = Log.read
"""Whatever `slow_reads` does to it."""


class World:
    """One broker, restarted at will."""

    def __init__(
        self,
        settings: LogmqSettings | None = None,
        storage: StorageSettings = SMALL,
        budget: Account | None = None,
    ) -> None:
        self.budget = budget or unbounded()
        self.settings = settings or LogmqSettings()
        self.disk = FakeDisk()
        self.clock = HandClock()
        self._storage = storage
        self._open()

    def _open(self) -> None:
        trio.run(self._open_it)

    async def _open_it(self) -> None:
        self.store: Store = await open_store(self.disk, self._storage, self.clock)
        self.broker: Broker = await open_broker(Context(self.store, LOG, budget=self.budget), self.settings)
        self.commit()

    def connect(self, *, now: float = 0.0, bound: int = 1 << 20) -> "Peer":
        return Peer(self, MemoryConnection(now=now, bound=bound))

    def log(self, name: str) -> Log:
        log = self.broker.topics.find(name)
        assert log is not None
        return log

    def topics(self) -> list[str]:
        """Their names, sorted."""
        return sorted(log.name for log in self.broker.topics.all())

    def messages(self, name: str) -> list[bytes]:
        """All that can be read of a topic."""
        log, found = self.log(name), list[Any]()
        at = log.first
        while at < log.visible:
            READ(log, at, 1 << 30, found.append)
            at += len(found[-1])
        return payloads(b"".join(found))

    def commit(self) -> int:
        """The end of a driver's turn; how many commits that made."""
        before = self.store.statistics().commits
        self.store.commit_pending()
        return self.store.statistics().commits - before

    def serve_readers(self) -> bool:
        """A slice of the readers that are left; whether there were any."""
        work = self.broker.topics.waiters.work
        behind = work.busy
        work.expire(0)
        return behind

    def fail_disk(self, number: int = errno.EIO, times: float = inf) -> None:
        """So many writes fail from now on."""
        left = times

        def fail(operation: Operation) -> None:
            nonlocal left
            if operation.kind == "write" and left > 0:
                left -= 1
                raise OSError(number, os.strerror(number))

        self.disk.before = fail

    def congest(self) -> None:
        """Have so much wait for the disk that it is behind, until `commit`. (Soon with `TIGHT`.)"""
        ballast, _ = self.store.namespace("ballast", ALWAYS).create("ballast")
        while not self.store.congested:
            ballast.append(record(bytes(1 << 20)), 1)

    def damage(self, name: str, offset: int = 0, namespace: str = "logmq") -> None:
        """Have a bit of a topic's log flip at `offset`, which stands in its own file by then."""
        trio.run(self.store.checkpoint)
        self.restart()
        self.disk.flip(f"{namespace}/{name}.log", 8 * offset + 1)

    def restart(self) -> None:
        """The process dies and starts again: what was written is there, connections are gone."""
        self.store.abandon()
        self.disk = self.disk.kill()
        self._open()


class SlowReads:
    """`reads`: how many began. `cold`: logs whose reads wait for `thaw`. `open`: ranges to be released."""

    def __init__(self) -> None:
        self.reads = 0
        self.cold: set[str] = set()
        self.open = 0
        self.waiting: list[Callable[[], None]] = []

    def thaw(self) -> None:
        """The disk has read what was waited for."""
        while self.waiting:
            self.waiting.pop(0)()

    def begin(self, log: Log, read: Callable[[], None]) -> None:
        self.reads += 1
        if log.name in self.cold:
            self.waiting.append(read)
        else:
            read()

    def lent(self, chunk: Any) -> Any:
        if isinstance(chunk, FileRange):
            self.open += 1
            release = chunk.release

            def released() -> None:
                self.open -= 1
                release()

            chunk.release = released  # type: ignore[method-assign]
        return chunk


@contextmanager
def slow_reads(*cold: str) -> Iterator[SlowReads]:
    """Reads of these logs are answered later, as `Log.read` may; all are counted."""
    slow = SlowReads()
    slow.cold.update(cold)
    read, chunk, start = Log.read, Log.read_chunk, Log.is_record_start

    def slow_read(log: Log, offset: int, size: int, done: Callable[[Any], None]) -> None:
        slow.begin(log, lambda: read(log, offset, size, done))

    def slow_chunk(log: Log, offset: int, size: int, done: Callable[[Any], None]) -> None:
        slow.begin(log, lambda: chunk(log, offset, size, lambda found: done(slow.lent(found))))

    def slow_start(log: Log, offset: int, done: Callable[[Any], None]) -> None:
        slow.begin(log, lambda: start(log, offset, done))

    with mock.patch.multiple(Log, read=slow_read, read_chunk=slow_chunk, is_record_start=slow_start):
        yield slow


class Peer(HandPeer):
    """A client's end, driven by hand."""

    def __init__(self, world: World, connection: MemoryConnection) -> None:
        super().__init__(connection, Session(connection, world.broker))
        self.world = world

    def ask(self, data: bytes) -> bytes:
        """Send, let the disk catch up, and take the answers."""
        self.send(data)
        self.settle()
        return self.take()

    def settle(self) -> None:
        """Turns of the driver until nothing moves any more."""
        moved = True
        while moved:
            commits = self.world.commit()
            behind = self.world.serve_readers()
            moved = any((self.read_on(), commits, behind, self.wake_if_due()))

    def take(self) -> bytes:
        taken = self.connection.taken()
        self.pump()
        return taken + self.connection.taken()
