"""A LogMQ client: pipelined, bounded, and careful about what may be sent twice.

    async with connect() as client:
        offset = await client.produce("orders", b"hello")
        async for record in client.records("orders", offset):
            ...

Any number of tasks may use one client at once. Requests that are made while a send is under way go out
together, and each task gets its own answers. A cancelled task stops waiting, and the connection stays good.
Unanswered requests are bounded in bytes; above the bound a request waits.

A lost connection is made again, with growing pauses, for `retry_seconds`. Requests that do no harm twice (all
reads, COMMIT, BATCH) are sent again. A PRODUCE or APPEND whose answer is lost may or may not have been
written: it raises `Disconnected`. A `producer` numbers its batches, so its writes survive lost connections
exactly once.
"""

import secrets
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Self, Unpack, cast

import attrs

from logmq import connector
from logmq.connector import (
    Answer,
    Ask,
    LineAnswer,
    LoginAnswer,
    LogmqError,
    Mark,
    OffsetsAnswer,
    Record,
    Topic,
    checked_name,
    records_of,
    take_message,
)
from logmq.runs import HEADER_BYTES, encode
from logmq.wire import name_untrusted
from shared.client.dial import (
    FIRST_ANSWER_SECONDS,
    LOGIN_SECONDS,
    Address,
    ClientClosed,
    Disconnected,
    How,
    Unreachable,
)
from shared.client.loop import Loop, Wakeup
from shared.client.pipelining import PipelinedConnection
from shared.client.receiver import Receiver
from shared.client.reconnecting import Reconnecting, keep_trying
from shared.client.retry import RETRY_SECONDS, Retry
from shared.client.running import open_loop
from shared.errors import RemoteProtocolError

