"""A command's session: what is said of a failure, ctrl-C, the progress bar, refusals before Spark starts."""

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.java_gateway import launch_gateway

from brokers.pipeline import running
from brokers.pipeline.reading import ReadOptions
from brokers.pipeline.running import JobFailed, innermost_error, spark_for
from shared.errors import ConfigError, StoreFormat, UsageError
from tests.support.server import run_here

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize(
    "words",
    [
        ("archive", "ar", "--path", "s3://b/data"),
        ("report", "s3://b/data"),
        ("report", "data", "--to", "s3://b/page"),
        ("sql", "s3://b/data", "lag"),
    ],
)
def test_a_place_that_is_not_of_this_machine_is_a_mistake_and_no_folder_is_made(
    words: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run_here("pipeline", *words)
    assert (done.returncode, done.stdout, list(tmp_path.iterdir())) == (2, "", [])
    assert "'s3://b/" in done.stderr
    assert "file:///path" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_place_may_be_a_url_of_this_machine(tmp_path: Path) -> None:
    done = run_here("pipeline", "archived", f"file://{tmp_path}")
    assert (done.returncode, done.stderr) == (66, "brokers: nothing was archived here yet\n")
    done = run_here("pipeline", "report", f"file://{tmp_path}/none")
    assert (done.returncode, done.stderr) == (73, f"brokers: there is no folder {tmp_path}/none\n")


TRACE = """An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "worker.py", line 1, in main
    process()
brokers.pipeline.source.reader.DataLoss: orders in data: offsets 0 to 7 are lost (failOnDataLoss is true)

\tat org.apache.spark.api.python.BasePythonRunner(PythonRunner.scala:1)
"""

CHAINED = """[PYTHON_EXCEPTION] An exception was thrown: Traceback (most recent call last):
  File "a.py", line 1, in f
KeyError: 'x'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "b.py", line 2, in g
    import attrs
ModuleNotFoundError: No module named 'attrs'
 SQLSTATE: 38000
\tat org.apache.spark
"""


def test_what_cannot_be_done_is_one_line_and_a_code(plain: Path, tmp_path: Path) -> None:
    for arguments, code, text in (
        (["sql", str(tmp_path), "lag"], 73, f"{tmp_path} is not a data folder"),
        (["sql", "lag"], 2, "QUERY: only 'lag' is given: name a data folder"),
        (["sql"], 2, "QUERY: say what to run"),
        (["sql", str(plain), str(plain), "lag"], 2, "one data folder is read at a time, not 2"),
        (
            ["sql", str(plain), "lags"],
            66,
            "'lags' is no query, no file, and none of lag, latency, throughput",
        ),
        (["sql", str(plain), "lag", "--limit", "-1"], 2, "--limit: it is 0 (all) or more"),
        (["sql", str(plain), "lag", "--master", "spark:7077"], 2, "--master: not local"),
        (["sql", str(plain), "lag", "--option", "verifyCRC=perhaps"], 78, "verifyCrc: not true or false"),
        (
            ["report", str(plain), "--servers", "127.0.0.1:1"],
            2,
            "which a data folder has and no server gives",
        ),
    ):
        done = run_here("pipeline", *arguments)
        assert (done.returncode, len(done.stderr.splitlines())) == (code, 1), done.stderr
        assert text in done.stderr


def test_what_cannot_be_read_is_said_before_spark_is_started(plain: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="either a data folder or --servers"):
        ReadOptions().where(None)
    with pytest.raises(UsageError, match="either a data folder or --servers"):
        ReadOptions(servers="127.0.0.1:1").where(plain)
    with pytest.raises(ConfigError, match="servers: names no server"):
        ReadOptions(servers="").where(None)
    with pytest.raises(StoreFormat, match="not a data folder"):
        ReadOptions().where(tmp_path)
    with pytest.raises(UsageError, match="not KEY=VALUE"):
        ReadOptions(option=("verifyCrc",)).where(plain)
    with pytest.raises(ConfigError, match="did you mean verifyCrc"):
        ReadOptions(option=("verifyCrcs=true",)).where(plain)
    away = ReadOptions(servers="127.0.0.1:1", option=("retryTimeoutMs=1",))
    with pytest.raises(ConnectionRefusedError, match=r"127\.0\.0\.1:1"):
        away.where(None)


def test_a_failure_is_what_the_innermost_error_innermost_error() -> None:
    assert innermost_error(TRACE) == "orders in data: offsets 0 to 7 are lost (failOnDataLoss is true)"
    assert (
        innermost_error("[PATH_NOT_FOUND] Path does not exist: x.\n  at org.apache")
        == "[PATH_NOT_FOUND] Path does not exist: x."
    )
    assert innermost_error(CHAINED) == "No module named 'attrs'"
    py4j = (
        "An error occurred while calling None.org.x.\n: java.lang.IllegalStateException: it is over\n\tat x"
    )
    assert innermost_error(py4j) == "it is over"
    assert innermost_error("[Errno 111] Connection refused") == "[Errno 111] Connection refused"
    assert innermost_error("") == "Spark's JVM has ended"


def test_a_session_that_was_there_stays_and_its_errors_are_told(spark: "SparkSession") -> None:
    with spark_for("test", ReadOptions(master="local[2]")) as same:
        assert same is spark
    with pytest.raises(JobFailed, match="PATH_NOT_FOUND"), spark_for("test", ReadOptions(master="local[2]")):
        spark.read.parquet("/nowhere/at/all")
    assert spark.range(1).count() == 1


def test_ctrl_c_is_an_interrupt_whatever_fails_for_it() -> None:
    """In the midst of a question to the JVM it makes others fail, and Py4J log that at length."""

    def asking() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            signal.pause()
        except KeyboardInterrupt:
            assert not logging.getLogger().isEnabledFor(logging.CRITICAL)
            raise RuntimeError("reentrant call") from None

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), running.interruptible():
        asking()
    assert logging.getLogger().isEnabledFor(logging.CRITICAL)
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(RuntimeError), running.interruptible():
        raise RuntimeError("not interrupted")


def test_ctrl_c_while_spark_starts_leaves_no_jvm() -> None:
    """Which process it is stands in PySpark's own function alone."""
    assert "proc" in launch_gateway.__code__.co_cellvars
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
    processes = []

    def launch() -> None:
        proc = subprocess.Popen(sleeper)
        processes.append(proc)
        raise KeyboardInterrupt

    try:
        launch()
    except KeyboardInterrupt as interrupt:
        running.end_awaited(interrupt)
    assert processes[0].returncode == -signal.SIGKILL
