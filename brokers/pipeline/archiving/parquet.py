"""Writes a range of a log as Parquet files, in an executor. Needs pyarrow, not Spark.

The records must follow each other byte by byte from the range's start to its end. An offset is a position, so
each record says where the next one is. Anything else is an error, or a gap if loss is allowed. So whatever
a source does wrong, no record is in a file twice, and none is left out in silence.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from brokers.pipeline.archiving import names
from brokers.pipeline.archiving.manifest import ByteRange, NotContinuous, Part
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

_DAY_US = 86_400_000_000
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
class Written:
    """What was written. `parts` and `gaps` cover the range."""

    parts: Sequence[Part]
    gaps: Sequence[ByteRange]


def write(root: Path, work: Work, batches: Iterable[pa.RecordBatch], compression: str = "zstd") -> Written:
    """Write the records to fresh files below `root`, and sync them: one for each day, and one behind each
    gap.

    `batches` have the columns offset, timestamp, value. Raises NotContinuous, and whatever `batches` raises.
    The next sweep then removes the files that were begun.
    """
    parts: list[Part] = []
    gaps: list[ByteRange] = []
    at = work.range.start
    file: _ParquetFile | None = None
    for batch in batches:
        for run in _runs(batch):
            start = run.start
            if start < at:
                raise NotContinuous(f"{work.topic}: a record at {start} after all up to {at}")
            if start > at:
                gaps.append(_gap(work, ByteRange(at, start)))
            if file is not None and (start > at or file.date != run.date):
                parts.append(file.finish(at))
                file = None
            if file is None:
                file = _ParquetFile(root, work, run.date, start, compression)
            file.add(run.batch)
            at = run.end
    if at > work.range.end:
        raise NotContinuous(f"{work.topic}: records up to {at} of {work.range}")
    if at < work.range.end:
        gaps.append(_gap(work, ByteRange(at, work.range.end)))
    if file is not None:
        parts.append(file.finish(at))
    return Written(parts, gaps)


@attrs.frozen
class _DayRun:
    """Records of one day that follow each other byte by byte."""

    batch: pa.RecordBatch
    date: str
    start: int
    end: int


def _runs(batch: pa.RecordBatch) -> Iterator[_DayRun]:
    """Cut a batch where a record does not follow the one before, or is of another day."""
    count = batch.num_rows
    if not count:
        return
    starts = batch.column("offset").to_numpy()
    value = batch.column("value")
    bounds = np.frombuffer(value.buffers()[1], np.int32, count + 1, value.offset * 4)
    ends = starts + np.diff(bounds) + LENGTH_BYTES
    days = batch.column("timestamp").cast(pa.int64()).to_numpy() // _DAY_US
    breaks = np.flatnonzero((ends[:-1] != starts[1:]) | (days[:-1] != days[1:])) + 1
    edges = [0, *breaks.tolist(), count]
    for low, high in pairwise(edges):
        date = str(_DAY_ZERO + int(days[low]))
        yield _DayRun(batch.slice(low, high - low), date, int(starts[low]), int(ends[high - 1]))


def _gap(work: Work, gap: ByteRange) -> ByteRange:
    if not work.gaps_allowed:
        raise NotContinuous(f"{work.topic}: no records from {gap.start} to {gap.end}")
    return gap


class _ParquetFile:
    """A Parquet file that is being written, under a name that no reader knows."""

    def __init__(self, root: Path, work: Work, date: str, start: int, compression: str) -> None:
        self.date = date
        self._root, self._work, self._start = root, work, start
        self._key = names.log_key(work.identity)
        self._records = 0
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._folder = root / names.FRESH / names.folder(work.topic, date)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._path = self._folder / f"{start:019d}.{work.token}.part"
        self._writer = pq.ParquetWriter(self._path, SCHEMA, **_options(compression))

    def add(self, batch: pa.RecordBatch) -> None:
        log = pa.DictionaryArray.from_arrays(
            pa.array(np.zeros(batch.num_rows, np.int32)), pa.array([self._key])
        )
        columns = [batch.column("offset"), batch.column("timestamp"), batch.column("value"), log]
        self._held.append(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
        self._held_bytes += batch.nbytes
        self._records += batch.num_rows
        if self._held_bytes >= ROW_GROUP_BYTES:
            self._flush()

    def finish(self, end: int) -> Part:
        """Finish the file: sync it, and give it its fresh name."""
        self._flush()
        self._writer.add_key_value_metadata(
            {
                "brokers.topic": self._work.topic,
                "brokers.log": self._work.identity,
                "brokers.range": f"{self._start}-{end}",
            }
        )
        self._writer.close()
        fd = os.open(self._path, os.O_RDONLY)
        try:
            os.fsync(fd)
            size = os.fstat(fd).st_size
        finally:
            os.close(fd)
        part = Part(
            self._key, self._work.topic, self.date, self._start, end, self._records, size, self._work.token
        )
        self._path.rename(self._root / part.fresh_path)
        return part

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
