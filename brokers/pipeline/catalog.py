"""Everything in a data folder as tables of a session's SQL, made in one call.

    from brokers.pipeline import session, views

    spark = session()
    views(spark, "data")
    spark.sql("SELECT outcome, count(*) FROM dms.lives GROUP BY outcome").show()

- `<protocol>.<table>`: each table of each protocol (`brokers pipeline tables` lists them);
- `logmq.<topic>`: the records of a topic; what is no letter or digit in its name is a `_`;
- `volumes`, `lives`, `places`, `kept`: those of all protocols together;
- `logs`: each log, its id, and where it begins and ended when the call was made.

Spark hands no options to a source in Python that a table names. So each table has a format of its own, which
knows its options.
"""

import atexit
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from brokers.pipeline.session import active, require_spark
from shared.tables.table import KEPT, LIVES, PLACES, VOLUMES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from brokers.pipeline.source.options import SourceOptions
    from brokers.pipeline.tables import Offered

QUERIES = Path(__file__).parent / "sql"
"""The queries that come along, a file each."""
OF_ALL = (VOLUMES, LIVES, PLACES, KEPT)
TOPICS_MAX = 200
"""Each is a format and a table of Spark's catalog, a tenth of a second. All are in `logmq.records`."""
_LOGS = "namespace string, log string, log_id bigint, first bigint, end bigint"


def views(
    spark: "SparkSession",
    path: str | Path | None = None,
    *,
    topics: str | None = ".*",
    **options: str,
) -> list[str]:
    """Make the tables of a data folder, or of `servers`, and return their names. They replace earlier ones.

    `topics`: a regular expression of those that get a table; None: none. `options`: the source's. Servers
    give LogMQ's topics alone. Raises ConfigError, OSError, and StoreFormat for what is no data folder.
    """
    require_spark()
    from brokers.pipeline.source.options import NAMESPACE, parse
    from brokers.pipeline.tables import offered

    where = options if path is None else {**options, "path": str(path)}
    checked = parse({**where, "subscribePattern": topics or ".*"}, streaming=False)
    served = bool(checked.servers)
    made = []
    every = [each for each in offered() if each.is_served or not served]
    for each in every:
        made.append(_table(spark, each, where))
    logs = _logs(checked, {each.table.namespace for each in every})
    names = sorted(log for namespace, log, *_ in logs if namespace == NAMESPACE) if topics is not None else []
    names = [name for name in names if re.fullmatch(topics or "", name)]
    if len(names) > TOPICS_MAX:
        print(
            f"brokers: {len(names):,} topics: {TOPICS_MAX} of them get a table; `topics` chooses which, and "
            "logmq.records has all",
            file=sys.stderr,
        )
    for name in names[:TOPICS_MAX]:
        table = f"{NAMESPACE}.{re.sub('[^0-9A-Za-z_]', '_', name)}"
        if table.lower() in map(str.lower, made):
            print(f"brokers: topic {name!r} gets no table: {table} is another's", file=sys.stderr)
            continue
        _create(spark, table, "logmq", {**where, "subscribe": name})
        made.append(table)
    for name in OF_ALL:
        those = [each.name for each in every if each.table.name == name]
        if those:
            rows = " UNION ALL ".join(f"SELECT * FROM {each}" for each in those)
            spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {name} AS {rows}")
            made.append(name)
    spark.createDataFrame(logs, _LOGS).createOrReplaceTempView("logs")
    return [*made, "logs"]


def _table(spark: "SparkSession", each: "Offered", where: Mapping[str, str]) -> str:
    gather = each.table.gather
    decoded = each.name if gather is None else f"{each.name}_decoded"
    _create(spark, decoded, "logmq-table", {**where, "table": each.name})
    if gather is not None:
        spark.sql(f"CREATE OR REPLACE VIEW {each.name} AS {gather.replace('{decoded}', decoded)}")
    return each.name


def _create(spark: "SparkSession", table: str, kind: str, options: Mapping[str, str]) -> None:
    """Make a table of a format that is its own."""
    from brokers.pipeline.source.data_source import TABLE_FORMAT, LogmqDataSource, TableDataSource

    database = table.partition(".")[0]
    format_ = f"{kind}-of-{table.replace('.', '-')}"
    base: Any = TableDataSource if kind == TABLE_FORMAT else LogmqDataSource
    own = {"fixed": dict(options), "name": classmethod(lambda cls: format_)}
    with active(spark):
        spark.dataSource.register(type("Own", (base,), own))
    if not spark.catalog.databaseExists(database):  # IF NOT EXISTS would warn of each that is there
        spark.sql(f"CREATE DATABASE {database} LOCATION '{nowhere()}/{database}'")
    spark.sql(f"DROP TABLE IF EXISTS {table}")
    spark.sql(f"CREATE TABLE {table} USING `{format_}`")


@cache
def nowhere() -> str:
    """A folder for the empty ones that Spark makes for each table, removed at the end of this process."""
    folder = tempfile.mkdtemp(prefix="brokers-views-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _logs(options: "SourceOptions", namespaces: set[str]) -> list[tuple[str, str, int, int, int]]:
    from brokers.pipeline.source.options import TopicChoice
    from brokers.pipeline.source.planning import open_readers

    rows = []
    for namespace in sorted(namespaces):
        with open_readers(attrs.evolve(options, namespace=namespace)) as readers:
            for reader in readers.values():
                for log in reader.logs(TopicChoice(pattern=".*")).values():
                    rows.append((namespace, log.topic, log.log_id, log.start, log.stop))
    return rows
