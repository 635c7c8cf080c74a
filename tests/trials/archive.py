"""`make trial-archive`: the archive of a live broker, its driver, JVM or workers killed -9 at random.

After each kill what readers see is held against all that was acknowledged (`archive_judge.py`), by the files
that the archive names and by the bare glob; in the end the Parquet files must equal the logs, each record
once. The judge itself is tested with planted faults in `test_archive_judge.py`.
"""

import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from brokers.errors import Failure
from brokers.pipeline import archive
from tests.support.process_group import ProcessGroup
from tests.trials import outcomes
from tests.trials.archive_judge import Row, judge, rows, visible
from tests.trials.archive_load import ArchiveLoad
from tests.trials.plain_reader import log_bytes
from tests.trials.serving import TrialServer

PATIENCE_SECONDS = 300.0
"""More than a start of Spark takes on a busy machine."""

KINDS = ("driver", "jvm", "both", "worker")


class ArchiverError(Exception):
    """It did not do what it should; the text is what it said."""


class ArchiverProcess(ProcessGroup):
    """`brokers pipeline archive`."""

    def __init__(
        self,
        folder: Path,
        data: Path,
        *arguments: str,
        master: str = "local[2]",
        environ: Mapping[str, str] | None = None,
    ) -> None:
        words = ("pipeline", "archive", str(folder), "--path", str(data), "--master", master, "--json")
        super().__init__([*words, *arguments], environ)

    @property
    def commits(self) -> list[str]:
        """What it has said of each, as JSON."""
        return [line for line in self.lines if line.startswith('{"version"')]

    def wait_commits(self, count: int) -> None:
        """Until it has made so many. Raises ArchiverError where it ends before."""
        give_up = time.monotonic() + PATIENCE_SECONDS
        while len(self.commits) < count:
            if self.process.poll() is not None or time.monotonic() > give_up:
                raise ArchiverError(f"{len(self.commits)} commits, exit {self.process.poll()}\n{self.said}")
            time.sleep(0.005)

    def kill(self, kind: str) -> str:
        """SIGKILL. Where what was meant is not there yet, all of it; returns what was killed."""
        if kind == "driver":
            self.process.kill()
        elif kind == "both" or not self.kill_below("java" if kind == "jvm" else "pyspark.daemon"):
            self.signal_all(signal.SIGKILL)
            return "both"
        return kind


class Trial:
    """One broker, one archive, many kills."""

    def __init__(self, place: Path, seed: int) -> None:
        self.source = random.Random(seed)
        self.data, self.folder = place / "data", place / "archive"
        self.server = TrialServer(place, self.data, "--enable", "logmq")
        self.kills: Counter[str] = Counter()
        self.commits = 0
        self.faults: list[str] = []

    def run(self, kills: int) -> list[str]:
        """What was seen broken."""
        try:
            self.server.begin()
            self._run(kills)
            self.server.stop()
        finally:
            if self.server.alive:
                self.server.kill()
        kinds = ", ".join(f"{number} {kind}" for kind, number in self.kills.items())
        print(f"{sum(self.kills.values())} kills ({kinds}), {self.commits} commits")
        return self.faults

    def _run(self, kills: int) -> None:
        load = ArchiveLoad(self.server.address("logmq"), random.Random(self.source.random()))
        try:
            while sum(self.kills.values()) < kills and not self.faults:
                self._kill_one(load)
                with load.paused():
                    self.compare(load, complete=False)
                print(
                    f"  {sum(self.kills.values())} kills, {self.commits} commits, {load.records:,} records",
                    flush=True,
                )
        finally:
            load.stop()
        if load.error is not None:
            raise load.error
        if not self.faults:
            self._finish(load)

    def _kill_one(self, load: ArchiveLoad) -> None:
        archiver = ArchiverProcess(self.folder, self.data, "--trigger", str(self.source.uniform(0.5, 3)))
        kind = self.source.choice(KINDS)
        try:
            if self.source.random() < 0.2:
                time.sleep(self.source.uniform(0, 8))
            else:
                archiver.wait_commits(self.source.randint(1, 8))
                time.sleep(self.source.uniform(0, 0.5))
            kind = archiver.kill(kind)
            if kind == "worker":  # it goes on, or says that it cannot
                time.sleep(self.source.uniform(0, 1))
                archiver.kill("both")
            self.kills[kind] += 1
        finally:
            code = archiver.end(PATIENCE_SECONDS)
            self.commits += len(archiver.commits)
        if kind == "jvm" and code == 0:
            self.faults.append(f"its JVM was killed, and it ended with 0\n{archiver.said}")

    def compare(self, load: ArchiveLoad, *, complete: bool) -> None:
        """What readers see now, against what was acknowledged."""
        try:
            named = [Path(path) for path in archive.paths(self.folder)]
        except Failure:
            named = []  # killed before the first commit
        for how, paths in (("named", named), ("glob", visible(self.folder))):
            faults: list[str] = []
            found = rows(paths, faults)
            faults += judge(found, load.lives, complete=complete)
            self.faults += [f"{how}: {fault}" for fault in faults]

    def _finish(self, load: ArchiveLoad) -> None:
        archiver = ArchiverProcess(self.folder, self.data, "--once")
        code = archiver.end(PATIENCE_SECONDS)
        if code:
            self.faults.append(f"--once ended with {code}\n{archiver.said}")
        self.compare(load, complete=True)
        for topic, lives in load.lives.items():
            if _records(log_bytes(self.data, topic) or b"") != lives[-1]:
                self.faults.append(f"{topic}: the log is not what was acknowledged: the load's own fault")
        stray = [
            path
            for path in self.folder.rglob("*")
            if path.is_file() and (path.suffix == ".part" or path.stat().st_size == 0)
        ]
        self.faults += [f"{path} was left" for path in stray]


def _records(data: bytes) -> list[Row]:
    found, at = [], 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        found.append(Row(at, data[at + 4 : end]))
        at = end
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = outcomes.parser("archive", __doc__)
    parser.add_argument("--kills", type=int, default=20)
    options = parser.parse_args(arguments)
    return outcomes.judged(
        "archive",
        options,
        lambda place, seed: Trial(place, seed).run(options.kills),
        kept="the archive equals the logs, each record once",
    )


if __name__ == "__main__":
    sys.exit(main())
