"""The logs of a data folder as a process may see them that only reads: no lock is taken, nothing is written,
and a broker that runs on the folder does not notice.

Which logs there are is in the catalog, and for those made since its last writing in the names of their files;
how far each goes is in its index (STORAGE.md: readers of the files stop behind its last good entry). The
journal is read in doubtful cases only: it moves on under a reader, and may be long.
"""

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import unquote

from brokers.pipeline.source.index import LogIndex
from brokers.pipeline.source.options import TopicChoice
from brokers.pipeline.source.origin import LossPolicy
from brokers.pipeline.source.reading import SpanReader
from brokers.pipeline.source.spans import Chunk, LogSpot, Span
from brokers.pipeline.source.stretch import Asked, Entries, FoundEntries, RecordsAt, Stretch, advance_all
from shared.storage import catalog, format
from shared.storage.catalog import LogLine
from shared.storage.format import INDEX_HEADER_BYTES, IndexEntry
from shared.storage.os_disk import OsDisk
from shared.storage.tools.view import LogView, check_format, look

_CUT = "%-"
"""In a file's name: the log's name was too long to be one, and only catalog and journal know it."""


class Folder:
    """A data folder, open for reading. Raises StoreFormat where it is none, and OSError."""

    def __init__(self, path: str, namespace: str) -> None:
        self.source = path
        self.namespace = namespace
        self._found: dict[str, LogLine] = {}
        self._journal: Mapping[int, LogView] = {}
        """What the journal said of each log when it was last asked, since the logs were looked for."""
        try:
            self.disk = OsDisk(Path(path), create=False, read_only=True)
        except OSError as error:
            raise OSError(error.errno, f"path: {error.strerror}", path) from None
        try:
            check_format(self.disk, path)
        except BaseException:
            self.disk.release()
            raise

    def close(self) -> None:
        self.disk.release()

    # -- reading

    def chunks(self, span: Span, policy: LossPolicy, *, bare: bool = False) -> Iterator[Chunk]:
        try:
            file = self._file(span.topic)
            with self._index(file, span.log_id) as index, self._log(file) as log_fd:
                # Both are the same log's: its index was there before its log file was opened, and still is.
                if index.log_id == span.log_id and self._id(file, span.log_id) == span.log_id:
                    read, first = partial(self.disk.read, log_fd), partial(self.first_kept, span.log_id)
                    reader = SpanReader(span, read, first, policy, bare)
                    yield from reader.chunks(index.marks(span.start, span.stop))
                    return
        except FileNotFoundError:
            pass
        is_there = self.first_kept(span.log_id) is not None
        text = "its file or its index is missing" if is_there else "the log has been deleted"
        policy.lose(f"{span.topic} in {span.source}: offsets {span.start} to {span.stop} are lost: {text}")

    def entries(self, span: Span, policy: LossPolicy) -> Iterator[Chunk]:
        return self.chunks(span, policy, bare=True)

    def _open(self, path: str) -> int:
        """Raises OSError that names the whole path: several folders may be read."""
        try:
            return self.disk.open(path)
        except OSError as error:
            raise OSError(error.errno, error.strerror, f"{self.source}/{path}") from None

    @contextmanager
    def _log(self, file: str) -> Iterator[int]:
        fd = self._open(f"{self.namespace}/{file}.log")
        try:
            yield fd
        finally:
            self.disk.close(fd)

    def _has_log(self, file: str) -> bool:
        try:
            with self._log(file):
                return True
        except FileNotFoundError:
            return False

    def _is_hole(self, file: str, offset: int) -> bool:
        """Whether space was given back there; False where the file system does not tell."""
        try:
            with self._log(file) as fd:
                return os.lseek(fd, offset, os.SEEK_DATA) > offset
        except OSError as error:
            return error.errno == errno.ENXIO  # a hole up to the file's end

    def _id(self, file: str, log_id: int) -> int:
        with self._index(file, log_id) as index:
            return index.log_id

    def _file(self, name: str) -> str:
        """Raises FileNotFoundError."""
        if name not in self._found:
            self._names()
        if name not in self._found:
            raise FileNotFoundError(name)
        return self._found[name].file

    def _file_of(self, spot: LogSpot) -> str:
        return spot.file or self._file(spot.name)

    # -- which logs

    def spots(self, topics: TopicChoice) -> dict[str, LogSpot]:
        lines, self._journal = self._names(), {}
        spots = {name: self._spot(lines[name]) for name in topics.matching(lines) if name in lines}
        return {name: spot for name, spot in spots.items() if spot is not None}

    def _names(self) -> dict[str, LogLine]:
        """Every log, and what catalog or file name say of it (id 0: only the file does)."""
        lines = self._lines()
        found = {line.name: line for line in lines}
        files = {line.file for line in lines}
        new = [name[:-4] for name in self.disk.names(self.namespace) if name.endswith(".idx")]
        new = [file for file in new if file not in files]
        if any(_CUT in file for file in new):
            found = self._exactly()
        else:
            for file in new:
                name = unquote(file)
                found[name] = LogLine(0, self.namespace, name, file, "", 0, 0, 0)
        self._found = found
        return found

    def _spot(self, line: LogLine) -> LogSpot | None:
        """Where a log begins and ends; None where it is gone."""
        log_id, oldest, newest, is_cut = line.id, None, None, False
        try:
            with self._index(line.file, line.id) as index:
                log_id = index.log_id
                oldest, newest, is_cut = index.first(), index.last(), index.begins_damaged()
        except FileNotFoundError:  # gone, or not a record of it is durable yet, or lost
            if not line.id:
                return None
            if not self._has_log(line.file):
                return LogSpot(self.source, line.name, line.id, line.first, line.first, line.file)
        first = line.first if line.id == log_id else 0
        if oldest is not None and not is_cut and oldest.offset > first:
            # Retention zeroes entries once there is a hole; else they are damaged.
            is_cut = not self._is_hole(line.file, first)
            first = first if is_cut else oldest.offset
        end = max(newest.end if newest else 0, first)
        # Up to the catalog's end the index was synced: what it does not have any more, its reader misses.
        if line.id == log_id and line.end > end:
            end, is_cut = line.end, True
        if is_cut or (first < end and self._is_hole(line.file, first)):
            # Retention may have been here since the catalog was written: the journal knows.
            kept = self._kept_first(log_id, line.file, end)
            if is_cut and line.id and kept is None:
                return None
            first = first if kept is None else min(max(first, kept), end)
        return LogSpot(self.source, line.name, log_id, first, end, line.file)

    def _kept_first(self, log_id: int, file: str, end: int) -> int | None:
        """`first_kept`, the journal read once for all logs unless it has moved on meanwhile."""
        log = self._journal.get(log_id)
        if log is None or (log.first < end and self._is_hole(file, log.first)):
            self._journal = look(self.disk, live=True).logs
            log = self._journal.get(log_id)
        return None if log is None else log.first

    def is_other(self, spot: LogSpot, id_before: int, offset: int) -> bool:
        return spot.id != id_before

    # -- places in a log

    def at_time(self, spot: LogSpot, unix_ms: int) -> int | None:
        with self._index_of(spot) as index:
            mark = index.at_time(unix_ms)
        return None if mark is None else min(max(mark.offset, spot.first), spot.end)

    def written_ms(self, spot: LogSpot, offset: int) -> int | None:
        """When the record at `offset` was written, at the index's grain; None where it does not tell."""
        with self._index_of(spot) as index:
            mark = index.at_or_before(offset)
        return None if mark is None or mark.end <= offset else mark.first_ms

    def last_ms(self, spot: LogSpot) -> int | None:
        """When the newest record was written; None where the index has none."""
        with self._index_of(spot) as index:
            mark = index.last()
        return None if mark is None else mark.last_ms

    def start_below(self, spot: LogSpot, offset: int) -> int:
        if offset in (spot.first, spot.end):
            return offset
        with self._index_of(spot) as index:
            mark = index.at_or_before(offset)
        if mark is None or mark.end <= offset:
            return offset  # a gap: whoever reads there meets it
        return mark.offset + self._skip(spot.file, mark, offset)[0]

    def _skip(self, file: str, mark: IndexEntry, stop: int) -> tuple[int, int]:
        """Walk a mark's records while they end at or below `stop`: how many bytes and records that is."""
        with self._log(file) as fd:
            data = self.disk.read(fd, mark.length, mark.offset)
        return format.skip_records(data, 0, min(stop - mark.offset, len(data)))

    def entry_end(self, spot: LogSpot, offset: int) -> int:
        with self._index_of(spot) as index:
            mark = index.at_or_before(offset)
        return spot.end if mark is None else mark.end

    def advance(self, stretches: Sequence[Stretch]) -> None:
        for stretch in stretches:
            with self._index_of(stretch.spot) as index:
                advance_all([stretch], partial(self._answers, index))

    def _answers(self, index: LogIndex, asked: Sequence[Asked]) -> Iterator[FoundEntries | bytes]:
        for stretch, need in asked:
            spot = stretch.spot
            if isinstance(need, Entries):
                yield FoundEntries(index.marks(need.start, spot.end), spot.end)
            else:
                yield self._records(spot, need)

    def _records(self, spot: LogSpot, need: RecordsAt) -> bytes:
        try:
            with self._log(self._file_of(spot)) as fd:
                return self.disk.read(fd, need.size, need.start)
        except FileNotFoundError:
            return b""

    def cut(self, span: Span, offset: int) -> int:
        try:
            with self._index(self._file(span.topic), span.log_id) as index:
                mark = index.at_or_before(offset)
        except FileNotFoundError:  # whoever reads there meets it
            return span.start
        return span.start if mark is None else mark.offset

    @contextmanager
    def _index(self, file: str, log_id: int = 0) -> Iterator[LogIndex]:
        """An index, open. `log_id`: whose it is taken for where its header is damaged."""
        fd = self._open(f"{self.namespace}/{file}.idx")
        try:
            header = format.unpack_index_header(self.disk.read(fd, INDEX_HEADER_BYTES, 0))
            yield LogIndex(self.disk, fd, header[0] if header else log_id)
        finally:
            self.disk.close(fd)

    @contextmanager
    def _index_of(self, spot: LogSpot) -> Iterator[LogIndex]:
        """Its index; one without entries where there is none: whoever reads there meets what is missing."""
        with ExitStack() as stack:
            try:
                index = stack.enter_context(self._index(self._file_of(spot), spot.id))
            except FileNotFoundError:
                index = LogIndex(self.disk, None, spot.id)
            yield index

    def first_kept(self, log_id: int) -> int | None:
        """The first kept offset as of now, the journal asked too; None where the log is gone."""
        log = look(self.disk, live=True).logs.get(log_id)
        return None if log is None else log.first

    def _lines(self) -> list[LogLine]:
        found = catalog.read(self.disk)
        return [line for line in (found.logs if found else ()) if line.namespace == self.namespace]

    def _exactly(self) -> dict[str, LogLine]:
        logs = look(self.disk, live=True).logs.values()
        return {
            log.name: LogLine(
                log.id, log.namespace, log.name, log.file, log.mode, log.created_ms, log.first, 0
            )
            for log in logs
            if log.namespace == self.namespace
        }
