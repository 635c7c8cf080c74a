"""How an archive that follows meets what fails, without Spark: the stand-ins do no work."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import attrs
import pytest

from brokers.errors import Failure
from brokers.pipeline.archiving.folder import ArchiveFolder
from brokers.pipeline.archiving.job import Archiver, Settings
from brokers.pipeline.archiving.manifest import Manifest
from brokers.pipeline.archiving.parquet import Written
from brokers.pipeline.archiving.places import place_of
from brokers.pipeline.archiving.plan import NamedLog, RoundTarget
from brokers.pipeline.source.ranges import Cut, LogRange
from tests.pipeline.archive.model import ArchiveDisk, Spark
from tests.support.fake_disk import Operation

QUICK = Settings(trigger_seconds=0.0)


@attrs.define
class Feed:
    """A place that cannot be reached so many times, and then has these logs."""

    failures: int
    there: Sequence[NamedLog] = ()
    on_look: Callable[[], None] = lambda: None

    @contextmanager
    def look(self) -> Iterator[Any]:
        self.on_look()
        if self.failures:
            self.failures -= 1
            raise OSError("not reached")
        yield self

    def logs(self, known: Manifest) -> Sequence[NamedLog]:
        return self.there

    def cut(self, span: LogRange, offset: int) -> int:
        return offset

    def is_another(self, *_: object) -> bool:
        return False


def orders(end: int) -> NamedLog:
    return "orders@x", LogRange("x", "orders", 7, 0, end)


class GapsArchiver(Archiver):
    """It finds nothing but gaps."""

    def write(self, wanted: Sequence[RoundTarget], cut: Cut, columns: object) -> list[tuple[str, Written]]:
        return [(target.identity, Written([], [target.range])) for target in wanted]


def archiver(
    feed: Feed, spark: Spark | None = None, settings: Settings = QUICK
) -> tuple[Archiver, list[str]]:
    warned: list[str] = []
    folder = ArchiveFolder(ArchiveDisk(), "logmq")
    folder.recover()
    made = GapsArchiver(spark or Spark(), feed, folder, place_of("unused"), settings, warn=warned.append)  # type: ignore[arg-type]
    return made, warned


def test_a_place_that_comes_back_is_asked_again() -> None:
    feed = Feed(3)
    job, warned = archiver(feed)
    rounds = itertools.count()

    def stop_in_time() -> None:
        if next(rounds) == 5:
            job.stop.set()

    feed.on_look = stop_in_time
    assert list(job.follow()) == []
    assert warned == ["not reached"] * 3


def test_one_that_stays_away_ends_it() -> None:
    job, warned = archiver(Feed(1 << 30), settings=attrs.evolve(QUICK, patience_seconds=0.0))
    with pytest.raises(OSError, match="not reached"):
        list(job.follow())
    assert len(warned) <= 1


def test_patience_begins_anew_with_each_round_that_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    feed, now = Feed(0), [1000.0]
    clock = SimpleNamespace(time=lambda: 0.0, monotonic=lambda: now[0])
    monkeypatch.setattr("brokers.pipeline.archiving.job.time", clock)
    job, warned = archiver(feed, settings=attrs.evolve(QUICK, patience_seconds=50.0))
    failing = [True, False, True, True, True]
    rounds = iter(failing)

    def later() -> None:
        now[0] += 30
        feed.failures = int(next(rounds))

    feed.on_look = later
    with pytest.raises(OSError, match="not reached"):
        list(job.follow())
    assert next(rounds, None) is None
    assert len(warned) == 3


def test_once_ends_with_what_was_there_when_it_began() -> None:
    ends = itertools.count(10, 10)

    class Growing(Feed):
        def logs(self, known: Manifest) -> Sequence[NamedLog]:
            return [orders(next(ends))]

    job, _ = archiver(Growing(0))
    rounds = list(itertools.islice(job.once(), 5))
    assert [(each.bytes, each.behind_bytes) for each in rounds] == [(10, 0)]


def test_what_was_refused_is_not_tried_again() -> None:
    class Overtaken(Feed):
        def logs(self, known: Manifest) -> Sequence[NamedLog]:
            raise Failure("records are gone")

    job, warned = archiver(Overtaken(0))
    with pytest.raises(Failure, match="records are gone"):
        list(job.follow())
    assert warned == []


def test_what_is_archived_once_goes_on_without_a_log_that_is_deleted_meanwhile() -> None:
    deleted: NamedLog = "deleted@x", LogRange("x", "deleted", 8, 0, 50)
    feed = Feed(0, [deleted, orders(100)])
    job, _ = archiver(feed)

    class Deletes(GapsArchiver):
        def write(
            self, wanted: Sequence[RoundTarget], cut: Cut, columns: object
        ) -> list[tuple[str, Written]]:
            if any(target.name == "deleted@x" for target in wanted):
                feed.there = [orders(100)]
                raise RuntimeError("the log has been deleted")
            return super().write(wanted, cut, columns)

    job = Deletes(job.spark, job.feed, job.folder, job.place, job.settings)
    assert len(list(itertools.islice(job.once(), 5))) == 1
    assert [log.name for log in job.folder.manifest.current().values()] == ["orders@x"]


def test_what_fails_with_all_logs_there_ends_what_is_archived_once() -> None:
    class Fails(GapsArchiver):
        def write(
            self, wanted: Sequence[RoundTarget], cut: Cut, columns: object
        ) -> list[tuple[str, Written]]:
            raise RuntimeError("no space")

    job, _ = archiver(Feed(0, [orders(100)]))
    job = Fails(job.spark, job.feed, job.folder, job.place, job.settings)
    with pytest.raises(RuntimeError, match="no space"):
        list(job.once())


def test_a_jvm_that_has_ended_ends_it_at_once() -> None:
    job, warned = archiver(Feed(1 << 30), Spark(lives=False))
    with pytest.raises(OSError, match="not reached"):
        list(job.follow())
    assert warned == []


def test_a_commit_that_failed_ends_it_since_only_the_next_start_can_tell_what_it_did() -> None:
    job, _ = archiver(Feed(0, [orders(30)]))

    def full(operation: Operation) -> None:
        if operation.kind == "write":
            raise OSError(28, "No space left on device")

    disk = job.folder.files
    assert isinstance(disk, ArchiveDisk)
    disk.before = full
    with pytest.raises(Failure, match=r"commit 1 failed.*No space left"):
        list(job.follow())
