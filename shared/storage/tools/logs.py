"""`brokers log ls|dump`: what the logs of a data folder hold, with or without a broker running."""

from collections.abc import Iterator
from pathlib import Path

import attrs

from shared.errors import LogMissing
from shared.storage.tools.view import CheckedRange, FolderView, LogReader, LogView, Trust, ranges, viewing


@attrs.frozen
class LogRow:
    """A log. `records`: None if its index does not tell; sizes in bytes; `created_ms` Unix time."""

    namespace: str
    name: str
    first: int
    end: int
    records: int | None
    disk_bytes: int
    mode: str
    created_ms: int
    id: int


@attrs.frozen
class RecordRow:
    """A record. `time_ms`: of the last record of its index entry, so no earlier than its own."""

    offset: int
    time_ms: int | None
    payload: bytes = attrs.field(repr=lambda payload: f"<{len(payload)} bytes>")


@attrs.frozen
class DamagedRow:
    """Bytes that cannot be read as records, or are in the bucket only; the next row continues behind them."""

    offset: int
    length: int
    text: str


def log_ls(folder: Path) -> list[LogRow]:
    """Every log, by namespace and name. Raises StoreFormat and OSError."""
    with viewing(folder) as view:
        return [_row(folder, view, log) for log in view.sorted_logs()]


def _row(folder: Path, view: FolderView, log: LogView) -> LogRow:
    found = view.read_index(log)
    records: int | None = 0 if log.first == log.end else None
    if found is not None and None not in found.entries:
        entries = [entry for entry in found.entries if entry is not None and entry.offset >= log.first]
        covered = entries[-1].end if entries else log.first
        with view.reader(log) as reader:
            records = sum(entry.records for entry in entries) + sum(
                1 for _ in reader.records(covered, log.end)
            )
    return LogRow(
        namespace=log.namespace,
        name=log.name,
        id=log.id,
        mode=log.mode,
        created_ms=log.created_ms,
        first=log.first,
        end=log.end,
        records=records,
        disk_bytes=sum(_disk_bytes(folder / path) for path in (log.log_path, log.index_path)),
    )


def _disk_bytes(path: Path) -> int:
    try:
        return path.lstat().st_blocks * 512
    except FileNotFoundError:
        return 0


def log_dump(
    folder: Path, namespace: str, name: str, start: int = 0, stop: int | None = None
) -> Iterator[RecordRow | DamagedRow]:
    """The records that begin in [start, stop), in order; a damaged range is one row, and the rest follows.

    The folder is held while the iterator is. Raises LogMissing where there is no such log, StoreFormat and
    OSError.
    """
    with viewing(folder) as view:
        log = view.find(namespace, name)
        if log is None:
            raise LogMissing(f"no log {name} in namespace {namespace}")
        low, high = max(start, log.first), log.end if stop is None else min(stop, log.end)
        with view.reader(log) as reader:
            for part in ranges(view, log, reader, low, high):
                yield from _dump_range(reader, part, low, high)


def _dump_range(
    reader: LogReader, part: CheckedRange, low: int, high: int
) -> Iterator[RecordRow | DamagedRow]:
    if part.state in (Trust.DAMAGED, Trust.REMOTE):
        yield DamagedRow(part.offset, part.length, part.text)
        return
    for offset, payload in reader.records(part.offset, part.end):
        if low <= offset < high:
            yield RecordRow(offset, part.last_ms, payload)
