"""What a session ships to executors that have nothing of ours."""

import os
import subprocess
import sys
import sysconfig
from typing import TYPE_CHECKING

import pytest

from brokers.pipeline.session import is_local, register, zip_of_ours

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


def test_a_shuffle_needs_no_library_that_java_unpacks(spark: "SparkSession") -> None:
    """Only these two are written in Java alone, or can do without what /tmp does not let them load."""
    settings = spark.sparkContext.getConf()
    for key, usual in (
        ("spark.shuffle.mapStatus.compression.codec", "zstd"),
        ("spark.io.compression.codec", "lz4"),
    ):
        assert settings.get(key, usual) in ("lz4", "lzf")
