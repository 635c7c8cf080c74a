"""Sends the records of topics to a broker again, each topic's in order, from logs or an archive.

Records go out in batches, one at a time. Before a batch is sent, a small file notes its number, where each
log stood before it, and how many of each log's records it has. A replay that was killed begins with that
batch again: the same records under the same number. A target that knows batches again (`once_each`) then has
each record once. Another target has the records of one batch twice at most, and none is missing. A CRC checks
that they are the same records, because retention may drop some meanwhile.

What there is to replay is fixed when a replay begins: a log may grow meanwhile, even by the replay itself.

A log's name here is `<place> <topic>`, because a topic may have several logs: on several brokers, or made
again after it was deleted.
"""

import json
import math
import os
import re
import secrets
import zlib
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import attrs
import trio

from brokers.errors import ExitCode, Refusal
from brokers.pipeline.jobs.frames import union
from brokers.pipeline.jobs.where import SERVED, Reading, Where, a_folder, where
from brokers.pipeline.source.options import Server, TopicChoice
from brokers.pipeline.source.planning import open_place
from shared.errors import BrokerError, UsageError
from shared.storage.format import LENGTH_BYTES
from shared.tables.replaying import Target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Extents = dict[str, tuple[int, int]]
"""By log: its first offset and its end."""


class SourcedRecord(NamedTuple):
    """A record to send: its log, its offset there, when it was written (seconds), and its value."""

    log: str
    offset: int
    time: float
    value: bytes

    @property
    def topic(self) -> str:
        return topic_of(self.log)


class NotMessages(BrokerError):
    """The records of an archive are not messages that somebody sent."""


class From(Protocol):
    """Where a replay takes its records."""

    def extents(self, topics: TopicChoice) -> Extents:
        """Return the logs of topics as they are now. Raises Refusal if a named topic is not there."""

    def is_at(self, host: str, port: int | None) -> bool:
        """Whether the records are that server's, by its address."""

    def frame(self, spark: "SparkSession", ranges: Mapping[str, tuple[int, int]]) -> "DataFrame":
        """Return the records of these ranges: columns log, offset, timestamp, value. Logs have any order."""


def opened(words: Sequence[str], reading: Reading) -> tuple[From, Sequence[str]]:
    """Return the source, and the words that are left: topics. Raises UsageError, ConfigError, OSError."""
    if reading.servers is not None:
        return FromLogs(where((), reading, bounded=False)), words
    if not words:
        raise UsageError("PATH", "give a data folder or an archive, or --servers")
    path = a_folder(words[0])
    if not (path / "FORMAT").exists() and (path / "_archive").is_dir():
        return FromArchive(path), words[1:]
    return FromLogs(where([path], reading, bounded=False)), words[1:]


@attrs.frozen
class FromLogs:
    """Topics as a broker has them."""

    where: Where

    def extents(self, topics: TopicChoice) -> Extents:
        options = self.where.parsed()
        found = {}
        for source in options.sources:
            with closing(open_place(options, source)) as place:
                for name, spot in place.spots(topics).items():
                    found[f"{source} {name}"] = spot.first, spot.end
        _require(topics, found, ", ".join(options.sources))
        return found

    def is_at(self, host: str, port: int | None) -> bool:
        there = Server(host) if port is None else Server(host, port)
        return self.where.servers is not None and str(there) in self.where.sources

    def frame(self, spark: "SparkSession", ranges: Mapping[str, tuple[int, int]]) -> "DataFrame":
        from pyspark.sql import functions as fn

        def of(source: str) -> Iterator["DataFrame"]:
            mine = {topic_of(log): span for log, span in ranges.items() if log == f"{source} {topic_of(log)}"}
            if not mine:
                return
            reader = spark.read.format("logmq").options(**self.where.options_of(source))
            reader = reader.option("assign", json.dumps(list(mine)))
            for side, number in (("starting", 0), ("ending", 1)):
                reader = reader.option(
                    f"{side}Offsets", json.dumps({topic: span[number] for topic, span in mine.items()})
                )
            log = fn.concat(fn.lit(f"{source} "), "topic").alias("log")
            yield reader.load().select(log, "offset", "timestamp", "value")

        return union(frame for source in self.where.sources for frame in of(source))


