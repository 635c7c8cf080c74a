"""How a client's principal begins: the dialog of its login, and the frames that a server sends.

`amqp_client` goes on with the connection.
"""

from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import attrs
from pamqp import base, commands

from dmp.amqp import wire
from dmp.amqp.wire import encode
from dmp.refusals import Refusal
from dmp.wire import AMQP_HEADER
from shared.client.dial import FIRST_ANSWER_SECONDS, Address, Disconnected, check_plain
from shared.client.login import Login
from shared.client.loop import ClientConnection, Loop, Wakeup
from shared.errors import EXIT_MISSING, BrokerError, RemoteProtocolError

PORT = 5672
LOGIN_SECONDS = 60.0
"""For each answer of the login."""
FRAME_BYTES_MAX = 1 << 20

M = TypeVar("M", bound=base.Frame)


@attrs.define(eq=False)
class Refused(BrokerError):
    """The server said no. `code`: AMQP's (404, 403, 405, ...) or DMP's (402, 502, ...)."""

    code: int
    text: str

    def __str__(self) -> str:
        return self.text


class NotThere(Refused):
    """404: no such exchange, queue, sink or feed."""

    exit_code = EXIT_MISSING


def error_for(code: int, text: str) -> Refused:
    return (NotThere if code == 404 else Refused)(code, text)


@attrs.define(eq=False)
class ServerFrames:
    """Takes what a server sends apart, however it is cut."""

    _data: bytearray = attrs.Factory(bytearray)

    def feed(self, received: bytes | bytearray) -> Iterator[tuple[int, int, bytes]]:
        """Yield the kind, channel and payload of each whole frame. Raises RemoteProtocolError."""
        data = self._data
        data += received
        at = 0
        while len(data) - at >= wire.FRAME_HEAD.size:
            kind, number, size = wire.FRAME_HEAD.unpack_from(data, at)
            end = at + size + wire.FRAME_OVERHEAD
            if kind not in wire.KINDS or size > FRAME_BYTES_MAX:
                raise RemoteProtocolError("the server does not speak AMQP 0-9-1")
            if end > len(data):
                break
            if data[end - 1] != wire.FRAME_END[0]:
                raise RemoteProtocolError("a frame of the server does not end where it says")
            yield kind, number, bytes(data[at + wire.FRAME_HEAD.size : end - 1])
            at = end
        del data[:at]


@attrs.frozen
class Arrived:
    """A message that is whole, and the method that announced it."""

    method: commands.Basic.Deliver | commands.Basic.Return
    properties: bytes
    body: bytes


@attrs.define(eq=False)
class Contents:
    """Puts the messages of one channel together."""

    _method: commands.Basic.Deliver | commands.Basic.Return | None = None
    _properties: bytes = b""
    _parts: list[bytes] = attrs.Factory(list)
    _missing: int = 0

    def take(self, kind: int, payload: bytes) -> base.Frame | Arrived | None:
        """A frame: what it is, or completes. Raises RemoteProtocolError, Refusal."""
        if kind == wire.METHOD:
            try:
                method = wire.decode_untrusted(payload)
            except Refusal:  # AMQP's names need not be UTF-8
                named = wire.content_method_untrusted(payload)
                if named is None:
                    raise
                method = named
            if not isinstance(method, commands.Basic.Deliver | commands.Basic.Return):
                return method
            self._method = method
            return None
        if kind == wire.HEARTBEAT:
            return None
        if kind == wire.HEADER:
            self._missing, self._properties = wire.header_untrusted(payload)
            self._parts = []
        else:
            self._parts.append(payload)
            self._missing -= len(payload)
        if self._method is None or self._missing < 0:
            raise RemoteProtocolError("the server sends a body that it has not announced")
        if self._missing:
            return None
        whole = Arrived(self._method, self._properties, b"".join(self._parts))
        self._method = None
        return whole


