"""Back into a broker: the records of one log, in their order, from a data folder or an archive.

Theory of operation. Records go out in batches, one at a time. Before a batch is sent, a small file says which
one it is: its number, its first record, and how many. A replay that was killed begins with that batch again,
the same records under the same number. A target that knows batches again (`once_each`) then has each record
once; any other has those of one batch twice at most, and none is missing.

What there is to replay is fixed when a replay begins: a log may grow meanwhile, even by what is replayed.
"""

import json
import math
import os
import secrets
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing, closing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs
import trio

from brokers.pipeline.jobs.tables import check_folder
from brokers.pipeline.source.folder import Folder
from brokers.pipeline.source.options import Topics
from shared.errors import BrokerError, UsageError
from shared.replaying import Target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH_MESSAGES = 1000
BATCH_BYTES = 512 << 10
BATCHES_A_SECOND = 20
"""At a rate batches are so small that there are about so many."""


class Sent(NamedTuple):
    """A record to send: its place, when it was written (seconds), and itself."""

    offset: int
    time: float
    value: bytes


class OutOfOrder(BrokerError):
    """Records do not come as they stand in the log: nothing more is sent."""


@attrs.frozen
class Place:
    """A batch: its number, the offset of its first record, and how many it has.

    `of`: which replay. `until`: where it ends: an end in a data folder, the last record of an archive.
    """

    of: Mapping[str, Any]
    writer: str
    seq: int = 0
    offset: int = 0
    messages: int = 0
    until: int | None = None
    done: bool = False


@attrs.frozen
class Replayed:
    """What was sent, by this run."""

    name: str
    messages: int
    bytes: int
    resumed: bool


