"""A small keyed map kept in a log (STORAGE.md, "Tables"): consumer groups' offsets, sessions, bindings.

The map is the fold of the log's records, both at the start and later. Whatever is appended to the log, by
`put` or by `Store.append_all` together with other logs, is in the map at once. It is removed again if its
commit fails. While less than half of the log is live, each change copies a few of the oldest records to the
end: the work is spread, and there is never a pause. If the log is damaged, keys put there may be missing or
have an older value, and keys removed there may be back.
"""

import struct
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Self

import structlog

from shared.errors import CorruptRecord, StoreError
from shared.storage.format import DELETE, LENGTH_BYTES, PUT, length_at
from shared.storage.inventory import KEEP_ALL, Namespace
from shared.storage.log import Log, Ticket, WholeRecords
from shared.storage.lost import Lost, describe_lost

logger = structlog.stdlib.get_logger("brokers.storage")

_HEAD = struct.Struct(">IBH")
KEY_BYTES_MAX = 0xFFFF

_READ_BYTES = 1 << 20
SLACK_BYTES = 64 << 10
"""Dead bytes that are tolerated; also how much is dropped at once."""

_CHANGES = 4096
"""Records of one append, when many keys are deleted."""

_DISCARDED = 1024
"""Keys per commit of `discard`: some milliseconds."""

_COPIES = 8
"""How many of the oldest records are copied with each change, while less than half is live."""


