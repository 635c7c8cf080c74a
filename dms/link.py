"""A client's connection to a DMS server: requests go out together, replies come in order.

Messages and the refusals of CONSUMEs come in any order between the replies.
"""

import json
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Protocol

import trio

from dms import wire
from dms.errors import DmsError, Internal
from dms.wire import REPLIES, Type
from shared.client.dial import (
    FIRST_ANSWER_SECONDS,
    LOGIN_SECONDS,
    Address,
    Disconnected,
    Unreachable,
    broken,
    check_plain,
)
from shared.client.login import NOBODY, Login
from shared.client.pipelining import RECEIVE_BYTES, PipelinedConnection, Reconnecting
from shared.errors import RemoteProtocolError

REQUEST_IDS = wire.DELIVERY_ID_BIT
"""A client's request ids are below this. Once they are used up, they begin again at 1."""
CLOSE_SECONDS = 1.0
"""For a server to answer DISCONNECT."""


class Answer:
    """The replies to a run of requests of one type with these `ids`. `payload`: that of the last reply."""

    __slots__ = ("count", "error", "errors", "event", "ids", "payload", "type")

    def __init__(self, type_: Type, ids: Sequence[int]) -> None:
        self.type = type_
        self.ids = ids
        self.count = 0
        """Replies so far."""
        self.errors: list[tuple[int, DmsError]] = []
        """Refusals, each with its place in the run."""
        self.error: Disconnected | None = None
        """Set where the connection was lost before the last reply."""
        self.payload = b""
        self.event: trio.Event | None = None

    @property
    def done(self) -> bool:
        return self.error is not None or self.count == len(self.ids)

    def tell(self) -> None:
        if self.event is not None:
            self.event.set()

    async def wait(self) -> None:
        """Wait for all replies. Raises Disconnected, else the first refusal."""
        if not self.done:
            self.event = trio.Event()
            await self.event.wait()
        if self.error is not None:
            raise type(self.error)(str(self.error))
        if self.errors:
            error = self.errors[0][1]
            error.refused = tuple(place for place, _ in self.errors)
            raise error


class DeliveryTaker(Protocol):
    """Gets what the CONSUMEs that it sent are answered."""

    def delivered(self, link: "Link", delivery_id: int, body: bytes) -> None: ...

    def not_delivered(self, link: "Link", error: DmsError) -> None: ...

    def link_lost(self, link: "Link") -> None: ...


class Link(PipelinedConnection[Answer]):
    """One connection, from its handshake to its end."""

    def __init__(self, stream: trio.abc.Stream, taker: DeliveryTaker | None, rest: bytes) -> None:
        super().__init__(stream, rest)
        self._taker = taker
        # It is left by DISCONNECT, also where the program is cancelled: see `leave`.
        self._scope.shield = True
        self._consuming: deque[int] = deque()
        self._next_id = 2  # 1 was the handshake

    def new_ids(self, count: int) -> Sequence[int]:
        """Ids for `count` requests in a row."""
        if self._next_id + count > REQUEST_IDS:
            self._next_id = 1
        ids = range(self._next_id, self._next_id + count)
        self._next_id += count
        return ids

    def consume(self, queue: bytes, count: int) -> None:
        """Ask for `count` messages; the taker is told of each. Only on a link that is not lost."""
        ids = self.new_ids(count)
        self._consuming.extend(ids)
        self.say(b"".join(wire.pack(Type.CONSUME, each, queue) for each in ids))

    @property
    def consuming(self) -> int:
        """How many CONSUMEs wait for an answer."""
        return len(self._consuming)

    def lose(self, error: Disconnected) -> None:
        if self.lost is None:
            self._consuming.clear()
            super().lose(error)
            if self._taker is not None:
                self._taker.link_lost(self)

    def fail(self, answer: Answer, error: Disconnected) -> None:
        answer.error = error
        answer.tell()

    async def leave(self) -> None:
        """Say goodbye, and wait a moment for the server's: also where the task is cancelled."""
        if self.lost is None:
            with trio.move_on_after(CLOSE_SECONDS, shield=True):
                answer = Answer(Type.DISCONNECT, self.new_ids(1))
                try:
                    await self.ask(wire.pack(Type.DISCONNECT, answer.ids[0]), answer)
                    await answer.wait()
                except (DmsError, Disconnected):
                    pass
        self.lose(Unreachable("the client is closed"))

    def receive(self, data: bytearray) -> int:
        try:
            frames, at = wire.decode(data)
            self._hand_out(frames)
        except RemoteProtocolError as error:
            raise RemoteProtocolError(f"the server's answer is not DMS's: {error}") from None
        return at

    def _hand_out(self, frames: Iterable[wire.Frame]) -> None:
        for type_, _, status, message_id, payload in frames:
            if type_ == Type.DELIVER:
                self._delivered(message_id, payload)
            elif type_ == Type.ERROR and message_id in self._consuming:
                self._consuming.remove(message_id)  # nearly always the first
                assert self._taker is not None
                self._taker.not_delivered(self, error_for(status, payload))
            elif type_ == Type.DISCONNECT:
                raise Disconnected("the server is stopping")
            else:
                self._replied(type_, status, message_id, payload)

    def _delivered(self, delivery_id: int, body: bytes) -> None:
        # It does not name its CONSUME: those of one connection are served in order.
        if not self._consuming or self._taker is None:
            raise RemoteProtocolError("a message that nobody asked for")
        self._consuming.popleft()
        self.heard = True
        self._taker.delivered(self, delivery_id, body)

    def _replied(self, type_: int, status: int, message_id: int, payload: bytes) -> None:
        answer = self.awaited
        if answer is None:
            text = payload.decode(errors="backslashreplace")[:200]
            raise RemoteProtocolError(f"type {type_:#04x} in answer to nothing {text!r}")
        if message_id != answer.ids[answer.count]:
            raise RemoteProtocolError(f"id {message_id}, where {answer.ids[answer.count]} is next")
        if type_ == Type.ERROR:
            answer.errors.append((answer.count, error_for(status, payload)))
        elif type_ != REPLIES[answer.type]:
            raise RemoteProtocolError(f"type {type_:#04x} in answer to {answer.type.name}")
        answer.payload = payload
        answer.count += 1
        self.heard = True
        if answer.count == len(answer.ids):
            self.answered()
            answer.tell()


