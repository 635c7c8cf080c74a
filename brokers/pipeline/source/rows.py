"""Reading spans of logs as rows: what each Spark task does."""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter

import pyarrow as pa

from brokers.pipeline.source import framing
from brokers.pipeline.source.framing import NotRecords
from brokers.pipeline.source.options import SourceOptions
from brokers.pipeline.source.origin import LossPolicy, Origin, rules
from brokers.pipeline.source.planning import open_origin
from brokers.pipeline.source.spans import Chunk, Span

Decode = Callable[[pa.RecordBatch], pa.RecordBatch]


def read(
    options: SourceOptions, spans: Sequence[Span], columns: Sequence[str] = framing.SCHEMA.names
) -> Iterator[pa.RecordBatch]:
    """Read the spans' records as rows of `columns`. Raises OSError, and DataLoss by the rules."""
    for _, found in by_span(options, spans, columns):
        yield from found


def by_span(
    options: SourceOptions, spans: Sequence[Span], columns: Sequence[str] = framing.SCHEMA.names
) -> Iterator[tuple[Span, Iterator[pa.RecordBatch]]]:
    """Yield each span with its rows, which are read before the next is taken."""
    policy = rules(options)
    # A folder's index says what is damaged. A server says it only when the bytes are fetched.
    bare = framing.are_in_index(columns) and not options.servers

    def rows_of(origin: Origin, span: Span) -> Iterator[pa.RecordBatch]:
        for chunk in origin.entries(span, policy) if bare else origin.chunks(span, policy):
            yield from _rows(options, span, chunk, columns, policy)

    for origin, span in _placed(options, spans):
        yield span, rows_of(origin, origin.kept(span, policy))


def entries(options: SourceOptions, spans: Sequence[Span]) -> Iterator[pa.RecordBatch]:
    """Read the spans' index entries as rows of `entries_schema`. Raises as `read` does.

    Records are read, and checked, only where a span has a part of an entry.
    """
    policy = rules(options)
    for origin, placed in _placed(options, spans):
        span = origin.kept(placed, policy)
        for chunk in origin.entries(span, policy):
            if chunk.data:
                yield from map(framing.measured, _rows(options, span, chunk, framing.SCHEMA.names, policy))
            else:
                yield framing.entries(span, chunk)


def decoded(
    options: SourceOptions, spans: Sequence[Span], *, decode: Decode, measure: Decode | None = None
) -> Iterator[pa.RecordBatch]:
    """Read the spans as rows of a table. `measure`: decodes index entries, and no records are read."""
    if measure is not None:
        return map(measure, entries(options, spans))
    return map(decode, read(options, spans))


def _placed(options: SourceOptions, spans: Sequence[Span]) -> Iterator[tuple[Origin, Span]]:
    """Yield each span with its origin, which stays open for as long."""
    for source, those in groupby(spans, attrgetter("source")):
        with open_origin(options, source) as origin:
            for span in those:
                yield origin, span


def _rows(
    options: SourceOptions, span: Span, chunk: Chunk, columns: Sequence[str], policy: LossPolicy
) -> Iterator[pa.RecordBatch]:
    try:
        found = framing.rows(span, chunk, columns, options.max_value_bytes)
    except NotRecords as error:
        if len(chunk.entries) > 1:  # one of them is to blame
            for entry in chunk.entries:
                yield from _rows(options, span, chunk.part(entry), columns, policy)
            return
        where = f"{span.topic} in {span.source}: offsets {chunk.offset} to {chunk.end}"
        policy.lose(f"{where} are lost: {error}")
    else:
        yield found
