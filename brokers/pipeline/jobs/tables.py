"""Reading tables with Spark: as their records come, gathered, or of several protocols at once."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from brokers.pipeline.jobs.offers import Offered
from brokers.pipeline.jobs.where import Where, union

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def decoded(spark: "SparkSession", where: Where, each: Offered, *, stream: bool = False) -> "DataFrame":
    """What the records are as rows, one by one; as they come, if `stream`."""
    return where.per_source(lambda options: _loaded(spark, options, each, stream=stream))


def rows(spark: "SparkSession", where: Where, each: Offered) -> "DataFrame":
    """The table: gathered where it has to be, of each broker by itself."""

    def whole(options: Mapping[str, str]) -> "DataFrame":
        found = _loaded(spark, options, each)
        return found if each.table.gather is None else each.table.gather(found)

    return where.per_source(whole)


def volumes(
    spark: "SparkSession", where: Where, chosen: Sequence[Offered], *, stream: bool = False
) -> "DataFrame":
    """What is decoded of tables of that kind, of several protocols: rows to be added up."""
    return union(decoded(spark, where, each, stream=stream) for each in chosen)


def _loaded(
    spark: "SparkSession", options: Mapping[str, str], each: Offered, *, stream: bool = False
) -> "DataFrame":
    from brokers.pipeline.jobs.table_source import FORMAT, TableDataSource

    spark.dataSource.register(TableDataSource)
    reader = spark.readStream.option("startingOffsets", "earliest") if stream else spark.read
    return (
        reader.format(FORMAT).option("table", f"{each.protocol}.{each.table.name}").options(**options).load()
    )
