"""What Spark sees: the format `logmq`."""

import sys
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import closing

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import BinaryType, LongType, StringType, StructType, TimestampType

from brokers.pipeline.source import framing, positions, spans
from brokers.pipeline.source.options import Options, parse
from brokers.pipeline.source.origin import Chunk, LogSpot, Origin, policy
from brokers.pipeline.source.places import open_place
from brokers.pipeline.source.spans import Span
from shared.errors import ConfigError

COLUMNS = (
    StructType()
    .add("topic", StringType())
    .add("offset", LongType())
    .add("timestamp", TimestampType())
    .add("value", BinaryType())
)
"""To Arrow this is `framing.SCHEMA`, exactly."""


class LogmqDataSource(DataSource):
    """Logs as rows (topic, offset, timestamp, value)."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = dict(options)

    @classmethod
    def name(cls) -> str:
        return "logmq"

    def schema(self) -> StructType:
        parse(self._given)  # a mistake is told where the user makes it, not in a task
        return COLUMNS

    def reader(self, schema: StructType) -> "BatchReader":
        _check(schema)
        return BatchReader(parse(self._given, streaming=False))


class Share(InputPartition):
    """What one task reads."""

    def __init__(self, share: tuple[Span, ...]) -> None:
        super().__init__(None)
        self.spans = share


class BatchReader(DataSourceReader):
    """One read of what is there now."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        rules = policy(options, warn)
        found: list[Span] = []
        seen: set[str] = set()
        for source in options.sources:
            with closing(open_place(options, source)) as place:
                logs = place.spots(options.topics)
                seen |= set(logs)
                starts = positions.starts(place, logs, options.starting, rules)
                ends = positions.ends(place, logs, options.ending, rules)
                found += whole(logs, starts, ends)
        for name in options.topics.names:
            if name not in seen:
                raise ConfigError("subscribe", f"there is no topic {name} in {', '.join(options.sources)}")
        return divided(options, found)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read(self._options, partition)


def whole(logs: Mapping[str, LogSpot], starts: Mapping[str, int], ends: Mapping[str, int]) -> list[Span]:
    """A span for each log."""
    return [
        Span(log.source, log.name, log.id, starts[name], ends[name], log.file) for name, log in logs.items()
    ]


def divided(options: Options, found: Sequence[Span]) -> list[InputPartition]:
    """Spans as tasks."""
    places: dict[str, Origin] = {}
    try:

        def cut(span: Span, offset: int) -> int:
            if span.source not in places:
                places[span.source] = open_place(options, span.source)
            return places[span.source].cut(span, offset)

        return [Share(share) for share in spans.shares(found, options.min_partitions, cut)]
    finally:
        for place in places.values():
            place.close()


def read(options: Options, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """In the executor: the rows of a task. An empty plan's only partition has nothing in it."""
    if not isinstance(partition, Share):
        return
    rules = policy(options, warn)
    place: Origin | None = None
    try:
        for span in partition.spans:
            if place is None or place.source != span.source:
                if place is not None:
                    place.close()
                place = open_place(options, span.source)
            for chunk in place.chunks(span, rules):
                yield batch(span, chunk)
    finally:
        if place is not None:
            place.close()


def batch(span: Span, chunk: Chunk) -> pa.RecordBatch:
    """A chunk's records that are in the span."""
    marks = chunk.marks
    counts = [mark.records for mark in marks]
    begins = framing.starts(chunk.data, sum(counts))
    low = max(span.start - chunk.offset, 0)
    high = min(span.stop - chunk.offset, len(chunk.data))
    if low or high < len(chunk.data):
        first, last = np.searchsorted(begins, [low, high])
        begins = begins[first : last + 1]
        edges = np.clip(np.cumsum([0, *counts]), first, last)
        counts = np.diff(edges).tolist()
    return framing.rows(
        span.topic, chunk.offset, chunk.data, begins, [mark.first_ms for mark in marks], counts
    )


def warn(text: str) -> None:
    """To the log of the process that Spark runs this in."""
    print(f"brokers: {text}", file=sys.stderr)


def _check(schema: StructType) -> None:
    if schema != COLUMNS:
        raise ConfigError("schema", f"the source has one schema: {COLUMNS.simpleString()}")
