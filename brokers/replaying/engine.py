"""Sends messages of the past again, those of each log in order, and notes how far it is.

Messages go out in batches, one at a time. Before a batch is sent, a small file notes its number, and the
range of each log that it takes. A replay that was killed sends these ranges again, under the same number. A
target that knows batches again (BATCH) then has each message once. Another target has the messages of one
batch twice at most, and none is missing.

What there is to replay is fixed when a replay begins: a log may grow meanwhile, even by the replay itself.
"""

import json
import math
import secrets
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, NamedTuple, Self

import attrs
import trio

from shared.errors import UsageError
from shared.local_path import replace_file, sync_folder
from shared.replaying import PastMessage, Target
from shared.storage.format import LENGTH_BYTES

Ranges = dict[str, tuple[int, int]]
"""Log to (offset, end)."""


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
        name = log.rpartition(" ")[2].encode()
        return cls(log, offset, time, PastMessage(name, value), offset + LENGTH_BYTES + len(value))


Named = tuple[bytes, SourcedRecord]
"""A record, with the name that it goes to."""

BATCH_MESSAGES = 1000
BATCH_BYTES = 512 << 10
BATCH_NAMES = 100
"""Names in a batch. Each topic is a writer, and a server remembers the newest 1024 writers."""
BATCHES_A_SECOND = 20
"""Batches a second when there is a rate; it decides their size."""


@attrs.frozen
class ReplayPosition:
    """How far a replay is: from `at` to `until` each log is left to send. `seq`: the number of the batch that
    was begun; `to`: where it ends in each log that it takes.

    `of`: the replay that it belongs to. `began_ms`: when it began (Unix ms), for times said as `2h`.
    """

    of: Mapping[str, Any]
    writer: str
    at: Mapping[str, int]
    until: Mapping[str, int]
    began_ms: int
    seq: int = 0
    to: Mapping[str, int] = {}
    done: bool = False

    @property
    def begun(self) -> Ranges:
        return {log: (self.at[log], end) for log, end in self.to.items()}

    @property
    def left(self) -> Ranges:
        """What is left of each log behind the batch."""
        at = {**self.at, **self.to}
        return {log: (at[log], end) for log, end in self.until.items() if at[log] < end}

    def next(self, batch: Iterable[Named]) -> "ReplayPosition":
        """The position at the batch that follows."""
        to = {record.log: record.end for _, record in batch}
        return attrs.evolve(self, at={**self.at, **self.to}, seq=self.seq + 1, to=to)


@attrs.frozen
class Replayed:
    """What this run has sent. `refused`: messages that the target cannot carry, by reason."""

    messages: int
    bytes: int
    resumed: bool
    refused: Mapping[str, int] = {}


class Progress:
    """The progress file, replaced as a whole. `of`: source and target in words; a file of another is refused.

    `file`: None: nothing is noted, and a replay that was killed starts over.
    """

    def __init__(self, file: Path | None, of: Mapping[str, Any]) -> None:
        self._file = file
        self._of = json.loads(json.dumps(of))

    def load(self) -> ReplayPosition | None:
        """Return where to go on; None if it has not begun. Raises UsageError for another replay's file."""
        if self._file is None:
            return None
        try:
            position = ReplayPosition(**json.loads(self._file.read_bytes()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError):
            text = f"{self._file} is not the file of a replay of this version"
            raise UsageError("--resume", text) from None
        if position.of != self._of:
            raise UsageError("--resume", f"{self._file} is of another replay; give this one another")
        return position

    def begin(self, extents: Ranges, began_ms: int) -> ReplayPosition:
        """Note what a new replay sends: each log from its first offset to its end."""
        position = ReplayPosition(
            self._of,
            f"replay-{secrets.token_hex(8)}",
            {log: first for log, (first, _) in extents.items()},
            {log: end for log, (_, end) in extents.items()},
            began_ms,
        )
        self.save(position)
        return position

    def save(self, position: ReplayPosition) -> None:
        """Replace the file. It is durable when this returns. Raises OSError."""
        if self._file is not None:
            replace_file(self._file, json.dumps(attrs.asdict(position)).encode())
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
    source: Callable[[Ranges], Iterator[SourcedRecord]],
    target: Target,
    position: ReplayPosition,
    progress: Progress,
    pace: Pace = Pace(),
    *,
    name_of: Callable[[SourcedRecord], bytes] = lambda record: record.message.name,
    told: Callable[[int, int], None] = lambda messages, size: None,
) -> Replayed:
    """Send the records that are left at `position`, and note the progress.

    `source` yields the records of ranges, each log's in order; `name_of` returns where one goes. `told` gets
    the messages and bytes sent so far. What the target cannot carry is left out and counted.
    """
    resumed = position.seq > 0 or position.done
    messages = size = 0
    refused: Counter[str] = Counter()

    def named(ranges: Ranges) -> Iterator[Named]:
        return ((name_of(record), record) for record in (source(ranges) if ranges else ()))

    async def send(batch: Iterable[Named]) -> None:
        nonlocal messages, size
        going: list[tuple[bytes, PastMessage]] = []
        for name, record in batch:
            why = target.refuses(name, record.message)
            if why is not None:
                refused[why] += 1
                continue
            going.append((name, record.message))
            messages, size = messages + 1, size + len(record.message.payload)
        if going:
            await target.send(going, position.writer, position.seq)
        told(messages, size)

    if not position.done:
        if position.to:
            await send(named(position.begun))
        async with aclosing(due_batches(named(position.left), pace)) as batches:
            async for batch in batches:
                position = position.next(batch)
                progress.save(position)
                await send(batch)
        progress.save(attrs.evolve(position.next(()), done=True))
    return Replayed(messages, size, resumed, dict(refused))


async def due_batches(records: Iterator[Named], pace: Pace) -> AsyncGenerator[Sequence[Named]]:
    """Yield the records that are due, a batch at a time."""
    begin = first = math.nan
    batch: list[Named] = []
    names: set[bytes] = set()
    size = 0
    for number, (name, record) in enumerate(records):
        if not number:  # opening the source may take a while
            begin, first = trio.current_time(), record.time
        due = begin + pace.due(number, record.time - first)
        full = len(batch) >= pace.batch_messages or size + len(record.message.payload) > BATCH_BYTES
        full = full or len(names | {name}) > BATCH_NAMES
        if batch and (full or due > trio.current_time()):
            yield batch
            batch, names, size = [], set(), 0
        if due > trio.current_time():
            await trio.sleep_until(due)
        batch.append((name, record))
        names.add(name)
        size += len(record.message.payload)
    if batch:
        yield batch
