"""`brokers bench pipeline` measures what it says; how fast that is here is not for a test to say."""

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from brokers.bench import archiving, ground, pipeline, processes
from brokers.errors import ExitCode, Failure
from tests.support.server import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_every_case_gives_rows_beside_its_baselines(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ground, "WARMING_ROUNDS", 0)
    monkeypatch.setattr(archiving, "RATE", 1000)
    monkeypatch.setattr(archiving, "SECONDS", 0.5)
    with ground.prepared(spark, tmp_path, [200], 100_000, 1) as prepared:
        *rows, followed = [row for case in pipeline.CASES.values() for row in case(prepared)]
        lines = ground.lines(tmp_path, 200).read_bytes().splitlines()
        assert len(lines) == len(set(lines)) == 500
        assert {len(line) for line in lines} == {200}
    assert [(row["mode"], row["baseline"]) for row in rows] == [
        ("count", "tuples"),
        ("count", "lean"),
        ("count", "text"),
        ("group", "tuples"),
        ("group", "lean"),
        ("group", "text"),
        ("payloads", "tuples"),
        ("payloads", "lean"),
        ("payloads", "text"),
        ("whole", "tuples"),
        ("served", "folder"),
        ("archive", "parquet"),
    ]
    for row in rows:
        assert (row["record_bytes"], row["records"]) == (200, 500)
        assert row["seconds"] > 0
        assert row["ratio"] > 0
    assert followed.pop("mode") == "follow"
    assert min(followed.values()) > 0


def test_a_way_that_misses_records_is_no_figure(spark: "SparkSession", tmp_path: Path) -> None:
    empty = ground.Ground(spark, tmp_path, None, {9: 3}, 1)  # type: ignore[arg-type]
    with pytest.raises(Failure, match="count: text saw 2 of 3 records"):
        list(empty.compare("count", 9, lambda: 3, {"text": lambda: 2}))


def test_the_processors_time_of_a_process_and_its_children_is_counted() -> None:
    burn = "import time\nwhile time.process_time() < 0.2: pass"
    # By a process without other children: this one has Spark's, whose times go when they end.
    told = f"import os, subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}], check=True)"
    told += "; from brokers.bench import processes; print(processes.cpu_seconds(os.getpid()))"
    assert float(subprocess.check_output([sys.executable, "-c", told])) >= 0.19
    with subprocess.Popen([sys.executable, "-c", f"{burn}\ninput()"], stdin=subprocess.PIPE) as process:
        until(lambda: processes.cpu_seconds(process.pid) >= 0.19)
        process.communicate(b"\n")


def test_records_that_have_no_room_for_a_key_are_refused() -> None:
    with pytest.raises(Failure, match="longer than 7, its key") as refused:
        pipeline.bench(sizes=(7,))
    assert refused.value.code is ExitCode.USAGE
