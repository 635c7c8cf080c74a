"""What a client reads and writes at length: records in order, a tail, a producer that writes exactly once."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, Self, cast

import attrs
import trio

from logmq.answers import ChunkAnswer, LineAnswer, Record, records_of, take_message
from logmq.link import answered
from logmq.runs import HEADER_BYTES, encode
from shared.client.dial import Address, Disconnected, Unreachable, open_again
from shared.client.pipelining import RECEIVE_BYTES
from shared.errors import BrokerError, RemoteProtocolError

FOLLOW_WAIT_MS = 20_000
"""Of one FETCH that follows a topic's end: below the half minute after which middleboxes forget the idle."""
BATCH_BYTES_MAX = 256 * 1024
BATCHES_UNANSWERED_MAX = 32
"""Of one producer: well below what the server remembers of each writer (128)."""


class Asker(Protocol):
    """The client, as these need it."""

    async def send_fetch(self, topic: str, offset: int, bytes_max: int, wait_ms: int) -> ChunkAnswer: ...

    async def send_batch(self, topic: str, writer: str, seq: int, records: bytes) -> LineAnswer: ...


class Records:
    """Records from an offset on, in order; see `Client.records`. `offset`: of the next: what to commit."""

    def __init__(self, client: Asker, topic: str, offset: int, follow: bool, bytes_max: int) -> None:
        self._client = client
        self._topic = topic
        self._wait_ms = FOLLOW_WAIT_MS if follow else 0
        self._bytes_max = bytes_max
        self._ready: deque[Record] = deque()
        self._answer: ChunkAnswer | None = None
        self._answer_offset = offset
        self.offset = offset

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        while not self._ready:
            await self._more()
        record = self._ready.popleft()
        self.offset = record.next_offset
        return record

    async def chunk(self) -> list[Record]:
        """Several at once: what has been fetched, at least one; none at the end."""
        if not self._ready:
            try:
                self._ready.appendleft(await anext(self))
            except StopAsyncIteration:
                return []
        records = list(self._ready)
        self._ready.clear()
        self.offset = records[-1].next_offset
        return records

    async def _more(self) -> None:
        try:
            answer = self._answer or await self._ask()
            self._answer = None
            at, data = cast(tuple[int, bytes], await answered(answer))
        except Unreachable:
            raise
        except Disconnected:
            return  # the same again, over a new connection
        if data:
            self._ready.extend(records_of(data, at))
            self._answer_offset = at + len(data)
            self._answer = await self._ask()  # while these are gone through
        elif not self._wait_ms:
            raise StopAsyncIteration

    async def _ask(self) -> ChunkAnswer:
        return await self._client.send_fetch(self._topic, self._answer_offset, self._bytes_max, self._wait_ms)


