"""The commands of jobs that read: each opens a session, calls its job, and gives the rows."""

import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from brokers.pipeline.jobs.engine import FewRows, answered, is_little
from brokers.pipeline.jobs.where import SERVED, Folders, Reading, a_folder, where
from brokers.pipeline.session import require_spark
from shared.cli.options import Ca, Json, Port, Tls, a_path, flag
from shared.errors import UsageError
from shared.tables.table import LIVES, VALUE, VOLUMES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Window = Annotated[str, Parameter(help="How long a window is: '1 minute', '30 seconds'.")]
Protocol = Annotated[str | None, Parameter(help="Only this protocol's.", show_default=False)]
Rows = Sequence[Mapping[str, Any]]
READING = Reading()
ASKING = FewRows()

_TABLES_EXAMPLES = """Examples:

    brokers pipeline tables"""

_LATENCY_EXAMPLES = """Examples:

    brokers pipeline latency data
    brokers pipeline latency data --window '1 hour' --json"""

_LAG_EXAMPLES = """Examples:

    brokers pipeline lag data
    brokers pipeline lag --servers 127.0.0.1:8080 --groups billing,audit
    brokers pipeline lag data --json | jq 'select(.messages > 1000)'"""

_REPORT_EXAMPLES = """Examples:

    brokers pipeline report data
    brokers pipeline report data --to page --window '10 minutes'"""

_REPLAY_EXAMPLES = """Examples:

    brokers pipeline replay data orders --name orders-again
    brokers pipeline replay archive --pattern 'orders.*' --port 8081 --rate 1000
    brokers pipeline replay --servers 10.0.0.1:8080 orders bills --prefix again-
    brokers pipeline replay data orders --protocol dms --name jobs --speed 10"""

_DECODE_EXAMPLES = """Examples:

    brokers pipeline decode data lives --limit 5
    brokers pipeline decode data lives --to lives.parquet
    brokers pipeline decode data events --follow --json | jq .event
    brokers pipeline decode --servers 10.0.0.1,10.0.0.2 volumes"""

