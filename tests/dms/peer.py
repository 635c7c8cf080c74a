"""A server as the specification alone has it, over streams in memory, for clients under test.

It knows nothing that is marked **ext**, and serves each connection's requests one behind the other but for
CONSUME. `Peer.scripts` replaces it, connection by connection, by something that behaves otherwise.
"""

from collections import deque
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from tests.support import dms_spec as spec

Script = Callable[[trio.StapledStream], Awaitable[None]]


def error(message_id: int, status: int, text: bytes) -> bytes:
    return spec.frame(spec.ERROR, message_id, text, status=status)


async def read_frame(stream: trio.StapledStream) -> tuple[int, int, bytes] | None:
    """Type, id and payload of the next frame; None at the end."""
    data = bytearray()
    missing = spec.HEADER.size
    while missing:
        received = await stream.receive_some(missing)
        if not received:
            return None
        data += received
        missing = max(spec.HEADER.size, 16 + int.from_bytes(data[4:8], "big")) - len(data)
    ((type_, _, message_id, payload),) = spec.parse(data)
    return type_, message_id, payload


class Peer:
    """Queues of (id, body), and what is held by whom."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.queues: dict[str, deque[tuple[int, bytes]]] = {}
        self.depth = 1000
        self.consume_seconds = 30.0
        self.scripts: list[Script] = []
        self.refusing = 0
        """So many connections to come find nobody."""
        self.connections = 0
        self.requests: list[int] = []
        self._nursery = nursery
        self._next_id = 0
        self._news = trio.Event()
        self._streams: list[trio.StapledStream] = []

    async def open(self) -> trio.abc.Stream:
        if self.refusing > 0:
            self.refusing -= 1
            raise ConnectionRefusedError(111, "no DMS server answers", "memory")
        ours, theirs = trio.testing.memory_stream_pair()
        self.connections += 1
        self._streams.append(theirs)
        self._nursery.start_soon(self._serve, theirs, self.scripts.pop(0) if self.scripts else self.serve)
        return ours

    def cut(self) -> None:
        """End all connections."""
        for stream in self._streams:
            self._nursery.start_soon(stream.aclose)
        self._streams.clear()

    async def _serve(self, stream: trio.StapledStream, script: Script) -> None:
        try:
            await script(stream)
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            await trio.aclose_forcefully(stream)

    async def greet(self, stream: trio.StapledStream) -> None:
        first = await read_frame(stream)
        assert first is not None
        assert first[0] == spec.HANDSHAKE
        await stream.send_all(spec.frame(spec.HANDSHAKE_ACK, first[1], b"peer"))

    async def serve(self, stream: trio.StapledStream) -> None:
        await self.greet(stream)
        served = _Served(self, stream)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(served.deliver)
                await served.answer()
                nursery.cancel_scope.cancel()
        finally:
            for held in served.held.values():
                self.put_back(*held)

    async def take(self, name: str) -> tuple[int, bytes] | None:
        """The first message, in time; None where the queue is gone or stays empty."""
        with trio.move_on_after(self.consume_seconds):
            while name in self.queues and not self.queues[name]:
                await self._news.wait()
        queue = self.queues.get(name)
        return queue.popleft() if queue else None

    def new_id(self) -> int:
        self._next_id += 1
        return self._next_id

    def put_back(self, name: str, at: int, body: bytes) -> None:
        self.queues[name] = deque(sorted([*self.queues[name], (at, body)]))
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = trio.Event()

    def answer(self, type_: int, message_id: int, payload: bytes) -> bytes:
        done = spec.frame(type_ + 1, message_id)
        if type_ == spec.LIST:
            entries = b"".join(
                spec.name(name, len(queue).to_bytes(4, "big")) for name, queue in sorted(self.queues.items())
            )
            return spec.frame(spec.LIST + 1, message_id, len(self.queues).to_bytes(2, "big") + entries)
        name, rest = spec.split(payload)
        if type_ == spec.CREATE:
            if name in self.queues:
                return error(message_id, spec.EXISTS, b"there already")
            self.queues[name] = deque()
            return done
        if name not in self.queues:
            return error(message_id, spec.NOT_FOUND, b"no such queue")
        if type_ == spec.DELETE:
            del self.queues[name]
        elif len(self.queues[name]) >= self.depth:
            return error(message_id, spec.FULL, b"full")
        else:
            self.queues[name].append((self.new_id(), rest))
        self._tell()
        return done


class _Served:
    """One connection: what it holds, and the CONSUMEs that wait."""

    def __init__(self, peer: Peer, stream: trio.StapledStream) -> None:
        self.held: dict[int, tuple[str, int, bytes]] = {}
        self._peer = peer
        self._stream = stream
        self._consumes: deque[tuple[int, str]] = deque()
        self._asked = trio.Event()
        self._sending = trio.Lock()

    async def deliver(self) -> None:
        while True:
            if not self._consumes:
                await self._asked.wait()
                continue
            message_id, name = self._consumes.popleft()
            taken = await self._peer.take(name)
            if taken is not None:
                delivery_id = 0x80000000 | self._peer.new_id()
                self.held[delivery_id] = (name, *taken)
                await self._send(spec.frame(spec.DELIVER, delivery_id, taken[1]))
            elif name in self._peer.queues:
                await self._send(error(message_id, spec.TIMEOUT, b"nothing came"))
            else:
                await self._send(error(message_id, spec.NOT_FOUND, b"no such queue"))

    async def answer(self) -> None:
        while (request := await read_frame(self._stream)) is not None:
            type_, message_id, payload = request
            self._peer.requests.append(type_)
            if type_ == spec.CONSUME:
                self._consumes.append((message_id, spec.split(payload)[0]))
                self._asked.set()
                self._asked = trio.Event()
            elif type_ in (spec.ACK, spec.NACK):
                held = self.held.pop(message_id)
                if type_ == spec.NACK:
                    self._peer.put_back(*held)
                await self._send(spec.frame(type_ + 1, message_id))
            elif type_ == spec.DISCONNECT:
                await self._send(spec.frame(spec.DISCONNECT + 1, message_id))
                return
            else:
                await self._send(self._peer.answer(type_, message_id, payload))

    async def _send(self, data: bytes) -> None:
        async with self._sending:
            await self._stream.send_all(data)


@pytest.fixture
def peer(nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> Peer:
    """What every address leads to."""
    peer = Peer(nursery)
    monkeypatch.setattr("shared.client.trio_loop.open_stream", lambda _: peer.open())
    return peer
