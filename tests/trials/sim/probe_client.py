"""Who comes to the server again and again: one episode on one connection each time, drawn from the seed."""

import random
from abc import ABC, abstractmethod

import trio

from tests.trials.sim.network import Network, Wire
from tests.trials.sim.world import BrokenPromise, World

PATIENCE_SECONDS = 60.0
"""No answer takes longer than this while connection and server live."""


class Gone(Exception):
    """The connection is over; what was not answered may or may not have been done."""


class ProbeClient(ABC):
    """One client: it connects to `port`, has an episode, and comes again, until `over` is set."""

    port: str

    def __init__(self, world: World, network: Network, name: str, over: trio.Event) -> None:
        self.name = name
        self._world = world
        self._network = network
        self._over = over
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
        episode = self._choose()
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
    def _choose(self) -> str:
        """The next episode's name."""

    @abstractmethod
    async def _play(self, episode: str, wire: Wire) -> None:
        """Have it. Raises Gone."""

    @abstractmethod
    async def _closed(self, wire: Wire) -> None:
        """Our end is closed."""
