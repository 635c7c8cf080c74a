"""Rounds of work by Spark's executors, until all is archived, or for ever.

Rounds are plain jobs, not a streaming query with a sink. A query keeps its own record of what is done, beside
the manifest, and carries rows through the JVM and back to Python (measured: README.md). The rows of these
jobs are the ranges to archive and the files made of them.
"""

import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Protocol

import attrs

from brokers.errors import Failure
from brokers.pipeline.archiving import names, parquet, plan
from brokers.pipeline.archiving.columns import merged
from brokers.pipeline.archiving.feed import ArchiveInput
from brokers.pipeline.archiving.manifest import ByteRange, Manifest
from brokers.pipeline.archiving.parquet import FileLayout, Work, Written
from brokers.pipeline.archiving.places import ArchivePlace, written_path
from brokers.pipeline.archiving.plan import RoundTarget, TaskPiece
from brokers.pipeline.source.ranges import Cut, LogRange

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LARGE_BYTES = 512 << 20
"""How much of a log makes a Parquet file of 100 MB or more, and some seconds of work."""
AGAIN_SECONDS = 1.0
"""A round that failed is tried again so much later."""


@attrs.frozen
class Settings:
    """How rounds are made.

    `round_bytes`: the most that a round reads; None: enough for a large file from each task. `task_bytes`:
    the least that is worth a task. `trigger_seconds`: from one round to the next, while logs are followed.
    `patience_seconds`: how long an archive that follows tries again.
    """

    trigger_seconds: float = 300.0
    round_bytes: int | None = None
    task_bytes: int = 4 << 20
    compression: str = "zstd"
    allow_loss: bool = False
    patience_seconds: float = 60.0
    by_hour: bool = False
    parse_json: bool = False
    keep_days: int | None = None


@attrs.frozen
class Round:
    """What a round did. `behind_bytes`: bytes of logs that it was to archive, and that are left for the next.

    `events`: what happened to logs, in words. `conflicts`, `unparsed`: see JsonColumns.
    """

    version: int
    records: int
    bytes: int
    files: int
    behind_bytes: int
    seconds: float
    events: tuple[str, ...] = ()
    conflicts: int = 0
    unparsed: int = 0


class ArchiveAccount(Protocol):
    """What says up to where each log is archived: a folder's manifests, or a table."""

    @property
    def manifest(self) -> Manifest: ...

    def learn(self, found: Iterable[str]) -> None:
        """Look up the state of these logs, by name, so that `manifest` has it."""

    def commit(self, following: Manifest) -> None:
        """Add the files that `following` moves, and what it says of logs, at once or not at all."""

    def day_files(self, day: date) -> list[str]:
        """Return the paths of a day's files."""

    def replace(self, following: Manifest, paths: Sequence[str]) -> None:
        """Put the files that `following` moves in the place of these."""

    def expire(self, before: date) -> None:
        """Delete what is older than this day."""


