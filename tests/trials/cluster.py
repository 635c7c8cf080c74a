"""`make trial-cluster`: a standalone Spark cluster on loopback gives what one process gives.

A real broker is written to and stopped. Then a master and two workers, started by Spark's own scripts,
archive its topics, while the executor of one of them is killed -9, and write its queue's lives. The results
are compared with those of `--master local[2]`, and with what was acknowledged.
"""

import json
import random
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.support.dms_spec import SpecClient
from tests.support.process_group import ProcessGroup
from tests.support.server import speak
from tests.support.spark_cluster import START_SECONDS, SparkCluster
from tests.trials import outcomes
from tests.trials.archive import ArchiverProcess
from tests.trials.archive_judge import judge, rows, visible
from tests.trials.archive_load import ArchiveLoad
from tests.trials.serving import TrialServer

_MESSAGES = 2000


class Trial:
    """One data folder, read in one process and on a cluster."""

    def __init__(self, place: Path, seed: int, seconds: float) -> None:
        self.place = place
        self.data = place / "data"
        self.source = random.Random(seed)
        self.seconds = seconds
        self.faults: list[str] = []
        self.lives: list[list[dict[str, Any]]] = []

    def run(self) -> list[str]:
        """What was seen broken."""
        server = TrialServer(self.place, self.data)
        server.begin()
        try:
            load = ArchiveLoad(server.address("logmq"), self.source)
            time.sleep(self.seconds)
            load.stop()
            if load.error is not None:
                raise load.error
            lines = b"".join(b"PRODUCE large %b\n" % (b"%09d" % n * 20) for n in range(100_000))
            answers = speak(server.address("logmq"), lines)
            self._queue(server)
            print(f"  {load.records + answers.count(b'OK '):,} records are in the logs", flush=True)
        finally:
            server.stop()
        self._archive("local", "local[2]", {})
        self._write_lives("local", "local[2]", {})
        with SparkCluster(self.place / "spark") as cluster:
            self._archive("cluster", cluster.url, cluster.environ, cluster)
            self._write_lives("cluster", cluster.url, cluster.environ)
        for name in ("local", "cluster"):
            found = rows(visible(self.place / name), self.faults)
            ours = {key: those for key, those in found.items() if key[0] != "large"}
            present = {topic: [lives[-1]] for topic, lives in load.lives.items() if lives[-1]}
            self.faults += [f"{name}: {fault}" for fault in judge(ours, present, complete=True)]
        local, cluster_ = (self._large(name) for name in ("local", "cluster"))
        if local != cluster_ or len(local) != 100_000 or max(local.values()) > 1:
            self.faults.append(f"large: {len(local)} records locally, {len(cluster_)} on the cluster")
        return self.faults

    def _queue(self, server: TrialServer) -> None:
        """Some messages, and half of them taken."""
        with SpecClient(server.address("dms")) as client:
            client.create("work")
            for number in range(_MESSAGES):
                client.produce("work", b"message %d" % number)
            for _ in range(_MESSAGES // 2):
                delivery, _ = client.consume("work")
                client.ack(delivery)

    def _write_lives(self, name: str, master: str, environ: Mapping[str, str]) -> None:
        """Every life of a message, which has an end where it was taken."""
        to = self.place / f"lives-{name}"
        query = f"INSERT OVERWRITE DIRECTORY '{to}' USING parquet SELECT * FROM dms.lives"
        words = ["pipeline", "sql", str(self.data), query]
        decode = ProcessGroup([*words, "--master", master], environ)
        if code := decode.end(2 * START_SECONDS):
            self.faults.append(f"lives, {name}: exit {code}\n{decode.said}")
            return
        tables = [pq.ParquetFile(path).read().to_pylist() for path in sorted(to.glob("*.parquet"))]
        lives = sorted((row for table in tables for row in table), key=lambda row: int(row["seq"]))
        self.lives.append(lives)
        ended = sum(row["ended"] is not None for row in lives)
        print(f"  {name}: {len(lives):,} lives, {ended:,} ended", flush=True)
        if (len(lives), ended) != (_MESSAGES, _MESSAGES // 2) or lives != self.lives[0]:
            self.faults.append(
                f"lives, {name}: {len(lives)} lives, {ended} ended; not what local has, or wrong"
            )

    def _archive(
        self, name: str, master: str, environ: Mapping[str, str], cluster: SparkCluster | None = None
    ) -> None:
        begun = time.monotonic()
        archiver = ArchiverProcess(self.place / name, self.data, "--once", master=master, environ=environ)
        killed = 0
        try:
            while cluster is not None and not killed and archiver.process.poll() is None:
                killed = cluster.kill_executors(0)
                time.sleep(0.05)
        finally:
            code = archiver.end(2 * START_SECONDS)
        if code:
            self.faults.append(f"{name}: exit {code}\n{archiver.said}")
            return
        records = sum(json.loads(line)["records"] for line in archiver.commits)
        also = f", {killed} executors killed meanwhile" if cluster is not None else ""
        print(f"  {name}: {records:,} records, {time.monotonic() - begun:.0f} s{also}", flush=True)

    def _large(self, name: str) -> Counter[tuple[int, bytes]]:
        found: Counter[tuple[int, bytes]] = Counter()
        for path in (self.place / name).glob("topic=large/*/*.parquet"):
            table = pq.ParquetFile(path).read(columns=["offset", "value"])
            found.update(zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True))
        return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = outcomes.parser("cluster", __doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="of the load before")
    options = parser.parse_args(arguments)
    return outcomes.judged(
        "cluster",
        options,
        lambda place, seed: Trial(place, seed, options.seconds).run(),
        kept="the cluster's archive is the one that a single process makes, and both equal the logs",
    )


if __name__ == "__main__":
    sys.exit(main())
