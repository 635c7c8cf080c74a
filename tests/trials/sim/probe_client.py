"""Who comes to the server again and again: one episode on one connection each time, drawn from the seed."""

import random
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar, TypeVar

import attrs
import trio

from tests.support.promises import BrokenPromiseError
from tests.trials.sim.network import Network, Wire
from tests.trials.sim.world import World

PATIENCE_SECONDS = 60.0
"""No answer takes longer than this while connection and server live."""


class Gone(Exception):
    """The connection is over; what was not answered may or may not have been done."""


@attrs.define(eq=False)
class Talk:
    """What all dialogs rest on. Raises Gone when the connection ends."""

    _world: World
    wire: Wire
    _who: str
    _buffer: bytearray = attrs.field(factory=bytearray, init=False)
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


AnyTalk = TypeVar("AnyTalk", bound=Talk)


@asynccontextmanager
async def verifying(
    kind: type[AnyTalk], world: World, network: Network, accept: Callable[[Wire], None], port: str, who: str
) -> AsyncIterator[AnyTalk]:
    """A dialog with no fault on the way. At its end the server is through with the connection."""
    wire = network.wire_to(accept, port, faulty=False)
    yield kind(world, wire, who)
    wire.client.close()
    await wire.server_done.wait()


@attrs.define(eq=False)
class ProbeClient(ABC):
    """One client: it connects to `port`, has an episode, and comes again, until `over` is set."""

    port: ClassVar[str]
    _world: World
    _network: Network
    name: str
    _over: trio.Event
    _weights: Mapping[str, int]
    episodes: Mapping[str, Callable[[Any], Awaitable[None]]] = attrs.field(init=False)
    """Each is given a dialog on a connection of its own."""
    _chance: random.Random = attrs.field(init=False)
    _wire: Wire = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._chance = self._world.source(self.name)

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
                raise BrokenPromiseError(f"{self.name} waits for what never comes on wire {wire.number}")
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
