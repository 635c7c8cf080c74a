"""A client's connection to a DMS server: requests go out together, replies come in order.

Messages and the refusals of CONSUMEs come in any order between the replies.
"""

import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from dms import wire
from dms.errors import DmsError, Internal
from dms.wire import REPLIES, Type
from shared.client.dial import FIRST_ANSWER_SECONDS, LOGIN_SECONDS, Address, ClientClosed, Disconnected
from shared.client.login import NOBODY, Login
from shared.client.loop import Event, Loop
from shared.client.pipelining import PipelinedConnection
from shared.client.reconnecting import Reconnecting
from shared.errors import RemoteProtocolError

REQUEST_IDS = wire.DELIVERY_ID_BIT
"""A client's request ids are below this. Once they are used up, they begin again at 1."""
CLOSE_SECONDS = 1.0
"""For a server to answer DISCONNECT."""


class Answer:
    """The replies to a run of requests of one type with these `ids`. `payload`: that of the last reply."""

    __slots__ = ("again", "count", "error", "errors", "event", "ids", "payload", "type")

    def __init__(self, type_: Type, ids: Sequence[int]) -> None:
        self.type = type_
        self.ids = ids
        self.again = False
        """Some of the deliveries were settled in another way before."""
        self.count = 0
        """Replies so far."""
        self.errors: list[tuple[int, DmsError]] = []
        """Refusals, each with its place in the run."""
        self.error: Disconnected | None = None
        """Set where the connection was lost before the last reply."""
        self.payload = b""
        self.event: Event | None = None

    @property
    def done(self) -> bool:
        return self.error is not None or self.count == len(self.ids)

    def tell(self) -> None:
        if self.event is not None:
            self.event.set()

    async def wait(self, loop: Loop) -> None:
        """Wait for all replies. Raises Disconnected, else the first refusal."""
        if not self.done:
            self.event = self.event or loop.event()
            await self.event.wait()
        if self.error is not None:
            raise self.error.with_traceback(None)
        if self.errors:
            error = self.errors[0][1]
            error.refused = tuple(place for place, _ in self.errors)
            raise error


class DeliveryTaker(Protocol):
    """Gets what the CONSUMEs that it sent are answered."""

    def delivered(self, link: "Link", delivery_id: int, body: bytes, about: Mapping[str, Any]) -> None: ...

    def not_delivered(self, link: "Link", error: DmsError) -> None: ...

    def link_lost(self, link: "Link") -> None: ...


