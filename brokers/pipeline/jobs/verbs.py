"""The verbs of the jobs that read what is there: each opens a session, calls its job, and gives the rows."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from shared.errors import UsageError
from shared.options import Ca, Json, Tls, flag
from shared.tables import KEPT, LIVES, PLACES, VALUE, VOLUMES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Master = Annotated[
    str, Parameter(help="Where Spark runs: local[*], or a cluster's spark://host:port.", show_default=True)
]

DataFolder = Annotated[Path, Parameter(help="A data folder; a broker may run on it.")]
Window = Annotated[str, Parameter(help="How long a window is: '1 minute', '30 seconds'.")]
Protocol = Annotated[str | None, Parameter(help="Only this protocol's.", show_default=False)]
Rows = Sequence[Mapping[str, Any]]

_TABLES_EXAMPLES = """Examples:

    brokers pipeline tables"""

_LATENCY_EXAMPLES = """Examples:

    brokers pipeline latency data
    brokers pipeline latency data --window '1 hour' --json"""

_LAG_EXAMPLES = """Examples:

    brokers pipeline lag data
    brokers pipeline lag data --json | jq 'select(.messages > 1000)'"""

_REPORT_EXAMPLES = """Examples:

    brokers pipeline report data
    brokers pipeline report data --to page --window '10 minutes'"""

_REPLAY_EXAMPLES = """Examples:

    brokers pipeline replay data orders --name orders-again
    brokers pipeline replay archive orders --port 8081 --rate 1000
    brokers pipeline replay data orders --protocol dms --name jobs --speed 10"""

_DECODE_EXAMPLES = """Examples:

    brokers pipeline decode data lives --limit 5
    brokers pipeline decode data lives --to lives.parquet
    brokers pipeline decode data events --follow --json | jq .event
    brokers pipeline decode data volumes --protocol logmq"""

_THROUGHPUT_EXAMPLES = """Examples:

    brokers pipeline throughput data
    brokers pipeline throughput data --window '10 seconds' --json
    brokers pipeline throughput data --follow --window '10 seconds'"""

_ANOMALY_EXAMPLES = """Examples:

    brokers pipeline anomaly data
    brokers pipeline anomaly data --window '10 seconds' --tolerance 8
    brokers pipeline anomaly data --protocol pubsub --all --json"""


def add_commands(app: App) -> None:
    """Put them into `brokers pipeline`."""
    app.command(tables, help_epilogue=_TABLES_EXAMPLES)
    app.command(decode, help_epilogue=_DECODE_EXAMPLES)
    app.command(throughput, help_epilogue=_THROUGHPUT_EXAMPLES)
    app.command(latency, help_epilogue=_LATENCY_EXAMPLES)
    app.command(lag, help_epilogue=_LAG_EXAMPLES)
    app.command(anomaly, help_epilogue=_ANOMALY_EXAMPLES)
    app.command(report, help_epilogue=_REPORT_EXAMPLES)
    app.command(replay, help_epilogue=_REPLAY_EXAMPLES)


def tables(*, json: Json = False) -> Rows:
    """List what `decode` knows: the tables of every installed protocol."""
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
    path: DataFolder,
    table: str,
    /,
    *,
    protocol: Protocol = None,
    to: Annotated[Path | None, Parameter(help="Write Parquet there instead of showing rows.")] = None,
    overwrite: Annotated[bool, flag("Replace what is there.")] = False,
    follow: Annotated[bool, flag("Go on with what comes, until interrupted.")] = False,
    limit: Annotated[int, Parameter(help="Show so many rows at most; 0: all.")] = 20,
    master: Master = "local[*]",
    json: Json = False,
) -> Any:
    """Show a table of what is in the logs, or write it as Parquet.

    `brokers pipeline tables` lists what tables there are.
    """
    from brokers.pipeline.jobs import decode as job
    from brokers.pipeline.jobs.running import spark_for
    from brokers.pipeline.jobs.streaming import rows_as_they_come, rows_of
    from brokers.pipeline.jobs.tables import check_folder, offered

    check_folder(path)
    chosen = offered(table, protocol)
    if follow and to is None:
        return followed(
            master, f"decode {table}", lambda spark: rows_as_they_come(job.following(spark, path, chosen))
        )
    with spark_for(f"decode {table}", master) as spark:
        if follow and to is not None:
            query = job.write_on(job.following(spark, path, chosen), to)
            try:
                query.awaitTermination()
            finally:
                query.stop()
            return None
        rows = job.decode(spark, path, chosen)
        if to is None:
            return rows_of(rows.limit(limit) if limit else rows)
        job.write(rows, to, overwrite=overwrite)
        return {"table": table, "to": to, "rows": spark.read.parquet(str(to)).count()}


def throughput(
    path: DataFolder,
    /,
    *,
    protocol: Protocol = None,
    window: Window = "1 minute",
    follow: Annotated[bool, flag("Go on with what comes, until interrupted.")] = False,
    late: Annotated[str, Parameter(help="With --follow: how late a message may be.")] = "10 seconds",
    master: Master = "local[*]",
    json: Json = False,
) -> Any:
    """How much went through: messages and bytes by protocol, name and window."""
    from brokers.pipeline.jobs import tables
    from brokers.pipeline.jobs import throughput as job
    from brokers.pipeline.jobs.running import spark_for
    from brokers.pipeline.jobs.streaming import rows_as_they_come, rows_of
    from brokers.pipeline.jobs.windows import length

    tables.check_folder(path)
    chosen = tables.offered(VOLUMES, protocol)
    each_window, lateness = length(window, "--window"), length(late, "--late")
    if follow:

        def rows(spark: "SparkSession") -> Generator[Mapping[str, Any]]:
            volumes = tables.volumes(spark, path, chosen, stream=True)
            return rows_as_they_come(job.throughput(volumes, each_window, lateness))

        return followed(master, "throughput", rows)
    with spark_for("throughput", master) as spark:
        found = job.throughput(tables.volumes(spark, path, chosen), each_window)
        return rows_of(found.orderBy("start", *job.BY))


def latency(
    path: DataFolder,
    /,
    *,
    protocol: Protocol = None,
    window: Annotated[
        str | None, Parameter(help="By when messages came, too: '1 hour'.", show_default=False)
    ] = None,
    master: Master = "local[*]",
    json: Json = False,
) -> Rows:
    """Percentiles of the time that messages wait for delivery, and stay in their queue."""
    from brokers.pipeline.jobs import latency as job
    from brokers.pipeline.jobs import tables
    from brokers.pipeline.jobs.decode import decode as rows
    from brokers.pipeline.jobs.running import spark_for
    from brokers.pipeline.jobs.streaming import rows_of
    from brokers.pipeline.jobs.windows import length

    tables.check_folder(path)
    chosen = tables.offered(LIVES, protocol)
    each_window = None if window is None else length(window, "--window")
    with spark_for("latency", master) as spark:
        return rows_of(job.latency(rows(spark, path, chosen), each_window))


def lag(path: DataFolder, /, *, master: Master = "local[*]", json: Json = False) -> Sequence[Any]:
    """How far groups and sessions are behind."""
    from brokers.pipeline.jobs import lag as job
    from brokers.pipeline.jobs import tables
    from brokers.pipeline.jobs.decode import decode as rows
    from brokers.pipeline.jobs.running import spark_for
    from brokers.pipeline.jobs.streaming import rows_of

    tables.check_folder(path)
    with spark_for("lag", master) as spark:
        places = rows_of(job.newest(rows(spark, path, tables.offered(PLACES))))
        kept = [rows_of(job.waiting(rows(spark, path, [each]))) for each in tables.offered_if_any(KEPT)]
        return job.lag(path, places, [row for some in kept for row in some])


def anomaly(
    path: DataFolder,
    /,
    *,
    protocol: Protocol = None,
    window: Window = "1 minute",
    history: Annotated[int, Parameter(help="How many windows before one say what is usual.")] = 60,
    tolerance: Annotated[float, Parameter(help="How many spreads the band is wide, to each side.")] = 6.0,
    by_hour: Annotated[bool, flag("Compare with the same hour of the days before.")] = False,
    every: Annotated[bool, flag("Show every window with its band, not only those outside.", "--all")] = False,
    master: Master = "local[*]",
    json: Json = False,
) -> Rows:
    """Rates and values that leave their usual band, and the band."""
    from brokers.pipeline.jobs import anomaly as job
    from brokers.pipeline.jobs import tables
    from brokers.pipeline.jobs.running import spark_for
    from brokers.pipeline.jobs.streaming import rows_of
    from brokers.pipeline.jobs.windows import length

    tables.check_folder(path)
    each_window = length(window, "--window")
    if history < 1 or tolerance <= 0:
        raise UsageError("--history and --tolerance", "they are above 0")
    with spark_for("anomaly", master) as spark:
        series = job.rates(tables.volumes(spark, path, tables.offered(VOLUMES, protocol)), each_window)
        for each in tables.with_column(VALUE, protocol):
            series = series.unionByName(job.values(tables.decoded(spark, path, each), each_window))
        least = min(job.LEAST, history)
        banded = job.bands(series, history=history, least=least, tolerance=tolerance, by_hour=by_hour)
        return rows_of(
            banded.orderBy("protocol", "name", "measure", "start") if every else job.anomalies(banded)
        )


def report(
    path: DataFolder,
    /,
    *,
    to: Annotated[Path, Parameter(help="The folder for report.html and its pictures.")] = Path("report"),
    window: Annotated[
        str | None, Parameter(help="How long a point is: '1 minute'; else as fits.", show_default=False)
    ] = None,
    master: Master = "local[*]",
    json: Json = False,
) -> Rows:
    """Write a page with pictures of all this, for readers who need not know Spark."""
    from datetime import UTC, datetime

    from brokers.pipeline.jobs import tables
    from brokers.pipeline.jobs.running import spark_for
    from brokers.pipeline.jobs.windows import length

    tables.check_folder(path)
    each_window = None if window is None else length(window, "--window")
    with spark_for("report", master) as spark:
        from brokers.pipeline.jobs import report as job
        from brokers.pipeline.jobs.figures import figures

        found = figures(spark, path, each_window)
    files = job.write(found, str(path), to, datetime.now(UTC))
    return [{"file": file, "bytes": file.stat().st_size} for file in files]


def replay(
    path: Annotated[Path, Parameter(help="A data folder, or an archive.")],
    topic: str,
    /,
    *,
    protocol: Annotated[str, Parameter(help="What the server that gets them speaks.")] = "logmq",
    name: Annotated[
        str | None, Parameter(help="The topic or queue there; else named as here.", show_default=False)
    ] = None,
    host: Annotated[str, Parameter(help="The server's address.")] = "127.0.0.1",
    port: Annotated[int | None, Parameter(help="Its port, if not the usual.", show_default=False)] = None,
    tls: Tls = False,
    ca: Ca = None,
    rate: Annotated[float | None, Parameter(help="So many a second.", show_default=False)] = None,
    speed: Annotated[
        float | None, Parameter(help="As they came, so many times as fast; 1: as then.", show_default=False)
    ] = None,
    progress: Annotated[
        Path | None, Parameter(help="Where it is noted how far it is; else NAME.replay.", show_default=False)
    ] = None,
    master: Master = "local[*]",
    json: Json = False,
) -> Any:
    """Send the records of a topic again, in order, to a topic or a queue.

    A replay that was killed goes on where it was when the same command is given
    again. Each record is then in a topic once; in a queue those of one batch may
    be twice. Without --rate and --speed it is as fast as the server takes them.
    """
    import math

    import trio

    from brokers import plugs
    from brokers.errors import Refusal
    from brokers.pipeline.jobs import replay as job
    from brokers.pipeline.jobs.running import spark_for
    from shared.net.dial import tls_context
    from shared.progress import counting
    from shared.replaying import target_of

    for flag_, number in (("--rate", rate), ("--speed", speed)):
        if number is not None and not 0 < number < math.inf:
            raise UsageError(flag_, "it is above 0")
    there = topic if name is None else name
    opener = target_of(plugs.load(protocol))
    if opener is None:
        raise Refusal(f"nothing can be replayed to a server of {protocol}")
    of = {"path": str(path.absolute()), "topic": topic, "protocol": protocol, "name": there}
    noted = job.Progress(progress or Path(f"{there}.replay"), of | {"host": host, "port": port})
    pace = job.Pace(rate or math.inf, speed or math.inf)
    context = tls_context(wanted=tls, ca=ca, certificate=None, key=None)

    with spark_for(f"replay {topic}", master) as spark, counting("messages") as told:
        frame = job.frame_of(spark, path, topic, noted)

        async def run() -> Any:
            async with opener(host, port, context) as target:
                return await job.replay(job.records_of(frame), there, target, noted, pace, told)

        return trio.run(run)


def followed(
    master: str, what: str, rows: "Callable[[SparkSession], Generator[Mapping[str, Any]]]"
) -> Generator[Mapping[str, Any]]:
    """Rows as they come, until interrupted; the session ends with them."""
    from brokers.pipeline.jobs.running import spark_for

    with spark_for(what, master) as spark, closing(rows(spark)) as found:
        yield from found
