"""One run: a seed, its clients, its machine, and the verdict."""

import gc
import math
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import attrs
import trio

from shared.storage.format import BATCH_PAYLOAD_MAX
from tests.support.commits import batches_of
from tests.support.dms_model import DmsModel
from tests.trials.logmq_model import Model
from tests.trials.sim import amqp_jobs
from tests.trials.sim.amqp_jobs import AmqpJobClient, AmqpJobsVerifier, WallAges
from tests.trials.sim.bridged import BridgeVerifier
from tests.trials.sim.clients import Client
from tests.trials.sim.disk import CALM
from tests.trials.sim.dms_clients import DmsClient
from tests.trials.sim.dms_verify import DmsVerifier
from tests.trials.sim.fault_profiles import FAULT_PROFILES, drawn
from tests.trials.sim.jobs import WEIGHTS, JobClient, JobsModel, JobsVerifier
from tests.trials.sim.machine import Machine
from tests.trials.sim.network import Network, Wire
from tests.trials.sim.plans import Life, lives, storage_settings
from tests.trials.sim.probe_client import ProbeClient
from tests.trials.sim.schedules import SchedulesModel
from tests.trials.sim.served import INTERVAL, served, small_queues, small_steps
from tests.trials.sim.threads import Threads
from tests.trials.sim.verify import Verifier
from tests.trials.sim.world import World

