"""The tables that installed protocols offer, found by entry point; and reading and writing their rows.

They are read in this process or with Spark, whole or decoded, once or as records come.

`spark`: a session, or None for this process. Each broker's rows are gathered by themselves.
"""

import queue
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
import pyarrow as pa

from brokers import plugins
from brokers.errors import ExitCode
from brokers.pipeline import workers
from brokers.pipeline.jobs.frames import Frame, rows_of, union, with_broker_names
from brokers.pipeline.jobs.job_input import SERVED, JobInput
from brokers.pipeline.source import rows as records
from brokers.pipeline.source.options import SourceOptions, parse
from brokers.pipeline.source.planning import planned
from shared.errors import BrokerError, ConfigError
from shared.tables.table import LogTable, tables_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

BYTES_MAX = 2 << 30
"""Spark reads more than that: on all cores, and without all of it in memory."""
INDEX_SHARE = 100
"""If a log's index is enough, the log's bytes count divided by this."""
CHECKPOINT = "_checkpoint"
"""A subfolder of what a continuous decode writes. Spark's readers ignore names that begin so."""
WAITING_MAX = 8
"""Batches that wait to be shown. Beyond them the stream waits."""
LOOK_SECONDS = 0.5
TRIGGER = "2 seconds"
"""From one batch of a stream to the next."""


class NoTable(BrokerError):
    """No protocol has a table of that name."""

    exit_code: ClassVar[int] = ExitCode.MISSING


@attrs.frozen
class Offered:
    """A table, and the name of its protocol."""

    protocol: str
    table: LogTable


def logs_of(found: Offered, *, served: bool) -> dict[str, str]:
    """Return the source's options for the logs of a table. Raises ConfigError."""
    table = found.table
    if not served:
        return {"subscribepattern": table.logs, "namespace": table.namespace}
    if table.namespace != SERVED:
        text = f"only the logs of {SERVED} are served; {found.protocol}.{table.name} needs a path"
        raise ConfigError("servers", text)
    return {"subscribepattern": table.logs}


def offered(name: str | None = None, protocol: str | None = None) -> Sequence[Offered]:
    """Return the tables of that name and protocol; None: of any. Raises NoTable, which lists all tables."""
    found = offered_if_any(name, protocol)
    if not found:
        asked = " ".join(filter(None, [protocol, name]))
        there = ", ".join(f"{each.protocol} {each.table.name}" for each in offered_if_any())
        raise NoTable(f"no protocol has a table {asked}; there are: {there or 'none'}")
    return found


def offered_if_any(name: str | None = None, protocol: str | None = None) -> Sequence[Offered]:
    """What `offered` finds, but empty instead of an error where there is none."""
    every = (Offered(plugin.name, table) for plugin in plugins.load_all()[0] for table in tables_of(plugin))
    return [each for each in every if name in (None, each.table.name) and protocol in (None, each.protocol)]


def with_column(column: str, protocol: str | None = None) -> Sequence[Offered]:
    """Return the tables whose decoded rows have a column."""
    return [each for each in offered_if_any(None, protocol) if column in each.table.schema.names]


def present(chosen: Sequence[Offered], job_input: JobInput) -> Sequence[Offered]:
    """Return the tables whose namespace a folder has. Returns at least one, for its columns."""
    if job_input.servers is not None:
        return chosen
    spaces = {each.table.namespace for each in chosen}
    there = {space for space in spaces if any((folder / space).is_dir() for folder in job_input.folders)}
    return [each for each in chosen if each.table.namespace in there] or chosen[:1]


def only_served(chosen: Sequence[Offered], job_input: JobInput) -> Sequence[Offered]:
    """Return the tables that can be read there: a server gives only topics. Raises NoTable if none can."""
    if job_input.servers is None:
        return chosen
    found = [each for each in chosen if each.table.namespace == SERVED]
    if not found:
        tables = ", ".join(f"{each.protocol} {each.table.name}" for each in chosen)
        of_topics = [each for each in offered() if each.table.namespace == SERVED]
        there = ", ".join(f"{each.protocol} {each.table.name}" for each in of_topics)
        raise NoTable(
            f"a server does not give what {tables} is made of: read the broker's data folder. "
            f"With --servers there are: {there}"
        )
    return found


# -- reading


def size(job_input: JobInput, chosen: Iterable[Offered]) -> int:
    """Return how much there is to read for these tables, in bytes of logs. Raises what reading raises."""
    return sum(_size(job_input, source, each) for each in chosen for source in job_input.sources)


def _size(job_input: JobInput, source: str, each: Offered) -> int:
    total = sum(max(span.length, 0) for span in planned(_options(job_input, source, each)))
    return total // INDEX_SHARE if each.table.measure is not None else total


