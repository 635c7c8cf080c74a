"""A Spark session that knows the source `logmq`, and making one that is there already know it.

Spark's workers are other processes, on a cluster on other machines. On this machine they import this package
from where we have it; to a cluster it is shipped as a zip file, so that it need not be installed there. What
must be there is what Spark's own Arrow functions need (pyarrow, numpy), and crc32c and attrs.
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
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from brokers import plugins
from shared.errors import BrokerError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROOT = Path(__file__).parent.parent.parent
"""The folder that holds our packages."""

_LOOKUP = Path(__file__).parent / "lookup"
"""What a worker that looks for data sources imports; on this machine also its folder `local`."""

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
    """A session with the source `logmq` registered; the one that runs already, where there is one.

    `config`: Spark's own settings, over ours. In a process's first session those of the driver count too
    (`spark.driver.memory`). A cluster's secret is given by its file, `spark.authenticate.secret.file`. With
    no Java on the machine the extra's own is used. `sc://host:port` is a server of Spark Connect, whose
    settings are its own but for `spark.sql...`. Raises NoSpark, NoJava and Refusal.
    """
    require_spark()
    from pyspark.sql import SparkSession

    from brokers.pipeline import java, secret

    running = SparkSession.getActiveSession()
    remote = master.startswith("sc://") if running is None else _is_remote(running)
    if running is None and not remote:
        java.use()
        _workers_find_us(master)
    progress = {"spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower()}
    settings = _DEFAULTS | progress | (_LOCAL if is_local(master) else {}) | dict(config or {})
    settings = with_logging(settings)
    if running is not None or remote:
        settings = {key: value for key, value in settings.items() if key.startswith("spark.sql.")}
    if running is not None and remote:
        spark = running
        for key, value in settings.items():
            spark.conf.set(key, value)
    else:
        builder = SparkSession.builder.remote(master) if remote else SparkSession.builder.master(master)
        # Kubernetes reads a secret's file itself.
        with secret.lent(settings) if master.startswith("spark://") else nullcontext():
            for key, value in settings.items():
                builder = builder.config(key, value)
            spark = builder.appName(name).getOrCreate()
    register(spark)
    return spark


def register(spark: "SparkSession") -> None:
    """Make the format `logmq` known to a session, and ship to its executors what they need for it.

    Also where a lookup has found it (`lookup/local`): for what it finds Spark starts Python workers of their
    own, beside those that it has for all else.
    """
    from brokers.pipeline.source.data_source import LogmqDataSource

    # Shipped before the source is registered: which files its workers need is noted with it.
    if _is_remote(spark):
        spark.addArtifacts(str(zip_of_ours()), pyfile=True)
        spark.dataSource.register(LogmqDataSource)
        return
    context = spark.sparkContext
    if not is_local(str(context.master)) or not _is_installed():
        context.addPyFile(str(zip_of_ours()))
    with _active(spark):
        spark.dataSource.register(LogmqDataSource)


def require_spark(*more: str) -> None:
    """Raises NoSpark where the extra, or a part of it that is needed, is missing."""
    for module in ("pyspark", "pyarrow", "numpy", *more):
        if importlib.util.find_spec(module) is None:
            raise NoSpark(f"{module} is not installed: pip install 'brokers[spark]' brings it")


@contextmanager
def _active(spark: "SparkSession") -> Iterator[None]:
    """Spark refuses a source whose name the active session knows, whichever session is to have it."""
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


def _is_remote(spark: "SparkSession") -> bool:
    """Whether it is one of Spark Connect: a client's, which has no JVM and no context here."""
    return not hasattr(spark, "sparkContext")


def _workers_find_us(master: str) -> None:
    """What must stand in the environment before the JVM starts, since workers inherit it from there."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    ours = [str(_LOOKUP), *([str(_LOOKUP / "local"), str(_ROOT)] if is_local(master) else [])]
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
    """Our packages and every protocol's as a zip file, made once a process and removed at its end."""
    folder = Path(tempfile.mkdtemp(prefix="brokers-pipeline-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    file = folder / "brokers_pipeline.zip"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in ("brokers", "shared", *plugins.packages()):
            for root in _roots(package):
                for path in sorted(root.rglob("*.py")):
                    archive.write(path, Path(package) / path.relative_to(root))
    return file


def _roots(package: str) -> list[Path]:
    spec = importlib.util.find_spec(package)
    return [] if spec is None else [Path(root) for root in spec.submodule_search_locations or ()]


LOGGING = Path(__file__).parent / "log4j2.properties"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_PARTITIONS = "spark.sql.shuffle.partitions"


def with_logging(
    config: Mapping[str, str], level: str = "warn", environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Spark's settings with the logging put in; of Java's options given in `config` none is lost.

    `level`: the least that is said, `warn` with stack traces or `error` without. Who has a log4j2
    file of his own keeps it: his option comes behind ours, and a SPARK_CONF_DIR is left alone.
    """
    given = config.get(_JAVA_OPTIONS, "")
    if "SPARK_CONF_DIR" in environ or LOGGING.as_uri() in given:
        return dict(config)
    traces = "full" if level == "warn" else "none"
    ours = f"-Dlog4j2.configurationFile={LOGGING.as_uri()}"
    ours += f" -Dbrokers.log.level={level} -Dbrokers.log.traces={traces}"
    return {**config, _JAVA_OPTIONS: f"{ours} {given}".strip()}


def of_a_command(config: Mapping[str, str], master: str = "local[*]") -> dict[str, str]:
    """For a verb, which says itself, in one line, what went wrong."""
    ours = {"spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}
    if master.startswith("local"):  # elsewhere workers begin before anything is shipped to them
        ours["spark.python.daemon.module"] = "brokers.pipeline.workers"
    return with_logging({**ours, **config}, "error")


def little(given: Mapping[str, str], master: str, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """For little data, most of whose time is the JVM's start: `given`, and what goes with it.

    Java's first compiler and a collector without threads; the better ones are not worth waiting for.
    """
    java = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    return _with({_PARTITIONS: "2", _JAVA_OPTIONS: java}, given, master, environ)


def bit_by_bit(
    given: Mapping[str, str], master: str, environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """For a stream, each of whose batches runs as many tasks as there are partitions, rows or not."""
    return _with({_PARTITIONS: str(os.cpu_count() or 2)}, given, master, environ)


def _with(
    ours: Mapping[str, str], given: Mapping[str, str], master: str, environ: Mapping[str, str]
) -> dict[str, str]:
    if not master.startswith("local") or "SPARK_CONF_DIR" in environ:
        return dict(given)
    return {**ours, **given}
