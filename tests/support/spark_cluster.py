"""A standalone Spark cluster on loopback, by Spark's own scripts: a master and workers, each a JVM.

Nothing of it listens beyond loopback, and all ports are picked by the system. `environ` is what a driver
needs to use it.
"""

import contextlib
import os
import re
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import pyspark

from brokers.pipeline import java
from tests.support.process_group import QUICK_JVM, ProcessGroup

START_SECONDS = 300.0
"""More than a JVM takes to start on a busy machine."""

DEPLOY = "org.apache.spark.deploy"
MASTER = ("spark-class", f"{DEPLOY}.master.Master")
WORKER = ("spark-class", f"{DEPLOY}.worker.Worker", "{url}", *("--cores", "1", "--memory", "{memory}"))


class SparkCluster:
    """Started by `with`; ended by it too, with everything that it started.

    `memory`: of each worker, and of an executor. `master`, `worker`: the commands; `{url}` in them is the
    master's, `{work}` a folder. `secret`: make one, which all know.
    """

    def __init__(
        self,
        folder: Path,
        *,
        workers: int = 2,
        memory: str = "512m",
        secret: bool = True,
        master: Sequence[str] = MASTER,
        worker: Sequence[str] = WORKER,
    ) -> None:
        self.folder = folder
        self.url = ""
        self._workers = workers
        self._memory = memory
        self._secret = secret
        self._master, self._worker = master, worker
        self._daemons: list[_Daemon] = []
        scripts = Path(pyspark.__file__).parent / "bin"
        self._java = os.environ | {"PATH": f"{scripts}:{os.environ['PATH']}"}

    @property
    def environ(self) -> dict[str, str]:
        """For a driver: where its settings are, and that it too keeps to loopback."""
        return {
            "SPARK_CONF_DIR": str(self.folder / "conf"),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
            "JAVA_TOOL_OPTIONS": QUICK_JVM,
        }

    def __enter__(self) -> Self:
        (self.folder / "conf").mkdir(parents=True)
        (self.folder / "local").mkdir()
        settings = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": self._memory,
            "spark.executor.memory": self._memory,
            "spark.executor.cores": "1",
            "spark.ui.enabled": "false",
            # What runs over some hundred rows is not worth being compiled.
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        }
        if self._secret:
            settings |= {"spark.authenticate": "true", "spark.authenticate.secret": secrets.token_hex(16)}
        lines = "".join(f"{key} {value}\n" for key, value in settings.items())
        (self.folder / "conf" / "spark-defaults.conf").write_text(lines)
        java.use(self._java)
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for daemon in self._daemons[::-1]:
            daemon.stop()

    def kill_executors(self, number: int) -> int:
        """SIGKILL those of one worker; how many there were."""
        return self._daemons[1 + number].kill_below("CoarseGrainedExecutorBackend")

    def _start(self) -> None:
        own = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        master = self._daemon(*self._master, *own)
        self.url = master.wait_for(r"Starting Spark master at (spark://\S+)")
        for number in range(self._workers):
            fields = {"url": self.url, "memory": self._memory, "work": str(self.folder / f"worker-{number}")}
            self._daemon(*(word.format(**fields) for word in self._worker), *own)
        for worker in self._daemons[1:]:
            worker.wait_for(r"(Successfully registered with master)")

    def _daemon(self, *words: str) -> "_Daemon":
        self._daemons.append(_Daemon(words, self.environ | self._java))
        return self._daemons[-1]


class _Daemon(ProcessGroup):
    """One JVM and what it starts."""

    program = ()

    def wait_for(self, pattern: str) -> str:
        give_up = time.monotonic() + START_SECONDS
        while time.monotonic() < give_up:
            for line in tuple(self.lines):
                if found := re.search(pattern, line):
                    return found[1]
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        raise AssertionError(f"{pattern!r} did not come:\n{self.said}")

    def stop(self) -> None:
        self.signal_all(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.end(20)


def wait_for(condition: Callable[[], bool]) -> None:
    """Until it is so. Raises AssertionError after START_SECONDS."""
    give_up = time.monotonic() + START_SECONDS
    while not condition():
        assert time.monotonic() < give_up, "it did not happen"
        time.sleep(0.1)
