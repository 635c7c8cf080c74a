"""The machine that serves: lives of the real store, service and driver, one after the other, on one disk."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import attrs
import structlog
import trio

from shared.budget import Account, unbounded
from shared.errors import StoreError
from shared.net.admission import Admission
from shared.net.counters import NetCounters
from shared.net.loop_turn import LoopTurn
from shared.net.outbox import Backlogs
from shared.net.settings import NetSettings
from shared.objects import Objects
from shared.plugin import Context, Service, TcpEndpoint
from shared.storage.settings import StorageSettings
from shared.storage.store import Store
from tests.support.explore import sampled_states
from tests.support.fake_disk import FakeDisk
from tests.support.promises import BrokenPromiseError
from tests.support.stream_driver import serve_stream
from tests.trials.sim import bridged
from tests.trials.sim.disk import Faults, FaultyDisk, PowerCut
from tests.trials.sim.network import Network, Wire
from tests.trials.sim.plans import Life
from tests.trials.sim.probe_client import Gone
from tests.trials.sim.served import Served
from tests.trials.sim.threads import Threads, turn_locks
from tests.trials.sim.world import World

DRAIN_SECONDS = 10.0

Verify = Callable[[Callable[[Wire], None]], Any]


@attrs.frozen
class End:
    """How a life ended. `lossy`: the disk may have lost what was not synced.

    `served_seconds`: up to then everybody was served. `safe_seconds`: up to then syncs did what they said.
    `sync_seconds`: the slowest sync of this life.
    """

    lossy: bool
    served_seconds: float
    safe_seconds: float
    sync_seconds: float


class Machine:
    """One data folder and the process that serves it, as often as it has to be started."""

    def __init__(
        self,
        world: World,
        network: Network,
        threads: Threads,
        settings: StorageSettings,
        served: Served,
        carried: Sequence[str] = (),
    ) -> None:
        self._world = world
        self._network = network
        self._threads = threads
        self._chance = world.source("machine")
        self._settings = settings
        self._served = served
        self._carried = carried
        self._disk = FaultyDisk()
        self._next: Callable[[], FakeDisk] | None = None
        self._lossy = False
        self._served_seconds = math.inf
        self._answers = self._sights = 0
        self._faults: Faults | None = None
        self._scope = trio.CancelScope()
        self._services: dict[str, Service] = {}
        self.operations = 0
        threads.after_turn = self._look

    async def live(self, life: Life, verify: Verify) -> End:
        """One life, from power on to its end. `verify` is called before anybody else may connect."""
        faults = self._faults = Faults(
            self._world, self._threads, self._disk, life.faults, self._chance, lambda: self._end(life)
        )
        self._next = None
        self._answers = self._sights = 0
        self._served_seconds = math.inf
        self._world.on_answer = lambda: self._answered(life)
        self._world.on_sight = lambda: self._sighted(life)
        self._world.say(f"life: {life}")
        try:
            with trio.CancelScope() as self._scope, turn_locks(self._threads):
                await self._serve(life, faults, verify)
        except* PowerCut:
            pass
        except* (OSError, StoreError) as group:
            self._gave_up(faults, group)
        self._network.down(reset=True)
        self._end(life)
        assert self._next is not None
        self.operations += faults.operations
        self._disk = cast(FaultyDisk, self._next())
        now = self._world.now()
        safe_seconds = min(now, faults.failed_seconds)
        return End(self._lossy, self._served_seconds, safe_seconds, faults.slowest_sync_seconds)

    async def row(self, protocol: str, kind: str, name: str) -> Any:
        """An object of what is served just now, as the API shows it."""
        objects = self._objects(protocol, kind)
        return objects.row(objects.find([name]))

    async def peek(self, protocol: str, queue: str, limit: int) -> Any:
        objects = self._objects(protocol, "queues")
        (peek,) = (each for each in objects.actions if each.name == "peek")
        return (await peek.call(objects.find([queue]), {"limit": limit}, False))["items"]

    def _objects(self, protocol: str, kind: str) -> Objects:
        every: Sequence[Objects] = getattr(self._services[protocol], "objects", ())
        (found,) = (each for each in every if each.kind.name == kind)
        return found

    def _gave_up(self, faults: Faults, error: BaseException) -> None:
        """The process ended with an error, at its start or its end: for cause only."""
        if not faults.injected:
            raise BrokenPromiseError(f"the store failed on a good disk: {error!r}")
        self._world.say(f"gave up: {error!r}")

    def _answered(self, life: Life) -> None:
        self._answers += 1
        if life.answers is not None and self._answers >= life.answers:
            self._end(life)

    def _sighted(self, life: Life) -> None:
        self._sights += 1
        if life.sights is not None and self._sights >= life.sights:
            self._end(life)

    # -- the end

    def _end(self, life: Life) -> None:
        """The machine stops here and now, in the middle of whatever it does."""
        faults, disk = self._faults, self._disk
        assert faults is not None
        if faults.ended:
            return
        faults.ended = True
        self._served_seconds = min(self._served_seconds, self._world.now())
        self._lossy = life.ending == "power"
        self._world.say(f"the end: {life.ending}")
        if life.ending == "power":
            crash = disk.power_cut()
            draw = self._chance.getrandbits(32)
            self._next = lambda: next(sampled_states(crash, draw, 1))
        else:
            after = disk.kill()
            if faults.failed_sync and self._chance.random() < 0.5:
                after.forget_cache()
                self._lossy = True
            self._next = lambda: after
        if self._threads.current() is None:
            self._look()

    def _look(self) -> None:
        """In the trio thread, after any worker's turn: if that was the machine's last, stop everything."""
        if self._faults is not None and self._faults.ended:
            self._network.down(reset=True)
            self._scope.cancel()

    # -- the life

    async def _serve(self, life: Life, faults: Faults, verify: Verify) -> None:
        store = await Store.open(
            Path("simulated"),
            self._settings,
            disk=self._disk,
            clock=self._world,
            in_thread=self._threads.in_thread,
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            log = structlog.stdlib.get_logger("simulated")
            self._services.clear()
            for plugin, own in self._served:
                service = self._services[plugin.name] = await plugin.open(Context(store, log), own)
                nursery.start_soon(service.run)
            services = list(self._services.values())
            bridges = await bridged.opened(self._world, store, self._services, self._carried)
            nursery.start_soon(bridges.run)
            loop = _loop(store, log)
            nursery.start_soon(loop.watch_deadlines)
            accept = self._acceptor(nursery, loop, services, faults)
            plan = faults.pause()
            try:
                await verify(accept)
            except (Gone, ConnectionRefusedError):
                if not faults.ended:
                    raise BrokenPromiseError("the server hung up on the verifier") from None
                raise PowerCut from None
            faults.resume(plan)
            self._network.up(accept)
            await trio.sleep(life.seconds / 2)
            self._world.set_wall(life.wall_jump_ms)
            await trio.sleep(life.seconds / 2)
            if life.ending != "stop":
                self._end(life)
                await trio.sleep_forever()
            self._served_seconds = self._world.now()
            self._network.down(reset=False)
            bridges.stop()
            for service in services:
                service.drain()
            loop.drain()
            with trio.move_on_after(DRAIN_SECONDS) as drain:
                await self._network.wait_quiet()
            if drain.cancelled_caught and faults.slowest_sync_seconds < 0.5 and not faults.injected:
                raise BrokenPromiseError("a drain is not over after ten seconds: somebody is not answered")
            nursery.cancel_scope.cancel()
        if store.read_only is not None and not faults.injected:
            raise BrokenPromiseError(f"the store turned read-only on a good disk: {store.read_only!r}")
        await store.close()

    def _acceptor(
        self, nursery: trio.Nursery, loop: LoopTurn, services: Sequence[Service], faults: Faults
    ) -> Callable[[Wire], None]:
        endpoints = {each.name: each for service in services for each in service.endpoints}

        async def serve(wire: Wire) -> None:
            try:
                endpoint = endpoints[wire.port]
                assert isinstance(endpoint, TcpEndpoint)
                await serve_stream(loop, wire.server, f"wire {wire.number}", endpoint.open_session)
            finally:
                self._network.gone(wire)

        def accept(wire: Wire) -> None:
            if nursery.cancel_scope.cancel_called:
                raise ConnectionRefusedError
            wire.excused = lambda: faults.injected > 0
            nursery.start_soon(serve, wire)

        return accept


def _loop(store: Store, log: structlog.stdlib.BoundLogger) -> LoopTurn:
    settings = NetSettings()
    return LoopTurn(
        settings=settings,
        admission=_OpenDoor(settings),
        backlogs=Backlogs(Account("backlogs", 1 << 30)),
        counters=NetCounters(),
        after_turn=store.commit_pending,
        log=log,
    )


class _OpenDoor(Admission):
    """Everybody may connect: nothing here asks the system how many files this process may open."""

    def __init__(self, settings: NetSettings) -> None:
        self.connections = 0
        self.memory = unbounded()

    def leave(self, host: str, *, encrypted: bool = False) -> None:
        self.connections -= 1