AWAY_MS = (0, 3000, 100_000, 100_000, 86_400_000)
"""The wall clock goes on so long while no server of schedules runs."""


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

    def __init__(self, seed: int, *, profile: str | None = None, echo: bool = False) -> None:
        self.world = world = World(seed, echo=echo)
        chance = world.source("run")
        self._temper = chosen = FAULT_PROFILES[profile or drawn(chance)]
        self._topics = list(chance.choice(chosen.topics))
        self._clients = chance.choice(chosen.clients)
        self._lives = lives(chance, chosen)
        self._batch_bytes = world.source("batches").choice(chosen.batch_bytes)
        settings = storage_settings(chance, chosen, several=self._batch_bytes is not None)
        self._threads = Threads(world, chance.choice(chosen.interleaved))
        self._network = Network(world)
        self._model = Model(world)
        chance = world.source("protocols")
        self._protocols = chance.choice(chosen.protocols).split()
        self._queues = list(chance.choice(chosen.queues))
        self._snapshot_bytes = chance.choice(chosen.snapshot_bytes)
        self._step_bytes = chance.choice(chosen.step_bytes)
        services = served(chance, chosen, self._protocols)
        self._dms_model = DmsModel(world, self._queues)
        carried = [topic for topic in self._topics if topic[0] not in "in"] if chosen.bridged else []
        self._machine = Machine(world, self._network, self._threads, settings, services, carried)
        self._bridge_verifier = BridgeVerifier(
            world, self._network, carried, "dms" if "dms" in self._protocols else "dmp"
        )
        self._verifier = Verifier(world, self._network, self._model, self._topics)
        self._dms_verifier = DmsVerifier(
            world, self._network, self._dms_model, self._queues, world.source("dms verifier")
        )
        if "dms" in self._protocols:
            self._jobs_model = JobsModel(world, self._dms_model.ages)
        else:
            self._jobs_model = JobsModel(world, WallAges(), amqp_jobs.QUEUES)
        self._schedules = SchedulesModel(world)
        if chosen.jobs and "dms" in self._protocols:
            world.on_wall_set = self._schedules.set
        self._jobs_verifier = JobsVerifier(world, self._network, self._jobs_model, self._schedules)
        self._amqp_verifier = AmqpJobsVerifier(world, self._network, self._jobs_model)
        self._away = world.source("away")
        self._lived = 0
        self._safe_seconds, self._sync_seconds = math.inf, 0.0
        """Of the lives since the last start."""
        self._over = trio.Event()

    def run(self) -> Verdict:
        broken = None
        collecting = gc.isenabled()
        gc.disable()  # it would run finalizers at times that no seed settles
        try:
            with (
                small_queues(self._snapshot_bytes),
                small_steps(self._step_bytes),
                batches_of(BATCH_PAYLOAD_MAX if self._batch_bytes is None else self._batch_bytes),
            ):
                self.world.run(self._main)
        except BaseException as error:
            broken = _in_words(error)
        finally:
            if collecting:
                gc.enable()
            self._threads.close()
        if broken is None and self.world.failures:
            broken = _in_words(self.world.failures[0])
        models, trace = (self._model, self._dms_model, self._jobs_model), self.world.trace
        checkers = (*models, self._schedules, self._bridge_verifier)
        checked = sum(checker.records_checked for checker in checkers)
        return Verdict(
            seed=self.world.seed,
            digest=trace.digest,
            events=trace.events,
            lives=self._lived,
            seconds=self.world.now(),
            messages_sent=sum(model.sent for model in models),
            messages_acknowledged=sum(model.acknowledged for model in models),
            records_checked=checked,
            disk_operations=self._machine.operations,
            broken=broken,
            last_events=list(trace.last),
        )

    async def _main(self) -> None:
        async with trio.open_nursery() as nursery:
            for number in range(self._clients):
                for client in self._visitors(number, self._over):
                    nursery.start_soon(client.run)
            for life in self._lives:
                await self._live(life)
            self._over.set()
        await self._live(Life("stop", 0.0, CALM))

    def _visitors(self, number: int, over: trio.Event) -> Iterator[ProbeClient]:
        world, network = self.world, self._network
        if "logmq" in self._protocols:
            name, weights = f"client {number}", self._temper.episodes
            yield Client(world, network, name, over, weights, self._model, number, self._topics)
        if self._temper.jobs and "dmp" in self._protocols:
            name, weights = f"worker {number}", amqp_jobs.WEIGHTS
            yield AmqpJobClient(world, network, name, over, weights, self._jobs_model, number)
        elif self._temper.jobs:
            name, model = f"worker {number}", self._jobs_model
            yield JobClient(world, network, name, over, WEIGHTS, model, self._schedules, number)
        elif "dms" in self._protocols:
            name, weights = f"worker {number}", self._temper.dms_episodes
            yield DmsClient(world, network, name, over, weights, self._dms_model, number, self._queues)

    async def _verify(self, accept: Callable[[Wire], None]) -> None:
        if "logmq" in self._protocols:
            await self._verifier.verify(accept)
        self._safe_seconds, self._sync_seconds = math.inf, 0.0
        if self._temper.jobs and "dmp" in self._protocols:
            await self._amqp_verifier.verify(accept, self._machine)
        elif self._temper.jobs:
            await self._jobs_verifier.verify(accept)
        elif "dms" in self._protocols:
            await self._dms_verifier.verify(accept, self._machine)
        if self._temper.bridged:
            await self._bridge_verifier.verify(accept, over=self._over.is_set())

    async def _live(self, life: Life) -> None:
        self._lived += 1
        ages = self._dms_model.ages
        if self._temper.jobs and "dms" in self._protocols:
            self.world.wall_offset_ms += self._away.choice(AWAY_MS)
        ages.begins(self.world.now())
        self._schedules.begins()
        end = await self._machine.live(life, self._verify)
        ages.ends(self.world.now())
        self._schedules.ends(1000 * (self.world.now() - end.served_seconds + 2 * end.sync_seconds))
        self._safe_seconds = min(self._safe_seconds, end.safe_seconds)
        self._sync_seconds = max(self._sync_seconds, end.sync_seconds)
        if end.lossy:
            # A sync begins an interval late at most, behind one that may be under way, and takes its time.
            interval = self._safe_seconds - INTERVAL.seconds - 2 * self._sync_seconds - 0.01
            self._model.machine_ended({"interval": interval, "none": -math.inf})


def play(
    seed: int,
    *,
    profile: str | None = None,
    echo: bool = False,
    bug: AbstractContextManager[object] | None = None,
) -> Verdict:
    """One seed; in a profile of our choice, not its own, if one is given; perhaps with a bug planted."""
    with bug or nullcontext():
        return Simulation(seed, profile=profile, echo=echo).run()


def _in_words(error: BaseException) -> str:
    """The first thing that went wrong, with where if that was not our own finding."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, KeyboardInterrupt):
        raise error
    name = type(error).__name__
    if name == "BrokenPromiseError":
        return str(error)
    return "".join(traceback.format_exception(error))
