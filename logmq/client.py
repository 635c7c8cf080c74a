"""A LogMQ client: pipelined, bounded, and careful about what may be sent twice.

    async with connect() as client:
        offset = await client.produce("orders", b"hello")
        async for record in client.records("orders", offset):
            ...

Any number of tasks may use one client at once: what they ask for while a send is under way goes out
together, and answers are handed out as they come. One that is cancelled stops waiting, nothing more; the
connection stays good. What is unanswered is bounded in bytes; beyond that, asking waits.

A lost connection is made again, with growing pauses, for `retry_seconds`. What may be asked twice without
harm (all reads, COMMIT, BATCH) is asked again. A PRODUCE or APPEND whose answer was lost may or may not have
been written: that raises `Disconnected`. For writes that survive lost connections, exactly once, use a
`producer`, which numbers its batches.
"""

import secrets
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast

import trio

from logmq.answers import (
    Answer,
    ChunkAnswer,
    LineAnswer,
    LogmqError,
    Mark,
    OffsetsAnswer,
    Record,
    RecordAnswer,
    RowsAnswer,
    Topic,
    mark_row,
    records_of,
    topic_row,
)
from logmq.link import Link, answered
from logmq.runs import encode
from logmq.streams import Producer, Records, Tail
from logmq.wire import name_untrusted, topic_untrusted
from shared.client.dial import Address, Disconnected, Turned, Unreachable, open_again
from shared.client.nursery import beside

__all__ = [
    "Client",
    "Disconnected",
    "LogmqError",
    "Mark",
    "Producer",
    "Record",
    "Records",
    "Tail",
    "Topic",
    "Unreachable",
    "connect",
]

PORT = 8080
FETCH_BYTES = 1024 * 1024
PIECE_BYTES = 256 * 1024
"""Of requests that are queued at once: many messages are sent in pieces of this size."""

_Answer = TypeVar("_Answer", bound=Answer)


@asynccontextmanager
async def connect(
    host: str = "127.0.0.1",
    port: int = PORT,
    *,
    ssl_context: ssl.SSLContext | None = None,
    server_hostname: str | None = None,
    retry_seconds: float = 30.0,
) -> AsyncIterator["Client"]:
    """A client, connected; closed at the end of the block.

    `retry_seconds`: how long a lost connection is tried again before what waits for it fails; the first
    attempt is made once. `ssl_context`: TLS, for `host` unless `server_hostname` says otherwise. Raises
    ConnectionRefusedError where nobody answers, ssl.SSLError.
    """
    address = Address(host, port, ssl_context, server_hostname, kind="LogMQ")
    stream = await address.open()
    async with beside() as nursery:
        client = Client(nursery, address, stream, retry_seconds)
        try:
            yield client
        finally:
            client._close()