def read(spark: "SparkSession | None", job_input: JobInput, chosen: Sequence[Offered]) -> Frame:
    """Return the rows of tables of one name, gathered if the table needs it. Raises TooMany without Spark."""
    return union([_read(spark, job_input, each, whole=True) for each in present(chosen, job_input)])


def decoded(spark: "SparkSession | None", job_input: JobInput, chosen: Sequence[Offered]) -> Frame:
    """Return the same, but rows as they are decoded: not gathered, and without Spark in each log's order."""
    return union([_read(spark, job_input, each, whole=False) for each in present(chosen, job_input)])


def following(spark: "SparkSession", job_input: JobInput, chosen: Sequence[Offered]) -> "DataFrame":
    """Return the decoded rows of tables as a stream."""
    reader = spark.readStream.option("startingOffsets", "earliest")
    return union([with_broker_names(_loaded(spark, reader, job_input, each)) for each in chosen])


def check_followed(chosen: Sequence[Offered]) -> None:
    """Raise NoTable for a table that is gathered from all rows, which a stream never has."""
    for each in chosen:
        if each.table.gather is not None:
            others = offered(protocol=each.protocol)
            can = ", ".join(other.table.name for other in others if other.table.gather is None)
            raise NoTable(
                f"{each.protocol} {each.table.name} is gathered from all that is there, and not followed; "
                f"of {each.protocol} these can: {can or 'none'}"
            )


def _read(spark: "SparkSession | None", job_input: JobInput, each: Offered, *, whole: bool) -> Frame:
    table = each.table
    if spark is not None:
        loaded = _loaded(spark, spark.read, job_input, each)
        gather = table.gather if whole else None
        return with_broker_names(
            loaded if gather is None else {name: gather(rows) for name, rows in loaded.items()}
        )
    batches = {source: _batches(job_input, source, each) for source in job_input.sources}
    if whole and table.fold is not None:
        return with_broker_names({source: table.fold(some) for source, some in batches.items()})
    tables = {source: pa.Table.from_batches(some, schema=table.schema) for source, some in batches.items()}
    return with_broker_names(tables)


def _loaded(spark: "SparkSession", reader: Any, job_input: JobInput, each: Offered) -> dict[str, "DataFrame"]:
    from brokers.pipeline.jobs.table_source import FORMAT, TableDataSource

    spark.dataSource.register(TableDataSource)
    named = reader.format(FORMAT).option("table", f"{each.protocol}.{each.table.name}")
    return {source: named.options(**job_input.options_of(source)).load() for source in job_input.sources}


def _batches(job_input: JobInput, source: str, each: Offered) -> Iterator[pa.RecordBatch]:
    """Yield the decoded rows of one source."""
    workers.prepare()
    options = _options(job_input, source, each)
    table = each.table
    return records.decoded(options, planned(options), decode=table.decode, measure=table.measure)


def _options(job_input: JobInput, source: str, each: Offered) -> SourceOptions:
    served = job_input.servers is not None
    return parse(job_input.options_of(source) | logs_of(each, served=served), streaming=False)


# -- what becomes of the rows


def write(rows: "DataFrame", to: Path, *, overwrite: bool = False) -> None:
    """Write all rows as Parquet into a new folder, or with `overwrite` in place of what the folder holds."""
    rows.write.mode("overwrite" if overwrite else "errorifexists").parquet(str(to))


def write_on(rows: "DataFrame", to: Path, *, once: bool = False) -> "StreamingQuery":
    """Write a stream's rows as Parquet, each once, over restarts, too. `once`: only what is there now."""
    writer = rows.writeStream.format("parquet").option("checkpointLocation", str(to / CHECKPOINT))
    return _triggered(writer, once).start(str(to))


def _triggered(writer: "DataStreamWriter", once: bool) -> "DataStreamWriter":
    return writer.trigger(availableNow=True) if once else writer.trigger(processingTime=TRIGGER)


def rows_as_they_come(
    stream: "DataFrame", *, once: bool = False, mode: str = "append"
) -> Generator[dict[str, Any]]:
    """Yield a stream's rows until it ends or the caller leaves. `once`: only what is there now."""
    batches: queue.Queue[list[dict[str, Any]]] = queue.Queue(WAITING_MAX)
    left = False

    def take(batch: "DataFrame", _: int) -> None:
        try:
            rows = rows_of(batch)
        except Exception:
            if left:  # the stop interrupted it, which Spark would report as a failure
                return
            raise
        while rows and not left:
            try:
                batches.put(rows, timeout=LOOK_SECONDS)
                return
            except queue.Full:
                pass

    query = _triggered(stream.writeStream.foreachBatch(take).outputMode(mode), once).start()
    try:
        while True:
            ended = not query.isActive  # asked before the last look, because it may put rows until it ends
            try:
                yield from batches.get(timeout=0 if ended else LOOK_SECONDS)
            except queue.Empty:
                if ended:
                    break
        if (error := query.exception()) is not None:
            raise error
    finally:
        left = True
        query.stop()
