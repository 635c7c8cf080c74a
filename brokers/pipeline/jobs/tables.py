"""Reading tables: in this process or with Spark, whole or decoded, once or as records come; writing them.

`spark`: a session, or None for this process. The frames are of the kind that jobs go on with. Each broker's
rows are gathered by themselves.
"""

import queue
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from brokers.pipeline import workers
from brokers.pipeline.jobs import offers
from brokers.pipeline.jobs.frames import Frame, rows_of, told_apart, union
from brokers.pipeline.jobs.offers import NoTable, Offered, logs_of
from brokers.pipeline.jobs.where import Where
from brokers.pipeline.source import rows as records
from brokers.pipeline.source.options import Options, parse
from brokers.pipeline.source.planning import planned

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

BYTES_MAX = 2 << 30
"""More than that to read is for Spark, which reads it side by side and needs no room for all of it."""
INDEX_SHARE = 100
"""Where a log's index is enough, one of so many of its bytes is counted."""
CHECKPOINT = "_checkpoint"
"""In the folder that a continuous decode writes to; Spark's readers pass over names that begin like that."""
WAITING_MAX = 8
"""Batches that wait to be taken: the stream waits where whoever shows its rows is slower."""
LOOK_SECONDS = 0.5


def size(where: Where, chosen: Iterable[Offered]) -> int:
    """How much there is to read for these tables, as bytes of logs. Raises as the reading does."""
    return sum(_size(where, source, each) for each in chosen for source in where.sources)


def _size(where: Where, source: str, each: Offered) -> int:
    total = sum(max(span.length, 0) for span in planned(_options(where, source, each)))
    return total // INDEX_SHARE if each.table.measure is not None else total


def read(spark: "SparkSession | None", where: Where, chosen: Sequence[Offered]) -> Frame:
    """The rows of tables of one name, gathered where they have to be. Raises TooMany without Spark."""
    return union([_read(spark, where, each, whole=True) for each in offers.present(chosen, where)])


def volumes(spark: "SparkSession | None", where: Where, chosen: Sequence[Offered]) -> Frame:
    """What is decoded of tables of that kind, of several protocols: rows to be added up."""
    return union([decoded(spark, where, each) for each in offers.present(chosen, where)])


def decoded(spark: "SparkSession | None", where: Where, each: Offered) -> Frame:
    """What the records are as rows, one by one; here in the order of each log."""
    return _read(spark, where, each, whole=False)


def following(spark: "SparkSession", where: Where, chosen: Sequence[Offered]) -> "DataFrame":
    """What is decoded of tables, as it comes."""
    reader = spark.readStream.option("startingOffsets", "earliest")
    return union([told_apart(_loaded(spark, reader, where, each)) for each in chosen])


def check_followed(chosen: Sequence[Offered]) -> None:
    """Raises NoTable for one that is gathered from rows which are never all there."""
    for each in chosen:
        if each.table.gather is not None:
            others = offers.offered(protocol=each.protocol)
            can = ", ".join(other.table.name for other in others if other.table.gather is None)
            raise NoTable(
                f"{each.protocol} {each.table.name} is gathered from all that is there, and not followed; "
                f"of {each.protocol} these can: {can or 'none'}"
            )


def _read(spark: "SparkSession | None", where: Where, each: Offered, *, whole: bool) -> Frame:
    table = each.table
    if spark is not None:
        loaded = _loaded(spark, spark.read, where, each)
        gather = table.gather if whole else None
        return told_apart(loaded if gather is None else {name: gather(rows) for name, rows in loaded.items()})
    batches = {source: _batches(where, source, each) for source in where.sources}
    if whole and table.fold is not None:
        return told_apart({source: table.fold(some) for source, some in batches.items()})
    tables = {source: pa.Table.from_batches(some, schema=table.schema) for source, some in batches.items()}
    return told_apart(tables)


def _loaded(spark: "SparkSession", reader: Any, where: Where, each: Offered) -> dict[str, "DataFrame"]:
    from brokers.pipeline.jobs.table_source import FORMAT, TableDataSource

    spark.dataSource.register(TableDataSource)
    named = reader.format(FORMAT).option("table", f"{each.protocol}.{each.table.name}")
    return {source: named.options(**where.options_of(source)).load() for source in where.sources}


def _batches(where: Where, source: str, each: Offered) -> Iterator[pa.RecordBatch]:
    """What is decoded of one of the places."""
    workers.prepare()
    options = _options(where, source, each)
    spans, table = planned(options), each.table
    if table.measure is not None:
        return map(table.measure, records.entries(options, spans))
    return map(table.decode, records.read(options, spans))


def _options(where: Where, source: str, each: Offered) -> Options:
    served = where.servers is not None
    return parse(where.options_of(source) | logs_of(each, served=served), streaming=False)


# -- what becomes of the rows


def write(rows: "DataFrame", to: Path, *, overwrite: bool = False) -> None:
    """Write all rows as Parquet into a new folder, or with `overwrite` in place of what the folder holds."""
    rows.write.mode("overwrite" if overwrite else "errorifexists").parquet(str(to))


def write_on(
    rows: "DataFrame", to: Path, *, every: str = "2 seconds", once: bool = False
) -> "StreamingQuery":
    """Go on writing a stream's rows as Parquet, each once, over restarts too. `once`: only what is there."""
    writer = rows.writeStream.format("parquet").option("checkpointLocation", str(to / CHECKPOINT))
    trigger = writer.trigger(availableNow=True) if once else writer.trigger(processingTime=every)
    return trigger.start(str(to))


def rows_as_they_come(
    stream: "DataFrame", *, every: str = "2 seconds", once: bool = False, mode: str = "append"
) -> Generator[dict[str, Any]]:
    """A stream's rows until it ends or is left. `once`: only what is there now. Raises what ended it."""
    batches: queue.Queue[list[dict[str, Any]]] = queue.Queue(WAITING_MAX)
    left = False

    def take(batch: "DataFrame", _: int) -> None:
        try:
            rows = rows_of(batch)
        except Exception:
            if left:  # stopped in the midst of it: Spark would take that for a failure, and say so
                return
            raise
        while rows and not left:
            try:
                batches.put(rows, timeout=LOOK_SECONDS)
                return
            except queue.Full:
                pass

    writer = stream.writeStream.foreachBatch(take).outputMode(mode)
    query = (writer.trigger(availableNow=True) if once else writer.trigger(processingTime=every)).start()
    try:
        while True:
            ended = not query.isActive  # before the last look: it may have put rows until then
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
