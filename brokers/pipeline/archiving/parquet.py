"""Writes a range of a log as Parquet files, in an executor. Needs pyarrow, not Spark.

The records must follow each other byte by byte from the range's start to its end. An offset is a position, so
each record says where the next one is. Anything else is an error, or a gap if loss is allowed. So whatever
a source does wrong, no record is in a file twice, and none is left out in silence.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from brokers.pipeline.archiving import names
from brokers.pipeline.archiving.columns import TYPES, JsonColumns
from brokers.pipeline.archiving.manifest import ByteRange, NotContinuous, Part
from brokers.pipeline.archiving.places import ArchivePlace, written_path
from shared.storage.format import LENGTH_BYTES

SCHEMA = pa.schema(
    [
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("value", pa.binary()),
        ("log", pa.dictionary(pa.int32(), pa.string())),
    ]
)
ROW_GROUP_BYTES = 64 << 20
"""The bytes of records in a row group. The writer holds it until it is full."""

_HOUR_US = 3_600_000_000
_DAY_HOURS = 24
_DAY_ZERO = np.datetime64("1970-01-01", "D")


@attrs.frozen
class Work:
    """A range of a log to write. `token`: no other writer ever has it; lower case, digits and -."""

    identity: str
    topic: str
    range: ByteRange
    token: str
    gaps_allowed: bool = False


@attrs.frozen
class FileLayout:
    """How files are made. `columns`: those of what is JSON, and their types; None: nothing is parsed."""

    compression: str = "zstd"
    by_hour: bool = False
    columns: Mapping[str, str] | None = None

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([*SCHEMA, *((name, TYPES[kind]) for name, kind in (self.columns or {}).items())])


@attrs.frozen
class Written:
    """What was written. `parts` and `gaps` cover the range. The other three are those of JsonColumns.

    Where there are fresh columns the parts are to be written again, with them.
    """

    parts: Sequence[Part]
    gaps: Sequence[ByteRange]
    fresh: Mapping[str, str] = attrs.field(factory=dict)
    conflicts: int = 0
    unparsed: int = 0


PLAIN = FileLayout()


def write(
    place: ArchivePlace, work: Work, batches: Iterable[pa.RecordBatch], layout: FileLayout = PLAIN
) -> Written:
    """Write the records to new files, and sync them: one for each day or hour, and one behind each gap.

    `batches` have the columns offset, timestamp, value. Raises NotContinuous, and whatever `batches` raises.
    """
    parsed = JsonColumns(layout.columns or {})
    writing = _RangeWriter(place, work, layout, parsed)
    try:
        parts, gaps = writing.run(batches)
    except BaseException:
        writing.give_up()
        raise
    return Written(parts, gaps, parsed.fresh, parsed.conflicts, parsed.unparsed)


class _RangeWriter:
    """One range on its way into files."""

    def __init__(self, place: ArchivePlace, work: Work, layout: FileLayout, parsed: JsonColumns) -> None:
        self._place, self._work, self._layout, self._parsed = place, work, layout, parsed
        self._file: _ParquetFile | None = None

    def run(self, batches: Iterable[pa.RecordBatch]) -> tuple[list[Part], list[ByteRange]]:
        work = self._work
        parts: list[Part] = []
        gaps: list[ByteRange] = []
        at = work.range.start
        for batch in batches:
            for run in _runs(batch, by_hour=self._layout.by_hour):
                start = run.start
                if start < at:
                    raise NotContinuous(f"{work.topic}: a record at {start} after all up to {at}")
                if start > at:
                    gaps.append(_gap(work, ByteRange(at, start)))
                if self._file is not None and (start > at or self._file.date != run.date):
                    parts.append(self._finish(at))
                if self._file is None:
                    self._file = _ParquetFile(self._place, work, run.date, start, self._layout)
                made = self._parsed.of(run.batch.column("value")) if self._layout.columns is not None else []
                self._file.add(run.batch, made)
                at = run.end
        if at > work.range.end:
            raise NotContinuous(f"{work.topic}: records up to {at} of {work.range}")
        if at < work.range.end:
            gaps.append(_gap(work, ByteRange(at, work.range.end)))
        if self._file is not None:
            parts.append(self._finish(at))
        return parts, gaps

    def _finish(self, end: int) -> Part:
        assert self._file is not None
        part = self._file.finish(end)
        self._file = None
        return part

    def give_up(self) -> None:
        if self._file is not None:
            self._file.give_up()


@attrs.frozen
class _Run:
    """Records of one day, or hour, that follow each other byte by byte."""

    batch: pa.RecordBatch
    date: str
    start: int
    end: int


def _runs(batch: pa.RecordBatch, *, by_hour: bool) -> Iterator[_Run]:
    """Cut a batch where a record does not follow the one before, or is of another day or hour."""
    count = batch.num_rows
    if not count:
        return
    starts = batch.column("offset").to_numpy()
    value = batch.column("value")
    bounds = np.frombuffer(value.buffers()[1], np.int32, count + 1, value.offset * 4)
    ends = starts + np.diff(bounds) + LENGTH_BYTES
    hours = batch.column("timestamp").cast(pa.int64()).to_numpy() // _HOUR_US
    times = hours if by_hour else hours // _DAY_HOURS
    breaks = np.flatnonzero((ends[:-1] != starts[1:]) | (times[:-1] != times[1:])) + 1
    edges = [0, *breaks.tolist(), count]
    for low, high in pairwise(edges):
        day, hour = divmod(int(hours[low]), _DAY_HOURS)
        date = f"{_DAY_ZERO + day}/hour={hour:02d}" if by_hour else str(_DAY_ZERO + day)
        yield _Run(batch.slice(low, high - low), date, int(starts[low]), int(ends[high - 1]))


def _gap(work: Work, gap: ByteRange) -> ByteRange:
    if not work.gaps_allowed:
        raise NotContinuous(f"{work.topic}: no records from {gap.start} to {gap.end}")
    return gap


class _ParquetFile:
    """A Parquet file that is being written, under a name that no reader knows."""

    def __init__(self, place: ArchivePlace, work: Work, date: str, start: int, layout: FileLayout) -> None:
        self.date = date
        self._place, self._work, self._start, self._schema = place, work, start, layout.schema
        self._key = names.log_key(work.identity)
        self._records = 0
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        folder = "/".join(filter(None, (place.below, names.folder(work.topic, date))))
        self._path = place.draft(folder, f"{start:019d}.{work.token}")
        self._writer = pq.ParquetWriter(self._path, self._schema, **_options(layout.compression))

    def add(self, batch: pa.RecordBatch, made: Sequence[pa.Array]) -> None:
        log = pa.DictionaryArray.from_arrays(
            pa.array(np.zeros(batch.num_rows, np.int32)), pa.array([self._key])
        )
        columns = [batch.column("offset"), batch.column("timestamp"), batch.column("value"), log, *made]
        self._held.append(pa.RecordBatch.from_arrays(columns, schema=self._schema))
        self._held_bytes += batch.nbytes
        self._records += batch.num_rows
        if self._held_bytes >= ROW_GROUP_BYTES:
            self._flush()

    def finish(self, end: int) -> Part:
        """Finish the file, and give it the name of its range."""
        self._flush()
        self._writer.add_key_value_metadata(
            {
                "brokers.topic": self._work.topic,
                "brokers.log": self._work.identity,
                "brokers.range": f"{self._start}-{end}",
            }
        )
        self._writer.close()
        work, size = self._work, self._path.stat().st_size
        part = Part(self._key, work.topic, self.date, self._start, end, self._records, size, work.token)
        self._place.keep(self._path, written_path(self._place, part))
        return part

    def give_up(self) -> None:
        """Leave nothing of it. Where its process is killed, a sweep, or the system, removes it."""
        with suppress(Exception):
            self._writer.close()
        self._path.unlink(missing_ok=True)

    def _flush(self) -> None:
        if self._held:
            table = pa.Table.from_batches(self._held)
            self._writer.write_table(table, row_group_size=table.num_rows)
            self._held, self._held_bytes = [], 0


def _options(compression: str) -> Mapping[str, Any]:
    """Return what measured as small and quick. Values hardly ever repeat, so they have no dictionary."""
    return {
        "compression": compression,
        "compression_level": 1 if compression == "zstd" else None,
        "use_dictionary": ["log", "timestamp"],
        "column_encoding": {"offset": "DELTA_BINARY_PACKED"},
        "write_statistics": ["offset", "timestamp", "log"],
    }
