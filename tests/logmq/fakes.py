"""A store in memory whose commits, cold reads and failures are the test's to decide."""

import tempfile
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import structlog

from logmq.broker import Broker
from logmq.groups import Groups
from logmq.session import Session
from logmq.settings import LogmqSettings
from logmq.topics import Topics
from logmq.writers import Writers
from shared.checks import MemoryConnection
from shared.errors import LogDeleted, NotARecord, OutOfRange, StoreError
from shared.file_range import FileRange
from shared.storage.format import IndexEntry
from shared.storage.settings import Durability

LOG = structlog.stdlib.get_logger("test")
INDEX_ENTRY_BYTES = 64


class FakeTicket:
    def __init__(self) -> None:
        self.done = False
        self.error: StoreError | None = None
        self._callbacks: list[Callable[[Any], None]] = []

    def when_done(self, callback: Callable[[Any], None]) -> None:
        if self.done:
            callback(self)
        else:
            self._callbacks.append(callback)

    def resolve(self, error: StoreError | None = None) -> None:
        assert not self.done
        self.done, self.error = True, error
        for callback in self._callbacks:
            callback(self)


class FakeLog:
    """Keeps what was appended; `cold` reads are answered by `FakeStore.thaw`."""

    def __init__(self, store: "FakeStore", log_id: int, name: str, mode: Durability) -> None:
        self.store, self.id, self.name, self.mode = store, log_id, name, mode
        self.namespace = "logmq"
        self.data = bytearray()
        self.first = self.visible = 0
        self.deleted = self.cold = False
        self.watchers: set[Callable[[Any], None]] = set()
        self.retention: Any = None
        self.damaged: StoreError | None = None
        self.reads = 0

    @property
    def end(self) -> int:
        return len(self.data)

    def append(self, records: bytes, count: int) -> tuple[int, FakeTicket]:
        if self.deleted:
            raise LogDeleted
        if self.store.read_only is not None:
            raise self.store.read_only
        assert len(list(record_starts(records))) == count
        offset = self.end
        self.data += records
        return offset, self.store.ticket(self)

    def read(self, offset: int, max_bytes: int, done: Callable[[bytes | StoreError], None]) -> None:
        self._later(lambda: done(self._records(offset, max_bytes)))

    def read_chunk(self, offset: int, max_bytes: int, done: Callable[[FileRange | StoreError], None]) -> None:
        def chunk() -> None:
            records = self._records(offset, max_bytes)
            done(records if isinstance(records, StoreError) else self.store.chunk(records))

        self._later(chunk)

    def is_record_start(self, offset: int, done: Callable[[bool | StoreError], None]) -> None:
        def answer() -> None:
            fault = self._fault(offset)
            done(True if fault is None else fault)

        self._later(answer)

    def index_entries(self, start: int, stop: int) -> list[IndexEntry]:
        marks: list[IndexEntry] = []
        begin = count = 0
        for _, end in record_starts(bytes(self.data[: self.visible])):
            count += 1
            if end - begin >= INDEX_ENTRY_BYTES or end == self.visible:
                marks.append(IndexEntry(begin, 1000 + begin, 2000 + begin, end - begin, count, begin * 7))
                begin, count = end, 0
        return [mark for mark in marks if mark.offset < stop and mark.offset + mark.length > start]

    def seek(self, unix_ms: int) -> int:
        return next(
            (mark.offset for mark in self.index_entries(0, self.visible) if mark.last_ms >= unix_ms),
            self.visible,
        )

    def drop_below(self, offset: int) -> None:
        self.first = offset

    def told(self) -> None:
        for watcher in tuple(self.watchers):
            watcher(self)

    def _later(self, answer: Callable[[], None]) -> None:
        self.reads += 1
        if self.cold:
            self.store.frozen.append(answer)
        else:
            answer()

    def _fault(self, offset: int) -> StoreError | None:
        if self.deleted:
            return LogDeleted()
        if self.damaged is not None:
            return self.damaged
        if offset < self.first:
            return OutOfRange(self.first)
        if offset == self.visible:
            return None
        below = 0
        for at, _ in record_starts(bytes(self.data[: self.visible])):
            if at == offset:
                return None
            if at > offset:
                break
            below = at
        return NotARecord(below)

    def _records(self, offset: int, max_bytes: int) -> bytes | StoreError:
        fault = self._fault(offset) if offset < self.visible or self.deleted else None
        if fault is not None:
            return fault
        end = offset
        for at, stop in record_starts(bytes(self.data[offset : self.visible])):
            if at and stop > max_bytes:
                break
            end = offset + stop
        return bytes(self.data[offset:end])


