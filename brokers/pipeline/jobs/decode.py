"""Protocols' tables as Parquet, or shown: once over what is there, or going on as it comes."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from brokers.pipeline.jobs import offers, tables
from brokers.pipeline.jobs.frames import Frame, union
from brokers.pipeline.jobs.offers import NoTable, Offered
from brokers.pipeline.jobs.where import Where

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

CHECKPOINT = "_checkpoint"
"""In the folder that a continuous decode writes to; Spark's readers pass over names that begin like that."""


def decode(spark: "SparkSession | None", where: Where, chosen: Sequence[Offered]) -> Frame:
    """The rows of tables of one name, whole."""
    return union([tables.rows(spark, where, each) for each in offers.present(chosen, where)])


def following(spark: "SparkSession", where: Where, chosen: Sequence[Offered]) -> "DataFrame":
    """The same as a stream. Raises NoTable as `check_followed` does."""
    check_followed(chosen)
    return union([tables.following(spark, where, each) for each in chosen])


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


def write(rows: "DataFrame", to: Path, *, overwrite: bool = False) -> None:
    """All rows as Parquet in a new folder, or, `overwrite`, instead of what it holds."""
    rows.write.mode("overwrite" if overwrite else "errorifexists").parquet(str(to))


def write_on(
    rows: "DataFrame", to: Path, *, every: str = "2 seconds", once: bool = False
) -> "StreamingQuery":
    """Go on writing a stream's rows as Parquet, each once, over restarts too. `once`: only what is there."""
    writer = rows.writeStream.format("parquet").option("checkpointLocation", str(to / CHECKPOINT))
    trigger = writer.trigger(availableNow=True) if once else writer.trigger(processingTime=every)
    return trigger.start(str(to))