@attrs.frozen
class FromArchive:
    """What `brokers pipeline archive` has written."""

    path: Path

    def extents(self, topics: TopicChoice) -> Extents:
        from brokers.pipeline.archive import committed
        from brokers.pipeline.archiving.files import LocalFiles

        manifest = committed(LocalFiles(self.path)).manifest
        if manifest.origin not in ("servers", f"a data folder's {SERVED}"):
            raise NotMessages(f"{self.path} is an archive of {manifest.origin}: no messages to send again")
        wanted = set(topics.matching({log.topic: log for log in manifest.logs.values()}))
        logs = [log for log in manifest.logs.values() if log.topic in wanted]
        found = {f"{log.key} {log.topic}": (log.start, log.end) for log in logs}
        _require(topics, found, str(self.path))
        return found

    def is_at(self, host: str, port: int | None) -> bool:
        return False

    def frame(self, spark: "SparkSession", ranges: Mapping[str, tuple[int, int]]) -> "DataFrame":
        from pyspark.sql import functions as fn

        from brokers.pipeline.archive import read

        spans = [(log, *span) for log, span in ranges.items()]
        wanted = fn.broadcast(spark.createDataFrame(spans, "log string, start long, stop long"))
        every = read(spark, self.path).where(fn.col("topic").isin(sorted({topic_of(log) for log in ranges})))
        named = every.select(fn.concat_ws(" ", "log", "topic").alias("log"), "offset", "timestamp", "value")
        return named.join(wanted, "log").where("offset >= start AND offset < stop").drop("start", "stop")


def topic_of(log: str) -> str:
    return log.rpartition(" ")[2]


def topics_of(names: Sequence[str], pattern: str | None) -> TopicChoice:
    """Raises UsageError."""
    if bool(names) == (pattern is not None):
        raise UsageError("TOPIC", "say which topics, or with --pattern those whose whole name matches")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise UsageError("--pattern", f"not a regular expression: {error}") from None
        return TopicChoice(pattern=pattern)
    return TopicChoice(names=tuple(dict.fromkeys(names)))


def records_of(frame: "DataFrame", *, one_log: bool) -> Iterator[SourcedRecord]:
    """Yield the rows of a frame in the order to send them: by time, and in each log's own order.

    Within a log times never go back. `one_log`: there is only one log, so there is less to sort.
    """
    ordered = frame.orderBy("offset") if one_log else frame.orderBy("timestamp", "log", "offset")
    columns = ordered.selectExpr("log", "offset", "unix_micros(timestamp) AS us", "value")
    for row in columns.toLocalIterator(prefetchPartitions=True):
        yield SourcedRecord(row["log"], row["offset"], row["us"] / 1e6, bytes(row["value"]))


def _require(topics: TopicChoice, found: Extents, there: str) -> None:
    missing = set(topics.names) - {topic_of(log) for log in found}
    if missing:
        raise Refusal(f"there is no topic {min(missing)} in {there}", ExitCode.MISSING)
    if not found:
        raise UsageError("--pattern", f"no topic in {there} matches")


BATCH_MESSAGES = 1000
BATCH_BYTES = 512 << 10
BATCH_TOPICS = 100
"""Each topic of a batch is a writer, and a server remembers the newest 1024 writers."""
BATCHES_A_SECOND = 20
"""With a rate, batches are so small that about this many go out."""


class OutOfOrder(BrokerError):
    """Records come in another order than in the log. Nothing more is sent."""


class OtherRecords(BrokerError):
    """The batch that was begun cannot be sent again, because its records are gone."""


@attrs.frozen
class ReplayBatch:
    """A batch: its number, where each log stood before it, and what it has of each log (count, CRC).

    `of`: the replay. `until`: up to where each log is replayed.
    """

    of: Mapping[str, Any]
    writer: str
    at: Mapping[str, int]
    until: Mapping[str, int]
    seq: int = 0
    batch: Mapping[str, Sequence[int]] = {}
    done: bool = False

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """Return what is left of each log."""
        return {log: (at, self.until[log]) for log, at in self.at.items() if at < self.until[log]}


@attrs.frozen
class Replayed:
    """What this run has sent."""

    topics: int
    messages: int
    bytes: int
    resumed: bool


