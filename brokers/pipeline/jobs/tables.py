"""The tables that installed protocols have, found by entry point, and reading them with Spark."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import attrs

from brokers import plugs
from brokers.errors import ExitCode
from shared.errors import BrokerError
from shared.storage.os_disk import OsDisk
from shared.storage.tools.view import check_format
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


def check_folder(path: Path) -> None:
    """Raises StoreFormat where it is no data folder that we can read, and OSError where it is none at all.

    Spark would say so too, later and at length.
    """
    disk = OsDisk(path, create=False, read_only=True)
    try:
        check_format(disk)
    finally:
        disk.release()


def decoded(spark: "SparkSession", path: Path, each: Offered, *, stream: bool = False) -> "DataFrame":
    """What the records of a data folder are as rows, one by one; as they come, if `stream`."""
    from brokers.pipeline.jobs.table_source import FORMAT, TableDataSource

    spark.dataSource.register(TableDataSource)
    reader = spark.readStream.option("startingOffsets", "earliest") if stream else spark.read
    return reader.format(FORMAT).option("table", f"{each.protocol}.{each.table.name}").load(str(path))


def rows(spark: "SparkSession", path: Path, each: Offered) -> "DataFrame":
    """The table: gathered where it has to be."""
    found = decoded(spark, path, each)
    return found if each.table.gather is None else each.table.gather(found)


def union(frames: Iterable["DataFrame"]) -> "DataFrame":
    """All rows of several tables of one kind, which may differ in their other columns."""
    first, *others = frames
    for other in others:
        first = first.unionByName(other, allowMissingColumns=True)
    return first


def volumes(
    spark: "SparkSession", path: Path, chosen: Sequence[Offered], *, stream: bool = False
) -> "DataFrame":
    """What is decoded of tables of that kind, of several protocols: rows to be added up."""
    return union(decoded(spark, path, each, stream=stream) for each in chosen)