__all__ = [
    "Client",
    "Disconnected",
    "GroupReader",
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
"""Many messages are sent in pieces of this many bytes."""
FOLLOW_WAIT_MS = 20_000
"""The longest wait of one FETCH at a topic's end. Middleboxes forget idle connections after half a minute."""
COMMIT_SECONDS = 5.0
"""How often a group's reader commits while records come without a pause."""
BATCH_BYTES_MAX = 256 * 1024
BATCHES_UNANSWERED_MAX = 32
"""Unanswered batches of one producer; well below the 128 that the server remembers per writer."""


@asynccontextmanager
async def connect(
    host: str = "127.0.0.1",
    port: int = PORT,
    *,
    retry_seconds: float | None = None,
    **how: Unpack[How],
) -> AsyncIterator["Client"]:
    """A client, connected; closed at the end of the block.

    `retry_seconds`: a lost connection is tried again for so long (30), then requests that wait for it fail.
    The first connection is tried once. `host`: also a URL, `logmq+tls://ann@host:8080`. `how`: login and TLS.
    Raises ConnectionRefusedError where nobody listens, LogmqError where a login is refused, ssl.SSLError.
    """
    address = Address.of(host, port, kind="LogMQ", protocol="logmq", retry_seconds=retry_seconds, **how)
    async with open_loop() as loop:
        client = Client(loop, address, await _open_link(loop, address))
        try:
            yield client
        finally:
            client._close()


class Client:
    """A connection to a server; made by `connect`. Topics and groups are text, messages bytes.

    Every method raises LogmqError where the server refuses, and `Unreachable` where it cannot be reached any
    more. It raises Refusal for a name that no server would take.
    """

    def __init__(self, loop: Loop, address: Address, link: "Link") -> None:
        async def open_link() -> Link:
            return await _open_link(loop, address)

        self._loop = loop
        self._address = address
        self._retry_seconds = RETRY_SECONDS if address.retry_seconds is None else address.retry_seconds
        self._reconnecting = Reconnecting(loop, address, self._retry_seconds, open_link, link)

    # Writing.

    async def produce(self, topic: str, message: bytes) -> int:
        """Write a message, any bytes; returns its offset. Raises Disconnected where the answer is lost."""
        (offset,) = await self.produce_many(topic, (message,))
        return offset

    async def produce_many(self, topic: str, messages: Iterable[bytes]) -> list[int]:
        """Write messages, pipelined; returns their offsets. Raises Disconnected where an answer is lost.

        Raises the first refusal (LogmqError) once all are answered: others may have been written.
        """
        name = checked_name(topic).encode()
        link = await self._reconnecting.connected()
        awaited: list[OffsetsAnswer] = []
        for requests, count in _write_requests(name, messages):
            answer = OffsetsAnswer(count)
            # use one connection: with two, losing one would leave a gap in the order
            await link.ask(requests, answer)
            awaited.append(answer)
        offsets: list[int] = []
        refusals: list[LogmqError] = []
        for answer in awaited:
            await self.answered(answer)
            for offset in answer.offsets:
                if isinstance(offset, LogmqError):
                    refusals.append(offset)
                else:
                    offsets.append(offset)
        if refusals:
            raise refusals[0]
        return offsets

    async def append(self, topic: str, message: bytes) -> int:
        """Write a message by APPEND. `produce` uses it by itself for a message that no line can hold."""
        (offset,) = await self.answered(await self._send(connector.append(topic, message)))
        return cast(int, offset)

    async def batch(self, topic: str, writer: str, seq: int, messages: Sequence[bytes]) -> int:
        """Write messages in one piece, all or nothing; returns the offset of the first.

        The same writer and seq again give the same answer and write nothing, so the request is sent again
        where a connection is lost. A writer's seqs rise by one.
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
    ) -> AsyncIterator["Producer"]:
        """A stream of writes to one topic, in order, each made exactly once also over lost connections.

        `writer`: its name, random unless given. A name is for one producer, once. `on_written` is called in
        order with each written batch's offset and those of its messages. The end of the block waits for all
        batches. An error is raised by the next `send`, or at the end.
        """
        name = name_untrusted((writer or secrets.token_hex(8)).encode(), "writer")
        checked_name(topic)
        producer = Producer(self, self._loop, topic, name, on_written)
        cancel = self._loop.start_soon(producer.run)
        try:
            yield producer
            await producer.flush()
        finally:
            cancel()

    # Reading.

    async def consume(self, topic: str, offset: int) -> Record | None:
        """The record at `offset`; None at the end or beyond it."""
        return cast(Record | None, await self._ask(connector.consume(topic, offset)))

    async def fetch(
        self, topic: str, offset: int, bytes_max: int = FETCH_BYTES, wait_ms: int = 0
    ) -> list[Record]:
        """Records from `offset` on, at least one and up to about `bytes_max`; none at the end.

        While it waits (`wait_ms`) all later requests of this client wait, too.
        """
        at, data = await self._again(lambda: self.send_fetch(topic, offset, bytes_max, wait_ms))
        return records_of(data, at)

    def records(
        self, topic: str, offset: int = 0, *, follow: bool = False, bytes_max: int = FETCH_BYTES
    ) -> "Records":
        """An async iterator over records from `offset` on, in order, to the end; with `follow` it has no end.

        One chunk, of about `bytes_max`, is fetched ahead while the last is handed out. With `follow` use the
        client for nothing else: a waiting FETCH holds up all other answers.
        """
        return Records(self, topic, offset, follow, bytes_max)

    @asynccontextmanager
    async def tail(self, topic: str, offset: int = 0) -> AsyncIterator["Tail"]:
        """An async iterator over records from `offset` on, which the server pushes as they are written.

        It has a connection of its own, which is made again where it is lost. It ends only by an error:
        LogmqError (NO_TOPIC when the topic is deleted), or Unreachable.
        """
        name = checked_name(topic).encode()
        tail = Tail(self._loop, self._address, self._retry_seconds, name, offset)
        await keep_trying(self._loop, self._address, Retry(self._retry_seconds), tail.begin)
        try:
            yield tail
        finally:
            tail.close()

    @asynccontextmanager
    async def read(self, group: str, topic: str, *, follow: bool = True) -> AsyncIterator["GroupReader"]:
        """An async iterator over what a group has not read yet; it commits what has been handled.

        A record counts as handled once the next one is asked for, and at the end of the block, unless that
        ends by an error. Handled records are committed while no further one is there, every few seconds, and
        at the end. What is not committed comes again. Without `follow` it ends at the topic's end.
        """
        bounds = await self.offsets(topic)
        start = max(bounds.first, await self.committed(group, topic) or 0)
        async with AsyncExitStack() as stack:
            records: Records | Tail = self.records(topic, start)
            if follow:
                records = await stack.enter_async_context(self.tail(topic, start))
            reader = GroupReader(self, self._loop, group, topic, records)
            try:
                yield reader
            except Exception:
                with suppress(Disconnected):
                    await reader.commit()
                raise
            reader.take_as_handled()
            await reader.commit()

    async def offsets(self, topic: str) -> Topic:
        """A topic's first kept offset and its end."""
        first, end = await self._ask(connector.offsets(topic))
        return Topic(topic, first, end)

    async def seek(self, topic: str, unix_ms: int) -> int:
        """The offset of the first record at or after that time, to the resolution of the index."""
        (offset,) = await self._ask(connector.seek(topic, unix_ms))
        return cast(int, offset)

    async def marks(self, topic: str, start: int, stop: int) -> list[Mark]:
        """Index entries that overlap [start, stop)."""
        return cast(list[Mark], await self._ask(connector.marks(topic, start, stop)))

    async def topics(self) -> list[Topic]:
        """All topics, by name."""
        return cast(list[Topic], await self._ask(connector.topics()))

    # Groups and the rest.

    async def commit(self, group: str, topic: str, offset: int) -> None:
        """Commit: the group has processed everything before `offset`, a record's start or the end."""
        await self._ask(connector.commit(group, topic, offset))

    async def committed(self, group: str, topic: str) -> int | None:
        """The group's last committed offset; None: it has committed nothing."""
        try:
            (offset,) = await self._ask(connector.committed(group, topic))
        except LogmqError as error:
            if error.code == "NO_COMMIT":
                return None
            raise
        return cast(int, offset)

    async def delete(self, topic: str) -> None:
        """Delete a topic. Not sent again where the answer is lost (Disconnected): the topic may be new."""
        await self.answered(await self._send(connector.delete(topic)))

    async def ping(self) -> None:
        """A round trip."""
        await self._ask(connector.ping())

    async def check_answers(self) -> None:
        """Send one PING over the existing connection. Raises Unreachable if the answer is late, or is not
        LogMQ's.
        """
        ping = connector.ping()
        answer = ping.answer()
        try:
            assert self._reconnecting.link is not None
            await self._reconnecting.link.ask(ping.request, answer)
            await self._reconnecting.link.answered_within(answer, FIRST_ANSWER_SECONDS)
        except LogmqError:
            pass  # a server that knows only the specification
        except TimeoutError:
            raise self._address.not_answered(f"it says nothing in {FIRST_ANSWER_SECONDS:g} s") from None
        except Disconnected as error:
            raise self._address.not_answered(error) from None

    # For `Records` and `Producer`: requests whose answers are waited for later.

    async def send_fetch(self, topic: str, offset: int, bytes_max: int, wait_ms: int) -> Answer:
        return await self._send(connector.fetch(topic, offset, bytes_max, wait_ms))

    def fetch_ahead(self, topic: str, offset: int, bytes_max: int, wait_ms: int) -> Answer | None:
        """A FETCH that is sent at once; None where it would have to wait, for a connection or for room."""
        link = self._reconnecting.link
        if link is None or link.lost is not None:
            return None
        ask = connector.fetch(topic, offset, bytes_max, wait_ms)
        answer = ask.answer()
        return answer if link.ask_nowait(ask.request, answer) else None

    async def link(self) -> "Link":
        """The connection that requests go over now."""
        return await self._reconnecting.connected()

    async def send_batch(self, topic: str, writer: str, seq: int, records: bytes) -> Answer:
        line, answer = connector.batch(topic, writer, seq, len(records))
        return await self._send(Ask(line + records, answer))

    async def answered(self, answer: Answer) -> Any:
        """Wait for an answer; its result. Raises its error."""
        if not answer.done:
            event = self._loop.event()
            answer.on_done = event.set
            await event.wait()
        return answer.outcome()

    async def _ask(self, ask: Ask) -> Any:
        """The result of a request that may be sent twice."""
        return await self._again(lambda: self._send(ask))

    async def _again(self, send: Callable[[], Any]) -> Any:
        """The result of a request that `send` sends, and that may be sent twice."""

        async def attempt() -> Any:
            return await self.answered(await send())

        return await self._reconnecting.repeat(attempt)

    async def _send(self, ask: Ask) -> Answer:
        answer = ask.answer()
        link = await self._reconnecting.connected()
        await link.ask(ask.request, answer)
        return answer

    def _close(self) -> None:
        self._reconnecting.close()


async def _open_link(loop: Loop, address: Address) -> "Link":
    """A link with the address's user logged in. Raises as `Loop.connect`; also Disconnected, LogmqError."""
    link = Link(loop)
    await loop.connect(address, link)
    if address.login:
        try:
            answer = LoginAnswer(address.login)
            await link.ask(connector.auth(address.login), answer)
            await link.answered_within(answer, LOGIN_SECONDS)
        except BaseException as error:
            link.lose(ClientClosed())
            if isinstance(error, TimeoutError):
                raise Disconnected(f"it does not answer a login in {LOGIN_SECONDS:g} s") from None
            raise
    return link


class Link(PipelinedConnection[Answer]):
    """One connection: requests are pipelined, answers come in order."""

    def receive(self, data: bytearray) -> int:
        at = 0
        while at < len(data):
            answer = self.awaited
            if answer is None:
                raise RemoteProtocolError(f"the server said more than it was asked: {bytes(data[:100])!r}")
            end = answer.take(data, at)
            if end < 0:
                break
            at = end
            if not answer.done:
                break
            self.answered()
        return at

    def fail(self, answer: Answer, error: Disconnected) -> None:
        answer.fail(error)

    async def answered_within(self, answer: Answer, seconds: float | None = None) -> Any:
        """Wait for an answer; its result. Raises its error, and TimeoutError."""
        if not answer.done:
            event = self.loop.event()
            answer.on_done = event.set
            if not await self.loop.wait(event, seconds):
                raise TimeoutError
        return answer.outcome()


class Records:
    """Records from an offset on, in order; see `Client.records`. `offset`: of the next: what to commit."""

    def __init__(self, client: Client, topic: str, offset: int, follow: bool, bytes_max: int) -> None:
        self._client = client
        self._topic = topic
        self._wait_ms = FOLLOW_WAIT_MS if follow else 0
        self._bytes_max = bytes_max
        self._ready: deque[Record] = deque()
        self._answer: Answer | None = None
        self._answer_offset = offset
        self.offset = offset

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        if not self._ready and not await self._fetched():
            raise StopAsyncIteration
        record = self._ready.popleft()
        self.offset = record.next_offset
        return record

    @property
    def has_more(self) -> bool:
        """Whether the next record is here already."""
        return bool(self._ready)

    async def chunk(self) -> list[Record]:
        """All records that are fetched, at least one; none at the end."""
        if not await self._fetched():
            return []
        records = list(self._ready)
        self._ready.clear()
        self.offset = records[-1].next_offset
        return records

    async def _fetched(self) -> bool:
        """Wait until records are fetched; False: it is the end."""
        while not self._ready:
            try:
                if self._answer is None:
                    self._answer = await self._client.send_fetch(*self._wanted)
                at, data = cast(tuple[int, bytes], await self._client.answered(self._answer))
            except Unreachable:
                raise
            except Disconnected:
                continue  # it is asked again, over a new connection
            finally:  # whoever was cancelled left the answer to the next
                if self._answer is not None and self._answer.done:
                    self._answer = None
            if data:
                self._ready.extend(records_of(data, at))
                self._answer_offset = at + len(data)
                self._answer = self._client.fetch_ahead(*self._wanted)
            elif not self._wait_ms:
                return False
        return True

    @property
    def _wanted(self) -> tuple[str, int, int, int]:
        return self._topic, self._answer_offset, self._bytes_max, self._wait_ms


class Tail(Receiver[Record]):
    """Records as the server pushes them; see `Client.tail`. `offset`: of the next."""

    def __init__(self, loop: Loop, address: Address, retry_seconds: float, topic: bytes, offset: int) -> None:
        super().__init__(loop, address, retry_seconds)
        self.offset = offset
        self._topic = topic
        self._received = offset  # what is sent next
        self._login_answer: LoginAnswer | None = None

    async def __anext__(self) -> Record:
        record = await super().__anext__()
        self.offset = record.next_offset
        return record

    def _first_words(self) -> bytes:
        said = b"TAIL %b %d\n" % (self._topic, self._received)
        if not self._address.login:
            return said
        self._login_answer = LoginAnswer(self._address.login)
        return connector.auth(self._address.login) + said

    def _take(self, data: bytearray) -> tuple[list[Record], int]:
        records: list[Record] = []
        at = 0
        if self._login_answer is not None:
            at = self._login_answer.take(data, at)
            if at < 0:
                return records, 0
            self._login_answer.outcome()
            self._login_answer = None
        while data.startswith(b"MESSAGE ", at):
            record, at = take_message(data, at)
            if record is None:
                return records, at
            records.append(record)
            self._received = record.next_offset
        if not records and data.startswith((b"OK ", b"ERR "), at):
            # OK: the server is draining and closes next. The tail continues when it is back.
            last = LineAnswer(b"OK", 1)
            end = last.take(data, at)
            if end > 0:
                last.outcome()
            return records, max(end, 0)
        if not records and len(data) - at >= len(b"MESSAGE "):
            raise RemoteProtocolError(f"the server's answer is not LogMQ's: {bytes(data[at : at + 100])!r}")
        return records, at


class GroupReader:
    """What a group has not read yet; see `Client.read`."""

    def __init__(self, client: Client, loop: Loop, group: str, topic: str, records: "Records | Tail") -> None:
        self._client = client
        self._loop = loop
        self._group = group
        self._topic = topic
        self._records = records
        self._handled = self._committed = records.offset
        self._commit_at = loop.now() + COMMIT_SECONDS

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        self.take_as_handled()
        if not self._records.has_more or self._loop.now() >= self._commit_at:
            await self.commit()
        return await anext(self._records)

    def take_as_handled(self) -> None:
        """Count the records handed out so far as handled."""
        self._handled = self._records.offset

    async def commit(self) -> None:
        """Commit what is handled."""
        if self._handled != self._committed:
            handled = self._handled
            await self._client.commit(self._group, self._topic, handled)
            self._committed = handled
        self._commit_at = self._loop.now() + COMMIT_SECONDS


@attrs.define(eq=False)
class _Batch:
    seq: int
    records: bytes = attrs.field(repr=False)
    count: int
    link: Link | None = None
    answer: Answer | None = None

    @property
    def is_written(self) -> bool:
        return self.answer is not None and self.answer.done and self.answer.error is None


class Producer:
    """Writes to one topic, each made once, in order; see `Client.producer`.

    Messages that are sent while earlier batches are unanswered are gathered into the next batch. `written`:
    messages that the server has confirmed.
    """

    def __init__(
        self,
        client: Client,
        loop: Loop,
        topic: str,
        writer: str,
        on_written: Callable[[int, Sequence[int]], None] | None,
    ) -> None:
        self._client = client
        self._loop = loop
        self._topic = topic
        self._writer = writer
        self._on_written = on_written
        self._seq = 0
        self._filling: list[bytes] = []
        self._filling_bytes = 0
        self._batches: deque[_Batch] = deque()
        self._failure: Exception | None = None
        self._moved = self._loop.event()
        self._answered = Wakeup(loop)
        self.written = 0

    async def send(self, message: bytes) -> None:
        """Queue a message. Waits only while too much is unanswered. Raises an earlier batch's error."""
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
        """Wait until everything is written. Raises an earlier batch's error."""
        self._moved.set()
        while self._filling or self._batches:
            self._raise_failure()
            await self._answered.wait()
        self._raise_failure()

    async def run(self) -> None:
        """Send batches and take their answers, until cancelled or until one fails."""
        try:
            while True:
                await self._moved.wait()
                self._moved = self._loop.event()
                self._take_answers()
                try:
                    await self._send_batches()
                except Unreachable:
                    raise
                except Disconnected:
                    self._wake()
        except Exception as error:  # the server's, or that of `on_written`
            self._failure = error
        finally:
            if self._failure is None:
                self._failure = Disconnected("the producer was interrupted")
            self._answered.wake()

    async def _send_batches(self) -> None:
        """Send what is not on its way. After a lost link that is all unanswered batches, in order."""
        if self._filling and len(self._batches) < BATCHES_UNANSWERED_MAX:
            self._close_batch()
        if not self._batches:
            return
        link = await self._client.link()
        for batch in tuple(self._batches):
            if batch.link is link or batch.is_written:
                continue
            line, answer = connector.batch(self._topic, self._writer, batch.seq, len(batch.records))
            batch.link, batch.answer = link, answer()
            batch.answer.on_done = self._wake
            await link.ask(line + batch.records, batch.answer)

    def _take_answers(self) -> None:
        while self._batches and (answer := self._batches[0].answer) is not None and answer.done:
            if isinstance(answer.error, Disconnected) and not isinstance(answer.error, Unreachable):
                break  # it is sent again, over a new link
            (offset,) = cast(tuple[int], answer.outcome())
            batch = self._batches.popleft()
            self.written += batch.count
            if self._on_written is not None:
                self._on_written(offset, _offsets(batch.records, offset))
            self._answered.wake()
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

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure.with_traceback(None)


def _offsets(records: bytes, offset: int) -> list[int]:
    return [record.offset for record in records_of(records, offset)]


def _write_requests(topic: bytes, messages: Iterable[bytes]) -> Iterable[tuple[bytes, int]]:
    """PRODUCE lines, and APPEND for what no line can hold, in pieces; each with its number of requests.

    A line that ends as HTTP's does would be taken for HTTP where it is a connection's first.
    """
    requests: list[bytes] = []
    size = 0
    for message in messages:
        if b"\n" in message or message[-1:] == b"\r" or b"HTTP/" in message[-16:]:
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
