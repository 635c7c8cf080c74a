"""A network of memory streams: seeded delays, pieces, windows, resets.

A connection is two pipes. What is sent is cut into pieces that arrive in order, each after a delay; a sender
waits while more than the window is under way. A reset loses what is under way in both directions. A machine
that is down refuses connections, and what it tried to say after its end reaches nobody.
"""

import math
import random
from collections import deque
from collections.abc import Callable

import trio

from tests.trials.sim.world import World

Bytes = bytes | bytearray | memoryview


class Pipe:
    """One direction of a connection."""

    def __init__(self, world: World, chance: random.Random, window: int, delay: float) -> None:
        self._world = world
        self._chance = chance
        self._window = window
        self._delay = delay
        self._pieces: deque[tuple[float, bytes]] = deque()
        self._under_way = 0
        self._last_arrival = 0.0
        self._eof: float | None = None
        self._readers = trio.lowlevel.ParkingLot()
        self._writers = trio.lowlevel.ParkingLot()
        self.broken = False
        """Reset: neither end gets or sends anything."""
        self.unread = False
        """The reading end is closed."""

    def _arrival(self) -> float:
        now = self._world.now()
        if self._delay and self._chance.random() < 0.5:
            now += self._chance.random() * self._delay
        self._last_arrival = max(self._last_arrival, now)
        return self._last_arrival

    async def send(self, data: Bytes) -> None:
        await trio.lowlevel.checkpoint()
        view = memoryview(data)
        while view:
            while self._under_way >= self._window and not (self.broken or self.unread):
                await self._writers.park()
            if self.broken or self.unread:
                raise trio.BrokenResourceError
            size = min(len(view), self._window - self._under_way)
            if self._chance.random() < 0.3:
                size = self._chance.randint(1, size)
            self._pieces.append((self._arrival(), bytes(view[:size])))
            self._under_way += size
            view = view[size:]
            self._readers.unpark()

    def send_eof(self) -> None:
        if self._eof is None:
            self._eof = self._arrival()
            self._readers.unpark_all()

    async def receive(self, size: int) -> bytes:
        waited = False
        while True:
            if self.broken:
                raise trio.BrokenResourceError
            now = self._world.now()
            next_at = self._pieces[0][0] if self._pieces else self._eof
            if next_at is None:
                await self._readers.park()
            elif next_at > now:
                with trio.move_on_at(next_at):
                    await self._readers.park()
            elif not waited:
                await trio.lowlevel.checkpoint()  # as every stream does; parking is one too
            else:
                return self._taken(size, now) if self._pieces else b""
            waited = True

    def _taken(self, size: int, now: float) -> bytes:
        taken = []
        left = size
        while self._pieces and left and self._pieces[0][0] <= now:
            arrival, piece = self._pieces.popleft()
            if len(piece) > left:
                self._pieces.appendleft((arrival, piece[left:]))
                piece = piece[:left]
            taken.append(piece)
            left -= len(piece)
        self._under_way -= size - left
        self._writers.unpark_all()
        return taken[0] if len(taken) == 1 else b"".join(taken)

    def reset(self) -> None:
        self.broken = True
        self._pieces.clear()
        self._wake()

    def stop_reading(self) -> None:
        self.unread = True
        self._wake()

    def _wake(self) -> None:
        self._readers.unpark_all()
        self._writers.unpark_all()


class SimStream(trio.abc.HalfCloseableStream):
    """One end of a connection."""

    def __init__(self, incoming: Pipe, outgoing: Pipe) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self._closed = False
        self._sent_eof = False

    async def send_all(self, data: Bytes) -> None:
        self._check_open()
        if self._sent_eof:
            raise trio.ClosedResourceError
        await self._outgoing.send(data)

    async def wait_send_all_might_not_block(self) -> None:
        self._check_open()
        await trio.lowlevel.checkpoint()

    async def send_eof(self) -> None:
        self._check_open()
        self._sent_eof = True
        await trio.lowlevel.checkpoint()
        if self._outgoing.broken:
            raise trio.BrokenResourceError
        self._outgoing.send_eof()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        self._check_open()
        data = await self._incoming.receive(65536 if max_bytes is None else max_bytes)
        self._check_open()
        return data

    async def aclose(self) -> None:
        self.close()
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._outgoing.send_eof()
            self._incoming.stop_reading()

    def reset(self) -> None:
        self._incoming.reset()
        self._outgoing.reset()

    def _check_open(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError


class Wire:
    """A connection as the world sees it: both ends, and when the server was done with it."""

    def __init__(self, world: World, chance: random.Random, number: int, port: str, faulty: bool) -> None:
        self.number = number
        self.port = port
        window = chance.choice((256, 4096, 65536)) if faulty else 1 << 20
        delay = chance.choice((0.0, 0.0, 0.001, 0.02)) if faulty else 0.0
        there = Pipe(world, chance, window, delay)
        back = Pipe(world, chance, window, delay)
        self.client = SimStream(back, there)
        self.server = SimStream(there, back)
        self.excused: Callable[[], bool] = lambda: False
        """Whether the server has cause to refuse what it should do."""
        self.server_done = trio.Event()
        """The server will never act on anything that was sent here,"""
        self.over = math.inf
        """since this tick."""
        self.left = False
        """The client has closed or reset it, which the server may know already."""

    def reset(self) -> None:
        self.client.reset()


class Network:
    """Where clients find the server, while it is up."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = world.source("network")
        self._accept: Callable[[Wire], None] | None = None
        self._wires: dict[Wire, None] = {}
        self._numbers = 0

    def up(self, accept: Callable[[Wire], None]) -> None:
        """From now on connections go to `accept`, which sees to it that `gone` is called for each."""
        self._accept = accept

    def down(self, *, reset: bool) -> None:
        """No more connections; `reset`: those there are break, what is under way is lost."""
        self._accept = None
        if reset:
            for wire in tuple(self._wires):
                wire.reset()

    def connect(self, port: str) -> Wire:
        """Raises ConnectionRefusedError where nobody listens."""
        if self._accept is None:
            raise ConnectionRefusedError
        return self.wire_to(self._accept, port, faulty=True)

    def wire_to(self, accept: Callable[[Wire], None], port: str, *, faulty: bool) -> Wire:
        self._numbers += 1
        wire = Wire(self._world, self._chance, self._numbers, port, faulty)
        accept(wire)
        self._wires[wire] = None
        return wire

    def gone(self, wire: Wire) -> None:
        self._wires.pop(wire, None)
        wire.over = self._world.tick()
        wire.server_done.set()

    async def wait_quiet(self) -> None:
        """Until no connection is left."""
        while self._wires:
            await next(iter(self._wires)).server_done.wait()
