"""A connection to a LogMQ server, as a client has it: requests go out together, answers come in order."""

import errno
import secrets
import ssl
from collections import deque
from typing import Any

import attrs
import trio

from logmq.answers import Answer
from shared.errors import BrokerError, RemoteProtocolError

RECEIVE_BYTES = 256 * 1024
UNANSWERED_BYTES_MAX = 4 * 1024 * 1024
"""Of requests: what waits to be sent, and what waits for its answer."""
CONNECT_SECONDS = 10.0
PAUSE_SECONDS = (0.05, 2.0)
"""Before connecting again: the first pause, doubled each time, and the longest."""


class Disconnected(BrokerError):
    """The connection was lost: what was asked may or may not have been done."""


class Unreachable(Disconnected):
    """No connection could be made in time, or the client is closed: nothing was asked."""


@attrs.frozen
class Address:
    """Where a server is, and how it is reached. `ssl_context`: TLS, for `host` unless said otherwise."""

    host: str
    port: int
    ssl_context: ssl.SSLContext | None = None
    server_hostname: str | None = None

    async def open(self) -> trio.abc.Stream:
        """A stream to it. Raises ConnectionRefusedError, whatever the reason, and ssl.SSLError."""
        try:
            with trio.fail_after(CONNECT_SECONDS):
                stream: trio.abc.Stream = await trio.open_tcp_stream(self.host, self.port)
                if self.ssl_context is None:
                    return stream
                name = self.server_hostname or self.host
                tls = trio.SSLStream(stream, self.ssl_context, server_hostname=name)
                try:
                    await tls.do_handshake()
                except BaseException as error:
                    await trio.aclose_forcefully(tls)
                    if isinstance(error, trio.BrokenResourceError) and error.__cause__ is not None:
                        raise error.__cause__ from None
                    raise
                return tls
        except ssl.SSLError:
            raise
        except (OSError, trio.TooSlowError, trio.BrokenResourceError) as error:
            why = f"no LogMQ server answers ({error or type(error).__name__})"
            raise ConnectionRefusedError(errno.ECONNREFUSED, why, f"{self.host}:{self.port}") from error


async def open_again(address: Address, seconds: float) -> trio.abc.Stream:
    """Connect, with growing pauses, for so long. Raises Unreachable."""
    deadline = trio.current_time() + seconds
    attempts = 0
    while True:
        try:
            return await address.open()
        except OSError as error:
            pause = pause_before(attempts)
            if trio.current_time() + pause > deadline:
                raise Unreachable(f"{address.host}:{address.port}: {error.strerror or error}") from error
            await trio.sleep(pause)
            attempts += 1


def pause_before(attempts: int) -> float:
    """Seconds to wait before trying again, after so many attempts.

    Half of each pause is chance: a thousand clients of one server must not come back at once.
    """
    first, longest = PAUSE_SECONDS
    pause = min(first * (1 << min(attempts, 20)), longest)
    return pause / 2 + pause / 2 * secrets.randbelow(1000) / 1000


class Link:
    """One connection's life: a task that sends what piled up, one that hands out answers."""

    def __init__(self, nursery: trio.Nursery, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._outgoing: list[bytes] = []
        self._awaited: deque[tuple[Answer, int]] = deque()
        self._unanswered_bytes = 0
        self._something = trio.Event()
        self._room = trio.Event()
        self._scope = trio.CancelScope()
        self.lost: Disconnected | None = None
        self.answers = 0
        nursery.start_soon(self._run)

    async def ask(self, request: bytes, answer: Answer) -> None:
        """Queue a request; its answer is told. Waits while too much is unanswered. Raises Disconnected."""
        while self._unanswered_bytes > UNANSWERED_BYTES_MAX and self.lost is None:
            await self._room.wait()
        if self.lost is not None:
            raise type(self.lost)(str(self.lost))
        self._outgoing.append(request)
        self._awaited.append((answer, len(request)))
        self._unanswered_bytes += len(request)
        self._something.set()

    def lose(self, error: Disconnected) -> None:
        """Whatever waits fails."""
        if self.lost is None:
            self.lost = error
            self._scope.cancel()
            self._room.set()
            while self._awaited:
                self._awaited.popleft()[0].fail(error)

    async def _run(self) -> None:
        error = Disconnected("the server closed the connection")
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._send)
                    await self._receive()
                    nursery.cancel_scope.cancel()
        except* (trio.BrokenResourceError, trio.ClosedResourceError) as group:
            error = Disconnected(f"the connection broke ({group.exceptions[0].__cause__ or 'reset'})")
        except* RemoteProtocolError as group:
            error = Disconnected(str(group.exceptions[0]))
        finally:
            self.lose(error)
            await trio.aclose_forcefully(self._stream)

    async def _send(self) -> None:
        while True:
            await self._something.wait()
            self._something = trio.Event()
            while self._outgoing:
                outgoing, self._outgoing = self._outgoing, []
                await self._stream.send_all(outgoing[0] if len(outgoing) == 1 else b"".join(outgoing))

    async def _receive(self) -> None:
        data = bytearray()
        while True:
            received = await self._stream.receive_some(RECEIVE_BYTES)
            if not received:
                return
            data += received
            del data[: self._hand_out(data)]

    def _hand_out(self, data: bytearray) -> int:
        at, awaited = 0, self._awaited
        while at < len(data):
            if not awaited:
                raise RemoteProtocolError(f"the server said more than it was asked: {bytes(data[:100])!r}")
            answer, size = awaited[0]
            end = answer.take(data, at)
            if end < 0:
                break
            at = end
            if not answer.done:
                break
            awaited.popleft()
            self.answers += 1
            self._unanswered_bytes -= size
            if self._unanswered_bytes <= UNANSWERED_BYTES_MAX // 2:
                self._room.set()
                self._room = trio.Event()
        return at


async def answered(answer: Answer) -> Any:
    """Wait for an answer; its result. Raises its error."""
    if not answer.done:
        event = trio.Event()
        answer.told = event.set
        await event.wait()
    if answer.error is not None:
        raise answer.error
    return answer.result
