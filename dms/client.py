"""A DMS client: pipelined, bounded, and careful about what may be sent twice.

    async with connect() as client:
        await client.create("jobs")
        await client.produce("jobs", b"hello")
        async with client.consume("jobs", prefetch=16) as messages:
            async for message in messages:
                ...
                await message.ack()

Any number of tasks may use one client at once. Requests that are made while a send is under way go out
together, and each task gets its own replies. A cancelled task stops waiting, and the connection stays good.
Unanswered requests are bounded in bytes; above the bound a request waits. Each `consume` has a connection of
its own, which counts as a client for the server's limit.

Every refusal is a class of `dms.errors` named after its status (QueueFull, QueueNotFound, ...), a `DmsError`.

A lost connection is made again, with growing pauses, for `retry_seconds`. Then calls raise `Unreachable`.
What happens to messages in flight:

- A `produce` whose reply is lost raises `Disconnected`: the message may or may not be in the queue. With
  `again=True` it is sent again until it is answered: at least once, so it may be in the queue twice.
- The server puts a consumer's unacknowledged messages back into the queue, and delivers them again. The
  consumer forgets those that it had not handed out. `ack` and `nack` of the others return False; unless the
  ACK had reached the server, the message comes again. So handling one twice must do no harm.
- A consumer's iterator goes on over the new connection.
- `create`, `delete`, `cancel` and `reschedule` raise `Disconnected`; `queues` asks again.
"""

import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypedDict, Unpack

import attrs

from dms import wire
from dms.consumer import Consumer, Message
from dms.errors import (
    BadMagic,
    Denied,
    DmsError,
    Internal,
    InvalidType,
    PayloadTooLarge,
    ProtocolError,
    QueueExists,
    QueueFull,
    QueueNotFound,
    Timeout,
    VersionMismatch,
)
from dms.link import Answer, Link, about_of, leave, open_link, reconnecting
from dms.wire import PAYLOAD_BYTES_MAX, Type
from shared.client.dial import Address, Disconnected, How, Unreachable
from shared.client.loop import Loop
from shared.client.retry import RETRY_SECONDS
from shared.client.running import open_loop
from shared.errors import RemoteProtocolError

__all__ = [
    "BadMagic",
    "Client",
    "Consumer",
    "Denied",
    "Disconnected",
    "DmsError",
    "Internal",
    "InvalidType",
    "Job",
    "JobSaid",
    "Message",
    "PayloadTooLarge",
    "ProtocolError",
    "Queue",
    "QueueExists",
    "QueueFull",
    "QueueNotFound",
    "QueueOptions",
    "Timeout",
    "Unreachable",
    "VersionMismatch",
    "connect",
]

PORT = 9090
PIECE_BYTES = 256 * 1024
"""Many messages are sent in pieces of this many bytes."""
LISTED_MAX = 0xFFFF
"""The highest total that a LIST_QUEUES_OK can state."""


@attrs.frozen
class Queue:
    """A queue as the server lists it. `depth`: messages, with unacknowledged deliveries."""

    name: str
    depth: int


@attrs.frozen(kw_only=True)
class QueueOptions:
    """Options of a new queue; None: the server's settings decide."""

    depth: int | None = None
    """The most messages."""
    ttl_ms: int | None = None
    """A message older than this is dead."""
    max_deliveries: int | None = None
    """A message that is returned after so many deliveries is dead."""
    dead_letter: str | None = None
    """The queue that dead messages move to. Without one they are dropped."""
    delay_ms: int | None = None
    """From PRODUCE until the first delivery."""
    retry_ms: int | None = None
    """From a NACK until the next delivery. It doubles with each NACK, up to `retry_max_ms`."""
    retry_max_ms: int | None = None
    ack_ms: int | None = None
    """The time that a consumer has for a delivery; `Message.touch` begins it anew."""
    dedup_ms: int | None = None
    """How long a `dedup` key is known, though its message has left."""
    loss_counts: str | None = None
    """Which deliveries count that a lost connection held: `oldest`, `all` or `none`."""
    priorities: int | None = None
    """How many priorities its jobs have, up to 10: 0 to 9."""
    per_key: int | None = None
    """The most messages of a key that are unacknowledged at a time."""
    fair: bool | None = None
    """Keys take turns."""
    rate: str | None = None
    """Deliveries at most, as `100/s`."""
    schedule: Sequence[Mapping[str, str]] | None = None
    """Messages at times: `every` or `cron` (with `zone`), and `body`."""

    def encoded(self) -> bytes:
        said = {name: value for name, value in attrs.asdict(self).items() if value is not None}
        return json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode() if said else b""