class FakeNamespace:
    def __init__(self, store: "FakeStore", mode: Durability) -> None:
        self.store, self.mode = store, mode
        self.logs: dict[str, FakeLog] = {}

    def create(self, name: str, mode: Durability | None = None, **_: Any) -> tuple[FakeLog, FakeTicket]:
        if self.store.read_only is not None:
            raise self.store.read_only
        assert name not in self.logs
        self.store.ids += 1
        log = self.logs[name] = FakeLog(self.store, self.store.ids, name, mode or self.mode)
        return log, self.store.ticket(log)

    def delete(self, name: str, beside: Sequence[tuple[FakeLog, bytes, int]] = ()) -> FakeTicket:
        log = self.logs.pop(name)
        log.deleted = True
        log.told()
        return self.store.ticket(log)


class FakeTable:
    def __init__(self, store: "FakeStore") -> None:
        self.store = store
        self.rows: dict[bytes, bytes] = {}
        self.log = FakeLog(store, 0, "table", Durability.parse("always"))

    def get(self, key: bytes) -> bytes | None:
        return self.rows.get(key)

    def __getitem__(self, key: bytes) -> bytes:
        return self.rows[key]

    def items(self) -> Iterable[tuple[bytes, bytes]]:
        return list(self.rows.items())

    def put(self, key: bytes, value: bytes) -> FakeTicket:
        if self.store.read_only is not None:
            raise self.store.read_only
        self.rows[key] = value
        return self.store.ticket(self.log)

    def delete(self, key: bytes) -> FakeTicket:
        self.rows.pop(key, None)
        return self.store.ticket(self.log)

    def delete_all(self, keys: Sequence[bytes]) -> FakeTicket:
        for key in keys:
            self.rows.pop(key, None)
        return self.store.ticket(self.log)

    def discard(self, keys: list[bytes], done: Callable[[], None]) -> None:
        self.delete_all(keys)
        done()

    def put_record(self, key: bytes, value: bytes) -> tuple[FakeLog, bytes, int]:
        self.rows[key] = value
        return self.log, record(b""), 1


class FakeStore:
    """`commit_pending` makes durable what was appended; `auto` does so at each append's end of round."""

    def __init__(self) -> None:
        self.read_only: StoreError | None = None
        self.congested = False
        self.frozen: list[Callable[[], None]] = []
        self.relieved: list[Callable[[], None]] = []
        self.open_chunks = 0
        self.ids = 0
        self.commits = 0
        self._tickets: dict[str, FakeTicket] = {}
        self._touched: dict[FakeLog, None] = {}

    def namespace(self, name: str, mode: Durability, **_: Any) -> FakeNamespace:
        return FakeNamespace(self, mode)

    def ticket(self, log: FakeLog) -> FakeTicket:
        self._touched[log] = None
        return self._tickets.setdefault(log.mode.mode, FakeTicket())

    def append_all(self, parts: list[tuple[FakeLog, bytes, int]]) -> tuple[list[int], FakeTicket]:
        offsets = [log.append(records, count)[0] for log, records, count in parts]
        return offsets, self.ticket(parts[0][0])

    def commit_pending(self, error: StoreError | None = None) -> None:
        """One commit of everything; with an error nothing of it counts, and the store is read-only."""
        tickets, self._tickets = self._tickets, {}
        touched, self._touched = self._touched, {}
        self.commits += bool(tickets)
        if error is None:
            for log in touched:
                log.visible = log.end
                log.told()
        else:
            self.read_only = error
            for log in touched:
                del log.data[log.visible :]
        for ticket in tickets.values():
            ticket.resolve(error)

    def when_uncongested(self, callback: Callable[[], None]) -> None:
        self.relieved.append(callback)

    def relieve(self) -> None:
        self.congested = False
        callbacks, self.relieved = self.relieved, []
        for callback in callbacks:
            callback()

    def thaw(self) -> None:
        """Finish the cold reads."""
        while self.frozen:
            self.frozen.pop(0)()

    def chunk(self, records: bytes) -> FileRange:
        file = tempfile.TemporaryFile()  # noqa: SIM115 (release closes it)
        file.write(records)
        file.flush()
        self.open_chunks += 1

        def release() -> None:
            self.open_chunks -= 1
            file.close()

        return FileRange(file.fileno(), 0, len(records), release)


