"""The archive on a real cluster, a master and two workers, gives what it gives without one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq

from brokers.pipeline import archive
from tests.support.folders import fill
from tests.support.spark_cluster import START_SECONDS, SparkCluster

ORDERS = [b"%05d" % number + b"." * (number % 97) for number in range(3000)]


def test_a_cluster_archives_what_is_there(tmp_path: Path) -> None:
    data, folder = tmp_path / "data", tmp_path / "archive"
    fill(data, {("logmq", "orders"): ORDERS, ("logmq", "bills"): [b"one"]})
    with SparkCluster(tmp_path / "cluster") as cluster:
        command = ["pipeline", "archive", str(folder), "--path", str(data), "--once", "--json"]
        done = subprocess.run(
            [sys.executable, "-m", "brokers", *command, "--master", cluster.url],
            capture_output=True,
            text=True,
            timeout=START_SECONDS,
            env=os.environ | cluster.environ,
        )
    assert done.returncode == 0, done.stderr
    (line,) = map(json.loads, done.stdout.splitlines())
    assert (line["records"], line["behind_bytes"]) == (3001, 0)
    found = [
        (path.split("topic=")[1].split("/")[0], value)
        for path in sorted(archive.paths(folder))
        for value in pq.ParquetFile(path).read()["value"].to_pylist()
    ]
    assert sorted(found) == sorted([("bills", b"one"), *(("orders", value) for value in ORDERS)])
