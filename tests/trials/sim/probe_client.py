"""Who comes to the server again and again: one episode on one connection each time, drawn from the seed."""

import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import trio

from tests.trials.sim.network import Network, Wire
from tests.trials.sim.world import BrokenPromise, World

PATIENCE_SECONDS = 60.0
"""No answer takes longer than this while connection and server live."""


class Gone(Exception):
    """The connection is over; what was not answered may or may not have been done."""


class Talk:
    """What all dialogs rest on. Raises Gone when the connection ends."""

    def __init__(self, world: World, wire: Wire, who: str) -> None:
        self._world = world
        self.wire = wire
        self._who = who
        self._buffer = bytearray()
        """What came, and nobody has taken yet."""

    async def send(self, data: bytes, what: str = "") -> None:
        """`what` is for the trace, where the bytes say little."""
        shown = data if len(data) <= 80 else data[:60] + b"..." + data[-20:]
        self._world.say(f"{self._who} > {len(data)}: {what or repr(shown)}")
        try:
            await self.wire.client.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise Gone from None

    async def send_all(self, requests: Sequence[bytes], chance: random.Random, what: str = "") -> None:
        """Several requests, in as many sends as chance has it."""
        start = 0
        while start < len(requests):
            count = chance.randint(1, len(requests) - start)
            await self.send(b"".join(requests[start : start + count]), what and f"{what} x {count}")
            start += count

    async def half_close(self) -> None:
        try:
            await self.wire.client.send_eof()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise Gone from None

    async def _more(self) -> None:
        """Who is cancelled while waiting for it has taken nothing."""
        try:
            data = await self.wire.client.receive_some(65536)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise Gone from None
        if not data:
            raise Gone
        self._buffer += data


class ProbeClient(ABC):
    """One client: it connects to `port`, has an episode, and comes again, until `over` is set."""

    port: str
    episodes: Mapping[str, Callable[[Any], Awaitable[None]]]
    """Each is given a dialog on a connection of its own."""

    def __init__(
        self, world: World, network: Network, name: str, over: trio.Event, weights: Mapping[str, int]
    ) -> None:
        self.name = name
        self._world = world
        self._network = network
        self._over = over
        self._weights = weights
        self._chance: random.Random = world.source(name)
        self._wire: Wire

    async def run(self) -> None:
        await trio.sleep(self._chance.random() * 0.05)
        while not self._over.is_set():
            try:
                await self._episode()
            except ConnectionRefusedError:
                await trio.sleep(0.02 + self._chance.random() * 0.1)
            await trio.sleep(self._chance.choice((0.0, 0.001, 0.05)) * self._chance.random())

    async def _episode(self) -> None:
        names = list(self.episodes)
        (episode,) = self._chance.choices(names, [self._weights[name] for name in names])
        wire = self._wire = self._network.connect(self.port)
        self._world.say(f"{self.name} {episode} on wire {wire.number}")
        resets = self._chance.random() < 0.15
        try:
            with trio.move_on_after(self._chance.random() * 0.1 if resets else PATIENCE_SECONDS) as scope:
                await self._play(episode, wire)
            if resets:
                self._world.say(f"{self.name} resets wire {wire.number}")
                wire.left = True
                wire.reset()
            elif scope.cancelled_caught:
                raise BrokenPromise(f"{self.name} waits for what never comes on wire {wire.number}")
        except Gone:
            self._world.say(f"{self.name} lost wire {wire.number}")
        finally:
            wire.left = True
            wire.client.close()
        await self._closed(wire)

    @abstractmethod
    async def _play(self, episode: str, wire: Wire) -> None:
        """Have it. Raises Gone."""

    async def _closed(self, wire: Wire) -> None:  # noqa: B027  DMS's model asks the wire instead
        """Our end is closed."""
