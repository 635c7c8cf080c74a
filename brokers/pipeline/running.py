"""Starts a session for one command, with one line for an error, and ctrl-C that ends it."""

import logging
import re
import signal
import subprocess
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from brokers.pipeline.reading import ReadOptions
from brokers.pipeline.session import require_spark, session
from shared.errors import BrokerError, UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MASTER = re.compile(r"local(\[(\*|\d+)(,\d+)?\])?|(spark|k8s)://\S+|yarn")
_TRACEBACK = "Traceback (most recent call last):\n"
_CLASS = re.compile(r"^(?:\w+\.)*[A-Z]\w*: ")


class JobFailed(BrokerError):
    """Spark failed. The text is that of the innermost error."""


@contextmanager
def spark_for(what: str, reading: ReadOptions, sized: Mapping[str, str] = {}) -> Iterator["SparkSession"]:
    """Start a session for one command, and end it.

    `sized`: as `of_a_command` takes it. A session that was there before stays. Raises UsageError for a wrong
    master, NoSpark, NoJava, and JobFailed for whatever Spark raises.
    """
    check_master(reading.master)
    require_spark()
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    settings = reading.config(sized)
    try:
        with _started(what, reading.master, settings) as spark:
            yield spark
    except (PySparkException, Py4JError) as error:
        raise JobFailed(innermost_error(str(error))) from error


@contextmanager
def _started(what: str, master: str, config: Mapping[str, str]) -> Iterator["SparkSession"]:
    """Start a session, which ctrl-C interrupts, and end it. A session that was there before stays."""
    from pyspark.sql import SparkSession

    from brokers.pipeline import java

    if SparkSession.getActiveSession() is not None:
        yield session(master, name=f"brokers {what}", config=config)
        return
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    java.use(vector=False)
    with interruptible():
        try:
            spark = session(master, name=f"brokers {what}", config=config)
        except (PySparkException, Py4JError) as error:
            raise JobFailed(f"Spark does not start on {master}: {innermost_error(str(error))}") from error
        except KeyboardInterrupt as interrupt:
            end_awaited(interrupt)
            raise
        signal.signal(signal.SIGINT, signal.default_int_handler)  # PySpark has set its own meanwhile
        try:
            yield spark
        finally:
            with suppress(Exception):  # its JVM may have ended
                spark.stop()


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn ctrl-C into one KeyboardInterrupt, whatever errors it causes on the way.

    PySpark's own handler asks the JVM to cancel its jobs amid other calls, and Py4J logs each broken call at
    length. trio works with Python's own handler.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    logging.disable()
    try:
        yield
    except Exception as error:
        if _was_interrupted(error):
            raise KeyboardInterrupt from error
        raise
    finally:
        logging.disable(logging.NOTSET)
        signal.signal(signal.SIGINT, before)


def end_awaited(interrupt: KeyboardInterrupt) -> None:
    """Kill the JVM for which PySpark waited when it was interrupted.

    The JVM would miss PySpark's folder for its answer, print a long error, and stay for ever. Its process is
    known only to a local variable of PySpark's `launch_gateway`.
    """
    for frame, _ in traceback.walk_tb(interrupt.__traceback__):
        process = frame.f_locals.get("proc")
        if isinstance(process, subprocess.Popen):
            process.kill()
            process.wait()


def _was_interrupted(error: BaseException | None) -> bool:
    """Whether the error was raised while a KeyboardInterrupt was handled."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def check_master(master: str) -> None:
    """Raise UsageError for a wrong master. Spark would print two stack traces."""
    if not _MASTER.fullmatch(master):
        raise UsageError("--master", f"not local, local[4], local[*] or spark://host:port: {master!r}")


def innermost_error(text: str) -> str:
    """Return the line that matters of Spark's error text, which may be two stack traces long.

    An error of Python in an executor is the line behind its traceback's frames. Any other error is the first
    line, behind the name of its class.
    """
    _, found, rest = text.rpartition(_TRACEBACK)
    lines = [line for line in (rest if found else text).splitlines() if line.strip()]
    if found:
        lines = [line for line in lines if not line[0].isspace()]
    if len(lines) > 1 and lines[0].startswith(
        "An error occurred while calling"
    ):  # Py4J's first line; the next says why
        found, lines = ":", [lines[1].removeprefix(": ")]
    line = lines[0].strip() if lines else "Spark's JVM has ended"
    return _CLASS.sub("", line) if found else line
