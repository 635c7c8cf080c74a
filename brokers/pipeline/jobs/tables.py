"""Reading tables: as their records come, gathered, or of several protocols at once.

With Spark, or without a session in this process: the frames are of the kind that jobs go on with.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from brokers.pipeline.jobs import local
from brokers.pipeline.jobs.frames import Frame, told_apart, union
from brokers.pipeline.jobs.offers import Offered, present
from brokers.pipeline.jobs.where import Where

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def decoded(spark: "SparkSession | None", where: Where, each: Offered) -> Frame:
    """What the records are as rows, one by one."""
    return local.decoded(where, each) if spark is None else _loaded(spark, where, each)


def following(spark: "SparkSession", where: Where, each: Offered) -> "DataFrame":
    """The same as they come."""
    return _loaded(spark, where, each, stream=True)


def rows(spark: "SparkSession | None", where: Where, each: Offered) -> Frame:
    """The table: gathered where it has to be, of each broker by itself."""
    return local.rows(where, each) if spark is None else _loaded(spark, where, each, gathered=True)


def volumes(spark: "SparkSession | None", where: Where, chosen: Sequence[Offered]) -> Frame:
    """What is decoded of tables of that kind, of several protocols: rows to be added up."""
    return union([decoded(spark, where, each) for each in present(chosen, where)])


def _loaded(
    spark: "SparkSession", where: Where, each: Offered, *, stream: bool = False, gathered: bool = False
) -> "DataFrame":
    from brokers.pipeline.jobs.table_source import FORMAT, TableDataSource

    spark.dataSource.register(TableDataSource)
    reader = spark.readStream.option("startingOffsets", "earliest") if stream else spark.read
    gather = each.table.gather if gathered else None

    def loaded(source: str) -> "DataFrame":
        named = reader.format(FORMAT).option("table", f"{each.protocol}.{each.table.name}")
        found = named.options(**where.options_of(source)).load()
        return found if gather is None else gather(found)

    return told_apart({source: loaded(source) for source in where.sources})