AS_SET = QueueOptions()


class JobSaid(TypedDict, total=False):
    """What may be said of a message beside its body (PROTOCOL.md, "Jobs"); without any it is a plain one."""

    delay_ms: int
    """Not before so long from now."""
    at: int
    """Not before this time, in Unix milliseconds."""
    ttl_ms: int
    """Dead if it is not delivered by then."""
    priority: int
    """0 to 9."""
    key: str
    """Up to 128 bytes."""
    dedup: str
    """A name of up to 128 bytes: while a message of it is there, another is not added."""
    headers: Mapping[str, str | int | float]
    """Up to 2 KiB of JSON."""


@attrs.frozen
class Job:
    """A job as it is now. `about`: `seq`, `state` (waiting, ready, held), `deliveries`, `due_ms`, and what
    was said of it."""

    about: Mapping[str, Any]
    body: bytes = attrs.field(repr=lambda body: f"<{len(body)} bytes>")


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
    The first connection is tried once. `host`: also a URL, `dms+tls://ann@host:9090`. `how`: login and TLS.
    Raises ConnectionRefusedError where nobody listens, `Unreachable` where the server does not speak DMS, and
    ssl.SSLError. Raises Denied where a login is refused, and Internal where there are too many clients.
    """
    address = Address.of(host, port, kind="DMS", protocol="dms", retry_seconds=retry_seconds, **how)
    async with open_loop() as loop:
        try:
            link = await open_link(loop, address)
        except Disconnected as error:  # nothing was asked yet
            raise address.not_answered(error) from error
        client = Client(loop, address, link)
        try:
            yield client
        finally:
            await client._leave()


class Client:
    """A connection to a server; made by `connect`. Queues are named by text, messages are bytes.

    Every method raises DmsError where the server refuses, or for a name or message that no server takes. It
    raises `Unreachable` where the server cannot be reached any more.
    """

    def __init__(self, loop: Loop, address: Address, link: Link) -> None:
        self._loop = loop
        self._address = address
        self._retry_seconds = RETRY_SECONDS if address.retry_seconds is None else address.retry_seconds
        self._reconnecting = reconnecting(loop, address, self._retry_seconds, first=link)
        self._consumers: set[Consumer] = set()

    async def produce(self, queue: str, body: bytes, *, again: bool = False, **said: Unpack[JobSaid]) -> None:
        """Put a message at the queue's end. Returns once it is as durable as the queue.

        `said`: its time, lifetime, priority, key, name and headers. Raises QueueFull, QueueNotFound,
        ProtocolError for what cannot be said, and Disconnected if the reply is lost, unless `again`.
        """
        await self.produce_many(queue, (body,), again=again, **said)

    async def produce_many(
        self, queue: str, bodies: Iterable[bytes], *, again: bool = False, **said: Unpack[JobSaid]
    ) -> int:
        """Put messages at the queue's end, in order, pipelined. Returns how many were sent again.

        Raises the first refusal once all are answered; its `refused` has the indexes of all refused messages,
        and the others are in the queue. A message that is too large is refused here, and not sent. Raises
        Disconnected if replies are lost; with `again` unanswered messages are sent again instead.
        """
        name = _name(queue)
        if said:
            pieces, refused = _pieces(name, bodies, Type.PRODUCE_WITH, _object(said))
        else:
            pieces, refused = _pieces(name, bodies)
        sent_again = 0
        while True:
            try:
                await self._produce(pieces)
                break
            except Unreachable:
                raise
            except Disconnected:
                if not again:
                    raise
                for piece in pieces:
                    sent_again += piece.forget_unanswered()
        refused |= {place: error for piece in pieces for place, error in piece.refused}
        if refused:
            error = refused[min(refused)]
            error.refused = tuple(sorted(refused))
            raise error
        return sent_again

    async def _produce(self, pieces: "Sequence[_Piece]") -> None:
        """Send all over one connection: with two, losing one would leave a gap in the order."""
        link = await self._reconnecting.connected()
        lost: Disconnected | None = None
        try:
            for piece in pieces:
                if piece.payloads:
                    await piece.send(link)
        except Disconnected as error:
            lost = error
        for piece in pieces:
            try:
                await piece.settle(self._loop)
            except Disconnected as error:
                lost = lost or error
        if lost is not None:
            raise lost

    @asynccontextmanager
    async def consume(
        self, queue: str, *, prefetch: int = 1, at_most: int | None = None, with_about: bool = False
    ) -> AsyncIterator[Consumer]:
        """An async iterator over the queue's messages: all that come, or `at_most`. See `Consumer`.

        `prefetch`: messages asked for ahead. The server counts them as delivered, so a higher number is
        faster and less fair to other consumers. `with_about`: a message says what is known of it
        (`Message.about`). At the end of the block unacknowledged messages return to the
        queue.
        """
        _name(queue)
        self._reconnecting.raise_if_closed()
        consumer = Consumer(
            self._loop,
            self._address,
            self._retry_seconds,
            queue,
            prefetch,
            at_most,
            with_about=with_about,
        )
        self._consumers.add(consumer)
        try:
            yield consumer
        finally:
            self._consumers.discard(consumer)
            await consumer.leave()

    async def create(self, queue: str, options: QueueOptions = AS_SET) -> None:
        """Make a queue. Raises QueueExists, and ProtocolError for options that the server refuses."""
        payload = _name(queue) + options.encoded()
        if len(payload) > PAYLOAD_BYTES_MAX:
            raise PayloadTooLarge(f"{len(payload)} bytes; at most {PAYLOAD_BYTES_MAX}")
        await self._ask(Type.CREATE_QUEUE, payload)

    async def delete(self, queue: str) -> None:
        """Delete a queue with its messages. Raises QueueNotFound."""
        await self._ask(Type.DELETE_QUEUE, _name(queue))

    async def cancel(self, queue: str, *, dedup: str | None = None, seq: int | None = None) -> None:
        """Take a job out of a queue, by its name or sequence. Raises ProtocolError where it is held or
        gone."""
        await self._ask(Type.CANCEL, _name(queue) + _object(_which(dedup, seq)))

    async def reschedule(
        self,
        queue: str,
        *,
        dedup: str | None = None,
        seq: int | None = None,
        delay_ms: int | None = None,
        at: int | None = None,
    ) -> None:
        """Give a job another time: so long from now, or in Unix milliseconds. Raises as `cancel`."""
        when = {"delay_ms": delay_ms, "at": at}
        said = _which(dedup, seq) | {name: value for name, value in when.items() if value is not None}
        await self._ask(Type.RESCHEDULE, _name(queue) + _object(said))

    async def job(self, queue: str, *, dedup: str | None = None, seq: int | None = None) -> Job:
        """A job as it is now, by its name or sequence. Raises ProtocolError where it is not in the queue."""
        ask = partial(self._ask, Type.GET_JOB, _name(queue) + _object(_which(dedup, seq)))
        try:
            return Job(*about_of(await self._reconnecting.repeat(ask)))
        except RemoteProtocolError as error:
            raise ProtocolError(str(error)) from None

    async def queues(self) -> list[Queue]:
        """All queues, by name."""
        found: list[Queue] = []
        after = b""
        while True:
            ask = partial(self._ask, Type.LIST_QUEUES, after)
            total, page = _listed(await self._reconnecting.repeat(ask))
            found += page
            # A server that knows only the specification lists what fits a frame, and has no next page.
            if not page or (total < LISTED_MAX and len(found) >= total):
                return found
            after = wire.pack_name(page[-1].name)

    async def _ask(self, type_: Type, payload: bytes) -> bytes:
        link = await self._reconnecting.connected()
        answer = Answer(type_, link.new_ids(1))
        await link.ask(wire.pack(type_, answer.ids[0], payload), answer)
        await answer.wait(self._loop)
        return answer.payload

    async def _leave(self) -> None:
        for consumer in tuple(self._consumers):
            await consumer.leave()
        await leave(self._reconnecting)


class _Piece:
    """Some messages of a `produce_many`. `start`: the index of the first among all."""

    def __init__(self, start: int, payloads: list[bytes], type_: Type) -> None:
        self.payloads = payloads
        self._type = type_
        self.refused: list[tuple[int, DmsError]] = []
        self._start = start
        self._answer: Answer | None = None

    async def send(self, link: Link) -> None:
        """Raises Disconnected."""
        answer = Answer(self._type, link.new_ids(len(self.payloads)))
        frames = map(wire.pack, [self._type] * len(self.payloads), answer.ids, self.payloads)
        await link.ask(b"".join(frames), answer)
        self._answer = answer

    async def settle(self, loop: Loop) -> None:
        """Wait for the replies, if it was sent. Keeps unanswered messages only. Raises Disconnected."""
        answer = self._answer
        if answer is None:
            return
        try:
            await answer.wait(loop)
        except DmsError:
            pass
        finally:
            if answer.done:
                self.refused += [(self._start + place, error) for place, error in answer.errors]
                self._start += answer.count
                del self.payloads[: answer.count]

    def forget_unanswered(self) -> int:
        """The connection is lost. Returns how many messages will be sent again."""
        answer, self._answer = self._answer, None
        return len(self.payloads) if answer is not None else 0


def _name(queue: str) -> bytes:
    if not isinstance(queue, str):
        raise TypeError(f"a queue is named by text, not by {type(queue).__name__}")
    try:
        return wire.pack_name(queue)
    except wire.Refusal as error:
        raise ProtocolError(error.text) from None


def _object(said: Mapping[str, Any]) -> bytes:
    try:
        return wire.pack_object(said)
    except wire.Refusal as error:
        raise ProtocolError(error.text) from None
    except (ValueError, TypeError) as error:
        raise ProtocolError(str(error)) from None


def _which(dedup: str | None, seq: int | None) -> dict[str, Any]:
    if (dedup is None) == (seq is None):
        raise ValueError("either dedup or seq says which job")
    return {"seq": seq} if dedup is None else {"dedup": dedup}


def _pieces(
    name: bytes, bodies: Iterable[bytes], type_: Type = Type.PRODUCE, about: bytes = b""
) -> tuple[list[_Piece], dict[int, DmsError]]:
    """Pieces to send, and refusals of messages that are too large, by index. `about`: behind the name."""
    name += about
    pieces: list[_Piece] = []
    refused: dict[int, DmsError] = {}
    payloads: list[bytes] = []
    size = start = 0
    for place, body in enumerate(bodies):
        payload = name + body
        if fits := len(payload) <= PAYLOAD_BYTES_MAX:
            payloads.append(payload)
            size += len(payload)
        else:
            most = max(0, PAYLOAD_BYTES_MAX - len(name))
            beside = f", with the {len(about)} bytes that are said of it" if about else ""
            text = f"a message of {len(body)} bytes; at most {most} in a queue of this name{beside}"
            refused[place] = PayloadTooLarge(text)
        if not fits or size >= PIECE_BYTES:
            if payloads:
                pieces.append(_Piece(start, payloads, type_))
            start = place + 1
            payloads, size = [], 0
    if payloads:
        pieces.append(_Piece(start, payloads, type_))
    return pieces, refused


def _listed(payload: bytes) -> tuple[int, list[Queue]]:
    try:
        total, entries = wire.unpack_list(payload)
    except wire.Refusal as error:
        raise ProtocolError(f"the server's list cannot be read: {error.text}") from None
    return total, [Queue(name, depth) for name, depth in entries]
