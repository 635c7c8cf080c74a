"""A server as the specification alone has it, over streams in memory, for clients under test.

It knows nothing that is marked **ext**, and serves each connection's requests one behind the other but for
CONSUME. `Peer.scripts` replaces it, connection by connection, by something that behaves otherwise.
"""

import struct
from collections import deque
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from shared.client.dial import Address

HEADER = struct.Struct(">IIBBHI")
Script = Callable[[trio.StapledStream], Awaitable[None]]


def frame(type_: int, message_id: int, payload: bytes = b"", status: int = 0) -> bytes:
    return HEADER.pack(0xDEADBEEF, len(payload), type_, 1, status, message_id) + payload


async def read_frame(stream: trio.StapledStream) -> tuple[int, int, bytes] | None:
    """Type, id and payload of the next frame; None at the end."""
    data = b""
    while len(data) < 16 or len(data) < 16 + int.from_bytes(data[4:8], "big"):
        missing = 16 - len(data) if len(data) < 16 else 16 + int.from_bytes(data[4:8], "big") - len(data)
        received = await stream.receive_some(missing)
        if not received:
            return None
        data += received
    _, _, type_, _, _, message_id = HEADER.unpack_from(data)
    return type_, message_id, data[16:]


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
        assert first[0] == 0x01
        await stream.send_all(frame(0x02, first[1], b"peer"))

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
        if type_ == 0x15:
            entries = b"".join(
                len(name.encode()).to_bytes(2, "big") + name.encode() + len(queue).to_bytes(4, "big")
                for name, queue in sorted(self.queues.items())
            )
            return frame(0x16, message_id, len(self.queues).to_bytes(2, "big") + entries)
        name, rest = _split(payload)
        if type_ == 0x11:
            if name in self.queues:
                return frame(0xFE, message_id, b"there already", 3)
            self.queues[name] = deque()
            return frame(0x12, message_id)
        if name not in self.queues:
            return frame(0xFE, message_id, b"no such queue", 2)
        if type_ == 0x13:
            del self.queues[name]
            self._tell()
            return frame(0x14, message_id)
        if len(self.queues[name]) >= self.depth:
            return frame(0xFE, message_id, b"full", 1)
        self.queues[name].append((self.new_id(), rest))
        self._tell()
        return frame(0x22, message_id)


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
                await self._send(frame(0x34, delivery_id, taken[1]))
            elif name in self._peer.queues:
                await self._send(frame(0xFE, message_id, b"nothing came", 4))
            else:
                await self._send(frame(0xFE, message_id, b"no such queue", 2))

    async def answer(self) -> None:
        while (request := await read_frame(self._stream)) is not None:
            type_, message_id, payload = request
            self._peer.requests.append(type_)
            if type_ == 0x31:
                self._consumes.append((message_id, _split(payload)[0]))
                self._asked.set()
                self._asked = trio.Event()
            elif type_ in (0x41, 0x43):
                held = self.held.pop(message_id)
                if type_ == 0x43:
                    self._peer.put_back(*held)
                await self._send(frame(type_ + 1, message_id))
            elif type_ == 0x51:
                await self._send(frame(0x52, message_id))
                return
            else:
                await self._send(self._peer.answer(type_, message_id, payload))

    async def _send(self, data: bytes) -> None:
        async with self._sending:
            await self._stream.send_all(data)


def _split(payload: bytes) -> tuple[str, bytes]:
    end = 2 + int.from_bytes(payload[:2], "big")
    return payload[2:end].decode(), payload[end:]


@pytest.fixture
def peer(nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> Peer:
    """What every address leads to."""
    peer = Peer(nursery)
    monkeypatch.setattr(Address, "open", lambda _: peer.open())
    return peer
