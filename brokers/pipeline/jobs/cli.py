"""The commands of jobs that read: each opens a session, calls its job, and gives the rows."""

import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from brokers.pipeline.jobs.job_input import (
    Folders,
    ReadOptions,
    a_folder,
    checked_input,
)
from brokers.pipeline.jobs.running import FewRows, answered, is_little
from brokers.pipeline.session import LITTLE, STREAM, require_spark
from brokers.render import Following
from shared.cli.options import Json, a_path, flag
from shared.errors import UsageError
from shared.tables.table import LIVES, VALUE, VOLUMES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Window = Annotated[str, Parameter(help="How long a window is: '1 minute', '30 seconds'.")]
Protocol = Annotated[str | None, Parameter(help="Only this protocol's.", show_default=False)]
Rows = Sequence[Mapping[str, Any]]
READ_DEFAULTS = ReadOptions()
ASKING = FewRows()


def tables(*, json: Json = False) -> Rows:
    """List what `decode` knows: the tables of every installed protocol."""
    require_spark()
    from brokers.pipeline.jobs.tables import offered

    return [
        {
            "protocol": each.protocol,
            "table": each.table.name,
            "of": f"{each.table.namespace}/{each.table.logs}",
            "followed": each.table.gather is None,
            "rows": each.table.summary,
        }
        for each in offered()
    ]


def decode(
    *words: Annotated[str, Parameter(help="Data folders, or --servers, and at last the table.")],
    protocol: Protocol = None,
    to: Annotated[
        Path | None, Parameter(help="Write Parquet there instead of showing rows.", converter=a_path)
    ] = None,
    overwrite: Annotated[bool, flag("Replace what is there.")] = False,
    follow: Annotated[bool, flag("Go on with what comes, until interrupted.")] = False,
    limit: Annotated[int, Parameter(help="Show so many rows at most; 0: all.")] = 20,
    reading: FewRows = ASKING,
    json: Json = False,
) -> Any:
    """Show a table of what is in the logs, or write it as Parquet.

    `brokers pipeline tables` lists what tables there are.
    """
    require_spark()
    from brokers.pipeline.jobs import tables as job
    from brokers.pipeline.jobs.frames import limited, rows_of
    from brokers.pipeline.jobs.running import spark_for
    from brokers.pipeline.jobs.tables import offered, only_served

    if not words:
        raise UsageError("TABLE", "say which; `brokers pipeline tables` lists them")
    if limit < 0:
        raise UsageError("--limit", "it is 0 (all) or more")
    *folders, table = words
    if not folders and reading.servers is None:
        raise UsageError(
            "TABLE", f"only {table!r} is given: name a data folder (or --servers), and then the table"
        )
    job_input = checked_input([a_folder(folder) for folder in folders], reading, bounded=not follow)
    chosen = only_served(offered(table, protocol), job_input)
    what = f"decode {table}"
    if follow:
        job.check_followed(chosen)
        if to is None:

            def coming(spark: "SparkSession") -> Generator[Mapping[str, Any]]:
                return job.rows_as_they_come(job.following(spark, job_input, chosen))

            return followed(what, reading, coming)
        with spark_for(what, reading, STREAM) as spark:
            query = job.write_on(job.following(spark, job_input, chosen), to)
            try:
                query.awaitTermination()
            finally:
                query.stop()
        return None
    if to is None:

        def first(spark: "SparkSession | None") -> Rows:
            return rows_of(limited(job.read(spark, job_input, chosen), limit))

        return answered(what, reading, job_input, chosen, first)
    if to.exists() and not overwrite:
        raise UsageError("--to", f"{to} is there already; --overwrite replaces it")
    with spark_for(what, reading, LITTLE if is_little(job_input, chosen) else {}) as spark:
        job.write(job.read(spark, job_input, chosen), to, overwrite=overwrite)
        return {"table": table, "to": to, "rows": spark.read.parquet(str(to)).count()}


def throughput(
    *path: Folders,
    protocol: Protocol = None,
    window: Window = "1 minute",
    follow: Annotated[bool, flag("Go on with what comes, until interrupted.")] = False,
    late: Annotated[str, Parameter(help="With --follow: how late a message may be.")] = "10 seconds",
    reading: FewRows = ASKING,
    json: Json = False,
) -> Any:
    """How much went through: messages and bytes by protocol, name and window."""
    require_spark()
    from brokers.pipeline.jobs import measures as job
    from brokers.pipeline.jobs import tables
    from brokers.pipeline.jobs.frames import length, rows_of

    each_window, lateness = length(window, "--window"), length(late, "--late")
    job_input = checked_input(path, reading, bounded=not follow)
    chosen = tables.only_served(tables.offered(VOLUMES, protocol), job_input)
    if follow:

        def coming(spark: "SparkSession") -> Generator[Mapping[str, Any]]:
            volumes = tables.following(spark, job_input, chosen)
            return tables.rows_as_they_come(job.following(volumes, each_window, lateness))

        return followed("throughput", reading, coming)

    def sums(spark: "SparkSession | None") -> Rows:
        return rows_of(job.throughput(tables.decoded(spark, job_input, chosen), each_window))

    return answered("throughput", reading, job_input, chosen, sums)


