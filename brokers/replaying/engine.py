"""Sends messages of the past again, those of each log in order, and notes how far it is.

Messages go out in batches, one at a time. Before a batch is sent, a small file notes its number and where
each log stood before it. It also notes how many of each log's messages the batch has. A replay that was
killed begins with that batch again: the same messages under the same number. A target that knows batches
again (`once_each`) then has each message once. Another target has the messages of one batch twice at most,
and none is missing. A CRC checks that they are the same messages, because retention may drop some meanwhile.

What there is to replay is fixed when a replay begins: a log may grow meanwhile, even by the replay itself.
"""

import json
import math
import secrets
import zlib
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Self

import attrs
import trio

from shared.errors import BrokerError, UsageError
from shared.local_path import replace_file, sync_folder
from shared.replaying import PastMessage, Place, Target
from shared.storage.format import LENGTH_BYTES

Extents = dict[str, tuple[int, int]]
"""Log to (first offset, end)."""


class SourcedRecord(NamedTuple):
    """A message to send: its log and offset, its time (Unix seconds), and the next record's offset.

    Offsets only have to grow within a log.
    """

    log: str
    offset: int
    time: float
    message: PastMessage
    end: int

    @classmethod
    def of_log(cls, log: str, offset: int, time: float, value: bytes) -> Self:
        """A log's record, which is one message. A log's name is `<place> <topic>`."""
        name = topic_of(log).encode()
        return cls(log, offset, time, PastMessage(name, value), offset + LENGTH_BYTES + len(value))

    @property
    def value(self) -> bytes:
        return self.message.payload

    @property
    def topic(self) -> str:
        return topic_of(self.log)


def topic_of(log: str) -> str:
    return log.rpartition(" ")[2]


BATCH_MESSAGES = 1000
BATCH_BYTES = 512 << 10
BATCH_TOPICS = 100
"""Topics in a batch. Each is a writer, and a server remembers the newest 1024 writers."""
BATCHES_A_SECOND = 20
"""Batches a second when there is a rate; it decides their size."""


class OutOfOrder(BrokerError):
    """The source gave a log's records in another order than the log's. Nothing more is sent."""


class OtherRecords(BrokerError):
    """The batch that was begun cannot be sent again, because its records are gone."""


@attrs.frozen
class ReplayBatch:
    """A batch: its number, each log's position before it, and its messages of each log as (count, CRC).

    `of`: the replay that it belongs to. `until`: where the replay of each log ends. `began_ms`: when the
    replay began (Unix ms), for times that were said as `2h`.
    """

    of: Mapping[str, Any]
    writer: str
    at: Mapping[str, int]
    until: Mapping[str, int]
    seq: int = 0
    batch: Mapping[str, Sequence[int]] = {}
    done: bool = False
    began_ms: int | None = None

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """Return what is left of each log."""
        return {log: (at, self.until[log]) for log, at in self.at.items() if at < self.until[log]}


@attrs.frozen
class Replayed:
    """What this run has sent. `refused`: messages that the target cannot carry, by reason."""

    topics: int
    messages: int
    bytes: int
    resumed: bool
    refused: Mapping[str, int] = {}


