"""Rows to pieces, and pieces to a server, each written once, by BATCH.

The server remembers the newest 128 batches of each writer and topic. So piece n of a topic has the writer
`<name>-<n // 128>` and the seq `epoch * 128 + n % 128`. So the server remembers all pieces of an epoch. The
next epoch takes the same writers, so a query does not push other writers out of the server's memory.

A piece that is sent again gets its old answer. If the answer's offset shows that it was written before this
writer began, its bytes are read back and compared. So rows in another order are an error, not a loss.

Source: logmq/PROTOCOL.md, "Batches that are sent twice".
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from typing import Any, cast

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from brokers.pipeline.source.link import Link
from brokers.pipeline.source.options import Reach, Server
from brokers.pipeline.source.servers import ServerReader
from logmq import connector
from logmq.connector import SKIPPED_BODY_BYTES_MAX, LogmqError, Refusal
from shared.errors import BrokerError

CHECKED_ROWS = 10_000
"""Rows between two checks of how many bytes are held."""


@attrs.frozen
class PackedRecords:
    """Whole records of one topic, written at once."""

    topic: str
    records: bytes = attrs.field(repr=lambda records: f"<{len(records)} bytes>")
    count: int


class Packer:
    """Gathers rows into pieces of at most `bytes_max`, for each topic, in the order of the rows.

    No Python object is made for a record. Arrow joins a column of headers with the values, which then lie in
    memory as in a log. The cuts depend on the rows' order and sizes alone, not on Spark's batches, so a task
    that runs again makes the same pieces.

    `held_bytes_max`: the most bytes held for all topics. Beyond it all pieces go out as they are, so that a
    thousand topics do not need a thousand full pieces.
    """

    def __init__(self, bytes_max: int, held_bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held_bytes_max = held_bytes_max
        self._filling: dict[str, _Filling] = {}
        self._rows = 0

    def add(self, topics: pa.Array | str, values: pa.Array) -> Iterator[PackedRecords]:
        """Yield the pieces that these rows complete. There are no nulls. `values`: binary or text."""
        at, count = 0, len(values)
        while at < count:
            some = min(CHECKED_ROWS - self._rows % CHECKED_ROWS, count - at)
            yield from self._rows_of(
                topics if isinstance(topics, str) else topics.slice(at, some), values.slice(at, some)
            )
            at += some
            self._rows += some
            held = sum(filling.size for filling in self._filling.values())
            if self._rows % CHECKED_ROWS == 0 and held > self._held_bytes_max:
                yield from self.rest()

    def rest(self) -> Iterator[PackedRecords]:
        """Yield what is left, a piece for each topic."""
        for topic, filling in self._filling.items():
            if filling.size:
                yield filling.close(topic)

    def _rows_of(self, topics: pa.Array | str, values: pa.Array) -> Iterator[PackedRecords]:
        if isinstance(topics, str):
            yield from self._add(topics, values)
            return
        encoded = topics.dictionary_encode()
        order = pc.sort_indices(encoded.indices)  # stable, so each topic's rows stay in order
        values = values.take(order)
        names, at = encoded.dictionary.to_pylist(), 0
        for run in pc.value_counts(encoded.indices.take(order)).to_pylist():
            yield from self._add(names[run["values"]], values.slice(at, run["counts"]))
            at += run["counts"]

    def _add(self, topic: str, values: pa.Array) -> Iterator[PackedRecords]:
        filling = self._filling.get(topic)
        if filling is None:
            filling = self._filling[topic] = _Filling()
        records, ends = framed(values)
        at, count = 0, len(values)
        while at < count:
            room = max(self._bytes_max - filling.size, 0)
            fit = bisect_right(ends, ends[at] + room, at, count + 1) - 1
            if fit == at:
                if filling.size:
                    yield filling.close(topic)
                    continue
                fit = at + 1  # one record that is longer than a piece should be
            filling.add(records[ends[at] : ends[fit]], fit - at)
            at = fit


@attrs.define(eq=False)
class _Filling:
    parts: list[memoryview] = attrs.field(factory=list)
    size: int = 0
    count: int = 0

    def add(self, records: memoryview, count: int) -> None:
        self.parts.append(records)
        self.size += len(records)
        self.count += count

    def close(self, topic: str) -> PackedRecords:
        piece = PackedRecords(topic, b"".join(self.parts), self.count)
        self.parts, self.size, self.count = [], 0, 0
        return piece


def framed(values: pa.Array) -> tuple[memoryview, Any]:
    """Return the rows as records side by side, where each begins, and where the last one ends."""
    payloads = values.cast(pa.large_binary())
    sizes = pc.binary_length(payloads).to_numpy().astype(">u4")
    headers = pa.FixedSizeBinaryArray.from_buffers(pa.binary(4), len(sizes), [None, pa.py_buffer(sizes)])
    nothing = pa.scalar(b"", pa.large_binary())
    joined = pc.binary_join_element_wise(headers.cast(pa.large_binary()), payloads, nothing)
    _, ends, data = joined.buffers()
    starts = memoryview(ends).cast("B").cast("q")[joined.offset : joined.offset + len(joined) + 1]
    return memoryview(data).cast("B"), starts


REMEMBERED = 128
"""Batches of a writer that the server remembers."""
UNANSWERED_MAX = 16
UNANSWERED_BYTES_MAX = 8 * 1024 * 1024
_HINTS = {
    "TOO_LARGE": "; a record must fit message_bytes_max of [logmq], and so must the option batchBytes",
    "LIMIT": "; a newer epoch of this writer is there already",
}
"""What to do about a refusal, by its code."""


class NotWritten(BrokerError):
    """The server refuses a piece, or has other records in its place."""


@attrs.frozen
class _Sent:
    piece: PackedRecords
    writer: str
    seq: int


class Writer:
    """Writes pieces in order over one connection. What is on its way is bounded."""

    def __init__(self, server: Server, reach: Reach, epoch: int) -> None:
        self._link = Link(server, reach)
        self._reach = reach
        self._epoch = epoch
        self._ends: dict[str, int] = {}
        """Where each topic ended before we wrote to it. A lower offset in an answer was written earlier."""
        self._unanswered: deque[_Sent] = deque()
        self._unanswered_bytes = 0

    def write(self, piece: PackedRecords, name: str, number: int) -> None:
        """Send piece `number` of its topic, then wait for room.

        `name`: unique to the task; a repeated task uses the same one. Raises NotWritten, and OSError if
        the server is away for too long.
        """
        if len(piece.records) > SKIPPED_BODY_BYTES_MAX:
            raise NotWritten(f"a record of {len(piece.records) - 4} bytes is above what the wire carries")
        if piece.topic not in self._ends:
            self.finish()  # the next answer has to be that to OFFSETS
            self._ends[piece.topic] = self._end_of(piece.topic)
        group, place = divmod(number, REMEMBERED)
        sent = _Sent(piece, f"{name}-{group}", self._epoch * REMEMBERED + place)
        self._unanswered.append(sent)
        self._unanswered_bytes += len(piece.records)
        ask = connector.batch(piece.topic, sent.writer, sent.seq, len(piece.records))
        self._link.put(ask, body=piece.records)
        while len(self._unanswered) > UNANSWERED_MAX or self._unanswered_bytes > UNANSWERED_BYTES_MAX:
            self._answer()

    def finish(self) -> None:
        """Wait until everything is written."""
        while self._unanswered:
            self._answer()

    def close(self) -> None:
        self._link.close()

    def _answer(self) -> None:
        answer = self._link.take()
        sent = self._unanswered.popleft()
        self._unanswered_bytes -= len(sent.piece.records)
        if isinstance(answer, LogmqError):
            raise self._refused(sent.piece.topic, answer)
        (offset,) = cast(tuple[int], answer)
        if offset < self._ends[sent.piece.topic]:
            self._compare(sent, offset)

    def _end_of(self, topic: str) -> int:
        (found,) = self._link.ask_all([connector.offsets(_checked(topic))])
        if isinstance(found, LogmqError):
            if found.code != "NO_TOPIC":
                raise NotWritten(f"topic {topic!r} on {self._link.server}: {found}")
            return 0
        return int(found[1])

    def _compare(self, sent: _Sent, offset: int) -> None:
        """The server says that the piece was written before: compare with what it has there."""
        # Over another connection, because answers are under way on this one.
        with closing(ServerReader(self._link.server, self._reach)) as beside:
            (found,) = beside.fetched(sent.piece.topic, [(offset, offset + len(sent.piece.records))])
        if found == sent.piece.records:
            return
        what = (
            "and retention has dropped these records, so that it cannot be told whether they were the same"
            if isinstance(found, LogmqError) and found.code == "OUT_OF_RANGE"
            else "and other records. The rows of this partition came in another order or another division "
            "than the first time, so that it cannot be told which of them are there"
        )
        raise NotWritten(
            f"topic {sent.piece.topic!r} on {self._link.server}: writer {sent.writer} has written seq "
            f"{sent.seq} at offset {offset} before, {what}. A new epoch, or of a stream another name in the "
            "option writer, writes all of them (again)"
        )

    def _refused(self, topic: str, answer: LogmqError) -> NotWritten:
        return NotWritten(f"topic {topic!r} on {self._link.server}: {answer}{_HINTS.get(answer.code, '')}")


def _checked(topic: str) -> str:
    """Return the name of a topic, which comes from a row. Raises NotWritten."""
    try:
        return connector.checked_name(topic)
    except Refusal as error:
        raise NotWritten(f"a row's topic is {error.text}") from None
