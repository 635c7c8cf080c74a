"""What Spark sees: the format `logmq`, as a batch and as a stream."""

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import closing
from functools import partial
from operator import attrgetter
from time import monotonic
from typing import Any

import attrs
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from brokers.pipeline import workers
from brokers.pipeline.source import planning, pruning, rows, sink, spans, stream
from brokers.pipeline.source.framing import SCHEMA, are_in_index
from brokers.pipeline.source.options import Server, SourceOptions, parse
from brokers.pipeline.source.origin import Origin, warn
from brokers.pipeline.source.planning import advance, open_origins
from brokers.pipeline.source.pruning import Wanted
from brokers.pipeline.source.servers import Served
from brokers.pipeline.source.spans import Span
from brokers.pipeline.source.stretch import Stretch
from shared.errors import BrokerError, ConfigError

COLUMNS = from_arrow_schema(SCHEMA)
_INSTEAD = (
    "drop it; brokers.pipeline.views makes tables that can, and so does CREATE TEMPORARY VIEW ... USING "
    "logmq OPTIONS (...)"
)


class LogmqDataSource(DataSource):
    """Logs as rows (topic, offset, timestamp, value)."""

    fixed: Mapping[str, str] = {}
    """The options of a format that is one table's own (`catalog.py`). Spark then has none to say."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        workers.prepare()  # a worker that raises for a mistake lives on
        self._given = dict(self.fixed or options)

    @classmethod
    def name(cls) -> str:
        return "logmq"

    def schema(self) -> StructType:
        if "provider" in self._given:
            # CREATE TABLE adds this option. A SELECT from that table has no options at all.
            text = "a source in Python is not told a table's options, but those of a temporary view"
            raise ConfigError("CREATE TABLE", f"{text}: CREATE TEMPORARY VIEW ... USING logmq OPTIONS (...)")
        parse(self._given)  # reports a mistake where the user makes it, not in a task
        return COLUMNS

    def _require_options(self) -> None:
        """Refuse a table of Spark's catalog, which saveAsTable, toTable and CREATE TABLE leave."""
        if not self._given:
            text = (
                "a source in Python is not told a table's options, so one made by CREATE TABLE, saveAsTable"
            )
            raise ConfigError("table", f"{text} or toTable cannot be used: {_INSTEAD}")

    def reader(self, schema: StructType) -> "BatchReader":
        self._require_options()
        options, columns = parse(self._given, streaming=False), _columns(schema)
        kind = PruningReader if options.prune_by_filters else BatchReader
        return kind(options, columns, partial(rows.read, columns=columns))

    def streamReader(self, schema: StructType) -> "StreamReader":  # noqa: N802 - Spark's name
        self._require_options()
        columns = _columns(schema)
        return StreamReader(parse(self._given, streaming=True), columns, partial(rows.read, columns=columns))

    def writer(self, schema: StructType, overwrite: bool) -> sink.BatchWriter:
        self._require_options()
        return sink.BatchWriter(sink.checked(self._given, schema, overwrite, streaming=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> sink.StreamWriter:  # noqa: N802
        self._require_options()
        return sink.StreamWriter(sink.checked(self._given, schema, overwrite, streaming=True))


ReadSpans = Callable[[SourceOptions, Sequence[Span]], Iterator[pa.RecordBatch]]


class _SpanReader:
    """Reads spans in tasks: `columns` of their records, by `read`, or what `read` decodes these to."""

    def __init__(
        self, options: SourceOptions, columns: Sequence[str] = SCHEMA.names, read: ReadSpans = rows.read
    ) -> None:
        workers.prepare()  # a worker that plans gets its data source pickled, without __init__
        self._options = options
        self._columns = columns
        self._read = read

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._read(self._options, spans_of(partition))


class BatchReader(_SpanReader, DataSourceReader):
    """One read of what is there now."""

    def partitions(self) -> Sequence[InputPartition]:
        return shares(self._options, planning.planned(self._options), self._columns)


class PruningReader(BatchReader):
    """A batch read that uses the query's filters, only if the option asks for it.

    Spark (4.3) keeps a plan with the DataFrame, not with the query. So another query on the same DataFrame,
    or the other side of a union, gets the rows of the first query's filters.
    """

    _wanted = Wanted()

    def partitions(self) -> Sequence[InputPartition]:
        topics = self._wanted.among(self._options.topics)
        found = planning.planned(self._options, topics, self._wanted.within)
        return shares(self._options, found, self._columns)

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        self._wanted, left = pruning.wanted(filters)
        return left


class StreamReader(_SpanReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of batches, each from where the last one ended. `stream.py` explains its offsets."""

    def __init__(
        self, options: SourceOptions, columns: Sequence[str] = SCHEMA.names, read: ReadSpans = rows.read
    ) -> None:
        super().__init__(options, columns, read)
        self._target: stream.Target | None = None
        self._began_at: float | None = None
        self._behind: dict[str, Any] | None = None
        self._committed: dict[str, Mapping[str, int]] = {}

    def initialOffset(self) -> stream.Offset:  # noqa: N802 - as all of these
        return stream.INITIAL

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        options = self._options
        if options.max_offsets is not None:
            return ReadMaxRows(options.max_offsets)
        if options.max_bytes is not None:
            return ReadMaxBytes(options.max_bytes)
        if options.min_offsets is not None:
            return ReadMinRows(options.min_offsets)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = stream.target(self._options)

    def latestOffset(self, start: stream.Offset, limit: ReadLimit) -> stream.Offset:  # noqa: N802
        options = self._options
        self._commit(start)
        bound, least = stream.Limit(options.max_offsets, options.max_bytes), options.min_offsets
        if isinstance(limit, ReadAllAvailable):
            bound, least = stream.Limit(), None
        if self._target is not None or self._has_waited():
            least = None
        plan = stream.planned(options, start, bound, self._target, least)
        if plan.end != start:
            self._began_at = monotonic()
        self._behind = {"behind_bytes": plan.behind}
        return plan.end

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return what is behind the last planned batch. Spark shows it with the query's progress."""
        return self._behind

    def _has_waited(self) -> bool:
        """Whether the last batch began longer ago than `maxTriggerDelay`. The first batch never waits."""
        return self._began_at is None or monotonic() - self._began_at > self._options.max_delay_seconds

    def _commit(self, offset: stream.Offset) -> None:
        """Tell the servers how far the group is: everything before `offset` has been processed.

        It is done here because Spark's own `commit` comes with the next batch. A failure is only a warning,
        since nothing depends on it.
        """
        options = self._options
        if options.group is None:
            return
        for source, places in stream.places(options, offset).items():
            if self._committed.get(source) == places:
                continue
            try:
                with closing(Served(Server.parse(source), options.reach)) as served:
                    for topic, refused in served.commit(options.group, places).items():
                        warn(
                            f"{topic} on {source}: the place of group {options.group} is not kept: {refused}"
                        )
                self._committed[source] = places
            except (OSError, BrokerError) as error:
                warn(f"{source}: the places of group {options.group} are not kept: {error}")

    def partitions(self, start: stream.Offset, end: stream.Offset) -> Sequence[InputPartition]:
        return shares(self._options, stream.spans(self._options, start, end), self._columns)


def shares(options: SourceOptions, found: Sequence[Span], columns: Sequence[str]) -> list[InputPartition]:
    """Divide spans into tasks. The value of each is the spans that it reads."""
    sparing = not options.servers and (options.max_value_bytes is not None or are_in_index(columns))
    size = spans.SPLIT_BYTES_SPARING if sparing else spans.SPLIT_BYTES
    alone = options.max_records is not None
    with open_origins(options) as origins:
        if options.max_records is not None:
            found = _of_records(origins, found, options.max_records)

        def cut(span: Span, offset: int) -> int:
            return origins[span.source].cut(span, offset)

        each = spans.shares(found, options.min_partitions, cut, size=size, alone=alone)
    return [InputPartition(share) for share in each]


def _of_records(origins: Mapping[str, Origin], found: Sequence[Span], most: int) -> list[Span]:
    """Cut spans so that none has more than `most` records."""
    pieces: list[Span] = []
    going = [span for span in found if span.length > 0]
    while going:
        ahead = [Stretch(span.spot, span.start, most) for span in going]
        advance(origins, ahead)
        cuts = list(zip(going, (stretch.stop for stretch in ahead), strict=True))
        pieces += [attrs.evolve(span, stop=stop) for span, stop in cuts]
        going = [attrs.evolve(span, start=stop) for span, stop in cuts if stop < span.stop]
    return sorted(pieces, key=attrgetter("source", "topic", "start"))


def spans_of(partition: InputPartition) -> Sequence[Span]:
    """Return what a task reads, in an executor. Of an empty read Spark makes one task, which has no spans."""
    workers.prepare()
    return partition.value or ()


def _columns(schema: StructType) -> list[str]:
    """Return the columns to read: all, or those of a schema that the user gave."""
    known = list(COLUMNS)  # nullable, because Spark compares the rows with the schema
    if not schema.names or len(set(schema.names)) < len(schema.names) or any(f not in known for f in schema):
        text = "the source has these columns, or some of them, without NOT NULL"
        raise ConfigError("schema", f"{text}: {COLUMNS.simpleString()}")
    return list(schema.names)