class Progress:
    """The small file, replaced whole. `of` says what is replayed where: another replay's file is refused."""

    def __init__(self, file: Path, of: Mapping[str, Any]) -> None:
        self._file = file
        self._of = json.loads(json.dumps(of))

    def load(self) -> Place:
        """Where to go on, or a new replay's begin. Raises UsageError for a file of another replay."""
        try:
            found = Place(**json.loads(self._file.read_bytes()))
        except FileNotFoundError:
            return Place(self._of, f"replay-{secrets.token_hex(8)}")
        except (ValueError, TypeError):
            raise UsageError("--progress", f"{self._file} is no replay's") from None
        if found.of != self._of:
            raise UsageError(
                "--progress", f"{self._file} is of another replay; give this one a file of its own"
            )
        return found

    def save(self, place: Place) -> None:
        """Durable when it returns."""
        new = self._file.with_name(self._file.name + ".new")
        with new.open("w") as file:
            json.dump(attrs.asdict(place), file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._file)
        folder = os.open(self._file.absolute().parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@attrs.frozen
class Pace:
    """When records go out. `rate`: so many a second; `speed`: so many times as fast as they came.

    Neither: as fast as the target takes them.
    """

    rate: float = math.inf
    speed: float = math.inf

    @property
    def batch_messages(self) -> int:
        return max(1, min(BATCH_MESSAGES, math.ceil(min(self.rate, 1e9) / BATCHES_A_SECOND)))

    def due(self, number: int, since_first: float) -> float:
        """Seconds after the begin at which record `number` goes out, which came that long after the first."""
        return max(number / self.rate, since_first / self.speed)


async def replay(
    records: Iterable[Sent],
    name: str,
    target: Target,
    progress: Progress,
    pace: Pace = Pace(),
    told: Callable[[int, int], None] = lambda messages, size: None,
) -> Replayed:
    """Send records, in order, from where the progress file says on. `told`: how much so far."""
    place = progress.load()
    if place.done:
        return Replayed(name, 0, 0, resumed=True)
    resumed = place.seq > 0
    messages = size = 0
    source = iter(_in_order(records, place.offset if resumed else 0))
    if resumed:
        again = list(islice(source, place.messages))
        await target.send(name, place.writer, place.seq, [record.value for record in again])
        messages, size = len(again), sum(len(record.value) for record in again)
    async with aclosing(_batches(source, pace)) as batches:
        async for batch in batches:
            place = attrs.evolve(place, seq=place.seq + 1, offset=batch[0].offset, messages=len(batch))
            progress.save(place)
            await target.send(name, place.writer, place.seq, [record.value for record in batch])
            messages, size = messages + len(batch), size + sum(len(record.value) for record in batch)
            told(messages, size)
    progress.save(attrs.evolve(place, done=True))
    return Replayed(name, messages, size, resumed)


async def _batches(records: Iterator[Sent], pace: Pace) -> AsyncGenerator[list[Sent]]:
    """Records that are due, a batch at a time."""
    begin = trio.current_time()
    first = None
    batch: list[Sent] = []
    size = 0
    for number, record in enumerate(records):
        first = record.time if first is None else first
        due = begin + pace.due(number, record.time - first)
        full = len(batch) >= pace.batch_messages or size + len(record.value) > BATCH_BYTES
        if batch and (full or due > trio.current_time()):
            yield batch
            batch, size = [], 0
        if due > trio.current_time():
            await trio.sleep_until(due)
        batch.append(record)
        size += len(record.value)
    if batch:
        yield batch


def _in_order(records: Iterable[Sent], start: int) -> Iterator[Sent]:
    last = -1
    for record in records:
        if record.offset <= last:
            raise OutOfOrder(f"offset {record.offset} comes behind {last}")
        last = record.offset
        if record.offset >= start:
            yield record


# -- what is replayed


def from_folder(spark: "SparkSession", path: Path, topic: str, start: int, end: int) -> "DataFrame":
    """The records of a topic in a data folder from `start` up to `end`, offsets."""
    reader = spark.read.format("logmq").option("subscribe", topic)
    reader = reader.option("startingOffsets", json.dumps({topic: start}))
    return reader.option("endingOffsets", json.dumps({topic: end})).load(str(path))


def end_of(path: Path, topic: str) -> tuple[int, int]:
    """The first and the end offset of a topic in a data folder. Raises UsageError where it has none."""
    with closing(Folder(str(path), "logmq")) as folder:
        spots = folder.spots(Topics(names=(topic,)))
    if topic not in spots:
        raise UsageError("TOPIC", f"there is no topic {topic} in {path}")
    return spots[topic].first, spots[topic].end


def frame_of(spark: "SparkSession", path: Path, topic: str, progress: Progress) -> "DataFrame":
    """What is to be replayed, from a data folder or an archive; its end is fixed when a replay begins."""
    place = progress.load()
    if not (path / "FORMAT").exists():
        frame = from_archive(spark, path, topic)
        if place.until is None:
            (row,) = frame.selectExpr("max(offset) AS last").collect()
            progress.save(attrs.evolve(place, until=-1 if row["last"] is None else row["last"]))
        return frame.where(f"offset <= {progress.load().until} AND offset >= {place.offset}").orderBy(
            "offset"
        )
    check_folder(path)
    if place.until is None:
        first, end = end_of(path, topic)
        place = attrs.evolve(place, offset=first, until=end)
        progress.save(place)
    return from_folder(spark, path, topic, place.offset, place.until or 0)


def from_archive(spark: "SparkSession", path: Path, topic: str) -> "DataFrame":
    """The records of a topic in an archive. Raises UsageError where it had several logs."""
    from brokers.pipeline.archive.reading import read

    frame = read(spark, path).where(f"topic = '{_quoted(topic)}'")
    logs = [row["log"] for row in frame.select("log").distinct().limit(2).collect()]
    if len(logs) > 1:
        raise UsageError(
            "TOPIC", f"{topic} was deleted and made again: its offsets are those of several logs"
        )
    return frame


def records_of(frame: "DataFrame") -> Iterator[Sent]:
    """Rows as they come from Spark, a partition after the other."""
    for row in frame.selectExpr("offset", "unix_micros(timestamp) AS us", "value").toLocalIterator():
        yield Sent(row["offset"], row["us"] / 1e6, bytes(row["value"]))


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