def error_for(status: int, payload: bytes) -> DmsError:
    return DmsError.of(status, payload.decode(errors="backslashreplace"))


async def leave(reconnecting: Reconnecting[Link]) -> None:
    """Say DISCONNECT on the present link, if there is one, and make no other."""
    reconnecting.closed = True
    if reconnecting.link is not None:
        await reconnecting.link.leave()


NAME = "brokers"


def hello(login: Login) -> bytes:
    """The payload of a handshake: a name, or who logs in."""
    if not login:
        return NAME.encode()
    said = {"user": login.user, "password": login.secret, "client": NAME}
    payload = json.dumps(said, ensure_ascii=False).encode()
    if len(payload) > wire.PAYLOAD_BYTES_MAX:
        raise ValueError(f"a login of DMS has at most {wire.PAYLOAD_BYTES_MAX} bytes")
    return payload


async def shake_hands(stream: trio.abc.Stream, login: Login = NOBODY) -> bytes:
    """Make the handshake. Returns the bytes behind its answer. Raises Disconnected, and DmsError."""
    data = bytearray()
    seconds = LOGIN_SECONDS if login else FIRST_ANSWER_SECONDS
    try:
        with trio.fail_after(seconds):
            await stream.send_all(wire.pack(Type.HANDSHAKE, 1, hello(login)))
            while True:
                received = await stream.receive_some(RECEIVE_BYTES)
                if not received:
                    raise Disconnected("the server closed the connection before it had answered")
                data += received
                check_plain(data)
                frames, at = wire.decode(data)
                if frames:
                    break
    except trio.TooSlowError:
        raise Disconnected(f"it says nothing to a handshake in {seconds:g} s") from None
    except trio.BrokenResourceError as error:
        raise broken(error) from None
    except RemoteProtocolError as error:
        raise Disconnected(f"the server's answer is not DMS's: {error}") from None
    type_, _, status, _, payload = frames[0]
    if type_ in (Type.ERROR, Type.HANDSHAKE_NACK):
        raise error_for(status, login.hide_bytes(payload))
    if type_ != Type.HANDSHAKE_ACK or len(frames) > 1:
        raise Disconnected(f"the server's answer is not DMS's: type {type_:#04x} to a handshake")
    return bytes(data[at:])


async def greeted(stream: trio.abc.Stream, taker: DeliveryTaker | None, login: Login = NOBODY) -> Link:
    """A link over a new stream, which is closed where the handshake fails."""
    try:
        return Link(stream, taker, await shake_hands(stream, login))
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise


def reconnecting(
    nursery: trio.Nursery,
    address: Address,
    retry_seconds: float,
    taker: DeliveryTaker | None = None,
    first: Link | None = None,
) -> Reconnecting[Link]:
    """A link that is made when needed, and again when lost. `first`: one that exists already.

    A server that is unreachable or has too many clients is tried again: neither may last.
    """

    async def open_link() -> Link:
        try:
            return await greeted(await address.open(), taker, address.login)
        except Internal as error:
            raise Disconnected(str(error)) from error

    return Reconnecting(nursery, address, retry_seconds, open_link, first)