class Link(PipelinedConnection[Answer]):
    """One connection, from its handshake to its end."""

    def __init__(self, loop: Loop, taker: DeliveryTaker | None = None) -> None:
        super().__init__(loop)
        self._taker = taker
        self._login = NOBODY
        self._greeted = False
        self._greeting = loop.event()
        self._refusal: DmsError | None = None
        self._consuming: deque[int] = deque()
        self._next_id = 2  # 1 is the handshake

    async def greet(self, login: Login = NOBODY) -> None:
        """Make the handshake. Raises Disconnected, and DmsError; then the connection is closed."""
        self._login = login
        seconds = LOGIN_SECONDS if login else FIRST_ANSWER_SECONDS
        try:
            self.transport.write(wire.pack(Type.HANDSHAKE, 1, hello(login)))
            if not await self.loop.wait(self._greeting, seconds):
                raise Disconnected(f"it says nothing to a handshake in {seconds:g} s")
            if self._refusal is not None:
                raise self._refusal.with_traceback(None)
            if self.lost is not None:
                raise self.lost.with_traceback(None)
        except BaseException:
            self.lose(ClientClosed())
            raise

    def new_ids(self, count: int) -> Sequence[int]:
        """Ids for `count` requests in a row."""
        if self._next_id + count > REQUEST_IDS:
            self._next_id = 1
        ids = range(self._next_id, self._next_id + count)
        self._next_id += count
        return ids

    def consume(self, queue: bytes, count: int, type_: Type = Type.CONSUME) -> None:
        """Ask for `count` messages; the taker is told of each. Only on a link that is not lost."""
        ids = self.new_ids(count)
        self._consuming.extend(ids)
        self.transport.write(b"".join(wire.pack(type_, each, queue) for each in ids))

    @property
    def consuming(self) -> int:
        """How many CONSUMEs wait for an answer."""
        return len(self._consuming)

    def lose(self, error: Disconnected) -> None:
        if self.lost is None:
            self._consuming.clear()
            super().lose(error)
            self._greeting.set()
            if self._taker is not None:
                self._taker.link_lost(self)

    def fail(self, answer: Answer, error: Disconnected) -> None:
        answer.error = error
        answer.tell()

    async def leave(self) -> None:
        """Say goodbye, and wait a moment for the server's: also where the task is cancelled."""
        if self.lost is None:
            answer = Answer(Type.DISCONNECT, self.new_ids(1))
            answer.event = self.loop.event()
            try:
                await self.ask(wire.pack(Type.DISCONNECT, answer.ids[0]), answer)
                await self.loop.wait(answer.event, CLOSE_SECONDS, shield=True)
            except Disconnected:
                pass
            finally:
                self.lose(ClientClosed())

    def receive(self, data: bytearray) -> int:
        try:
            frames, at = wire.decode(data)
            self._hand_out(frames)
        except RemoteProtocolError as error:
            raise RemoteProtocolError(f"the server's answer is not DMS's: {error}") from None
        return at

    def _hand_out(self, frames: Iterable[wire.Frame]) -> None:
        for type_, _, status, message_id, payload in frames:
            if not self._greeted:
                self._greet_back(type_, status, payload)
            elif type_ == Type.DELIVER:
                self._delivered(message_id, payload, {})
            elif type_ == Type.DELIVER_WITH:
                about, body = about_of(payload)
                self._delivered(message_id, body, about)
            elif type_ == Type.ERROR and message_id in self._consuming:
                self._consuming.remove(message_id)  # nearly always the first
                assert self._taker is not None
                self._taker.not_delivered(self, error_for(status, payload))
            elif type_ == Type.DISCONNECT:
                raise Disconnected("the server is stopping")
            else:
                self._replied(type_, status, message_id, payload)

    def _greet_back(self, type_: int, status: int, payload: bytes) -> None:
        if type_ in (Type.ERROR, Type.HANDSHAKE_NACK):
            self._refusal = error_for(status, self._login.hide_bytes(payload))
        elif type_ != Type.HANDSHAKE_ACK:
            raise RemoteProtocolError(f"type {type_:#04x} to a handshake")
        self._greeted = True
        self._greeting.set()

    def _delivered(self, delivery_id: int, body: bytes, about: Mapping[str, Any]) -> None:
        # It does not name its CONSUME: those of one connection are served in order.
        if not self._consuming or self._taker is None:
            raise RemoteProtocolError("a message that nobody asked for")
        self._consuming.popleft()
        self.heard = True
        self._taker.delivered(self, delivery_id, body, about)

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


def about_of(payload: bytes) -> tuple[Mapping[str, Any], bytes]:
    """What an answer says of a message, and its body. Raises RemoteProtocolError."""
    try:
        text, body = wire.split_object(payload)
        about = json.loads(text)
    except (wire.Refusal, ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"a message that cannot be read: {error}") from None
    if not isinstance(about, dict):
        raise RemoteProtocolError("a message that cannot be read: its JSON is no object")
    return about, body


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


async def open_link(loop: Loop, address: Address, taker: DeliveryTaker | None = None) -> Link:
    """Connect and make the handshake. Raises ConnectionRefusedError, ssl.SSLError, Disconnected, DmsError."""
    link = Link(loop, taker)
    await loop.connect(address, link)
    await link.greet(address.login)
    return link


def reconnecting(
    loop: Loop,
    address: Address,
    retry_seconds: float,
    taker: DeliveryTaker | None = None,
    first: Link | None = None,
) -> Reconnecting[Link]:
    """A link that is made when needed, and again when lost. `first`: one that exists already.

    A server that is unreachable or has too many clients is tried again: neither may last.
    """

    async def link() -> Link:
        try:
            return await open_link(loop, address, taker)
        except Internal as error:
            raise Disconnected(str(error)) from error

    return Reconnecting(loop, address, retry_seconds, link, first)
