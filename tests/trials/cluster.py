"""`make trial-cluster`: the services of compose.yaml together, on this machine, and an executor killed.

Each command runs as it stands there, as far as it goes without an engine: names of the containers' network,
and folders, are replaced by this machine's. The archive follows a broker under load on a Spark cluster, while
its executor is killed -9, and must equal what was acknowledged. What the cluster then tells of a queue's
lives must be what `--master local[2]` tells.
"""

import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import pyarrow.parquet as pq
import pyspark

from brokers.pipeline import java
from tests.support import compose
from tests.support.dms_spec import SpecClient
from tests.support.process_group import QUICK_JVM, ProcessGroup
from tests.support.server import Server, run
from tests.trials import outcomes
from tests.trials.archive_judge import judge, rows, visible
from tests.trials.archive_load import ArchiveLoad

_START_SECONDS = 300.0
"""More than a JVM takes to start on a busy machine."""
_MESSAGES = 2000


def reworded(words: Sequence[str], others: Mapping[str, str]) -> list[str]:
    """Names of the network and folders, for those of this machine; a word that nobody uses is a mistake."""
    found = list(words)
    for old, new in others.items():
        assert any(old in word for word in words), old
        found = [word.replace(old, new) for word in found]
    return found


class Daemon(ProcessGroup):
    """One JVM and what it starts."""

    program = ()

    def wait_for(self, pattern: str) -> str:
        give_up = time.monotonic() + _START_SECONDS
        while time.monotonic() < give_up and self.process.poll() is None:
            for line in tuple(self.lines):
                if match := re.search(pattern, line):
                    return match[1]
            time.sleep(0.05)
        raise AssertionError(f"{pattern!r} did not come:\n{self.said}")


class Cluster:
    """A standalone Spark cluster on loopback, by Spark's own scripts. `environ` is what a driver needs."""

    def __init__(self, folder: Path, services: Mapping[str, Mapping[str, Any]]) -> None:
        self._master, self._worker = services["spark-master"], services["spark-worker"]
        self._folder = folder
        self._daemons: list[Daemon] = []
        self.url = ""
        scripts = Path(pyspark.__file__).parent / "bin"
        self._java = os.environ | {"PATH": f"{scripts}:{os.environ['PATH']}"}
        self.environ = {
            "SPARK_CONF_DIR": str(folder / "conf"),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(folder / "local"),
            "JAVA_TOOL_OPTIONS": QUICK_JVM,
        }

    def __enter__(self) -> Self:
        conf = self._folder / "conf" / "spark-defaults.conf"
        for name in ("conf", "local"):
            (self._folder / name).mkdir(parents=True)
        settings = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "600m",  # of which a worker has one
            "spark.executor.cores": "1",
            "spark.ui.enabled": "false",
        }
        conf.write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
        java.use(self._java)
        try:
            master = self._start(self._master, {"spark-master": "127.0.0.1", "/cluster": str(conf.parent)})
            self.url = master.wait_for(r"Starting Spark master at (spark://\S+)")
            assert "spark.authenticate.secret" in conf.read_text(), "the master makes it"
            others = {"spark://spark-master:7077": self.url, "/tmp/work": str(self._folder / "work")}
            self._start(self._worker, others).wait_for(r"(Successfully registered with master)")
            host, port = self.url.removeprefix("spark://").split(":")
            check = reworded(self._master["healthcheck"]["test"][2:], {"spark-master": host, "7077": port})
            subprocess.run([sys.executable, *check], check=True, timeout=_START_SECONDS)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for daemon in self._daemons[::-1]:
            daemon.process.terminate()
            daemon.end(_START_SECONDS)

    def kill_executors(self) -> int:
        """SIGKILL; how many there were."""
        return self._daemons[-1].kill_below("CoarseGrainedExecutorBackend")

    def _start(self, service: Mapping[str, Any], others: Mapping[str, str]) -> Daemon:
        words = reworded([*service["entrypoint"], *service["command"]], others)
        own = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        self._daemons.append(Daemon([*words, *own], self.environ | self._java))
        return self._daemons[-1]