class Table:
    """Open one with `Table.open`; one object per log. Reading it is reading a dict."""

    def __init__(self, log: Log) -> None:
        self.log = log
        # Key -> (its record's offset, value), by offset. Not a dict: once its first keys are removed, finding
        # its first key steps over all their places each time.
        self._live: OrderedDict[bytes, tuple[int, bytes]] = OrderedDict()
        self._live_bytes = 0
        self.lost: list[Lost] = []
        """What could not be read at the start."""
        self._undo: deque[tuple[int, bytes, tuple[int, bytes] | None]] = deque()
        self._tidying = False

    @classmethod
    async def open(cls, namespace: Namespace, name: str) -> Self:
        """Read the table, creating it if needed. Damage is skipped, see `lost`. Raises CorruptRecord if the
        log is no table, and other StoreErrors.
        """
        log = namespace.logs.get(name)
        if log is None:
            return cls.create(namespace, name)
        table = cls(log)
        reader = WholeRecords(log, log.first, _READ_BYTES)
        while data := await reader.read():
            at, offset = 0, reader.offset
            while at < len(data):
                try:
                    at = table._apply(data, at, offset, undoable=False)
                except CorruptRecord as error:
                    if log.was_written(error.offset):
                        raise  # not by damage: this is no table, or a newer version's
                    at = error.offset - offset
                    size = LENGTH_BYTES + length_at(data, at)[0]
                    reader.pass_over(Lost(error.offset, size, 1))
                    at += size
        table.lost = reader.lost
        if table.lost:
            logger.error(
                "a table is damaged: rows written in these ranges are lost, all others are read; look at the "
                "disk, and restore a backup if they are missed",
                path=log.file.path,
                **describe_lost(table.lost),
            )
        table._begin()
        return table

    @classmethod
    def create(cls, namespace: Namespace, name: str) -> Self:
        """A new table, which is empty. Raises StoreError."""
        log, _ = namespace.create(name, reserved=True)
        table = cls(log)
        table._begin()
        return table

    def _begin(self) -> None:
        """What is appended from now on is in the map."""
        log = self.log
        log.retention = KEEP_ALL  # the table drops dead records itself, and nothing else
        log.fold = self._fold
        log.rolled_back = self._rolled_back

    @property
    def hides_keys(self) -> bool:
        """Whether damage may have taken a missing key; until that range is dropped."""
        return any(lost.end > self.log.first for lost in self.lost)

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, key: bytes) -> bool:
        return key in self._live

    def __getitem__(self, key: bytes) -> bytes:
        return self._live[key][1]

    def offset(self, key: bytes) -> int:
        """Where the key's record is in the log. To keep the log short it may be appended anew at any time."""
        return self._live[key][0]

    def get(self, key: bytes) -> bytes | None:
        found = self._live.get(key)
        return None if found is None else found[1]

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """A copy: the table may change meanwhile."""
        return iter([(key, value) for key, (_, value) in self._live.items()])

    def put(self, key: bytes, value: bytes) -> Ticket:
        """Put a key; it may use the reserved space. Raises as `Log.append`."""
        return self._append(_record(PUT, key, value))

    def delete(self, key: bytes) -> Ticket:
        """As `put`, but delete a key; a missing key needs no record."""
        return self.delete_all([key])

    def delete_all(self, keys: Sequence[bytes]) -> Ticket:
        """Delete many keys, some thousands at a time: tidying is then done once for all."""
        records = [_record(DELETE, key, b"") for key in keys if key in self._live]
        ticket = Ticket()
        if not records:
            ticket.resolve(None)
        for start in range(0, len(records), _CHANGES):
            those = records[start : start + _CHANGES]
            _, ticket = self.log.append(b"".join(those), len(those), reserved=True)
        return ticket

    def discard(self, keys: list[bytes], done: Callable[[], None] = lambda: None) -> None:
        """Delete many keys that nobody reads or puts any more, a thousand per commit; other tasks run in
        between.

        `done` is called when all are gone. What a crash leaves, the caller removes at the next start. Takes
        ownership of `keys`. Raises as `delete`.
        """
        some = keys[-_DISCARDED:]
        del keys[-_DISCARDED:]
        self.delete_all(some).when_done(lambda ticket: self._discarded(keys, ticket, done))

    def put_record(self, key: bytes, value: bytes) -> tuple[Log, bytes, int]:
        """For `Store.append_all`: a record that puts a key together with other logs' records."""
        return self.log, _record(PUT, key, value), 1

    def delete_record(self, key: bytes) -> tuple[Log, bytes, int]:
        """As `put_record`, to delete a key."""
        return self.log, _record(DELETE, key, b""), 1

    def _append(self, record: bytes) -> Ticket:
        _, ticket = self.log.append(record, 1, reserved=True)
        return ticket

    def _discarded(self, keys: list[bytes], ticket: Ticket, done: Callable[[], None]) -> None:
        if ticket.error is None:
            with suppress(StoreError):  # the next start deletes them
                if keys:
                    self.discard(keys, done)
                else:
                    done()

    def _fold(self, offset: int, records: bytes) -> None:
        undo = self._undo
        while undo and undo[0][0] < self.log.visible:
            undo.popleft()
        self._apply(records, 0, offset, undoable=True)
        if not self._tidying:
            self._tidy()

    def _apply(self, records: bytes, at: int, offset: int, *, undoable: bool) -> int:
        """Apply whole records from `at` on; `records` stands at `offset` in the log. Returns their end."""
        while at < len(records):
            end = at + LENGTH_BYTES + length_at(records, at)[0]
            start = at + _HEAD.size
            if start > end:
                raise CorruptRecord(self.log.file.path, offset + at)
            _, op, key_bytes = _HEAD.unpack_from(records, at)
            key = records[start : start + key_bytes]
            if op not in (PUT, DELETE) or start + key_bytes > end:
                raise CorruptRecord(self.log.file.path, offset + at)
            before = self._set(key, (offset + at, records[start + key_bytes : end]) if op == PUT else None)
            if undoable:
                self._undo.append((offset + at, key, before))
            at = end
        return at

    def _set(self, key: bytes, now: tuple[int, bytes] | None) -> tuple[int, bytes] | None:
        """Set a key, or remove it; returns what it had."""
        before = self._live.pop(key, None)
        if before is not None:
            self._live_bytes -= _HEAD.size + len(key) + len(before[1])
        if now is not None:
            self._live[key] = now
            self._live_bytes += _HEAD.size + len(key) + len(now[1])
        return before

    def _rolled_back(self, log: Log) -> None:
        """The newest changes failed: undo them."""
        while self._undo and self._undo[-1][0] >= log.visible:
            _, key, before = self._undo.pop()
            self._set(key, before)
        self._live = OrderedDict(sorted(self._live.items(), key=lambda item: item[1][0]))

    def _tidy(self) -> None:
        """If much is dead, copy a few of the oldest records to the end, and drop what is below."""
        log = self.log
        self._tidying = True
        try:
            for _ in range(_COPIES):
                if log.end - log.first <= 2 * self._live_bytes + SLACK_BYTES or not self._live:
                    break
                key, (offset, value) = next(iter(self._live.items()))
                if offset >= log.visible:
                    break  # it is new: all older ones were copied
                self._append(_record(PUT, key, value))
            oldest = next(iter(self._live.values()))[0] if self._live else log.end
            if oldest - log.first >= SLACK_BYTES:
                log.drop_below(oldest)
        except StoreError:
            pass  # tidying can wait; the change itself has been appended
        finally:
            self._tidying = False


def _record(op: int, key: bytes, value: bytes) -> bytes:
    if len(key) > KEY_BYTES_MAX:
        raise ValueError(f"a key of {len(key)} bytes, at most {KEY_BYTES_MAX}")
    return _HEAD.pack(_HEAD.size - LENGTH_BYTES + len(key) + len(value), op, len(key)) + key + value
