"""A store that follows another one: what that wrote is written here, in its order, and nothing else is.

The journal's batches of the other store come as they are. Logs have its ids and its offsets, so whoever reads
here reads the same. How far it has come stands in a log of its own, in the same batch as what came. All of
this belongs to the trio thread.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shared.errors import StoreError
from shared.storage import format
from shared.storage.catalog import LogLine, unpack_create
from shared.storage.committer import Committer
from shared.storage.format import Batch, Entry, EntryKind
from shared.storage.inventory import Inventory
from shared.storage.log import Log, Ticket, WholeRecords
from shared.storage.settings import Durability, Mode

NAMESPACE = "follow"
_LINE = LogLine(1 << 62, NAMESPACE, "position", "position", "always", 0, 0, 0)
"""Its id is far from those that the other store gives."""
_POSITION = struct.Struct(">QQQQQQQ")
_RECORD_BYTES = format.LENGTH_BYTES + _POSITION.size
_KEPT = 1000
"""Positions that are kept at most: then all but the newest are dropped."""


class Diverged(StoreError):
    """What came does not go on where this store ends."""


class Position(NamedTuple):
    """How far a store has come: it has all below `lsn` of the journal `journal_id`, of which `number` is the
    newest object that it has whole; that one reaches to `next_lsn`. `next_id`: of the next log there.
    """

    journal_id: int
    epoch: int
    number: int
    next_lsn: int
    lsn: int
    time_ms: int
    next_id: int


Came = tuple[Batch, memoryview]
"""A batch and all its bytes."""
Referred = Mapping[tuple[int, int], bytes | memoryview | None]
"""By log id and offset: bytes to which batches refer; None where they were gone."""


class Follower:
    """Writes to its store what came from another one; nobody else may, and gets `why`."""

    def __init__(self, committer: Committer, inventory: Inventory, why: StoreError) -> None:
        self._committer = committer
        self._inventory = inventory
        self._made: dict[int, Log] = {}
        self._next_id = 0
        committer.refuses = why

    async def position(self, first: Position) -> Position:
        """How far the store has come; `first` where nothing came yet. To be asked before `apply`. Raises
        StoreError."""
        found, log = first, self._inventory.logs.get(_LINE.id)
        if log is not None and log.visible >= _RECORD_BYTES:
            reader = WholeRecords(log, log.visible - _RECORD_BYTES, _RECORD_BYTES)
            found = Position(*_POSITION.unpack_from(await reader.read(), format.LENGTH_BYTES))
        self._next_id = max(self._next_id, found.next_id)
        return self.known(found)

    def known(self, position: Position) -> Position:
        """The position, with the id that a next log would have."""
        return position._replace(next_id=self._next_id)

    def forget(self) -> Ticket | None:
        """Remove the positions: the store is to go on by itself. Raises StoreError."""
        log = self._inventory.logs.get(_LINE.id)
        if log is None:
            return None
        self._inventory.claim(log)
        with self._committer.applying():
            return self._inventory.delete(self._inventory.namespaces[NAMESPACE], log, ())

    def apply(self, batches: Sequence[Came], referred: Referred, position: Position) -> Ticket:
        """Write whole batches, and the position behind them: all or nothing. Raises StoreError; the store is
        read-only then, as half of it would be worse than none."""
        size = sum(batch.payload_bytes for batch, _ in batches) + _RECORD_BYTES
        size += sum(len(data) for data in referred.values() if data is not None)
        self._committer.came_ms = position.time_ms
        with self._committer.together(size) as whole:
            try:
                for batch, data in batches:
                    payload = data[format.BATCH_HEADER_BYTES :][: batch.payload_bytes]
                    for entry in _in_order(format.unpack_entries(payload, batch.entries) or []):
                        self._apply(entry, payload, referred)
                self._note(self.known(position))
            except BaseException as error:
                whole.broken = error if isinstance(error, Exception) else RuntimeError("cut short")
                raise
            ticket = whole.tickets[Mode.SYNCED]
        self._committer.commit_pending()
        return ticket

    def _apply(self, entry: Entry, payload: memoryview, referred: Referred) -> None:
        body = payload[entry.body_start : entry.body_end]
        if entry.kind == EntryKind.CREATE:
            self._create(unpack_create(entry.log_id, bytes(body)))
            self._next_id = max(self._next_id, entry.log_id + 1)
            return
        log = self._of(entry.log_id)
        if entry.kind == EntryKind.APPEND:
            self._append(log, entry.offset, bytes(body), entry.records)
        elif entry.kind == EntryKind.REFERENCE:
            data = referred.get((entry.log_id, entry.offset))
            length, _ = format.unpack_reference(payload, entry) or (0, 0)
            self._append(log, entry.offset, bytes(length) if data is None else bytes(data), entry.records)
        else:
            with self._committer.applying():
                self._change(log, entry, bytes(body))

    def _of(self, log_id: int) -> Log:
        log = self._made.get(log_id) or self._inventory.logs.get(log_id)
        if log is None:
            raise Diverged(f"there is no log {log_id} here")
        self._inventory.claim(log)
        return log

    def _create(self, line: LogLine) -> Log:
        with self._committer.applying():
            log = self._made[line.id] = self._inventory.adopt(line)
        return log

    def _append(self, log: Log, offset: int, records: bytes, count: int) -> None:
        if offset != log.end:
            raise Diverged(f"{log.namespace}/{log.name} ends at {log.end}, and what came goes to {offset}")
        with self._committer.applying():
            part = self._committer.begin(log, len(records), True)
        part.add(records, count)  # a table that folds it would tidy: that must come, too

    def _change(self, log: Log, entry: Entry, body: bytes) -> None:
        if entry.kind == EntryKind.DELETE:
            self._inventory.delete(self._inventory.namespaces[log.namespace], log, ())
            self._made.pop(log.id, None)
        elif entry.kind == EntryKind.FIRST:
            self._committer.drop_below(log, entry.offset)
        elif entry.kind == EntryKind.MODE:
            self._inventory.change_mode(log, Durability.parse(body.decode()))

    def _note(self, position: Position) -> None:
        log = self._made.get(_LINE.id) or self._inventory.logs.get(_LINE.id) or self._create(_LINE)
        self._inventory.claim(log)
        self._append(log, log.end, format.record(_POSITION.pack(*position)), 1)
        if log.end - log.first > _KEPT * _RECORD_BYTES:
            with self._committer.applying():
                self._committer.drop_below(log, log.end - _RECORD_BYTES)


def _in_order(entries: Sequence[Entry]) -> list[Entry]:
    """A batch has its changes in front of what it appends. So what it appends to a log that it deletes is
    left out, and where a log begins is said last: that may be behind what is appended.
    """
    gone = {entry.log_id for entry in entries if entry.kind == EntryKind.DELETE}
    made_or_gone = (EntryKind.CREATE, EntryKind.DELETE)
    kept = [entry for entry in entries if entry.log_id not in gone or entry.kind in made_or_gone]
    return sorted(kept, key=lambda entry: entry.kind == EntryKind.FIRST)
