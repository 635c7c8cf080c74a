"""One run: a seed, its clients, its machine, and the verdict."""

import gc
import traceback
from contextlib import AbstractContextManager, nullcontext

import attrs
import trio

from tests.trials.sim.clients import Client
from tests.trials.sim.disk import CALM
from tests.trials.sim.machine import INTERVAL, Machine
from tests.trials.sim.model import Model
from tests.trials.sim.network import Network
from tests.trials.sim.plans import Life, lives, storage_settings
from tests.trials.sim.tempers import TEMPERS, drawn
from tests.trials.sim.threads import Threads
from tests.trials.sim.verify import Verifier
from tests.trials.sim.world import World


@attrs.frozen
class Verdict:
    """What became of a seed. `broken`: what was seen that may not be; None: nothing."""

    seed: int
    digest: str
    events: int
    lives: int
    seconds: float
    messages_sent: int
    messages_acknowledged: int
    records_checked: int
    disk_operations: int
    broken: str | None
    last_events: list[str]


class Simulation:
    """Everything of one run, put together."""

    def __init__(self, seed: int, *, temper: str | None = None, echo: bool = False) -> None:
        self.world = world = World(seed, echo=echo)
        chance = world.source("run")
        self._temper = chosen = TEMPERS[temper or drawn(chance)]
        self._topics = list(chance.choice(chosen.topics))
        self._clients = chance.choice(chosen.clients)
        self._lives = lives(chance, chosen)
        settings = storage_settings(chance, chosen)
        self._threads = Threads(world, chance.choice(chosen.interleaved))
        self._network = Network(world)
        self._model = Model(world, INTERVAL.seconds)
        self._machine = Machine(world, self._network, self._threads, settings)
        self._verifier = Verifier(world, self._network, self._model, self._topics)
        self._lived = 0

    def run(self) -> Verdict:
        broken = None
        collecting = gc.isenabled()
        gc.disable()  # it would run finalizers at times that no seed settles
        try:
            self.world.run(self._main)
        except BaseException as error:
            broken = _in_words(error)
        finally:
            if collecting:
                gc.enable()
            self._threads.close()
        if broken is None and self.world.failures:
            broken = _in_words(self.world.failures[0])
        model, trace = self._model, self.world.trace
        return Verdict(
            seed=self.world.seed,
            digest=trace.digest,
            events=trace.events,
            lives=self._lived,
            seconds=self.world.now(),
            messages_sent=model.sent,
            messages_acknowledged=model.acknowledged,
            records_checked=model.records_checked,
            disk_operations=self._machine.operations,
            broken=broken,
            last_events=list(trace.last),
        )

    async def _main(self) -> None:
        world = self.world
        over = trio.Event()
        async with trio.open_nursery() as nursery:
            for number in range(self._clients):
                client = Client(world, self._network, self._model, number, self._temper, self._topics, over)
                nursery.start_soon(client.run)
            for life in self._lives:
                await self._live(life)
            over.set()
        await self._live(Life("stop", 0.0, CALM))

    async def _live(self, life: Life) -> None:
        self._lived += 1
        end = await self._machine.live(life, self._verifier.verify)
        self._model.machine_ended(
            lossy=end.lossy, safe_seconds=end.safe_seconds, sync_seconds=end.sync_seconds
        )


def play(
    seed: int,
    *,
    temper: str | None = None,
    echo: bool = False,
    bug: AbstractContextManager[object] | None = None,
) -> Verdict:
    """One seed; in a temper of our choice, not its own, if one is given; perhaps with a bug planted."""
    with bug or nullcontext():
        return Simulation(seed, temper=temper, echo=echo).run()


def _in_words(error: BaseException) -> str:
    """The first thing that went wrong, with where if that was not our own finding."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, KeyboardInterrupt):
        raise error
    name = type(error).__name__
    if name == "BrokenPromise":
        return str(error)
    return "".join(traceback.format_exception(error))
