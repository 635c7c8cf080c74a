"""What a session ships to executors that have nothing of ours."""

import os
import subprocess
import sys
import sysconfig
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from brokers.pipeline.session import is_local, register, session, zip_of_ours

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_zip_file_is_all_of_ours_that_an_executor_needs() -> None:
    """Imported by a Python that has the libraries, and no way to this package but the zip file."""
    packed = str(zip_of_ours())
    program = (
        "import brokers.pipeline.source.data_source as source, logmq, shared;"
        "print(*(each.__file__ for each in (source, logmq, shared)), sep='\\n')"
    )
    path = os.pathsep.join([packed, sysconfig.get_path("platlib"), sysconfig.get_path("purelib")])
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        env=os.environ | {"PYTHONPATH": path},
        cwd=os.sep,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert all(line.startswith(packed) for line in done.stdout.splitlines())


def test_only_this_machines_own_workers_are_local() -> None:
    assert is_local("local")
    assert is_local("local[2]")
    assert not is_local("spark://somewhere:7077")
    assert not is_local("local-cluster[2,1,1024]")


def test_a_source_is_registered_in_one_session_though_another_that_is_active_has_it(
    spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    from brokers.pipeline.source import data_source

    class Unknown(data_source.LogmqDataSource):
        """By a name that Spark's lookup has not found."""

        @classmethod
        def name(cls) -> str:
            return "logmq-unknown"

    monkeypatch.setattr(data_source, "LogmqDataSource", Unknown)
    active = spark.getActiveSession()
    register(spark)
    register(spark.newSession())
    assert spark.getActiveSession() is active


class Remote:
    """A session as Spark Connect has it: without a JVM or a context. What it is told, in order."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.dataSource = SimpleNamespace(register=lambda source: self.told.append(source.name()))
        self.conf = SimpleNamespace(set=lambda key, value: self.told.append((key, value)))

    def addArtifacts(self, *paths: str, pyfile: bool) -> None:  # noqa: N802 - Spark's name
        assert pyfile
        self.told += paths


def test_the_source_is_shipped_to_a_server_of_spark_connect_and_then_registered() -> None:
    remote = Remote()
    register(remote)  # type: ignore[arg-type]
    assert remote.told == [str(zip_of_ours()), "logmq", "logmq-table"]


def test_a_session_of_spark_connect_that_runs_is_taken_and_told_what_it_may_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from pyspark.sql import SparkSession

    remote = Remote()
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: remote)
    assert session(config={"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "7"}) is remote  # type: ignore[comparison-overlap]
    *settings, _, name, table = remote.told
    assert ("spark.sql.shuffle.partitions", "7") in settings
    assert all(key.startswith("spark.sql.") for key, _ in settings)
    assert (name, table) == ("logmq", "logmq-table")


def test_a_shuffle_needs_no_library_that_java_unpacks(spark: "SparkSession") -> None:
    """Only these two are written in Java alone, or can do without what /tmp does not let them load."""
    settings = spark.sparkContext.getConf()
    for key, usual in (
        ("spark.shuffle.mapStatus.compression.codec", "zstd"),
        ("spark.io.compression.codec", "lz4"),
    ):
        assert settings.get(key, usual) in ("lz4", "lzf")