def latency(
    *path: Folders,
    protocol: Protocol = None,
    window: Annotated[
        str | None, Parameter(help="By when messages came, too: '1 hour'.", show_default=False)
    ] = None,
    reading: FewRows = ASKING,
    json: Json = False,
) -> Rows:
    """Percentiles of the time that messages wait for delivery, and stay in their queue."""
    require_spark()
    from brokers.pipeline.jobs import measures as job
    from brokers.pipeline.jobs import tables
    from brokers.pipeline.jobs.frames import length, rows_of

    each_window = None if window is None else length(window, "--window")
    job_input = checked_input(path, reading)
    chosen = tables.only_served(tables.offered(LIVES, protocol), job_input)

    def percentiles(spark: "SparkSession | None") -> Rows:
        return rows_of(job.latency(tables.read(spark, job_input, chosen), each_window))

    return answered("latency", reading, job_input, chosen, percentiles)


def lag(
    *path: Folders,
    groups: Annotated[
        str | None, Parameter(help="With --servers: whose, with commas between.", show_default=False)
    ] = None,
    reading: FewRows = ASKING,
    json: Json = False,
) -> Rows:
    """How far groups and sessions are behind."""
    require_spark()
    from brokers.pipeline.jobs import lag as job
    from brokers.pipeline.source.options import parse_groups

    job_input = checked_input(path, reading, bounded=False)
    if job_input.servers is None:
        if groups is not None:
            raise UsageError("--groups", "a data folder knows its groups; only --servers takes this")
        rows = answered(
            "lag", reading, job_input, job.sources(), lambda spark: job.of_folders(spark, job_input)
        )
    else:
        if groups is None:
            text = "say which: servers do not list their groups, nor any sessions (a data folder has both)"
            raise UsageError("--groups", text)
        try:
            rows = job.of_servers(job_input, parse_groups(groups))
        except ValueError as error:
            raise UsageError("--groups", str(error)) from None
    for text in job.uncounted(rows):
        print(f"brokers: {text}", file=sys.stderr)
    return rows


def anomaly(
    *path: Folders,
    protocol: Protocol = None,
    window: Window = "1 minute",
    history: Annotated[int, Parameter(help="How many windows before one say what is usual.")] = 60,
    tolerance: Annotated[float, Parameter(help="How many spreads the band is wide, to each side.")] = 6.0,
    by_hour: Annotated[bool, flag("Compare with the same hour of the days before.")] = False,
    every: Annotated[bool, flag("Show every window with its band, not only those outside.", "--all")] = False,
    reading: FewRows = ASKING,
    json: Json = False,
) -> Rows:
    """Rates and values that leave their usual band, and the band."""
    require_spark()
    from brokers.pipeline.jobs import anomaly as job
    from brokers.pipeline.jobs import tables
    from brokers.pipeline.jobs.frames import by, length, ordered, rows_of

    each_window = length(window, "--window")
    if history < 1 or not tolerance > 0:
        raise UsageError("--history and --tolerance", "they are above 0")
    job_input = checked_input(path, reading)
    chosen = tables.only_served(tables.offered(VOLUMES, protocol), job_input)
    measured = tables.with_column(VALUE, protocol) if job_input.servers is None else []
    least = min(job.LEAST, history)

    def answer(spark: "SparkSession | None") -> Rows:
        readings = [tables.decoded(spark, job_input, [each]) for each in measured]
        series = job.series(tables.decoded(spark, job_input, chosen), readings, each_window)
        banded = job.bands(series, history=history, least=least, tolerance=tolerance, by_hour=by_hour)
        if every:
            return rows_of(ordered(banded, *by(banded, "protocol", "name", "measure", "start")))
        return rows_of(job.anomalies(banded))

    return answered("anomaly", reading, job_input, [*chosen, *measured], answer)


def report(
    path: Annotated[
        Path | None, Parameter(help="A data folder; a broker may run on it.", converter=a_path)
    ] = None,
    /,
    *,
    to: Annotated[
        Path, Parameter(help="The folder for report.html and its pictures.", converter=a_path)
    ] = Path("report"),
    window: Annotated[
        str | None, Parameter(help="How long a point is: '1 minute'; else as fits.", show_default=False)
    ] = None,
    reading: FewRows = ASKING,
    json: Json = False,
) -> Rows:
    """Write a page with pictures of all this, for readers who need not know Spark."""
    require_spark("matplotlib")
    from datetime import UTC, datetime

    from brokers.pipeline.jobs import report as job
    from brokers.pipeline.jobs.frames import length

    if reading.servers is not None:
        text = "a report tells of queues and sessions too, which a data folder has and no server gives"
        raise UsageError("--servers", text)
    if path is None:
        raise UsageError("PATH", "say which data folder the report is about")
    each_window = None if window is None else length(window, "--window")
    job_input = checked_input([path], reading)
    to.mkdir(parents=True, exist_ok=True)
    found = answered(
        "report", reading, job_input, job.sources(), lambda spark: job.figures(spark, job_input, each_window)
    )
    files = job.write(found, str(path), to, datetime.now(UTC))
    return [{"file": file, "bytes": file.stat().st_size} for file in files]


def followed(
    what: str, reading: ReadOptions, rows: "Callable[[SparkSession], Generator[Mapping[str, Any]]]"
) -> Following:
    """Rows as they come, until interrupted; the session ends with them."""
    from brokers.pipeline.jobs.running import spark_for

    def coming() -> Generator[Mapping[str, Any]]:
        with spark_for(what, reading, STREAM, bar=False) as spark, closing(rows(spark)) as found:
            yield from found

    return Following(coming())