class Tail:
    """Records as the server pushes them; see `Client.tail`. `offset`: of the next."""

    def __init__(self, address: Address, topic: bytes, offset: int, retry_seconds: float) -> None:
        self.offset = offset
        self._address = address
        self._topic = topic
        self._retry_seconds = retry_seconds
        self._stream: trio.abc.Stream | None = None
        self._data = bytearray()
        self._at = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        while True:
            record = self._take()
            if record is not None:
                self.offset = record.next_offset
                return record
            try:
                await self._receive()
            except Unreachable:
                raise
            except (trio.BrokenResourceError, Disconnected):
                await self.aclose()

    async def aclose(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            await trio.aclose_forcefully(stream)

    def _take(self) -> Record | None:
        data, at = self._data, self._at
        if data.startswith(b"MESSAGE ", at):
            record, self._at = take_message(data, at)
            return record
        if data.startswith((b"OK ", b"ERR "), at):
            # OK: the server drains and closes next; we go on when it is back.
            last = LineAnswer(b"OK", 1)
            end = last.take(data, at)
            if end >= 0:
                self._at = end
                if last.error is not None:
                    raise last.error
        elif len(data) - at >= len(b"MESSAGE "):
            raise RemoteProtocolError(f"the server's answer is not LogMQ's: {bytes(data[at : at + 100])!r}")
        return None

    async def _receive(self) -> None:
        if self._stream is None:
            self._data.clear()
            self._at = 0
            self._stream = await open_again(self._address, self._retry_seconds)
            await self._stream.send_all(b"TAIL %b %d\n" % (self._topic, self.offset))
        data = await self._stream.receive_some(RECEIVE_BYTES)
        if not data:
            raise Disconnected("the server closed the connection")
        del self._data[: self._at]
        self._at = 0
        self._data += data


@attrs.define(eq=False)
class _Batch:
    seq: int
    records: bytes = attrs.field(repr=False)
    count: int
    answer: LineAnswer | None = None


class Producer:
    """Writes to one topic, each made once, in order; see `Client.producer`.

    What is sent while earlier batches are unanswered is gathered into the next one. `written`: messages that
    the server has confirmed.
    """

    def __init__(
        self, client: Asker, topic: str, writer: str, on_written: Callable[[int, Sequence[int]], None] | None
    ) -> None:
        self._client = client
        self._topic = topic
        self._writer = writer
        self._on_written = on_written
        self._seq = 0
        self._filling: list[bytes] = []
        self._filling_bytes = 0
        self._batches: deque[_Batch] = deque()
        self._failure: Exception | None = None
        self._moved = trio.Event()
        self._answered = trio.Event()
        self.written = 0

    async def send(self, message: bytes) -> None:
        """Hand a message over; waits only while too much is unanswered. Raises what went wrong before."""
        self._raise_failure()
        size = HEADER_BYTES + len(message)
        while self._filling and self._filling_bytes + size > BATCH_BYTES_MAX:
            if len(self._batches) < BATCHES_UNANSWERED_MAX:
                self._close_batch()
            else:
                await self._answered.wait()
                self._raise_failure()
        self._filling.append(message)
        self._filling_bytes += size
        self._moved.set()

    async def flush(self) -> None:
        """Wait until everything is written. Raises what went wrong."""
        self._moved.set()
        while self._filling or self._batches:
            self._raise_failure()
            await self._answered.wait()
        self._raise_failure()

    async def run(self) -> None:
        """Send batches and take their answers, until cancelled or something goes wrong."""
        try:
            while True:
                await self._moved.wait()
                self._moved = trio.Event()
                await self._send_batches()
                self._take_answers()
        except (BrokerError, OSError) as error:
            self._failure = error
            self._wake_waiting()

    async def _send_batches(self) -> None:
        if self._filling and len(self._batches) < BATCHES_UNANSWERED_MAX:
            self._close_batch()
        for batch in tuple(self._batches):
            if batch.answer is None:
                answer = await self._client.send_batch(self._topic, self._writer, batch.seq, batch.records)
                batch.answer = answer
                answer.on_done = self._wake
                if answer.done:
                    self._wake()

    def _take_answers(self) -> None:
        while self._batches:
            batch = self._batches[0]
            answer = batch.answer
            if answer is None or not answer.done:
                break
            if isinstance(answer.error, Disconnected) and not isinstance(answer.error, Unreachable):
                for again in self._batches:  # in the same order, by the same numbers
                    again.answer = None
                self._wake()
                break
            if answer.error is not None:
                raise answer.error
            self._batches.popleft()
            (offset,) = cast(tuple[int], answer.result)
            self.written += batch.count
            if self._on_written is not None:
                self._on_written(offset, _offsets(batch.records, offset))
            self._wake_waiting()
            if self._filling:
                self._wake()

    def _close_batch(self) -> None:
        records, lengths = encode(self._filling)
        self._batches.append(_Batch(self._seq, records, len(lengths)))
        self._seq += 1
        self._filling = []
        self._filling_bytes = 0
        self._wake()

    def _wake(self) -> None:
        self._moved.set()

    def _wake_waiting(self) -> None:
        """Those who wait in `send` or `flush`."""
        self._answered.set()
        self._answered = trio.Event()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


def _offsets(records: bytes, offset: int) -> list[int]:
    return [record.offset for record in records_of(records, offset)]