_THROUGHPUT_EXAMPLES = """Examples:

    brokers pipeline throughput data
    brokers pipeline throughput /srv/one /srv/two --window '10 seconds' --json
    brokers pipeline throughput --servers 127.0.0.1:8080
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
    require_spark()
    from brokers.pipeline.jobs.offers import offered

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
    from brokers.pipeline.jobs.offers import offered, only_served
    from brokers.pipeline.jobs.running import spark_for

    if not words:
        raise UsageError("TABLE", "say which; `brokers pipeline tables` lists them")
    if limit < 0:
        raise UsageError("--limit", "it is 0 (all) or more")
    *folders, table = words
    if not folders and reading.servers is None:
        raise UsageError(
            "TABLE", f"{table!r} is all there is: a data folder (or --servers), and then a table"
        )
    there = where([a_folder(folder) for folder in folders], reading, bounded=not follow)
    chosen = only_served(offered(table, protocol), there)
    what = f"decode {table}"
    if follow:
        job.check_followed(chosen)
        if to is None:

            def rows(spark: "SparkSession") -> Generator[Mapping[str, Any]]:
                return job.rows_as_they_come(job.following(spark, there, chosen))

            return followed(what, reading, rows)
    elif to is None:
        return answered(
            what,
            reading,
            there,
            chosen,
            lambda spark: rows_of(limited(job.read(spark, there, chosen), limit)),
        )
    elif to.exists() and not overwrite:
        raise UsageError("--to", f"{to} is there already; --overwrite replaces it")
    config = reading.following
    if not follow:
        config = reading.lean if is_little(there, chosen) else reading.config
    with spark_for(what, reading.master, config) as spark:
        if follow:
            query = job.write_on(job.following(spark, there, chosen), to)
            try:
                query.awaitTermination()
            finally:
                query.stop()
            return None
        job.write(job.read(spark, there, chosen), to, overwrite=overwrite)
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
    from brokers.pipeline.jobs import offers, tables
    from brokers.pipeline.jobs import throughput as job
    from brokers.pipeline.jobs.frames import length, rows_of

    each_window, lateness = length(window, "--window"), length(late, "--late")
    there = where(path, reading, bounded=not follow)
    chosen = offers.only_served(offers.offered(VOLUMES, protocol), there)
    if follow:

        def rows(spark: "SparkSession") -> Generator[Mapping[str, Any]]:
            volumes = tables.following(spark, there, chosen)
            return tables.rows_as_they_come(job.following(volumes, each_window, lateness))

        return followed("throughput", reading, rows)
    return answered(
        "throughput",
        reading,
        there,
        chosen,
        lambda spark: rows_of(job.throughput(tables.volumes(spark, there, chosen), each_window)),
    )


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
    from brokers.pipeline.jobs import latency as job
    from brokers.pipeline.jobs import offers, tables
    from brokers.pipeline.jobs.frames import length, rows_of

    each_window = None if window is None else length(window, "--window")
    there = where(path, reading)
    chosen = offers.only_served(offers.offered(LIVES, protocol), there)
    return answered(
        "latency",
        reading,
        there,
        chosen,
        lambda spark: rows_of(job.latency(tables.read(spark, there, chosen), each_window)),
    )


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
    from brokers.pipeline.source.groups import parse_groups

    there = where(path, reading, bounded=False)
    if there.servers is None:
        if groups is not None:
            raise UsageError("--groups", "a data folder knows its groups; only --servers takes this")
        return _said(
            answered("lag", reading, there, job.tables(), lambda spark: job.of_folders(spark, there))
        )
    if groups is None:
        text = "say which: servers do not list their groups, nor any sessions (a data folder has both)"
        raise UsageError("--groups", text)
    try:
        return _said(job.of_servers(there, parse_groups(groups)))
    except ValueError as error:
        raise UsageError("--groups", str(error)) from None


def _said(rows: Rows) -> Rows:
    """The same; which of them damage touches stands on standard error."""
    from brokers.pipeline.jobs.lag import uncounted

    for text in uncounted(rows):
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
    from brokers.pipeline.jobs import offers, tables
    from brokers.pipeline.jobs.frames import by, length, ordered, rows_of, union

    each_window = length(window, "--window")
    if history < 1 or not tolerance > 0:
        raise UsageError("--history and --tolerance", "they are above 0")
    there = where(path, reading)
    chosen = offers.only_served(offers.offered(VOLUMES, protocol), there)
    measured = offers.with_column(VALUE, protocol) if there.servers is None else []
    least = min(job.LEAST, history)

    def answer(spark: "SparkSession | None") -> Rows:
        rates = job.rates(tables.volumes(spark, there, chosen), each_window)
        readings = [tables.decoded(spark, there, each) for each in measured]
        series = union([rates, *(job.values(each, each_window) for each in readings)])
        banded = job.bands(series, history=history, least=least, tolerance=tolerance, by_hour=by_hour)
        if every:
            return rows_of(ordered(banded, *by(banded, "protocol", "name", "measure", "start")))
        return rows_of(job.anomalies(banded))

    return answered("anomaly", reading, there, [*chosen, *measured], answer)


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

    from brokers.pipeline.jobs import figures
    from brokers.pipeline.jobs.frames import length

    if reading.servers is not None:
        text = "a report tells of queues and sessions too, which a data folder has and no server gives"
        raise UsageError("--servers", text)
    if path is None:
        raise UsageError("PATH", "say which data folder the report is about")
    each_window = None if window is None else length(window, "--window")
    there = where([path], reading)
    to.mkdir(parents=True, exist_ok=True)
    found = answered(
        "report",
        reading,
        there,
        figures.sources(),
        lambda spark: figures.figures(spark, there, each_window),
    )
    from brokers.pipeline.jobs import report as job

    files = job.write(found, str(path), to, datetime.now(UTC))
    return [{"file": file, "bytes": file.stat().st_size} for file in files]


def replay(
    *words: Annotated[str, Parameter(help="A data folder, an archive, or --servers; then topics.")],
    pattern: Annotated[
        str | None, Parameter(help="Topics whose whole name matches.", show_default=False)
    ] = None,
    protocol: Annotated[str, Parameter(help="What the server that gets them speaks.")] = "logmq",
    name: Annotated[
        str | None, Parameter(help="Of one topic: its name, or the queue's, there.", show_default=False)
    ] = None,
    prefix: Annotated[str, Parameter(help="Put before every topic's name there.", show_default=False)] = "",
    host: Annotated[str, Parameter(help="The address of the server that gets them.")] = "127.0.0.1",
    port: Annotated[Port, Parameter(help="Its port, if not the usual.")] = None,
    tls: Tls = False,
    ca: Ca = None,
    rate: Annotated[float | None, Parameter(help="So many a second.", show_default=False)] = None,
    speed: Annotated[
        float | None, Parameter(help="As they came, so many times as fast; 1: as then.", show_default=False)
    ] = None,
    progress: Annotated[
        Path | None,
        Parameter(
            help="Where it is noted how far it is; else NAME.replay.", show_default=False, converter=a_path
        ),
    ] = None,
    reading: Reading = READING,
    json: Json = False,
) -> Any:
    """Send the records of topics again, each topic's in order, to topics or queues.

    A replay that was killed goes on where it was when the same command is given
    again. Each record is then in a topic once; in a queue those of one batch may
    be twice. Without --rate and --speed it is as fast as the server takes them;
    several topics are mixed as their records came.
    """
    require_spark()
    import math

    import trio

    from brokers import plugins
    from brokers.errors import Refusal
    from brokers.pipeline.jobs import replay as job
    from brokers.pipeline.jobs import replay_from
    from brokers.pipeline.jobs.running import spark_for
    from shared.cli.progress import counting
    from shared.client.dial import tls_context
    from shared.tables.replaying import target_of

    for flag_, number in (("--rate", rate), ("--speed", speed)):
        if number is not None and not 0 < number < math.inf:
            raise UsageError(flag_, "it is above 0")
    opener = target_of(plugins.load(protocol))
    if opener is None:
        raise Refusal(f"nothing can be replayed to a server of {protocol}")
    context = tls_context(wanted=tls, ca=ca, certificate=None, key=None)
    source, names = replay_from.opened(words, reading)
    topics = replay_from.topics_of(names, pattern)
    if name is not None and len(topics.names) != 1:
        raise UsageError("--name", "is of one topic; --prefix is for several")
    if protocol == SERVED and not (name or prefix) and source.is_at(host, port):
        raise UsageError("--name", "each topic would be appended to itself: give --name or --prefix")
    to = name or prefix + (topics.names[0] if len(topics.names) == 1 else "topics")
    of = {
        "from": reading.servers or str(a_folder(words[0]).absolute()),
        "topics": pattern or list(topics.names),
        "to": [protocol, host, port, name, prefix],
    }
    noted = job.Progress(progress or Path(f"{to}.replay"), of)
    place = noted.load()
    extents = {} if place is not None else source.extents(topics)
    trio.run(_answers, opener, host, port, context)  # before a minute is spent on Spark
    place = place or noted.begin(extents)

    def named(topic: str) -> str:
        return name or prefix + topic

    def records(spark: "SparkSession") -> Any:
        if not place.ranges:
            return ()
        frame = source.frame(spark, place.ranges)
        return replay_from.records_of(frame, one_log=len(place.ranges) == 1)

    what = f"replay {', '.join(topics.names) or pattern}"
    spark_there = spark_for(what, reading.master, reading.config, bar=False)
    with spark_there as spark, counting("messages") as told:

        async def run() -> Any:
            async with opener(host, port, context) as target:
                return await job.replay(records(spark), target, place, noted, pace, named=named, told=told)

        pace = job.Pace(rate or math.inf, speed or math.inf)
        return trio.run(run)


async def _answers(opener: Any, *address: Any) -> None:
    """Raises ConnectionRefusedError where nobody does."""
    async with opener(*address):
        pass


def followed(
    what: str, reading: Reading, rows: "Callable[[SparkSession], Generator[Mapping[str, Any]]]"
) -> Generator[Mapping[str, Any]]:
    """Rows as they come, until interrupted; the session ends with them."""
    from brokers.pipeline.jobs.running import spark_for

    config = reading.following
    with spark_for(what, reading.master, config, bar=False) as spark, closing(rows(spark)) as found:
        for row in found:
            yield row
            sys.stdout.flush()  # somebody may be waiting behind a pipe
