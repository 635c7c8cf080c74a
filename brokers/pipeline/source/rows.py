"""Reading ranges of logs as rows: what each Spark task does."""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter

import pyarrow as pa

from brokers.pipeline.source import framing
from brokers.pipeline.source.framing import NotRecords
from brokers.pipeline.source.options import SourceOptions
from brokers.pipeline.source.planning import open_reader
from brokers.pipeline.source.ranges import LogRange, RecordChunk
from brokers.pipeline.source.reader import LossPolicy, SourceReader, lost, rules

Decode = Callable[[pa.RecordBatch], pa.RecordBatch]


def read(
    options: SourceOptions, ranges: Sequence[LogRange], columns: Sequence[str] = framing.SCHEMA.names
) -> Iterator[pa.RecordBatch]:
    """Read the ranges' records as rows of `columns`. Raises OSError, and DataLoss by the rules."""
    for _, batches in by_range(options, ranges, columns):
        yield from batches


def by_range(
    options: SourceOptions, ranges: Sequence[LogRange], columns: Sequence[str] = framing.SCHEMA.names
) -> Iterator[tuple[LogRange, Iterator[pa.RecordBatch]]]:
    """Yield each range with its rows, which are read before the next is taken."""
    policy = rules(options)
    # A folder's index says what is damaged. A server says it only when the bytes are fetched.
    bare = framing.are_in_index(columns) and not options.servers

    def rows_of(reader: SourceReader, kept: LogRange) -> Iterator[pa.RecordBatch]:
        for chunk in reader.chunks(kept, policy, bare=bare):
            yield from _rows(options, kept, chunk, columns, policy)

    for reader, wanted in _opened(options, ranges):
        yield wanted, rows_of(reader, reader.kept(wanted, policy))


def entries(options: SourceOptions, ranges: Sequence[LogRange]) -> Iterator[pa.RecordBatch]:
    """Read the ranges' index entries as rows of `entries_schema`. Raises as `read` does.

    Records are read, and checked, only where a range has a part of an entry.
    """
    policy = rules(options)
    for reader, wanted in _opened(options, ranges):
        kept = reader.kept(wanted, policy)
        for chunk in reader.chunks(kept, policy, bare=True):
            if chunk.data:
                yield from map(framing.measured, _rows(options, kept, chunk, framing.SCHEMA.names, policy))
            else:
                yield framing.entries(kept, chunk)


def decoded(
    options: SourceOptions, ranges: Sequence[LogRange], *, decode: Decode, measure: Decode | None = None
) -> Iterator[pa.RecordBatch]:
    """Read the ranges as rows of a table. `measure`: decodes index entries, and no records are read."""
    if measure is not None:
        return map(measure, entries(options, ranges))
    return map(decode, read(options, ranges))


def _opened(options: SourceOptions, ranges: Sequence[LogRange]) -> Iterator[tuple[SourceReader, LogRange]]:
    """Yield each range with its source's reader, which stays open for as long."""
    for source, of_source in groupby(ranges, attrgetter("source")):
        with open_reader(options, source) as reader:
            for wanted in of_source:
                yield reader, wanted


def _rows(
    options: SourceOptions, wanted: LogRange, chunk: RecordChunk, columns: Sequence[str], policy: LossPolicy
) -> Iterator[pa.RecordBatch]:
    try:
        batch = framing.rows(wanted, chunk, columns, options.max_value_bytes)
    except NotRecords as error:
        if len(chunk.entries) > 1:  # one of them is to blame
            for entry in chunk.entries:
                yield from _rows(options, wanted, chunk.part(entry), columns, policy)
            return
        policy.lose(lost(wanted, chunk.offset, chunk.end, error))
    else:
        yield batch
