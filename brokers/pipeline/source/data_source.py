"""What Spark sees: the formats `logmq` and `logmq-table`, as batches and as streams."""

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from brokers.pipeline.source import planning, ranges, rows, sink, stream
from brokers.pipeline.source.framing import IN_INDEX, SCHEMA, are_in_index
from brokers.pipeline.source.options import SourceOptions, parse
from brokers.pipeline.source.planning import open_readers
from brokers.pipeline.source.ranges import LogRange
from brokers.pipeline.tables import table_of
from brokers.pipeline.workers import prepare
from shared.errors import ConfigError

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
        prepare()  # a worker that raises for a mistake lives on
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
        columns = _columns(schema)
        return BatchReader(parse(self._given, streaming=False), columns, partial(rows.read, columns=columns))

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


TABLE_FORMAT = "logmq-table"
_TABLE = "table"
_WHICH = f"which logs are read, option {_TABLE} says"
_NOT_OF_TABLES = {
    **dict.fromkeys(("namespace", "subscribe", "subscribepattern", "assign"), _WHICH),
    "maxvaluebytes": "records are decoded whole",
}


class TableDataSource(LogmqDataSource):
    """A protocol's records as rows of a table's columns: the option `table` says which, as in dms.events.

    Records are decoded in the process that reads them, so their bytes never reach the JVM. It has all options
    of `logmq`, except those that choose logs, which the table does, or a part of a record.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        given = {key.lower(): value for key, value in self._given.items()}
        for key, why in _NOT_OF_TABLES.items():
            if key in given:
                raise ConfigError(key, why)
        name = given.pop(_TABLE, "")
        if not name:
            raise ConfigError(_TABLE, "say which, as in dms.events; `brokers pipeline tables` lists them")
        offered = table_of(name)
        self._table = offered.table
        self._given = given | offered.logs(served="servers" in given)

    @classmethod
    def name(cls) -> str:
        return TABLE_FORMAT

    def schema(self) -> StructType:
        super().schema()  # reports mistakes in the options
        return from_arrow_schema(self._table.schema)

    def reader(self, schema: StructType) -> "BatchReader":
        table = self._table
        columns = SCHEMA.names if table.measure is None else IN_INDEX
        read = partial(rows.decoded, decode=table.decode, measure=table.measure)
        return BatchReader(parse(self._given, streaming=False), columns, read)

    def streamReader(self, schema: StructType) -> "StreamReader":  # noqa: N802 - Spark's name
        read = partial(rows.decoded, decode=self._table.decode)
        return StreamReader(parse(self._given, streaming=True), read=read)


ReadRanges = Callable[[SourceOptions, Sequence[LogRange]], Iterator[pa.RecordBatch]]


class _TaskReader:
    """Reads ranges in tasks: `columns` of their records, by `read`, or what `read` decodes these to."""

    def __init__(
        self, options: SourceOptions, columns: Sequence[str] = SCHEMA.names, read: ReadRanges = rows.read
    ) -> None:
        prepare()  # a worker that plans gets its data source pickled, without __init__
        self._options = options
        self._columns = columns
        self._read = read

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._read(self._options, ranges_of(partition))


class BatchReader(_TaskReader, DataSourceReader):
    """One read of what is there now."""

    def partitions(self) -> Sequence[InputPartition]:
        return shares(self._options, planning.planned(self._options), self._columns)


class StreamReader(_TaskReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of batches, each from where the last one ended. `stream.py` explains its offsets."""

    def __init__(
        self, options: SourceOptions, columns: Sequence[str] = SCHEMA.names, read: ReadRanges = rows.read
    ) -> None:
        super().__init__(options, columns, read)
        self._target: stream.Target | None = None
        self._behind: dict[str, Any] | None = None

    def initialOffset(self) -> stream.Offset:  # noqa: N802 - as all of these
        return stream.INITIAL

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        options = self._options
        if options.max_offsets is not None:
            return ReadMaxRows(options.max_offsets)
        if options.max_bytes is not None:
            return ReadMaxBytes(options.max_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = stream.target(self._options)

    def latestOffset(self, start: stream.Offset, limit: ReadLimit) -> stream.Offset:  # noqa: N802
        options = self._options
        bound = stream.Limit(options.max_offsets, options.max_bytes)
        if isinstance(limit, ReadAllAvailable):
            bound = stream.Limit()
        plan = stream.planned(options, start, bound, self._target)
        self._behind = {"behind_bytes": plan.behind}
        return plan.end

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return what is behind the last planned batch. Spark shows it with the query's progress."""
        return self._behind

    def partitions(self, start: stream.Offset, end: stream.Offset) -> Sequence[InputPartition]:
        return shares(self._options, stream.ranges(self._options, start, end), self._columns)


def shares(
    options: SourceOptions, planned: Sequence[LogRange], columns: Sequence[str]
) -> list[InputPartition]:
    """Divide ranges into tasks. The value of each is the ranges that it reads."""
    sparing = not options.servers and (options.max_value_bytes is not None or are_in_index(columns))
    size = ranges.SPLIT_BYTES_SPARING if sparing else ranges.SPLIT_BYTES
    with open_readers(options) as readers:

        def cut(whole: LogRange, offset: int) -> int:
            return readers[whole.source].cut(whole, offset)

        tasks = ranges.shares(planned, options.min_partitions, cut, size=size)
    return [InputPartition(task) for task in tasks]


def ranges_of(partition: InputPartition) -> Sequence[LogRange]:
    """Return what a task reads, in an executor. Of an empty read Spark makes one task, without ranges."""
    prepare()
    return partition.value or ()


def _columns(schema: StructType) -> list[str]:
    """Return the columns to read: all, or those of a schema that the user gave."""
    known = list(COLUMNS)  # nullable, because Spark compares the rows with the schema
    if not schema.names or len(set(schema.names)) < len(schema.names) or any(f not in known for f in schema):
        text = "the source has these columns, or some of them, without NOT NULL"
        raise ConfigError("schema", f"{text}: {COLUMNS.simpleString()}")
    return list(schema.names)
