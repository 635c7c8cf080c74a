"""Spark's settings for a session: what its JVM says on standard error, and what makes little data fast.

Spark greets with a profile that it has not got, a level that it sets, a host's name, a library that is not
there: nothing that whoever starts a job can do anything about. `log4j2.properties` leaves those out.

`little` and `bit_by_bit` are for a command that knows that there is little data, or that it comes bit by bit.
A cluster's settings are its own, and a SPARK_CONF_DIR says what its user wants.
"""

import os
from collections.abc import Mapping
from pathlib import Path

LOGGING = Path(__file__).parent / "log4j2.properties"
_OPTIONS = "spark.driver.extraJavaOptions"
_PARTITIONS = "spark.sql.shuffle.partitions"


def settings(
    config: Mapping[str, str], level: str = "warn", environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Spark's settings with the logging put in; of Java's options given in `config` none is lost.

    `level`: the least that is said, `warn` with stack traces or `error` without. Who has a log4j2
    file of his own keeps it: his option comes behind ours, and a SPARK_CONF_DIR is left alone.
    """
    given = config.get(_OPTIONS, "")
    if "SPARK_CONF_DIR" in environ or LOGGING.as_uri() in given:
        return dict(config)
    traces = "full" if level == "warn" else "none"
    ours = f"-Dlog4j2.configurationFile={LOGGING.as_uri()}"
    ours += f" -Dbrokers.log.level={level} -Dbrokers.log.traces={traces}"
    return {**config, _OPTIONS: f"{ours} {given}".strip()}


def of_a_command(config: Mapping[str, str], master: str = "local[*]") -> dict[str, str]:
    """For a verb, which says itself, in one line, what went wrong."""
    ours = {"spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}
    if master.startswith("local"):  # elsewhere workers begin before anything is shipped to them
        ours["spark.python.daemon.module"] = "brokers.pipeline.workers"
    return settings({**ours, **config}, "error")


def little(given: Mapping[str, str], master: str, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """For little data, most of whose time is the JVM's start: `given`, and what goes with it.

    Java's first compiler and a collector without threads; the better ones are not worth waiting for.
    """
    java = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    return _with({_PARTITIONS: "2", _OPTIONS: java}, given, master, environ)


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