class Progress:
    """The progress file, replaced as a whole. `of`: source and target in words; a file of another is refused.

    `file`: None: nothing is noted, and a replay that was killed starts over. `flag`: the flag that names the
    file, for error texts.
    """

    def __init__(self, file: Path | None, of: Mapping[str, Any], flag: str = "--progress") -> None:
        self._file = file
        self.flag = flag
        self._of = json.loads(json.dumps(of))

    def load(self) -> ReplayBatch | None:
        """Return where to go on; None if it has not begun. Raises UsageError for another replay's file."""
        if self._file is None:
            return None
        try:
            found = ReplayBatch(**json.loads(self._file.read_bytes()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError):
            raise UsageError(self.flag, f"{self._file} is not the file of a replay") from None
        if found.of != self._of:
            raise UsageError(self.flag, f"{self._file} is of another replay; give this one another")
        return found

    def begin(self, extents: Extents, began_ms: int | None = None) -> ReplayBatch:
        """Note what a new replay sends: each log from its first offset to its end."""
        place = ReplayBatch(
            self._of,
            f"replay-{secrets.token_hex(8)}",
            {log: first for log, (first, _) in extents.items()},
            {log: end for log, (_, end) in extents.items()},
            began_ms=began_ms,
        )
        self.save(place)
        return place

    def save(self, place: ReplayBatch) -> None:
        """Replace the file. It is durable when this returns. Raises OSError."""
        if self._file is None:
            return
        noted = attrs.asdict(place, filter=lambda _, value: value is not None)
        replace_file(self._file, json.dumps(noted).encode())
        sync_folder(self._file.absolute().parent)


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
    placed: Callable[[SourcedRecord], Place] = lambda record: record.message.name,
    told: Callable[[int, int], None] = lambda messages, size: None,
) -> Replayed:
    """Send the records that are left at `place`, and note the progress.

    `placed` returns where a message goes. `told` gets the messages and bytes sent so far. What the target
    cannot carry is left out and counted.
    """
    topics = len({topic_of(log) for log in place.until})
    if place.done:
        return Replayed(topics, 0, 0, resumed=True)
    resumed = place.seq > 0
    messages = size = 0
    refused: Counter[str] = Counter()
    source = _in_order(records)

    async def send(batch: Sequence[SourcedRecord]) -> None:
        nonlocal messages, size
        going: list[tuple[Place, PastMessage]] = []
        for record in batch:
            there = placed(record)
            why = target.refuses(there, record.message)
            if why is not None:
                refused[why] += 1
                continue
            going.append((there, record.message))
            messages, size = messages + 1, size + len(record.value)
        if going:
            await target.send(going, place.writer, place.seq)
        told(messages, size)

    last: Sequence[SourcedRecord] = ()
    if resumed:
        last, source = begun_batch(source, place, progress.flag)
        await send(last)
    async with aclosing(due_batches(source, pace)) as batches:
        async for batch in batches:
            at = {**place.at, **next_offsets(last)}
            place = attrs.evolve(place, seq=place.seq + 1, at=at, batch=contents_of(batch))
            progress.save(place)
            await send(batch)
            last = batch
    progress.save(attrs.evolve(place, at={**place.at, **next_offsets(last)}, batch={}, done=True))
    return Replayed(topics, messages, size, resumed, dict(refused))


def next_offsets(batch: Sequence[SourcedRecord]) -> dict[str, int]:
    """Return where each log of a batch goes on."""
    return {record.log: record.end for record in batch}


def contents_of(batch: Sequence[SourcedRecord]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for record in batch:
        count, crc = found.get(record.log, (0, 0))
        found[record.log] = [count + 1, zlib.crc32(record.value, crc)]
    return found


def begun_batch(
    records: Iterator[SourcedRecord], place: ReplayBatch, flag: str = "--progress"
) -> tuple[Sequence[SourcedRecord], Iterator[SourcedRecord]]:
    """Return the records of the batch that was begun, and all others. `flag`: that of the progress file.
    Raises OtherRecords."""
    left = {log: count for log, (count, _) in place.batch.items()}
    batch: list[SourcedRecord] = []
    others: list[
        SourcedRecord
    ] = []  # others may come first: a crash of the server can change its newest times
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
            f"more, or are others. Whether the target has them nobody can tell; a new {flag} begins anew"
        )
    return batch, chain(others, records)


async def due_batches(records: Iterator[SourcedRecord], pace: Pace) -> AsyncGenerator[list[SourcedRecord]]:
    """Yield the records that are due, a batch at a time."""
    begin = first = math.nan
    batch: list[SourcedRecord] = []
    topics: set[str] = set()
    size = 0
    for number, record in enumerate(records):
        if not number:  # opening the source may take a while
            begin, first = trio.current_time(), record.time
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