class Trial:
    """One data folder, archived by a cluster, and read by it and in one process."""

    def __init__(self, place: Path, seed: int, seconds: float) -> None:
        self.place = place
        self.source = random.Random(seed)
        self.seconds = seconds
        self.faults: list[str] = []

    def run(self) -> list[str]:
        """What was seen broken."""
        services = compose.services()
        brokers = services["brokers"]
        words = reworded(brokers["command"], {"0.0.0.0": "127.0.0.1"})
        allowed = dict(each.split("=", 1) for each in brokers["environment"])
        with (
            Server(self.place, *words[1:], environ=allowed) as server,
            Cluster(self.place / "spark", services) as cluster,
        ):
            check = [*brokers["healthcheck"]["test"][2:]]
            healthy = run(*check, environ={"BROKERS_SERVE_DATA_DIR": str(server.data)})
            assert healthy.returncode == 0, healthy.stderr
            self._queue(server)
            load = ArchiveLoad(server.address("logmq"), self.source)
            others = {
                "/archive": str(self.place / "archive"),
                "brokers:8080": "{}:{}".format(*server.address("logmq")),
                "spark://spark-master:7077": cluster.url,
            }
            self._archive(reworded(services["archive"]["command"], others), cluster, load)
            local = self._lives(server.data, "local", "local[2]", {})
            if local != self._lives(server.data, "cluster", cluster.url, cluster.environ):
                self.faults.append("lives: the cluster tells others than one process does")
        return self.faults

    def _queue(self, server: Server) -> None:
        """Some messages, and half of them taken."""
        with SpecClient(server.address("dms")) as client:
            client.create("work")
            for number in range(_MESSAGES):
                client.produce("work", b"message %d" % number)
            for _ in range(_MESSAGES // 2):
                delivery, _ = client.consume("work")
                client.ack(delivery)

    def _archive(self, words: Sequence[str], cluster: Cluster, load: ArchiveLoad) -> None:
        """It follows the load, loses its executor, and writes what is fresh when it is told to end."""
        folder = self.place / "archive"
        job = ProcessGroup([*words, "--settle-seconds", "1"], cluster.environ)
        try:
            while not visible(folder) and job.process.poll() is None:
                time.sleep(0.1)
            killed = cluster.kill_executors()
            time.sleep(self.seconds)
            load.stop()
            job.process.terminate()
        finally:
            code = job.end(_START_SECONDS)
        if load.error is not None:
            raise load.error
        print(f"  {load.records:,} records, {killed} executors killed meanwhile", flush=True)
        self.faults += judge(rows(visible(folder), self.faults), load.lives, complete=True)
        self.faults += [f"archive: exit {code}\n{job.said}"] if code else []

    def _lives(self, data: Path, name: str, master: str, environ: Mapping[str, str]) -> Sequence[Any]:
        """Every life of a message, which has an end where it was taken."""
        to = self.place / f"lives-{name}"
        query = f"INSERT OVERWRITE DIRECTORY '{to}' USING parquet SELECT * FROM dms.lives"
        decode = ProcessGroup(["pipeline", "sql", str(data), query, "--master", master], environ)
        if code := decode.end(2 * _START_SECONDS):
            self.faults.append(f"lives, {name}: exit {code}\n{decode.said}")
            return []
        tables = [pq.ParquetFile(path).read().to_pylist() for path in sorted(to.glob("*.parquet"))]
        lives = sorted((row for table in tables for row in table), key=lambda row: int(row["seq"]))
        ended = sum(row["ended"] is not None for row in lives)
        print(f"  {name}: {len(lives):,} lives, {ended:,} ended", flush=True)
        if (len(lives), ended) != (_MESSAGES, _MESSAGES // 2):
            self.faults.append(f"lives, {name}: {len(lives)} lives, {ended} ended")
        return lives


def main(arguments: Sequence[str] | None = None) -> int:
    parser = outcomes.parser("cluster", __doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="of load after the kill")
    options = parser.parse_args(arguments)
    return outcomes.judged(
        "cluster",
        options,
        lambda place, seed: Trial(place, seed, options.seconds).run(),
        kept="the cluster's archive equals the logs, and it tells of a queue what a single process tells",
    )


if __name__ == "__main__":
    sys.exit(main())
