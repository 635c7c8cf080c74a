"""`brokers pipeline ...`: a query over what passed through, a page about it, the archive, and the doctor.

A command imports what it needs when it is called, so that a list of commands does not wait for Spark.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from brokers.errors import ExitCode, Failure
from brokers.pipeline import doctor
from brokers.pipeline.archiving import cli as archiving
from brokers.pipeline.catalog import QUERIES
from brokers.pipeline.reading import ReadOptions, a_folder
from brokers.pipeline.running import spark_for
from brokers.pipeline.session import LITTLE, require_spark
from shared.cli.app import protocol_app
from shared.cli.options import Json, a_path
from shared.errors import UsageError

READ_DEFAULTS = ReadOptions()
_WAREHOUSE = "spark.sql.warehouse.dir"
"""Spark would make an empty folder spark-warehouse where the command is called."""
Rows = Sequence[Mapping[str, Any]]


def tables(*, json: Json = False) -> Rows:
    """List the tables of every installed protocol, which queries name."""
    require_spark()
    from brokers.pipeline.tables import offered

    return [
        {"table": each.name, "of": f"{each.table.namespace}/{each.table.logs}", "rows": each.table.summary}
        for each in offered()
    ]


def sql(
    *words: Annotated[str, Parameter(help="A data folder, or --servers; then a query, or a file of one.")],
    limit: Annotated[int, Parameter(help="Show so many rows at most; 0: all.")] = 1000,
    topics: Annotated[str, Parameter(help="Topics with a table of their own: a regular expression.")] = ".*",
    reading: ReadOptions = READ_DEFAULTS,
    json: Json = False,
) -> Any:
    """Run a query over everything in a data folder.

    Its tables are those that `brokers pipeline tables` lists (dms.lives), those of
    all protocols together (volumes, lives, places, kept), logs, and logmq.TOPIC.
    `throughput`, `latency` and `lag` are queries that come along.
    """
    require_spark()
    from brokers.pipeline.catalog import nowhere, views

    if limit < 0:
        raise UsageError("--limit", "it is 0 (all) or more")
    if not words:
        raise UsageError("QUERY", "say what to run: a query, a file of one, or throughput, latency, lag")
    *folders, given = words
    if len(folders) > 1:
        raise UsageError("PATH", f"one data folder is read at a time, not {len(folders)}")
    if not folders and reading.servers is None:
        raise UsageError("QUERY", f"only {given!r} is given: name a data folder (or --servers), and then it")
    query = query_of(given)
    where = reading.where(a_folder(folders[0]) if folders else None)
    with spark_for("sql", reading, LITTLE | {_WAREHOUSE: nowhere()}) as spark:
        views(spark, topics=topics, **where)
        found = spark.sql(query)
        if not found.columns:
            return None
        rows: Rows = (found.limit(limit) if limit else found).toArrow().to_pylist()
        return rows


def query_of(given: str) -> str:
    """Return a query: the text itself, that of a file, or that of one of ours. Raises Failure, OSError."""
    ours = {path.stem: path for path in QUERIES.glob("*.sql")}
    if given in ours:
        return ours[given].read_text()
    if len(given.split()) > 1:
        return given
    file = a_folder(given, "QUERY")
    if not file.is_file():
        text = f"{given!r} is no query, no file, and none of {', '.join(sorted(ours))}"
        raise Failure(text, ExitCode.MISSING)
    return file.read_text()


def report(
    path: Annotated[Path, Parameter(help="A data folder; a broker may run on it.", converter=a_path)],
    /,
    *,
    to: Annotated[Path, Parameter(help="The page.", converter=a_path)] = Path("report.html"),
    reading: ReadOptions = READ_DEFAULTS,
    json: Json = False,
) -> Mapping[str, Any]:
    """Write a page about what passed through, for readers who need not know Spark."""
    require_spark()
    from datetime import UTC, datetime

    from brokers.pipeline import report as page
    from brokers.pipeline.catalog import nowhere, views

    if reading.servers is not None:
        text = "a report tells of queues and sessions too, which a data folder has and no server gives"
        raise UsageError("--servers", text)
    where = reading.where(path)
    with spark_for("report", reading, LITTLE | {_WAREHOUSE: nowhere()}) as spark:
        views(spark, topics=None, **where)
        figures = page.figures(spark)
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text(page.page(figures, str(path), datetime.now(UTC)), encoding="utf-8")
    return {"file": to, "bytes": to.stat().st_size}


app, command = protocol_app(
    "pipeline",
    "Logs as data: Spark over what passed through (needs the extra spark).",
    "doctor",
    "archive /srv/archive --path /srv/brokers --once",
    "sql /srv/brokers throughput",
)

_EXAMPLES: Mapping[Callable[..., Any], Sequence[str]] = {
    archiving.archive: (
        "archive /srv/archive --path /srv/brokers --once",
        "archive /srv/archive --servers 127.0.0.1:8080 --topics a,b",
        "archive /srv/archive --path /srv/brokers --namespace dms",
    ),
    archiving.archived: ("archived /srv/archive --json",),
    doctor.doctor: ("doctor", "doctor --start --json | jq 'select(.state != \"ok\")'"),
    tables: ("tables",),
    sql: (
        "sql data throughput",
        "sql data 'SELECT * FROM dms.lives LIMIT 5'",
        "sql data lag --json | jq 'select(.messages > 1000)'",
        "sql --servers 127.0.0.1:8080 'SELECT * FROM logmq.orders'",
        "sql data query.sql --limit 0 --json",
    ),
    report: ("report data", "report data --to page.html"),
}
for _command, _lines in _EXAMPLES.items():
    command(*_lines)(_command)
