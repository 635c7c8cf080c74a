"""Makes a Spark session that knows the source `logmq`, with settings for its log lines and for little data.

Spark's workers are other processes, on a cluster on other machines. On this machine they import this package
from here. A cluster gets it as a zip file, so that it need not be installed there. A cluster needs only what
Spark's own Arrow functions need (pyarrow, numpy), and crc32c and attrs.
"""

import atexit
import functools
import importlib.metadata
import importlib.util
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from brokers import plugins
from shared.errors import BrokerError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROOT = Path(__file__).parent.parent.parent
"""The folder that holds our packages."""

_LOOKUP = Path(__file__).parent / "lookup"
"""The module that Spark's lookup worker imports."""

_DEFAULTS = {
    "spark.ui.enabled": "false",  # it would open a port
    "spark.sql.session.timeZone": "UTC",
    # Spark's own choice, INT96, is deprecated in Parquet, and read by few as what it is.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # What passes between the JVM and its Python workers is most of a read's cost: these two take off a fifth.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.buffer.size": str(1 << 20),
    # Else each task that shuffles makes a file for each of 200 partitions: half a second of a small query.
    "spark.shuffle.sort.bypassMergeThreshold": "1",
    # Spark's own choice, zstd, loads a library that it unpacks in /tmp. Where that is forbidden (noexec) the
    # executors of a cluster would wait for ever for what the driver fails to send them.
    "spark.shuffle.mapStatus.compression.codec": "lz4",
}
_LOCAL = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


class NoSpark(BrokerError):
    """PySpark is not installed."""


def session(
    master: str = "local[*]", *, name: str = "brokers", config: Mapping[str, str] | None = None
) -> "SparkSession":
    """Return a session with the source `logmq` registered: the one that runs already, if there is one.

    `config`: Spark's own settings, over ours. A process's first session also takes the driver's
    (`spark.driver.memory`). Without a Java on the machine, the extra's is used. Raises NoSpark and NoJava.
    """
    require_spark()
    from pyspark.sql import SparkSession

    from brokers.pipeline import java

    running = SparkSession.getActiveSession()
    if running is None:
        java.use()
        _workers_find_us(master)
    progress = {"spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower()}
    settings = _DEFAULTS | progress | (_LOCAL if is_local(master) else {}) | dict(config or {})
    settings = with_logging(settings)
    if running is not None:
        settings = {key: value for key, value in settings.items() if key.startswith("spark.sql.")}
    builder = SparkSession.builder.master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.appName(name).getOrCreate()
    register(spark)
    return spark


def register(spark: "SparkSession") -> None:
    """Register the formats `logmq` and `logmq-table` in a session, and ship to executors what they need."""
    from brokers.pipeline.source.data_source import LogmqDataSource, TableDataSource

    # Shipped first: a registered source keeps the list of files that its workers need.
    context = spark.sparkContext
    if not is_local(str(context.master)) or not _is_installed():
        context.addPyFile(str(zip_of_ours()))
    with active(spark):
        spark.dataSource.register(LogmqDataSource)
        spark.dataSource.register(TableDataSource)


def require_spark(*more: str) -> None:
    """Raise NoSpark if the extra, or a needed part of it, is missing."""
    for module in ("pyspark", "pyarrow", "numpy", *more):
        if importlib.util.find_spec(module) is None:
            raise NoSpark(f"{module} is not installed: pip install 'brokers[spark]' brings it")


@contextmanager
def active(spark: "SparkSession") -> Iterator[None]:
    """Make a session the active one. Spark refuses a source whose name the active session knows."""
    sessions = spark._get_j_spark_session_class(spark._jvm)
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def _workers_find_us(master: str) -> None:
    """Set the environment before the JVM starts, from which workers inherit it."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    ours = [str(_LOOKUP), *([str(_ROOT)] if is_local(master) else [])]
    missing = [path for path in ours if path not in paths]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*missing, *paths]))


def is_local(master: str) -> bool:
    return master == "local" or master.startswith("local[")


def _is_installed() -> bool:
    """Whether other Pythons of this environment find this package."""
    try:
        importlib.metadata.distribution("brokers")
    except importlib.metadata.PackageNotFoundError:
        return str(_ROOT) in os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return True


@functools.cache
def zip_of_ours() -> Path:
    """Make a zip file of our packages and every protocol's, once a process, and remove it at its end."""
    folder = Path(tempfile.mkdtemp(prefix="brokers-pipeline-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    file = folder / "brokers_pipeline.zip"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in plugins.packages():
            spec = importlib.util.find_spec(package)
            for root in (spec and spec.submodule_search_locations) or ():
                for path in sorted(Path(root).rglob("*.py")):
                    archive.write(path, Path(package) / path.relative_to(root))
    return file


LOGGING = Path(__file__).parent / "log4j2.properties"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_PARTITIONS = "spark.sql.shuffle.partitions"


def with_logging(
    config: Mapping[str, str], level: str = "warn", environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return Spark's settings with our logging, and with all of Java's options in `config`.

    Our `log4j2.properties` leaves out greetings about which a user can do nothing. `level`: the least that is
    logged, `warn` with stack traces or `error` without. A user's own log4j2 file wins: its option comes
    behind ours, and with a SPARK_CONF_DIR nothing is changed.
    """
    given = config.get(_JAVA_OPTIONS, "")
    if "SPARK_CONF_DIR" in environ or LOGGING.as_uri() in given:
        return dict(config)
    traces = "full" if level == "warn" else "none"
    ours = f"-Dlog4j2.configurationFile={LOGGING.as_uri()}"
    ours += f" -Dbrokers.log.level={level} -Dbrokers.log.traces={traces}"
    return {**config, _JAVA_OPTIONS: f"{ours} {given}".strip()}


LITTLE = {_PARTITIONS: "2", _JAVA_OPTIONS: "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""Settings for little data, whose time is mostly the JVM's start.

Java takes its first compiler and a collector without threads, because the better ones start later.
"""


def of_a_command(
    given: Mapping[str, str],
    master: str = "local[*]",
    sized: Mapping[str, str] = {},
    environ: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """Return the settings for a command, which reports errors itself, in one line. Those `given` win.

    `sized`: `LITTLE`, which is left out on a cluster, and with a SPARK_CONF_DIR.
    """
    ours = {"spark.log.level": "ERROR"}
    if is_local(master):  # on a cluster, workers start before anything is shipped
        ours["spark.python.daemon.module"] = "brokers.pipeline.workers"
        if "SPARK_CONF_DIR" not in environ:
            ours |= sized
    return with_logging({**ours, **given}, "error", environ)