class Client:
    """A server, as seen from here; made by `connect`. Topics and groups are text, messages bytes.

    Every method raises LogmqError where the server refuses, `Unreachable` where it cannot be reached any
    more, and Refusal for a name that no server would take.
    """

    def __init__(
        self, nursery: trio.Nursery, address: Address, stream: trio.abc.Stream, retry_seconds: float
    ) -> None:
        self._nursery = nursery
        self._address = address
        self._retry_seconds = retry_seconds
        self._connecting = trio.Lock()
        self._closed = False
        self._link = self._linked(stream)
        self._turned = Turned(retry_seconds)

    # Writing.

    async def produce(self, topic: str, message: bytes) -> int:
        """Write a message, any bytes; returns its offset. Raises Disconnected where the answer is lost."""
        (offset,) = await self.produce_many(topic, (message,))
        return offset

    async def produce_many(self, topic: str, messages: Iterable[bytes]) -> list[int]:
        """Write messages, pipelined; returns their offsets. Raises Disconnected where an answer is lost.

        Raises the first refusal (LogmqError) once all are answered: others may have been written.
        """
        name = _name(topic)
        link = await self._connected()
        awaited: list[OffsetsAnswer] = []
        for requests, count in _write_requests(name, messages):
            answer = OffsetsAnswer(count)
            # All over one connection: if that is lost, none is to be written behind a gap.
            await link.ask(requests, answer)
            awaited.append(answer)
        offsets: list[int] = []
        refusals: list[LogmqError] = []
        for answer in awaited:
            await answered(answer)
            for offset in answer.offsets:
                if isinstance(offset, LogmqError):
                    refusals.append(offset)
                else:
                    offsets.append(offset)
        if refusals:
            raise refusals[0]
        return offsets

    async def append(self, topic: str, message: bytes) -> int:
        """Write a message by APPEND; `produce` does that by itself for those that no line can hold."""
        answer = OffsetsAnswer(1)
        link = await self._connected()
        await link.ask(b"APPEND %b %d\n%b" % (_name(topic), len(message), message), answer)
        await answered(answer)
        (offset,) = answer.offsets
        if isinstance(offset, LogmqError):
            raise offset
        return offset

    async def batch(self, topic: str, writer: str, seq: int, messages: Sequence[bytes]) -> int:
        """Write messages in one piece, all or nothing; returns the offset of the first.

        The same writer and seq again give the same answer and write nothing, so it is asked again where a
        connection is lost. Seqs of a writer rise by one.
        """
        records, _ = encode(messages)
        (offset,) = await self._again(lambda: self.send_batch(topic, writer, seq, records))
        return cast(int, offset)

    @asynccontextmanager
    async def producer(
        self,
        topic: str,
        *,
        writer: str | None = None,
        on_written: Callable[[int, Sequence[int]], None] | None = None,
    ) -> AsyncIterator[Producer]:
        """A stream of writes to one topic, in order, each made exactly once also over lost connections.

        `writer`: its name, random unless given; a name must be used by one producer at a time, once.
        `on_written` is called with each batch's offset and those of its messages, in order, once it is
        written. The end of the block waits for all of them; errors are raised by the next `send`, or there.
        """
        name = name_untrusted((writer or secrets.token_hex(8)).encode(), "writer")
        _name(topic)
        producer = Producer(self, topic, name, on_written)
        async with beside() as nursery:
            nursery.start_soon(producer.run)
            yield producer
            await producer.flush()

    # Reading.

    async def consume(self, topic: str, offset: int) -> Record | None:
        """The record at `offset`; None at or past the end."""
        request = b"CONSUME %b %d\n" % (_name(topic), offset)
        return cast(Record | None, await self._ask(request, RecordAnswer))

    async def fetch(
        self, topic: str, offset: int, bytes_max: int = FETCH_BYTES, wait_ms: int = 0
    ) -> list[Record]:
        """Records from `offset` on, at least one and up to about `bytes_max`; none at the end.

        While it waits (`wait_ms`) everything else that is asked of this client waits too.
        """
        at, data = await self._again(lambda: self.send_fetch(topic, offset, bytes_max, wait_ms))
        return records_of(data, at)

    def records(
        self, topic: str, offset: int = 0, *, follow: bool = False, bytes_max: int = FETCH_BYTES
    ) -> Records:
        """An async iterator over records from `offset` on, in order: to the end, or with `follow` for ever.

        The next chunk is fetched while one is gone through. With `follow` let the client do nothing else: a
        waiting FETCH holds up all other answers.
        """
        return Records(self, topic, offset, follow, bytes_max)

    @asynccontextmanager
    async def tail(self, topic: str, offset: int = 0) -> AsyncIterator[Tail]:
        """An async iterator over records from `offset` on, pushed by the server as they come.

        It has a connection of its own, made again where it is lost, and ends only by an error: LogmqError
        (NO_TOPIC when the topic is deleted), or Unreachable.
        """
        tail = Tail(self._address, _name(topic), offset, self._retry_seconds)
        try:
            yield tail
        finally:
            await tail.aclose()

    async def offsets(self, topic: str) -> Topic:
        """The first kept offset and the end."""
        first, end = await self._ask(b"OFFSETS %b\n" % _name(topic), lambda: LineAnswer(b"OFFSETS", 2))
        return Topic(topic, first, end)

    async def seek(self, topic: str, unix_ms: int) -> int:
        """The offset of the first record at or after that time, at the index's grain."""
        (offset,) = await self._ask(b"SEEK %b %d\n" % (_name(topic), unix_ms), lambda: LineAnswer(b"OK", 1))
        return cast(int, offset)

    async def marks(self, topic: str, start: int, stop: int) -> list[Mark]:
        """Index entries that touch [start, stop)."""
        request = b"MARKS %b %d %d\n" % (_name(topic), start, stop)
        return cast(list[Mark], await self._ask(request, lambda: RowsAnswer(mark_row)))

    async def topics(self) -> list[Topic]:
        """All, by name."""
        return cast(list[Topic], await self._ask(b"TOPICS\n", lambda: RowsAnswer(topic_row)))

    # Groups and the rest.

    async def commit(self, group: str, topic: str, offset: int) -> None:
        """The group has dealt with everything before `offset`, which is a record's start or the end."""
        request = b"COMMIT %b %b %d\n" % (_name(group), _name(topic), offset)
        await self._ask(request, lambda: LineAnswer(b"OK", 1))

    async def committed(self, group: str, topic: str) -> int | None:
        """What the group has committed last; None if nothing."""
        request = b"COMMITTED %b %b\n" % (_name(group), _name(topic))
        try:
            (offset,) = await self._ask(request, lambda: LineAnswer(b"OK", 1))
        except LogmqError as error:
            if error.code == "NO_COMMIT":
                return None
            raise
        return cast(int, offset)

    async def delete(self, topic: str) -> None:
        """End a topic. Not asked again where the answer is lost (Disconnected): it may be new by then."""
        link = await self._connected()
        answer = LineAnswer(b"OK", 0)
        await link.ask(b"DELETE %b\n" % _name(topic), answer)
        await answered(answer)

    async def ping(self) -> None:
        """A round trip."""
        await self._ask(b"PING\n", lambda: LineAnswer(b"PONG", 0))

    async def check_answers(self, seconds: float) -> None:
        """The same over the connection that there is, once: whoever does not answer in that time, or not as
        LogMQ does, is no such server. Raises Unreachable."""
        answer = LineAnswer(b"PONG", 0)
        try:
            with trio.fail_after(seconds):
                await self._link.ask(b"PING\n", answer)
                await answered(answer)
        except LogmqError:
            pass  # one that knows no more than the specification has
        except trio.TooSlowError:
            raise self._address.not_answered(f"it says nothing in {seconds:g} s") from None
        except Disconnected as error:
            raise self._address.not_answered(error) from None

    # What `Records` and `Producer` use: a request on its way, whose answer is waited for later.

    async def send_fetch(self, topic: str, offset: int, bytes_max: int, wait_ms: int) -> ChunkAnswer:
        request = b"FETCH %b %d %d %d\n" % (_name(topic), offset, bytes_max, wait_ms)
        return await self._send(request, ChunkAnswer(offset))

    async def send_batch(self, topic: str, writer: str, seq: int, records: bytes) -> LineAnswer:
        request = b"BATCH %b %b %d %d\n%b" % (_name(topic), _name(writer), seq, len(records), records)
        return await self._send(request, LineAnswer(b"OK", 1))

    async def _ask(self, request: bytes, make_answer: Callable[[], Answer]) -> Any:
        """The result of what may be asked twice."""
        return await self._again(lambda: self._send(request, make_answer()))

    async def _again(self, send: Callable[[], Any]) -> Any:
        """The same, for a request that is sent by `send`."""
        while True:
            try:
                return await answered(await send())
            except Unreachable:
                raise
            except Disconnected:
                continue

    async def _send(self, request: bytes, answer: _Answer) -> _Answer:
        link = await self._connected()
        await link.ask(request, answer)
        return answer

    async def _connected(self) -> Link:
        """The connection, made again if it was lost. Raises Unreachable."""
        if self._link.lost is None:
            return self._link
        async with self._connecting:  # the first makes it, the others find it made
            if self._link.lost is not None:
                if self._closed:
                    raise Unreachable("the client is closed")
                await self._turned.away(self._link.answers > 0, self._link.lost)
                self._link = self._linked(await open_again(self._address, self._retry_seconds))
                self._turned.made()
            return self._link

    def _linked(self, stream: trio.abc.Stream) -> Link:
        link = Link(stream)
        self._nursery.start_soon(link.run)
        return link

    def _close(self) -> None:
        self._closed = True
        self._link.lose(Unreachable("the client is closed"))


def _name(name: str) -> bytes:
    if not isinstance(name, str):
        raise TypeError(f"topics and groups are named by text, not by {type(name).__name__}")
    return topic_untrusted(name.encode()).encode()


def _write_requests(topic: bytes, messages: Iterable[bytes]) -> Iterable[tuple[bytes, int]]:
    """PRODUCE lines, and APPEND for what no line can hold, in pieces; and how many there are in each."""
    requests: list[bytes] = []
    size = 0
    for message in messages:
        if b"\n" in message or message[-1:] == b"\r":
            request = b"APPEND %b %d\n%b" % (topic, len(message), message)
        else:
            request = b"PRODUCE %b %b\n" % (topic, message)
        requests.append(request)
        size += len(request)
        if size >= PIECE_BYTES:
            yield b"".join(requests), len(requests)
            requests, size = [], 0
    if requests:
        yield b"".join(requests), len(requests)
