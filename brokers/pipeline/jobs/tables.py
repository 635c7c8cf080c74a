"""The tables that installed protocols have, found by entry point, and reading them with Spark."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import attrs

from brokers import plugs
from brokers.errors import ExitCode
from brokers.pipeline.jobs.where import SERVED, Where, union
from shared.errors import BrokerError
from shared.tables import Table, tables_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class NoTable(BrokerError):
    """No protocol has a table of that name."""

    exit_code: ClassVar[int] = ExitCode.MISSING


@attrs.frozen
class Offered:
    """A table, and the protocol whose it is."""

    protocol: str
    table: Table


def offered(name: str | None = None, protocol: str | None = None) -> Sequence[Offered]:
    """The tables of that name, of that protocol; None: of any. Raises NoTable, which says what there is."""
    every = [Offered(plug.name, table) for plug in plugs.load_all()[0] for table in tables_of(plug)]
    found = [each for each in every if name in (None, each.table.name) and protocol in (None, each.protocol)]
    if not found:
        asked = " ".join(filter(None, [protocol, name]))
        there = ", ".join(f"{each.protocol} {each.table.name}" for each in every)
        raise NoTable(f"no protocol has a table {asked}; there are: {there or 'none'}")
    return found


def offered_if_any(name: str | None = None, protocol: str | None = None) -> Sequence[Offered]:
    """The same, where it is no mistake that there is none."""
    try:
        return offered(name, protocol)
    except NoTable:
        return ()


def with_column(column: str, protocol: str | None = None) -> Sequence[Offered]:
    """The tables that have a column, before they are gathered."""
    return [each for each in offered_if_any(None, protocol) if column in each.table.schema.names]


def only_served(chosen: Sequence[Offered], where: Where) -> Sequence[Offered]:
    """Those that can be read there: of servers, what is made of topics. Raises NoTable where none is left."""
    if where.servers is None:
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