class Progress:
    """The small file, which is replaced whole. `of`: what is replayed where; another replay is refused."""

    def __init__(self, file: Path, of: Mapping[str, Any]) -> None:
        self._file = file
        self._of = json.loads(json.dumps(of))

    def load(self) -> ReplayBatch | None:
        """Return where to go on; None if it has not begun. Raises UsageError for another replay's file."""
        try:
            found = ReplayBatch(**json.loads(self._file.read_bytes()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError):
            raise UsageError("--progress", f"{self._file} is not the file of a replay") from None
        if found.of != self._of:
            raise UsageError(
                "--progress", f"{self._file} is of another replay; give this one a file of its own"
            )
        return found

    def begin(self, extents: Extents) -> ReplayBatch:
        """Note what a new replay sends."""
        place = ReplayBatch(
            self._of,
            f"replay-{secrets.token_hex(8)}",
            {log: first for log, (first, _) in extents.items()},
            {log: end for log, (_, end) in extents.items()},
        )
        self.save(place)
        return place

    def save(self, place: ReplayBatch) -> None:
        """Replace the file. It is durable when this returns."""
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
    """When records go out: at a `rate` a second, or at the `speed` at which they came, times a factor.

    By default they go out as fast as the target takes them.
    """

    rate: float = math.inf
    speed: float = math.inf

    @property
    def batch_messages(self) -> int:
        return max(1, min(BATCH_MESSAGES, math.ceil(min(self.rate, 1e9) / BATCHES_A_SECOND)))

    def due(self, number: int, since_first: float) -> float:
        """Return when record `number` goes out, in seconds. It came `since_first` after the first record."""
        return max(number / self.rate, since_first / self.speed)


async def replay(
    records: Iterable[SourcedRecord],
    target: Target,
    place: ReplayBatch,
    progress: Progress,
    pace: Pace = Pace(),
    *,
    named: Callable[[str], str] = lambda topic: topic,
    told: Callable[[int, int], None] = lambda messages, size: None,
) -> Replayed:
    """Send the records that are left at `place`, and note the progress.

    `named` returns a topic's name at the target. `told` gets the messages and bytes sent so far.
    """
    topics = len({topic_of(log) for log in place.until})
    if place.done:
        return Replayed(topics, 0, 0, resumed=True)
    resumed = place.seq > 0
    messages = size = 0
    source = _in_order(records)

    async def send(batch: Sequence[SourcedRecord]) -> None:
        nonlocal messages, size
        bodies: dict[str, list[bytes]] = {}
        for record in batch:
            bodies.setdefault(named(record.topic), []).append(record.value)
        for name, those in bodies.items():
            await target.send(name, place.writer, place.seq, those)
        messages, size = messages + len(batch), size + sum(len(record.value) for record in batch)
        told(messages, size)

    last: Sequence[SourcedRecord] = ()
    if resumed:
        last, source = begun_batch(source, place)
        await send(last)
    async with aclosing(due_batches(source, pace)) as batches:
        async for batch in batches:
            at = {**place.at, **next_offsets(last)}
            place = attrs.evolve(place, seq=place.seq + 1, at=at, batch=contents_of(batch))
            progress.save(place)
            await send(batch)
            last = batch
    progress.save(attrs.evolve(place, at={**place.at, **next_offsets(last)}, batch={}, done=True))
    return Replayed(topics, messages, size, resumed)


def next_offsets(batch: Sequence[SourcedRecord]) -> dict[str, int]:
    """Return where each log of a batch goes on."""
    return {record.log: record.offset + LENGTH_BYTES + len(record.value) for record in batch}


def contents_of(batch: Sequence[SourcedRecord]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for record in batch:
        count, crc = found.get(record.log, (0, 0))
        found[record.log] = [count + 1, zlib.crc32(record.value, crc)]
    return found


def begun_batch(
    records: Iterator[SourcedRecord], place: ReplayBatch
) -> tuple[Sequence[SourcedRecord], Iterator[SourcedRecord]]:
    """Return the records of the batch that was begun, and all others. Raises OtherRecords."""
    left = {log: count for log, (count, _) in place.batch.items()}
    batch: list[SourcedRecord] = []
    others: list[SourcedRecord] = []  # come first if a server's crash changed its newest entries' times
    while any(left.values()):
        record = next(records, None)
        if record is None:
            break
        if left.get(record.log, 0):
            left[record.log] -= 1
            batch.append(record)
        else:
            others.append(record)
    if contents_of(batch) != {log: list(contents) for log, contents in place.batch.items()}:
        raise OtherRecords(
            f"batch {place.seq} was begun and cannot be sent again: its records are not there any "
            "more, or are others. Whether the target has them nobody can tell; a new --progress begins anew"
        )
    return batch, chain(others, records)


async def due_batches(records: Iterator[SourcedRecord], pace: Pace) -> AsyncGenerator[list[SourcedRecord]]:
    """Yield the records that are due, a batch at a time."""
    begin = trio.current_time()
    first = None
    batch: list[SourcedRecord] = []
    topics: set[str] = set()
    size = 0
    for number, record in enumerate(records):
        first = record.time if first is None else first
        due = begin + pace.due(number, record.time - first)
        full = len(batch) >= pace.batch_messages or size + len(record.value) > BATCH_BYTES
        full = full or len(topics | {record.log}) > BATCH_TOPICS
        if batch and (full or due > trio.current_time()):
            yield batch
            batch, topics, size = [], set(), 0
        if due > trio.current_time():
            await trio.sleep_until(due)
        batch.append(record)
        topics.add(record.log)
        size += len(record.value)
    if batch:
        yield batch


def _in_order(records: Iterable[SourcedRecord]) -> Iterator[SourcedRecord]:
    last: dict[str, int] = {}
    for record in records:
        if record.offset <= last.get(record.log, -1):
            raise OutOfOrder(f"{record.topic}: offset {record.offset} comes behind {last[record.log]}")
        last[record.log] = record.offset
        yield record
