"""A connection to a LogMQ server, as a client has it: requests go out together, answers come in order."""

from collections import deque
from typing import Any

import trio

from logmq.answers import Answer
from shared.errors import RemoteProtocolError
from shared.net.dial import Disconnected

RECEIVE_BYTES = 256 * 1024
UNANSWERED_BYTES_MAX = 4 * 1024 * 1024
"""Of requests: what waits to be sent, and what waits for its answer."""


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
