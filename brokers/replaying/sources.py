"""Where a replay takes its messages: recorded traffic, logs, or an archive of either.

    recorded:pubsub/home/*      what passed through a protocol, by a glob of names
    logmq:orders-*              the records of topics
    archive:/srv/archive        what `brokers pipeline archive` has written of one of these

A running server is not disturbed: only files are read.
"""

import heapq
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Protocol, cast

import attrs

from brokers import plugins
from brokers.errors import ExitCode, Failure
from brokers.replaying.engine import Ranges, SourcedRecord
from shared.addresses import split
from shared.errors import UsageError
from shared.globs import matcher
from shared.local_path import local_path
from shared.recording import blocks
from shared.recording.blocks import GAP, NAMESPACE, BadBlock, Block
from shared.replaying import PastMessage, Replays
from shared.storage.format import LENGTH_BYTES
from shared.storage.tools.view import CheckedRange, FolderView, LogView, Trust, viewing
from shared.storage.tools.view import ranges as checked_ranges

if TYPE_CHECKING:
    from collections.abc import Sequence

TOPICS = "logmq"
"""The namespace and the protocol of topics."""
INDEX_BITS = 32
"""A message's offset in a recording: its block's offset shifted by these bits, plus its number in the
block."""

Row = tuple[int, float, bytes]
"""A log's record: its offset, its time (Unix seconds) and its payload."""
Frames = Callable[[Block, bytes], Iterator[PastMessage]]
Told = Callable[[str], None]
"""Called with a text about records that cannot be read; reading goes on after them."""


@attrs.frozen
class Chosen:
    """Selects messages by a glob of their names and by Unix seconds, from `since` to before `until`."""

    names: str | None = None
    since: float = float("-inf")
    until: float = float("inf")
    _matches: Callable[[str], object] = attrs.field(init=False, eq=False, repr=False)

    @_matches.default
    def _matcher(self) -> Callable[[str], object]:
        """Matches names in Latin-1: they are compared byte by byte."""
        return matcher([(self.names or "*").encode().decode("latin-1")])

    def takes(self, record: SourcedRecord) -> bool:
        if not self.since <= record.time < self.until:
            return False
        return self.names is None or bool(self._matches(record.message.name.decode("latin-1")))


class Source(Protocol):
    """The logs of one protocol: topics, or with `frames` its recordings."""

    @property
    def protocol(self) -> str: ...

    @property
    def frames(self) -> Frames | None: ...

    def logs(self) -> Ranges:
        """Return the logs as they are now. Raises Failure where there is none."""

    def rows(self, told: Told) -> AbstractContextManager["Callable[[str, int, int], Iterator[Row]]"]:
        """Open the logs. The function yields a log's records that begin in [start, stop); raises KeyError."""


def extents_of(source: Source) -> Ranges:
    """All that is in the source's logs now. Raises Failure where there is none."""
    bits = _bits(source.frames)
    return {label: (first << bits, end << bits) for label, (first, end) in source.logs().items()}


def records_of(source: Source, wanted: Ranges, told: Told) -> Iterator[SourcedRecord]:
    """Yield the messages of these ranges by time, and in each log's own order. Raises Failure."""
    bits = _bits(source.frames)
    with source.rows(told) as rows_of:
        each = []
        for label, (start, stop) in wanted.items():
            try:
                rows = rows_of(label, start >> bits, -(-stop >> bits))
            except KeyError:
                text = f"{label.rpartition(' ')[2]} was deleted since this replay began"
                raise Failure(f"{text}; a new --resume begins anew") from None
            each.append(_messages(label, rows, source.frames, told))
        for record in in_time(each):
            start, stop = wanted[record.log]
            if start <= record.offset < stop:  # a range may begin or end within a block
                yield record


def _bits(frames: Frames | None) -> int:
    return 0 if frames is None else INDEX_BITS


