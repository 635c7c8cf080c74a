"""For the tests of any protocol: a connection to drive a session by hand, and a server without sockets."""

import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import structlog
import trio

from shared.budget import Account
from shared.errors import StoreError
from shared.file_range import FileRange
from shared.net.admission import Admission
from shared.net.connection import Connection, Session
from shared.net.counters import NetCounters
from shared.net.loop_turn import AfterTurn, LoopTurn, OpenSession
from shared.net.outbox import Backlogs, Outbox, Policy
from shared.net.settings import NetSettings
from tests.support.stream_driver import serve_stream


class MemoryConnection(Connection):
    """A connection whose peer reads only when the test calls `taken`.

    Between calls the outbox grows as it does towards a peer that does not read, so backpressure shows
    without a socket. `now` is set by the test; `deadline` is what the session asked for with `wake_at`.
    `finished` and `aborted` (the reason) say how the session ended it; `reading` is False while the
    session, or a full outbox under the wait policy, holds input back. `rests_awaited`: how often the session
    said that it has the beginning of something. `awaits_first`: what it would be told if it went on saying
    nothing; None: it has spoken. `session`: the last one that was handed the connection.
    """

    __slots__ = ("_now", "aborted", "awaits_first", "deadline", "finished", "rests_awaited", "session")

    def __init__(
        self,
        *,
        peer: str = "127.0.0.1:1",
        now: float = 0.0,
        bound: int = 1 << 20,
        policy: Policy = Policy.WAIT,
    ) -> None:
        super().__init__(peer, Outbox(bound, policy))
        self._dirty = True
        self._now = now
        self.deadline = math.inf
        self.finished = False
        self.aborted: str | None = None
        self.awaits_first: bytes | None = None
        self.rests_awaited = 0
        self.session: Any = None

    @property
    def now(self) -> float:
        return self._now

    @now.setter
    def now(self, now: float) -> None:
        self._now = now

    @property
    def reading(self) -> bool:
        return self._reading

    def taken(self) -> bytes:
        """Everything written since the last call, as the peer would read it, files' bytes included.

        What `on_drained` brings about is part of it.
        """
        parts: list[bytes | memoryview] = []
        outbox = self.outbox
        while outbox.chunks:
            first = outbox.chunks[0]
            try:
                data = first.read(1 << 20) if isinstance(first, FileRange) else first
            except BlockingIOError:
                break
            outbox.advance(len(data))
            parts.append(data)
            if self._above and outbox.size * 2 <= outbox.bound:
                self._above = False
                if self.on_drained is not None:
                    self.on_drained()
        return b"".join(parts)

    def hand_over(self, session: Session) -> None:
        self.session = session

    def finish(self) -> None:
        self.finished = self.mute = True
        self.deadline = math.inf

    def abort(self, reason: str, *, reset: bool = False) -> None:
        self.aborted = reason
        self.closed = self.mute = True
        self.deadline = math.inf
        self.outbox.clear()

    def fail(self, error: Exception) -> None:
        raise error

    def wake_at(self, deadline: float) -> None:
        if not self.mute:
            self.deadline = deadline

    @property
    def first_request_seconds(self) -> float:
        return NetSettings().first_request_seconds

    def await_first_request(self, farewell: bytes = b"", seconds_max: float = math.inf) -> None:
        self.awaits_first = farewell

    def first_request_done(self) -> None:
        self.awaits_first = None

    def await_rest(self) -> None:
        self.rests_awaited += 1

    def _outbox_over_bound(self) -> None:
        self._limit_slow_peer()


class StreamServer:
    """Serves sessions over streams that a test makes (memory streams, lockstep ones).

    `run` until cancelled, and `serve` each stream in a task of its own:

        server = StreamServer()
        await nursery.start(server.run)
        near, far = trio.testing.memory_stream_pair()
        nursery.start_soon(server.serve, far, open_session)
    """

    def __init__(
        self,
        settings: NetSettings | None = None,
        *,
        after_turn: AfterTurn = lambda: None,
        log: structlog.stdlib.BoundLogger | None = None,
        outboxes_bytes_max: int = 1 << 30,
    ) -> None:
        settings = settings or NetSettings()
        self.counters = NetCounters()
        self.loop = LoopTurn(
            settings=settings,
            admission=Admission(settings),
            backlogs=Backlogs(Account("backlogs", outboxes_bytes_max)),
            counters=self.counters,
            after_turn=after_turn,
            log=log or structlog.stdlib.get_logger(),
        )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; then every connection is closed."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.loop.watch_deadlines)
                nursery.start_soon(self.loop.serve_strangers)
                task_status.started()
                await trio.sleep_forever()
        finally:
            self.loop.close_all("shutdown")

    async def serve(
        self,
        stream: trio.abc.Stream,
        open_session: OpenSession,
        *,
        peer: str = "memory",
        pushes: bool = False,
    ) -> None:
        """Serve one stream to its end, and close it."""
        assert self.loop.admission.admit("") is None
        await serve_stream(self.loop, stream, peer, open_session, pushes=pushes)


@asynccontextmanager
async def running(server: StreamServer) -> AsyncIterator[trio.Nursery]:
    """A nursery in which the server runs."""
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        yield nursery
        nursery.cancel_scope.cancel()


class HandTicket:
    """What a session asks of a write that it waits for; `resolve` is the disk's answer."""

    def __init__(self) -> None:
        self.done = False
        self.error: StoreError | None = None
        self.callbacks: list[Callable[[Any], None]] = []
        self.together: Callable[[Any], None] | None = None

    def when_done(self, callback: Callable[[Any], None]) -> None:
        self.callbacks.append(callback)

    def resolve(self, error: StoreError | None = None) -> None:
        self.done, self.error = True, error
        for callback in self.callbacks:
            callback(self)
