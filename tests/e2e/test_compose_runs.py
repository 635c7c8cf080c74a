"""Every command of compose.yaml run for real, as far as it goes without an engine: a broker, a Spark cluster
of a master and two workers, and the archive following the broker on it. Names of the containers' network, and
folders, are replaced by this machine's; all else is as it stands there.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow.parquet as pq

from brokers.errors import Failure
from brokers.pipeline import archive
from tests.support import compose
from tests.support.server import Server, run, speak
from tests.support.spark_cluster import START_SECONDS, SparkCluster, wait_for

TOPICS = {"orders": [b"order %d" % number for number in range(500)], "bills": [b"", b"one"]}


def reworded(words: Sequence[str], **others: str) -> list[str]:
    """Names of the network and folders, for those of this machine; a word that nobody uses is a mistake."""
    found = list(words)
    for old, new in others.items():
        assert any(old in word for word in words), old
        found = [word.replace(old, new) for word in found]
    return found


def produce(server: Server, some: slice) -> None:
    lines = [
        b"PRODUCE %b %b\n" % (topic.encode(), value)
        for topic, values in TOPICS.items()
        for value in values[some]
    ]
    answers = speak(server.address("logmq"), b"".join(lines))
    assert answers.count(b"OK ") == len(lines)


def archived(paths: Sequence[str]) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {}
    for path in paths:
        table = pq.ParquetFile(path).read()
        topic = path.split("topic=")[1].split("/")[0]
        rows = zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True)
        found.setdefault(topic, []).extend(value for _, value in sorted(rows))
    return found


def readable(folder: Path) -> int:
    """How many records are in the archive, as far as anybody can read them."""
    try:
        return sum(log.records for log in archive.position(folder))
    except Failure:
        return 0


def test_its_services_work_together(tmp_path: Path, new_server: Callable[..., Server]) -> None:
    services = compose.services()
    folder = tmp_path / "archive"
    brokers, spark = services["brokers"], services["spark-master"]
    allowed = dict(each.split("=", 1) for each in brokers["environment"])
    words = reworded(brokers["command"], **{"0.0.0.0": "127.0.0.1"})
    server = new_server(*words[1:], environ=allowed).start()
    check = run(*brokers["healthcheck"]["test"][2:], environ={"BROKERS_SERVE_DATA_DIR": str(server.data)})
    assert check.returncode == 0, check.stderr
    produce(server, slice(0, 300))
    cluster = SparkCluster(
        tmp_path / "cluster",
        workers=1,  # the archive takes no other
        memory="600m",
        secret=False,  # the master makes it
        master=reworded(
            [*spark["entrypoint"], *spark["command"]],
            **{"spark-master": "127.0.0.1", "/cluster": str(tmp_path / "cluster" / "conf")},
        ),
        worker=reworded(
            [*services["spark-worker"]["entrypoint"], *services["spark-worker"]["command"]],
            **{"spark://spark-master:7077": "{url}", "/tmp/work": "{work}"},
        ),
    )
    with cluster:
        made = tmp_path / "cluster" / "conf" / "spark-defaults.conf"
        assert "spark.authenticate.secret" in made.read_text()
        host, port = cluster.url.removeprefix("spark://").split(":")
        check = reworded(spark["healthcheck"]["test"][2:], **{"spark-master": host, "7077": port})
        subprocess.run([sys.executable, *check], check=True, timeout=START_SECONDS)
        words = reworded(
            services["archive"]["command"],
            **{
                "/archive": str(folder),
                "brokers:8080": "{}:{}".format(*server.address("logmq")),
                "spark://spark-master:7077": cluster.url,
            },
        )
        process = subprocess.Popen(
            [sys.executable, "-m", "brokers", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | cluster.environ,
            text=True,
        )
        try:
            wait_for(lambda: readable(folder) == 302 or process.poll() is not None)
            produce(server, slice(300, None))  # too little for a file: it is written in the end
            process.send_signal(signal.SIGTERM)
            said, errors = process.communicate(timeout=START_SECONDS)
        finally:
            process.kill()
    assert process.returncode == 0, errors
    assert said.count('"records": ') >= 2
    assert archived(archive.paths(folder)) == TOPICS
    assert archived([str(path) for path in folder.glob("topic=*/date=*/*.parquet")]) == TOPICS
