"""Reading the logs that a server has shipped to a bucket (brokers/ship/SHIP.md), in place, without a server.

A snapshot says of which parts each log consists, and parts have index entries inside. So a look costs the
manifest and a snapshot, a place in a log the entries of a few parts, and a chunk of records one request for a
range. What came since the newest snapshot is read from the journal's objects (`shipped_tail`). An instant is
read from the first snapshot behind it, whose logs are cut there.
"""

import time
from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from brokers.pipeline.source.folder import RangeReader
from brokers.pipeline.source.options import SourceOptions, TopicChoice
from brokers.pipeline.source.ranges import LogRange, RecordChunk
from brokers.pipeline.source.reader import LossPolicy, SourceReader
from brokers.pipeline.source.shipped_tail import ShippedTail
from shared.errors import ConfigError
from shared.storage.catalog import LogLine
from shared.storage.format import INDEX_ENTRY_BYTES, IndexEntry

if TYPE_CHECKING:
    from brokers.ship.bucket import Bucket
    from brokers.ship.formats import Section, Snapshot

LOOK_SECONDS = 1.0
"""How long a look at the manifest counts, for a stream that asks all the time."""
_ENTRIES_KEPT = 256
"""Parts whose index entries a reader remembers: 64 KiB each."""


def is_bucket(source: str) -> bool:
    """Whether a source is a bucket: by its URL, or a folder with a manifest in it."""
    return "://" in source or (Path(source) / "manifest.json").is_file()


@attrs.frozen
class _Look:
    """A snapshot, and when it was looked up."""

    snapshot: "Snapshot"
    key: str
    at: float
    tail: ShippedTail | None
    """None where a snapshot behind the instant has all."""


_LOOKS: dict[tuple[str, int | None], _Look] = {}