def opened(source: str, folder: Path, chosen: Chosen) -> tuple[Source, Chosen]:
    """Return the source and the selection of its messages. Raises UsageError."""
    try:
        kind, rest = split(source)
    except ValueError as error:
        raise UsageError("FROM", str(error)) from None
    if kind == "recorded":
        protocol, slash, names = rest.partition("/")
        if slash and chosen.names is None:
            chosen = attrs.evolve(chosen, names=names)
        check_protocol("FROM", protocol)
        return FromFolder(folder, NAMESPACE, protocol, protocol, _frames_of(protocol)), chosen
    if kind == TOPICS:
        return FromFolder(folder, TOPICS, rest or "*", TOPICS), chosen
    if kind == "archive":
        if not rest:
            raise UsageError("FROM", "archive: is followed by the archive's folder")
        return FromArchived(local_path(rest).expanduser()), chosen
    raise UsageError("FROM", f"{kind} is no source; there are recorded:, {TOPICS}: and archive:")


def check_protocol(argument: str, protocol: str) -> None:
    """Raise UsageError, with the argument's name, unless such a protocol is installed."""
    if protocol not in plugins.installed():
        raise UsageError(argument, f"{protocol!r} is no protocol; there are {', '.join(plugins.names())}")


def replays_to(protocol: str) -> Replays:
    """How messages are sent again to a server of a protocol. Raises Failure."""
    where = plugins.load(protocol).replays
    if where is None:
        raise Failure(f"nothing can be replayed to a server of {protocol}")
    return cast(Replays, resolve_name(where))


def _frames_of(protocol: str) -> Frames:
    plugin = plugins.load(protocol)
    frames = None if plugin.replays is None else replays_to(protocol).recorded
    if frames is None:
        raise UsageError("FROM", f"{protocol} cannot be recorded: {plugin.unrecorded}")
    return frames


def in_time(each: "Sequence[Iterator[SourcedRecord]]") -> Iterator[SourcedRecord]:
    """Merge logs by time. A log whose clock went back keeps its own order."""
    newest: dict[str, float] = {}

    def rank(record: SourcedRecord) -> tuple[float, str]:
        log, time = record.log, record.time
        if time < newest.get(log, time):
            return newest[log], log
        newest[log] = time
        return time, log

    return heapq.merge(*each, key=rank)  # which asks for the rank of each record once, when it comes


def _messages(label: str, rows: Iterator[Row], frames: Frames | None, told: Told) -> Iterator[SourcedRecord]:
    """Yield the messages of a log's rows: each row is one, or a recorded block."""
    for offset, row_time, payload in rows:
        if frames is None:
            yield SourcedRecord.of_log(label, offset, row_time, payload)
            continue
        here = offset << INDEX_BITS
        after = (offset + LENGTH_BYTES + len(payload)) << INDEX_BITS
        try:
            block = blocks.unpack(payload)
            if block.codec == GAP:
                told(f"{block.messages} messages were not recorded then")
                continue
            time = block.time_us / 1e6
            for number, message in enumerate(frames(block, payload[block.frames_at :])):
                at = here | number
                end = after if number == block.messages - 1 else at + 1
                yield SourcedRecord(label, at, time, message, end)
        except (BadBlock, ValueError) as error:
            told(f"the block at offset {offset} cannot be read: {error}")


# -- data folders