def record(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


def records(*payloads: bytes) -> bytes:
    return b"".join(map(record, payloads))


def record_starts(data: bytes) -> Iterable[tuple[int, int]]:
    """Where each record begins and ends."""
    at = 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        assert end <= len(data), "not whole records"
        yield at, end
        at = end


class World:
    """A broker on a fake store, and connections to it."""

    def __init__(self, settings: LogmqSettings | None = None) -> None:
        self.store = FakeStore()
        self.settings = settings or LogmqSettings()
        self.namespace = FakeNamespace(self.store, self.settings.durability)
        self.group_table, self.writer_table = FakeTable(self.store), FakeTable(self.store)
        store = cast(Any, self.store)
        self.broker = Broker(
            store=store,
            log=LOG,
            settings=self.settings,
            topics=Topics(cast(Any, self.namespace), self.settings),
            groups=Groups(cast(Any, self.group_table), self.settings.commits_max),
            writers=Writers(store, cast(Any, self.writer_table), writers_max=self.settings.writers_max),
        )

    def connect(self, *, now: float = 0.0, bound: int = 1 << 20) -> "Peer":
        return Peer(self, MemoryConnection(now=now, bound=bound))

    def log(self, name: str) -> FakeLog:
        return self.namespace.logs[name]


class Peer:
    """A client's end, driven by hand."""

    def __init__(self, world: World, connection: MemoryConnection) -> None:
        self.world = world
        self.connection = connection
        self.session = Session(connection, world.broker)
        self._unread = b""

    def send(self, data: bytes) -> None:
        """One read of the server. What a paused server does not read waits, as in a socket."""
        self._unread += data
        self._pump()

    def ask(self, data: bytes) -> bytes:
        """Send, let the disk catch up, and take the answers."""
        self.send(data)
        self.settle()
        return self.take()

    def settle(self) -> None:
        """Rounds of the driver until nothing moves any more."""
        moved = True
        while moved:
            commits = self.world.store.commits
            self.world.store.commit_pending()
            moved = self._pump() or self.world.store.commits > commits
            if self.connection.deadline <= self.connection.now:
                self._wake()
                moved = True

    def take(self) -> bytes:
        taken = self.connection.taken()
        self._pump()
        return taken + self.connection.taken()

    def close_input(self) -> None:
        self.session.receive_eof()

    def advance(self, seconds: float) -> None:
        """Let time pass, deadline by deadline."""
        end = self.connection.now + seconds
        while self.connection.deadline <= end:
            self.connection.now = max(self.connection.now, self.connection.deadline)
            self._wake()
            self._pump()
        self.connection.now = end

    def lose(self) -> None:
        self.connection.closed = True
        self.session.connection_lost()

    def _wake(self) -> None:
        self.connection.wake_at(float("inf"))
        self.session.on_deadline(self.connection.now)

    def _pump(self) -> bool:
        if not self._unread or not self.connection.reading or self.connection.finished:
            return False
        data, self._unread = self._unread, b""
        self.session.receive(data)
        return True
