"""Rounds of work by Spark's executors, until all is archived, or for ever.

Rounds are plain jobs, not a streaming query with a sink. A query keeps its own record of what is done, beside
the manifest, and carries rows through the JVM and back to Python (measured: README.md). The rows of these
jobs are the ranges to archive and the files made of them.
"""

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from brokers.errors import Failure
from brokers.pipeline.archiving import parquet, plan
from brokers.pipeline.archiving.feed import ArchiveInput
from brokers.pipeline.archiving.folder import ArchiveFolder
from brokers.pipeline.archiving.parquet import Work, Written
from brokers.pipeline.archiving.plan import Ripeness, RoundTarget, TaskPiece
from brokers.pipeline.source.ranges import Cut, LogRange

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LARGE_BYTES = 512 << 20
"""How much of a log makes a Parquet file of 100 MB or more, and some seconds of work."""


@attrs.frozen
class Settings:
    """How rounds are made.

    `round_bytes`: the most that a round reads; None: enough for a large file from each task. `task_bytes`:
    the least that is worth a task. `file_bytes`, `file_seconds`: when what is new in a log is archived, while
    logs are followed. `patience_seconds`: how long an archive that follows tries again.
    """

    trigger_seconds: float = 1.0
    round_bytes: int | None = None
    task_bytes: int = 4 << 20
    file_bytes: int = 128 << 20
    file_seconds: float = 300.0
    compression: str = "zstd"
    allow_loss: bool = False
    patience_seconds: float = 60.0


@attrs.frozen
class Round:
    """What a round did. `behind_bytes`: bytes of logs that it was to archive, and that are left for the next.

    `events`: what happened to logs, in words.
    """

    version: int
    records: int
    bytes: int
    files: int
    behind_bytes: int
    seconds: float
    events: tuple[str, ...] = ()


@attrs.define(eq=False)
class Archiver:
    """Writes one archive. `folder` is open; its path is `root`, here and for every executor."""

    spark: "SparkSession"
    feed: ArchiveInput
    folder: ArchiveFolder
    root: Path
    settings: Settings = attrs.field(factory=Settings)
    stop: threading.Event = attrs.field(factory=threading.Event)
    """When it is set, the round under way is the last. A signal handler may set it."""
    warn: Callable[[str], None] = lambda text: None
    """Gets the reason of a failed round that is tried again."""
    _run: str = attrs.field(factory=lambda: secrets.token_hex(4), init=False)

    def once(self) -> Iterator[Round]:
        """Archive all that is there now, but for logs that are deleted meanwhile."""
        logs = self._logs()
        while not self.stop.is_set():
            try:
                done = self._round(ends={name: log.stop for name, log in logs.items()})
            except Failure:
                raise
            except Exception:
                there = {name: log.log_id for name, log in self._logs().items()}
                left = {name: log for name, log in logs.items() if there.get(name) == log.log_id}
                if len(left) == len(logs):
                    raise
                logs = left  # a task asked for what was deleted behind its look
                continue
            if done is None:
                return
            yield done

    def _logs(self) -> dict[str, LogRange]:
        with self.feed.look() as look:
            return dict(look.logs(self.folder.manifest))

    def follow(self) -> Iterator[Round]:
        """Archive what comes, until `stop` is set; then what is there."""
        if self.stop.is_set():
            return
        ripeness = Ripeness(self.settings.file_bytes, self.settings.file_seconds)
        failing_since: float | None = None
        while True:
            is_last = self.stop.is_set()
            begun = time.monotonic()
            done: Round | None = None
            try:
                done = self._round(None if is_last else ripeness)
                failing_since = None
            except Failure:
                raise
            except Exception as error:
                # A source cannot be reached, or retention overtook a task. A later round may succeed.
                failing_since = failing_since or begun
                if begun - failing_since > self.settings.patience_seconds or not self._spark_lives():
                    raise
                self.warn(str(error))
            if done is not None:
                yield done
            if done is None or not done.behind_bytes:
                if is_last:
                    return
                self.stop.wait(max(self.settings.trigger_seconds - (time.monotonic() - begun), 0))

    def _round(
        self, ripeness: Ripeness | None = None, *, ends: Mapping[str, int] | None = None
    ) -> Round | None:
        """Make one commit; None where nothing is to be archived.

        `ends`: the logs to read, and up to where.
        """
        begun, now = time.monotonic(), self.folder.manifest
        with self.feed.look() as look:
            logs = look.logs(now)
            if ends is not None:
                logs = [
                    (name, log.part(log.start, min(log.stop, ends[name])))
                    for name, log in logs
                    if name in ends
                ]
            wanted = plan.targets(now, logs, look.is_another, allow_loss=self.settings.allow_loss)
            if ripeness is not None:
                wanted = ripeness.ripe(wanted, begun)
            if not wanted and not now.hot:
                return None
            there = _bytes(wanted)
            most = self.settings.round_bytes or self.spark.sparkContext.defaultParallelism * _LARGE_BYTES
            wanted = plan.limited(wanted, most, look.cut)
            written = self.write(wanted, look.cut)
        following = now.advance(plan.spans(wanted, written), int(time.time() * 1000))
        try:
            self.folder.commit(following)
        except OSError as error:  # only recovery can tell what became of it
            raise Failure(f"commit {following.version} failed: {error}") from error
        if ripeness is not None and there == _bytes(wanted):
            ripeness.archived(wanted)
        return Round(
            following.version,
            following.records - now.records,
            _bytes(wanted),
            len(following.moves),
            there - _bytes(wanted),
            round(time.monotonic() - begun, 3),
            tuple(f"{target.log.topic}: {target.event}" for target in wanted if target.event),
        )

    def write(self, wanted: Sequence[RoundTarget], cut: Cut) -> list[tuple[str, Written]]:
        """Have executors write files of these logs; what each task wrote, by a log's identity."""
        settings, folder = self.settings, self.folder
        shares = plan.shares(
            wanted,
            self.spark.sparkContext.defaultParallelism,
            f"{self._run}-{folder.manifest.version + 1}",
            cut,
            gaps_allowed=settings.allow_loss,
            bytes_least=settings.task_bytes,
        )
        feed, root, compression = self.feed, self.root, settings.compression

        def write(share: list[TaskPiece]) -> list[tuple[str, Written]]:
            works = [work for _, work in share]
            ranges = feed.by_range([wanted for wanted, _ in share])
            return [
                (work.identity, parquet.write(root, _attempt(work), batches, compression))
                for work, (_, batches) in zip(works, ranges, strict=True)
            ]

        if not shares:
            return []
        tasks = self.spark.sparkContext.parallelize(shares, len(shares)).map(write).collect()
        return [written for task in tasks for written in task]

    def _spark_lives(self) -> bool:
        try:
            self.spark.sparkContext.statusTracker().getActiveJobsIds()
        except Exception:
            return False
        return True


def _attempt(work: Work) -> Work:
    """Return the work with a token that no other attempt at the same task has."""
    from pyspark import TaskContext

    context = TaskContext.get()
    attempt = context.taskAttemptId() if context is not None else 0
    return attrs.evolve(work, token=f"{work.token}-{attempt}")


def _bytes(wanted: Sequence[RoundTarget]) -> int:
    return sum(target.range.length for target in wanted)