@attrs.frozen
class FromFolder:
    """Logs of a data folder whose names match a glob."""

    folder: Path
    namespace: str
    glob: str
    protocol: str
    frames: Frames | None = None

    def logs(self) -> Ranges:
        with viewing(self.folder) as view:
            extents = {label: (log.first, log.end) for label, log in self._logs(view).items()}
        if not extents:
            text = f"no topic in {self.folder} matches {self.glob}"
            if self.frames is not None:
                text = f"nothing of {self.protocol} was recorded in {self.folder} (brokers serve --record)"
            raise Failure(text, ExitCode.MISSING)
        return extents

    @contextmanager
    def rows(self, told: Told) -> Iterator[Callable[[str, int, int], Iterator[Row]]]:
        with viewing(self.folder) as view:
            logs = self._logs(view)
            yield lambda label, start, stop: _payloads(view, logs[label], start, stop, told)

    def _logs(self, view: FolderView) -> dict[str, LogView]:
        """The logs by label. A label has the id: a log deleted and made again is another log."""
        matches = matcher([self.glob])
        return {
            f"{log.id} {log.name}": log
            for log in view.sorted_logs()
            if log.namespace == self.namespace and matches(log.name)
        }


def _payloads(view: FolderView, log: LogView, start: int, stop: int, told: Told) -> Iterator[Row]:
    """The records that begin in [start, stop).

    The index has the times of an entry's first and last record. The records between get evenly spaced times.
    """
    before = log.created_ms
    low, high = max(start, log.first), min(stop, log.end)
    if start < log.first:
        told(f"{log.first - start} bytes of {log.name} were dropped by its retention since this replay began")
    with view.reader(log) as reader:
        for part in checked_ranges(view, log, reader, low, high):
            if part.state in (Trust.DAMAGED, Trust.REMOTE):
                told(f"{part.length} bytes of {log.name} at offset {part.offset} are left out: {part.text}")
                continue
            times = _times(part, before)
            for (offset, payload), time in zip(reader.records(part.offset, part.end), times, strict=False):
                if low <= offset < high:
                    yield offset, time, payload
            before = part.last_ms or before


def _times(part: CheckedRange, before: int) -> Iterator[float]:
    last = before if part.last_ms is None else part.last_ms
    first = before if part.first_ms is None else part.first_ms
    step = max(last - first, 0) / max(part.records - 1, 1)
    return ((first + number * step) / 1e3 for number in count())


# -- archives


class FromArchived:
    """The committed records of an archive, of topics or of one protocol's recordings. Needs `pyarrow`."""

    def __init__(self, path: Path) -> None:
        from brokers.pipeline.archive import committed
        from brokers.pipeline.archiving.places import place_of

        self._path = path
        self._found = committed(place_of(path))
        self._logs = {f"{log.key} {log.topic}": log for log in self._found.manifest.logs.values()}
        origin = self._found.manifest.origin
        self.frames: Frames | None = None
        self.protocol = TOPICS
        if origin == f"a data folder's {NAMESPACE}":
            names = {log.topic for log in self._logs.values()}
            if len(names) != 1:
                text = f"{path} is an archive of recordings of several protocols: {', '.join(sorted(names))}"
                raise Failure(text)
            (self.protocol,) = names
            self.frames = _frames_of(self.protocol)
        elif origin not in ("servers", f"a data folder's {TOPICS}"):
            raise Failure(f"{path} is an archive of {origin}: no messages to send again")

    def logs(self) -> Ranges:
        if not self._logs:
            raise Failure(f"nothing is in {self._path} yet", ExitCode.MISSING)
        return {label: (log.start, log.end) for label, log in self._logs.items()}

    @contextmanager
    def rows(self, told: Told) -> Iterator[Callable[[str, int, int], Iterator[Row]]]:
        yield lambda label, start, stop: self._rows(self._logs[label].key, start, stop)

    def _rows(self, key: str, start: int, stop: int) -> Iterator[Row]:
        from pyarrow import parquet

        mine = sorted((name.start, path) for name, path in self._found.named() if name.key == key)
        for _, path in mine:
            with parquet.ParquetFile(self._path / path) as file:
                for batch in file.iter_batches(columns=["offset", "timestamp", "value"]):
                    offsets, times, values = (column.to_pylist() for column in batch.columns)
                    for offset, time, value in zip(offsets, times, values, strict=True):
                        if start <= offset < stop:
                            yield offset, time.timestamp(), value