class ShippedReader(SourceReader):
    """A bucket, as of now or of `endingInstant`.

    Raises ConfigError for settings that do not fit, and BucketError for a bucket that does not answer.
    """

    def __init__(self, source: str, options: SourceOptions) -> None:
        self.source = source
        self.namespace = options.namespace
        self._bucket = _bucket(source, options)
        at = options.instant
        look = self._look(None if at is None else at.value)
        self._snapshot = look.snapshot
        self._unread_tail = look.tail
        self._ends = {line.id: max(line.first, line.end) for line in self._snapshot.catalog.logs}
        self._read_tail: ShippedTail | None = None
        self._entries: dict[tuple[str, int], Sequence[IndexEntry]] = {}

    def close(self) -> None:
        """Nothing is open between two requests."""

    # -- which logs

    @property
    def _tail(self) -> ShippedTail | None:
        """What came since the snapshot: asked for once, and only by who needs it."""
        tail, self._unread_tail = self._unread_tail, None
        if tail is not None:
            tail.advance()
            self._read_tail = tail
        return self._read_tail

    @property
    def _lines(self) -> Mapping[int, LogLine]:
        tail = self._tail
        return {line.id: line for line in self._snapshot.catalog.logs} if tail is None else tail.lines

    def _look(self, instant_ms: int | None) -> _Look:
        from brokers.ship.formats import MANIFEST_KEY, unpack_manifest, unpack_snapshot

        where, now = (self.source, instant_ms), time.monotonic()
        before = _LOOKS.get(where)
        if before is not None and now - before.at < LOOK_SECONDS:
            return before
        manifest = unpack_manifest(self._ask(partial(self._bucket.get, MANIFEST_KEY))[0])
        if not manifest.snapshots:
            raise ConfigError("path", f"{self.source} has no snapshot yet: the server's next fold makes one")
        lines = sorted(manifest.snapshots, key=lambda line: line.lsn)
        late = [line for line in lines if instant_ms is not None and line.time_ms >= instant_ms]
        key = (late or lines[-1:])[0].key
        if before is None or before.key != key:
            snapshot = unpack_snapshot(self._ask(partial(self._bucket.get, key))[0], key)
            before = _Look(snapshot, key, now, None if late else ShippedTail(self._bucket, snapshot))
        _LOOKS[where] = attrs.evolve(before, at=now)
        return before

    def _ask(self, work: Callable[[], Awaitable[Any]]) -> Any:
        import trio

        return trio.run(self._bucket.retried, work)

    def logs(self, topics: TopicChoice) -> dict[str, LogRange]:
        by_name = {line.name: line for line in self._lines.values() if line.namespace == self.namespace}
        chosen = [by_name[name] for name in topics.matching(by_name) if name in by_name]
        return {
            line.name: LogRange(self.source, line.name, line.id, line.first, max(line.first, line.end))
            for line in chosen
        }

    def is_other(self, log: LogRange, id_before: int, offset: int) -> bool:
        return log.log_id != id_before

    # -- places in a log

    def _sections(self, log_id: int) -> "list[tuple[str, Section]]":
        return self._snapshot.sections.get(log_id, [])

    def _entries_of(self, key: str, section: "Section") -> Sequence[IndexEntry]:
        from brokers.ship.bucket import Missing
        from brokers.ship.formats import BadObject, section_entries

        where = (key, section.entries_at)
        found = self._entries.get(where)
        if found is None:
            size = section.entries * INDEX_ENTRY_BYTES
            try:
                data = self._ask(partial(self._bucket.get_range, key, section.entries_at, size))
                found = section_entries(data, section, key)
            except (Missing, BadObject):  # whoever reads the records tells the loss
                found = []
            while len(self._entries) >= _ENTRIES_KEPT:
                del self._entries[next(iter(self._entries))]
            self._entries[where] = found
        return found

    def at_time(self, log: LogRange, unix_ms: int) -> int | None:
        sections = self._sections(log.log_id)

        def reaches(number: int) -> bool:
            entries = self._entries_of(*sections[number])
            return bool(entries) and entries[-1].last_ms >= unix_ms

        low = bisect_left(range(len(sections)), True, key=reaches)
        for key, section in sections[low : low + 1]:
            for entry in self._entries_of(key, section):
                if entry.last_ms >= unix_ms:
                    return min(max(entry.offset, log.start), log.stop)
        for entry in self._tail_entries(log):
            if entry.last_ms >= unix_ms:
                return min(max(entry.offset, log.start), log.stop)
        return None

    def _tail_entries(self, log: LogRange) -> Iterator[IndexEntry]:
        """The entries of what came since the snapshot, where the range goes so far."""
        if log.stop > self._ends.get(log.log_id, 0) and (tail := self._tail) is not None:
            yield from (each.entry for each in tail.entries(log.log_id))

    def entry_at(self, log: LogRange, offset: int) -> IndexEntry | None:
        tail = self._tail if offset >= self._ends.get(log.log_id, 0) else None
        if tail is not None and (found := tail.entry_at(log.log_id, offset)) is not None:
            return found
        sections = self._sections(log.log_id)
        number = bisect_right(sections, offset, key=lambda each: each[1].first) - 1
        if number < 0:
            return None
        entries = self._entries_of(*sections[number])
        at = bisect_right(entries, offset, key=lambda entry: entry.offset) - 1
        return entries[at] if at >= 0 else None

    def entries_from(self, log: LogRange, start: int) -> Iterator[IndexEntry]:
        for key, section in self._sections(log.log_id):
            if section.end > start and section.first < log.stop:
                for entry in self._entries_of(key, section):
                    if entry.end > start and entry.offset < log.stop:
                        yield entry
        for entry in self._tail_entries(log):
            if entry.end > start and entry.offset < log.stop:
                yield entry

    # -- reading

    def records(self, log: LogRange, start: int, size: int) -> bytes:
        return self._bytes(log.log_id, size, start)

    def chunks(self, wanted: LogRange, policy: LossPolicy, *, bare: bool = False) -> Iterator[RecordChunk]:
        read = partial(self._bytes, wanted.log_id)
        ranges = RangeReader(wanted, read, partial(self._first_kept, wanted.log_id), policy, bare)
        yield from ranges.chunks(self.entries_from(wanted, wanted.start))

    def _first_kept(self, log_id: int) -> int | None:
        line = self._lines.get(log_id)
        return None if line is None else line.first

    def _bytes(self, log_id: int, size: int, start: int) -> bytes:
        """Return a log's bytes, by a request for each part; fewer where a part is gone, which is a loss."""
        from brokers.ship.bucket import Missing

        data = b""
        for key, section in self._sections(log_id):
            at = start + len(data)
            if section.first <= at < section.end and len(data) < size:
                length = min(size - len(data), section.end - at)
                place = section.at + at - section.first
                try:
                    data += self._ask(partial(self._bucket.get_range, key, place, length))
                except Missing:
                    return data
        at = start + len(data)
        if len(data) < size and at >= self._ends.get(log_id, 0) and (tail := self._tail) is not None:
            data += tail.read(log_id, at, size - len(data))
        return data


def _bucket(source: str, options: SourceOptions) -> "Bucket":
    from brokers.ship.settings import ShipSettings
    from brokers.ship.stores import open_bucket

    async def here(work: Callable[[], Any], **_: Any) -> Any:
        return work()

    url = source if "://" in source else f"file://{source}"
    bucket = open_bucket(
        ShipSettings(
            url=url,
            endpoint=options.endpoint or "",
            region=options.region or "",
            credentials=Path(options.credentials) if options.credentials else None,
            encrypt=Path(options.encrypt) if options.encrypt else None,
        )
    )
    bucket.in_thread = here
    return bucket