@attrs.define(eq=False)
class Archiver:
    """Writes one archive. `folder` is open; executors put its files at `place`."""

    spark: "SparkSession"
    feed: ArchiveInput
    folder: ArchiveAccount
    place: ArchivePlace
    settings: Settings = attrs.field(factory=Settings)
    stop: threading.Event = attrs.field(factory=threading.Event)
    """When it is set, the round under way is the last. A signal handler may set it."""
    warn: Callable[[str], None] = lambda text: None
    """Gets the reason of a failed round that is tried again."""
    _run: str = attrs.field(factory=lambda: secrets.token_hex(4), init=False)
    _expired: date | None = attrs.field(default=None, init=False)
    """The day up to which old days were deleted last."""

    def once(self) -> Iterator[Round]:
        """Archive all that is there now, but for logs that are deleted meanwhile."""
        logs = self._logs()
        while not self.stop.is_set():
            self._expire()
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

    def rebuild(self, day: date) -> Round:
        """Write the files of a day again, of the same records. Raises Failure where they cannot be read.

        Nothing is changed until all are written.
        """
        begun = time.monotonic()
        with self.feed.look() as look:
            there = dict(look.logs(self.folder.manifest))
            self.folder.learn(there)
            now, paths = self.folder.manifest, self.folder.day_files(day)
            wanted = [self._again(path, there, look.is_another) for path in paths]
            columns, written = self._written(wanted, look.cut, whole=True)
        parts = tuple(part for _, each in written for part in each.parts)
        if len(parts) != len(paths) or any(each.gaps for _, each in written):
            raise Failure(f"{day} would not have the same files again: is it cut by hour, or by day?")
        time_ms = int(time.time() * 1000)
        following = attrs.evolve(
            now, version=now.version + 1, written_ms=time_ms, moves=parts, columns=columns or now.columns
        )
        self.folder.replace(following, paths)
        seconds = round(time.monotonic() - begun, 3)
        records = sum(part.records for part in parts)
        return Round(following.version, records, _bytes(wanted), len(parts), 0, seconds)

    def _again(self, path: str, there: Mapping[str, LogRange], is_another: plan.IsAnother) -> RoundTarget:
        """Return what a file has. Raises Failure."""
        name = names.parse_file(path.rpartition("/")[2])
        log = self.folder.manifest.logs.get(name.key) if name is not None else None
        if name is None or log is None:
            raise Failure(f"{path} is no file of this archive, of logs that are there")
        found = there.get(log.name)
        if found is None or is_another(log, found) or found.start > name.start:
            raise Failure(f"{path}: its records are not in the log any more")
        return RoundTarget(log.identity, log.name, found, ByteRange(name.start, name.end))

    def _expire(self) -> None:
        if self.settings.keep_days is None:
            return
        before = datetime.now(UTC).date() - timedelta(days=self.settings.keep_days)
        if before != self._expired:
            self.folder.expire(before)
            self._expired = before

    def _logs(self) -> dict[str, LogRange]:
        with self.feed.look() as look:
            return dict(look.logs(self.folder.manifest))

    def follow(self) -> Iterator[Round]:
        """Archive what comes, until `stop` is set; then what is there."""
        if self.stop.is_set():
            return
        failing_since: float | None = None
        while True:
            is_last = self.stop.is_set()
            begun = time.monotonic()
            done: Round | None = None
            self._expire()
            try:
                done = self._round()
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
                pause = self.settings.trigger_seconds
                if failing_since is not None:
                    pause = min(pause, AGAIN_SECONDS)
                self.stop.wait(max(pause - (time.monotonic() - begun), 0))

    def _round(self, *, ends: Mapping[str, int] | None = None) -> Round | None:
        """Make one commit; None where nothing is to be archived.

        `ends`: the logs to read, and up to where.
        """
        begun = time.monotonic()
        with self.feed.look() as look:
            logs = look.logs(self.folder.manifest)
            self.folder.learn(name for name, _ in logs)
            now = self.folder.manifest
            if ends is not None:
                logs = [
                    (name, log.part(log.start, min(log.stop, ends[name])))
                    for name, log in logs
                    if name in ends
                ]
            wanted = plan.targets(now, logs, look.is_another, allow_loss=self.settings.allow_loss)
            if not wanted and not now.hot:
                return None
            there = _bytes(wanted)
            most = self.settings.round_bytes or self.spark.sparkContext.defaultParallelism * _LARGE_BYTES
            wanted = plan.limited(wanted, most, look.cut)
            columns, written = self._written(wanted, look.cut)
        following = now.advance(plan.spans(wanted, written), int(time.time() * 1000), columns)
        try:
            self.folder.commit(following)
        except OSError as error:  # only recovery can tell what became of it
            raise Failure(f"commit {following.version} failed: {error}") from error
        return Round(
            following.version,
            following.records - now.records,
            _bytes(wanted),
            len(following.moves),
            there - _bytes(wanted),
            round(time.monotonic() - begun, 3),
            tuple(f"{target.log.topic}: {target.event}" for target in wanted if target.event),
            sum(each.conflicts for _, each in written),
            sum(each.unparsed for _, each in written),
        )

    def _written(
        self, wanted: Sequence[RoundTarget], cut: Cut, *, whole: bool = False
    ) -> tuple[Mapping[str, str] | None, list[tuple[str, Written]]]:
        """Write files of these logs, and return all columns of what is JSON, and what each task wrote.

        Where tasks find new columns, all is written once more with them: only together can they tell a
        column's type.
        """
        columns = self.folder.manifest.columns if self.settings.parse_json else None
        while True:
            written = self.write(wanted, None if whole else cut, columns)
            fresh = merged(each.fresh for _, each in written)
            if columns is None or not fresh:
                return columns, written
            for _, each in written:
                for part in each.parts:
                    self.place.drop(written_path(self.place, part))
            columns = {**columns, **fresh}

    def write(
        self, wanted: Sequence[RoundTarget], cut: Cut | None, columns: Mapping[str, str] | None
    ) -> list[tuple[str, Written]]:
        """Have executors write files of these logs; what each task wrote, by a log's identity.

        `cut`: None leaves each range whole, in a task of its own.
        """
        settings, token = self.settings, f"{self._run}-{self.folder.manifest.version + 1}"
        shares = plan.shares(
            wanted,
            self.spark.sparkContext.defaultParallelism,
            token,
            cut,
            gaps_allowed=settings.allow_loss,
            bytes_least=settings.task_bytes,
        )
        feed, place = self.feed, self.place
        layout = FileLayout(settings.compression, settings.by_hour, columns)

        def write(share: list[TaskPiece]) -> list[tuple[str, Written]]:
            works = [work for _, work in share]
            ranges = feed.by_range([wanted for wanted, _ in share])
            return [
                (work.identity, parquet.write(place, _attempt(work), batches, layout))
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
