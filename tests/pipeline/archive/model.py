"""An archiver in miniature over the real folder: its logs are numbers, its Parquet files lists of them.

It decides what to do next from the manifest alone, as the real one does, so it can be cut anywhere and go on.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import attrs

from brokers.pipeline.archive import committed, faults
from brokers.pipeline.archiving import job, names
from brokers.pipeline.archiving.feed import ArchiveInput
from brokers.pipeline.archiving.folder import ArchiveFolder, final_files, opened
from brokers.pipeline.archiving.manifest import ArchivedSpan, ByteRange, Manifest, Part
from brokers.pipeline.archiving.places import Files, place_of
from brokers.pipeline.source.options import parse
from tests.support.fake_disk import FakeDisk

STEP = 10
"""Bytes of each record: they stand at 0, 10, 20, ..."""
LENGTHS = {"orders": 130, "a=b/c": 90}
"""The logs, to their ends. The second's name has to be escaped."""


def identity(topic: str) -> str:
    return f"{topic}#1"


def offsets(start: int, end: int) -> list[int]:
    return list(range(start, end, STEP))


class ArchiveDisk(FakeDisk):
    """A disk in memory, of whose operations an archive's are made: tests cut between any two of them."""

    def read_whole(self, path: str) -> bytes:
        fd = self.open(path)
        try:
            return self.read(fd, self.size(fd), 0)
        finally:
            self.close(fd)

    def write_new(self, path: str, data: bytes) -> None:
        fd = self.open(path, create=True, exclusive=True)
        try:
            self.write(fd, data, 0)
            self.sync_data(fd)
        finally:
            self.close(fd)


def write_fresh(files: Files, topic: str, start: int, end: int, token: str, *, fail: bool = False) -> Part:
    """What an executor does; `fail`: it dies over an empty file."""
    data = b"" if fail else json.dumps(offsets(start, end)).encode()
    date = f"2026-01-{1 + start // 40:02d}"
    key = names.log_key(identity(topic))
    part = Part(key, topic, date, start, end, (end - start) // STEP, len(data), token)
    above = part.fresh_path.split("/")[:-1]
    for count in range(1, len(above) + 1):
        files.make_folder("/".join(above[:count]))
    if data:
        files.write_new(part.fresh_path, data)
    elif isinstance(files, FakeDisk):
        files.close(files.open(part.fresh_path, create=True, exclusive=True))
    return part


def added(folder: ArchiveFolder, start: int, end: int, *, token: str = "a") -> Manifest:
    """The next commit: these records of `orders`."""
    part = write_fresh(folder.files, "orders", start, end, f"{token}-{start}")
    span = ArchivedSpan(identity("orders"), "orders", "orders", "", ByteRange(start, end), [part])
    return folder.manifest.advance([span], 0)


@attrs.define(eq=False)
class Archiver:
    """`acknowledged`: the version that the last commit which returned has."""

    files: Files
    run: int = 0
    acknowledged: int = 0
    attempted: int = 0
    is_locked: bool = True

    def go(self) -> None:
        """Recover, then work until all is archived and at its final place."""
        folder = ArchiveFolder(self.files, "logmq", is_locked=self.is_locked)
        folder.recover()
        self.acknowledged = self.attempted = folder.manifest.version
        step = 0
        while (following := self._next(folder.manifest, f"{self.run:x}-{step}")) is not None:
            self.attempted = following.version
            folder.commit(following)
            self.acknowledged = following.version
            step += 1

    def _next(self, now: Manifest, token: str) -> Manifest | None:
        current = now.current()
        spans = []
        for topic, length in LENGTHS.items():
            log = current.get(topic)
            at = log.end if log else 0
            if at < length:
                write_fresh(self.files, topic, at, at + STEP, f"{token}-dead", fail=True)
                end = min(at + 2 * STEP, length)
                part = write_fresh(self.files, topic, at, end, token)
                spans.append(ArchivedSpan(identity(topic), topic, topic, "", ByteRange(at, end), [part]))
        if spans:
            return now.advance(spans, now.version)
        return None


@attrs.frozen
class Spark:
    """What the archive asks of a context, done in this process; of one that has ended its JVM is gone."""

    items: tuple[Any, ...] = ()
    defaultParallelism: int = 3  # noqa: N815 - Spark's name, as those below
    lives: bool = True

    @property
    def sparkContext(self) -> "Spark":  # noqa: N802
        return self

    def parallelize(self, items: Iterable[Any], count: int) -> "Spark":
        found = tuple(items)
        assert count == len(found)  # a task each
        return attrs.evolve(self, items=found)

    def map(self, function: Callable[[Any], Any]) -> "Spark":
        return attrs.evolve(self, items=tuple(map(function, self.items)))

    def collect(self) -> list[Any]:
        return list(self.items)

    def statusTracker(self) -> "Spark":  # noqa: N802
        return self

    def getActiveJobsIds(self) -> list[int]:  # noqa: N802
        if not self.lives:
            raise ConnectionRefusedError("no JVM")
        return []


AT_ONCE = job.Settings(trigger_seconds=0.0, task_bytes=1)
"""What is new is archived at once, and little is worth a task."""


@contextmanager
def archiver(
    spark: Any, folder: Path | str, data: Path, settings: job.Settings = AT_ONCE, **options: str
) -> Iterator[job.Archiver]:
    """The real one, of all topics of a data folder."""
    feed = ArchiveInput(parse({"path": str(data), "subscribePattern": ".*", **options}))
    with opened(place_of(folder), feed.origin) as account:
        yield job.Archiver(spark, feed, account, place_of(folder), settings)


def archived(files: Files, paths: list[str]) -> dict[str, list[int]]:
    """The records in these files, by topic."""
    found: dict[str, list[int]] = {}
    for path in paths:
        topic = next(part for part in path.split("/") if part.startswith("topic="))
        found.setdefault(unquote(topic[6:]), []).extend(json.loads(files.read_whole(path)))
    return {topic: sorted(records) for topic, records in found.items()}


def glob(files: Files) -> list[str]:
    """What `topic=*/date=*/*.parquet` finds."""
    return [path for path, _ in final_files(files)]


def check_readers(files: Files, acknowledged: int, attempted: int) -> None:
    """What readers see at this moment is right, whatever state the folder is in."""
    visible = archived(files, glob(files))
    for topic, records in visible.items():
        assert records == offsets(0, len(records) * STEP), f"the glob of {topic}: {records}"
    if acknowledged == 0 and not any(names.parse_manifest(name) for name in files.names(names.MANIFESTS)):
        assert visible == {}
        return
    found = committed(files) if attempted else None
    if found is None:
        return
    assert acknowledged <= found.manifest.version <= attempted
    expected = {log.topic: offsets(0, log.end) for log in found.manifest.logs.values() if log.end}
    assert archived(files, [*found.settled, *found.fresh]) == expected
    assert faults(files) == []


def check_done(files: Files) -> None:
    """All is archived, at its final place, and nothing else is left but what readers may still hold."""
    everything = {topic: offsets(0, length) for topic, length in LENGTHS.items()}
    assert archived(files, glob(files)) == everything
    found = committed(files)
    assert list(found.fresh) == []
    assert archived(files, list(found.settled)) == everything