class Dialog(ClientConnection):
    """A connection on which one task asks, and waits for the answer, until it is handed over."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self._data = bytearray()
        self._heard = False
        self._arrival = Wakeup(loop)
        self._lost: Disconnected | None = None
        self._successor: ClientConnection | None = None

    def send(self, data: bytes) -> None:
        self.transport.write(data)

    async def receive(self, deadline: float) -> bytes | None:
        """What has arrived; None: nothing until `deadline` on the loop's clock. Raises Disconnected."""
        while not self._data:
            if self._lost is not None:
                raise self._lost.with_traceback(None)
            if not await self._arrival.wait(max(0.0, deadline - self.loop.now())):
                return None
        if not self._heard:
            check_plain(self._data)
            self._heard = True
        data = bytes(self._data)
        self._data.clear()
        return data

    def hand_over(self, successor: ClientConnection, data: bytes = b"") -> None:
        """The dialog is over: `successor` gets `data`, and all that arrives from now on."""
        self._successor, successor.transport = successor, self.transport
        if data or self._data:
            successor.received(data + self._data)
        if self._lost is not None:
            successor.ended(self._lost)

    # What the loop calls.

    def received(self, data: bytes | bytearray) -> None:
        if self._successor is not None:
            self._successor.received(data)
        else:
            self._data += data
            self._arrival.wake()

    def ended(self, error: Disconnected | None) -> None:
        if self._successor is not None:
            self._successor.ended(error)
        else:
            self._lost = error or Disconnected("the server closed the connection")
            self._arrival.wake()


class LoginDialog:
    """Logs in over a dialog."""

    def __init__(self, dialog: Dialog) -> None:
        self._dialog = dialog
        self._frames = ServerFrames()
        self._methods: deque[base.Frame] = deque()
        self._mechanisms: list[str] = []

    async def greet(self) -> None:
        """The first words. Raises Disconnected and RemoteProtocolError where it is no such server."""
        start = await self._ask(
            AMQP_HEADER, commands.Connection.Start, "the AMQP header", FIRST_ANSWER_SECONDS
        )
        self._mechanisms = str(start.mechanisms).split()

    async def log_in(self, login: Login) -> int:
        """Once it is greeted; returns how large frames may be, in bytes. Raises Refused, Disconnected.

        A user without a password is that of the client's certificate, by EXTERNAL. Who names nobody is guest,
        which the server takes for a certificate's user where there is one.
        """
        properties: dict[str, Any] = {
            "product": "Brokers",
            "capabilities": {"authentication_failure_close": True, "consumer_cancel_notify": True},
        }
        if login or not login.user or "EXTERNAL" not in self._mechanisms:
            said = "PLAIN", f"\0{login.user}\0{login.secret}" if login else "\0guest\0guest"
        else:
            said = "EXTERNAL", login.user
        start_ok = commands.Connection.StartOk(properties, *said, "en_US")
        tune = await self._call(start_ok, commands.Connection.Tune)
        frame_bytes = min(tune.frame_max or FRAME_BYTES_MAX, FRAME_BYTES_MAX)
        self._dialog.send(encode(commands.Connection.TuneOk(tune.channel_max, frame_bytes, 0), 0))
        await self._call(commands.Connection.Open("/"), commands.Connection.OpenOk)
        return frame_bytes

    async def _call(self, method: base.Frame, answer: type[M]) -> M:
        return await self._ask(encode(method, 0), answer, method.name, LOGIN_SECONDS)

    async def _ask(self, data: bytes, answer: type[M], what: str, seconds: float) -> M:
        """Ask and wait. Raises Refused, Disconnected, RemoteProtocolError."""
        self._dialog.send(data)
        deadline = self._dialog.loop.now() + seconds
        while True:
            while self._methods:
                method = self._methods.popleft()
                if isinstance(method, answer):
                    return method
                if isinstance(method, commands.Connection.Close):
                    raise error_for(method.reply_code or 0, method.reply_text)
            received = await self._dialog.receive(deadline)
            if received is None:
                raise Disconnected(f"no answer to {what} in {seconds:g} s")
            try:
                for kind, _, payload in self._frames.feed(received):
                    if kind == wire.METHOD:
                        self._methods.append(wire.decode_untrusted(payload))
            except Refusal as error:
                raise RemoteProtocolError(str(error)) from error


@asynccontextmanager
async def logged_in(loop: Loop, address: Address) -> AsyncIterator[tuple[Dialog, int]]:
    """A dialog that is logged in, and how large frames may be; its connection is closed at the end.

    Raises Refused, Disconnected (`Unreachable` where somebody is there who does not answer as AMQP does),
    ConnectionRefusedError.
    """
    dialog = Dialog(loop)
    await loop.connect(address, dialog)
    try:
        login = LoginDialog(dialog)
        try:
            await login.greet()
        except (Disconnected, RemoteProtocolError) as error:
            raise address.not_answered(error) from error
        yield dialog, await login.log_in(address.login)
    finally:
        dialog.transport.close()
