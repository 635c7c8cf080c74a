"""What every job's verb needs: a quiet session, and a progress bar on a terminal while Spark works."""

import logging
import re
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING

from brokers.pipeline.quiet import of_a_verb
from brokers.pipeline.session import session
from brokers.render import progress
from shared.errors import BrokerError, UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK_SECONDS = 0.2
_MASTER = re.compile(r"local(\[(\*|\d+)(,\d+)?\])?|(spark|k8s)://\S+|yarn")
_RAISED = re.compile(r"^(?:pyspark\.errors\.exceptions\.\S+: )?(?:\w+\.)+(\w+): (.+)$", re.MULTILINE)
"""The line of a traceback in which Python says what was raised."""


class JobFailed(BrokerError):
    """Spark could not do it; the text is what the innermost error said."""


@contextmanager
def spark_for(what: str, master: str, config: Mapping[str, str] | None = None) -> Iterator["SparkSession"]:
    """A session for one verb, ended behind it; on a terminal a bar shows how far its tasks are.

    One that was there before stays. Raises UsageError for a master that is none, NoSpark, NoJava, and
    JobFailed for whatever Spark raises.
    """
    from brokers.pipeline import java
    from brokers.pipeline.session import require_spark

    check_master(master)
    require_spark()
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    before = SparkSession.getActiveSession()
    try:
        if before is None:
            java.use(vector=False)
        spark = session(master, name=f"brokers {what}", config=of_a_verb({}) if config is None else config)
        try:
            with interruptible() if before is None else nullcontext(), watched(spark, what):
                yield spark
        finally:
            if before is None:
                with suppress(Exception):  # its JVM may be what has ended
                    spark.stop()
    except (PySparkException, Py4JError) as error:
        raise JobFailed(said(str(error))) from error


@contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGINT be a KeyboardInterrupt and nothing else, whatever fails for it on the way out.

    PySpark's own handler asks the JVM to cancel its jobs, in the midst of what else is being asked of it, and
    so ends in stack traces.
    """
    interrupted = False

    def interrupt(*_: object) -> None:
        nonlocal interrupted
        interrupted = True
        logging.disable()  # Py4J's, of connections that are cut off
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except Exception as error:
        if interrupted:
            raise KeyboardInterrupt from error
        raise
    finally:
        signal.signal(signal.SIGINT, before)


def check_master(master: str) -> None:
    """Raises UsageError. Spark would end with two stack traces."""
    if not _MASTER.fullmatch(master):
        raise UsageError("--master", f"not local, local[4], local[*] or spark://host:port: {master!r}")


def said(text: str) -> str:
    """One line of an error of Spark's, whose text may be two stack traces long.

    Where Python in an executor raised something, that is at the end of its traceback; else the first line
    says it, behind the name of an error class.
    """
    raised = [found for found in _RAISED.finditer(text) if not found[1].startswith("PySpark")]
    if raised:
        return raised[-1][2]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else "Spark failed and does not say why"


@contextmanager
def watched(spark: "SparkSession", what: str) -> Iterator[None]:
    """Show how many tasks are done, on a terminal's standard error, as long as the block runs."""
    if not sys.stderr.isatty():
        yield
        return
    done = threading.Event()
    with progress(what, total=None) as update:

        def look() -> None:
            stages: dict[int, tuple[int, int]] = {}  # number -> tasks done, tasks
            tracker = spark.sparkContext.statusTracker()
            while not done.wait(LOOK_SECONDS):
                for stage in tracker.getActiveStageIds():
                    info = tracker.getStageInfo(stage)
                    if info is not None:
                        stages[stage] = info.numCompletedTasks, info.numTasks
                finished = sum(done for done, _ in stages.values())
                update(finished, sum(known for _, known in stages.values()) or None)

        thread = threading.Thread(target=look, name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
