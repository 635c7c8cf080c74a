"""A real server in a test's own process: ready in milliseconds, its time moved by hand, its state asserted.

    pytest_plugins = ["brokers.testing"]

    def test_an_order_is_delivered_again_after_a_nack(broker: Broker) -> None:
        with brokers.sync.connect(broker.url("dms")) as client:
            client.create("orders", QueueOptions(retry_ms=60_000))
            ...
            broker.advance(60)  # seconds of the server's time; the test waits for none of them
            assert broker.rows("queues", "dms")[0]["ready"] == 1

It serves in a thread of its own, on loopback, so trio, asyncio and blocking tests use it alike. Its time
stands still but for `advance`: while a test is slow no delay, lifetime, wait or retention ends, and for none
a test has to wait. That is all of the server's time, by which it also notes when something was. Sockets go
on meanwhile, and the clients' own time, of their timeouts and pauses, is the world's.

The loop is not the test's own. A clock that stands still there would hold up the timeouts of the test and of
its clients, and asyncio's loop runs no trio. The disk is a folder in memory (/dev/shm; where there is none,
among temporary files), which goes with the block. Needs `brokers[serve]`.
"""

import shutil
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NoReturn, TypeVar

import attrs
import pytest
import structlog
import trio
import trio.testing

from brokers import plugins
from shared.errors import BrokerError
from shared.net.network import Group, Network
from shared.net.settings import NetSettings
from shared.objects import Objects
from shared.plugin import Context, Service, TcpEndpoint, UdpEndpoint
from shared.storage.settings import StorageSettings
from shared.storage.store import Store

STORAGE = StorageSettings(segment_bytes=1 << 20, zero_fill=False)
MEMORY = Path("/dev/shm")
"""Where Linux keeps files in memory. Elsewhere the folder is among temporary files."""
STEPS_MAX = 300
"""Of one `advance`."""
ROUNDED_SECONDS = 0.002
"""The server counts whole milliseconds, and rounds up."""

Result = TypeVar("Result")


@attrs.frozen
class _Clock:
    """The store's clock: the server's seconds since a moment of the world."""

    server: trio.testing.MockClock
    began_ms: int = attrs.field(factory=lambda: time.time_ns() // 1_000_000)

    def wall_ms(self) -> int:
        return self.began_ms + int(self.server.current_time() * 1000)

    def monotonic(self) -> float:
        return self.server.current_time()


@attrs.define(eq=False)
class Broker:
    """A server that runs; made by `serve`, and by the fixture `broker`. `ports`: by protocol."""

    ports: Mapping[str, int]
    _services: Mapping[str, Service]
    _clock: trio.testing.MockClock
    _loop: trio.lowlevel.TrioToken

    def url(self, protocol: str) -> str:
        """What `brokers.connect` takes."""
        return f"{protocol}://127.0.0.1:{self.ports[protocol]}"

    def advance(self, seconds: float) -> None:
        """Move the server's time, and wait until all that is due by then has been done.

        The time goes from one deadline to the next, so what is due happens in order, each at its time, and so
        does what follows from it. A long move has `STEPS_MAX` steps, of which each may take several deadlines
        at once: 12 s of an hour.
        """
        if seconds < 0:
            raise ValueError("time does not go back")

        async def move() -> None:
            ends = self._clock.current_time() + seconds + ROUNDED_SECONDS
            while (left := ends - self._clock.current_time()) > 0:
                due = trio.lowlevel.current_statistics().seconds_to_next_deadline
                self._clock.jump(min(max(due, seconds / STEPS_MAX), left))
                await trio.testing.wait_all_tasks_blocked()

        self._ask(move)

    def rows(self, kind: str, protocol: str | None = None) -> Sequence[Mapping[str, Any]]:
        """The server's objects of a kind, as `queues`, `topics` or `groups`: rows of the API's lists.

        Raises ValueError for a kind that nobody has, or not that protocol.
        """

        async def rows() -> list[Mapping[str, Any]]:
            of = list(self._objects(protocol))
            chosen = [(name, objects) for name, objects in of if objects.kind.name == kind]
            if not chosen:
                there = sorted({objects.kind.name for _, objects in of})
                raise ValueError(f"{protocol or 'the server'} has no {kind!r}; there are {', '.join(there)}")
            return [
                {"protocol": name, **row}
                for name, objects in chosen
                for row in map(objects.row, objects.items())
                if row is not None
            ]

        return self._ask(rows)

    def metric(self, name: str) -> float:
        """A metric by its name behind brokers_, as dms_messages_produced_total; labels are summed."""

        async def metric() -> float:
            samples = [sample for service in self._services.values() for sample in service.samples()]
            return sum(sample.value for sample in samples if sample.name == name)

        return self._ask(metric)

    def _objects(self, protocol: str | None) -> Iterator[tuple[str, Objects]]:
        for name, service in self._services.items():
            if protocol in (None, name):
                yield from ((name, objects) for objects in getattr(service, "objects", ()))

    def _ask(self, work: Callable[[], Awaitable[Result]]) -> Result:
        """What `work` returns, run on the server's loop."""
        answers: SimpleQueue[Callable[[], Result]] = SimpleQueue()

        async def run() -> None:
            try:
                await trio.testing.wait_all_tasks_blocked()  # what the test has sent is served first
                result = await work()
                answers.put(lambda: result)
            except Exception as error:
                answers.put(partial(_fail, error))

        self._loop.run_sync_soon(lambda: trio.lowlevel.spawn_system_task(run))
        return answers.get()()


def _fail(error: Exception) -> NoReturn:
    raise error


@contextmanager
def serve(settings: Mapping[str, Mapping[str, Any]] | None = None) -> Iterator[Broker]:
    """Serve all protocols, each with fresh data. `settings`: by protocol, as `{"dms": {"depth": 20}}`.

    Raises Failure for a protocol that is not installed, and what its settings raise for those that they
    do not take. What the server logs goes to `logging`, unless structlog is set up already.
    """
    configured = structlog.is_configured()
    if not configured:
        structlog.configure(
            processors=[structlog.processors.format_exc_info, structlog.processors.KeyValueRenderer()],
            wrapper_class=structlog.stdlib.BoundLogger,
            logger_factory=structlog.stdlib.LoggerFactory(),
        )
    memory = MEMORY if MEMORY.is_dir() else None
    folder = Path(tempfile.mkdtemp(prefix="brokers-", dir=memory))
    started: SimpleQueue[Broker | BaseException] = SimpleQueue()
    stop = trio.Event()
    clock = trio.testing.MockClock()

    def run() -> None:
        try:
            trio.run(_serve, folder, settings or {}, clock, started.put, stop, clock=clock)
        except BaseException as error:
            started.put(error)

    thread = threading.Thread(target=run, name="brokers.testing", daemon=True)
    thread.start()
    try:
        broker = started.get()
        if isinstance(broker, BaseException):
            raise broker
        yield broker
        broker._loop.run_sync_soon(stop.set)
        thread.join()
        if not started.empty():
            raise BrokerError(f"the server of the test failed: {started.get()!r}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if not configured:
            structlog.reset_defaults()


async def _serve(
    folder: Path,
    settings: Mapping[str, Mapping[str, Any]],
    clock: trio.testing.MockClock,
    started: Callable[[Broker], None],
    stop: trio.Event,
) -> None:
    log = structlog.stdlib.get_logger("brokers.testing")
    for name in settings:
        plugins.load(name)
    own = [(plugin, plugin.settings(**settings.get(plugin.name, {}))) for plugin in plugins.load_all()[0]]
    store = await Store.open(folder / "data", STORAGE, clock=_Clock(clock), in_thread=_at_once)
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        services: dict[str, Service] = {}
        ports: dict[str, int] = {}
        for plugin, limits in own:
            service = services[plugin.name] = await plugin.open(Context(store, log), limits)
            network = Network(NetSettings())
            group = Group(plugin.name, network, after_turn=store.commit_pending, log=log, tls=None)
            ports[plugin.name] = _bind(group, service, plugin.name)
            await nursery.start(group.serve)
            nursery.start_soon(service.run)
        started(Broker(ports, services, clock, trio.lowlevel.current_trio_token()))
        await stop.wait()
        nursery.cancel_scope.cancel()
    await store.close()


async def _at_once(work: Callable[..., Result], *arguments: Any, **_: Any) -> Result:
    """The disk's work, on the loop: in a thread it would end at another time of the server in each run."""
    await trio.lowlevel.checkpoint()
    return work(*arguments)


def _bind(group: Group, service: Service, name: str) -> int:
    """Bind all endpoints of a service to one port; returns it."""
    datagrams = [endpoint for endpoint in service.endpoints if isinstance(endpoint, UdpEndpoint)]
    port = 0
    for endpoint in service.endpoints:
        if isinstance(endpoint, TcpEndpoint):
            opens = endpoint.open_session
            ((_, port),) = group.bind_tcp(name, "127.0.0.1", port, opens, pushes=endpoint.pushes)
    for endpoint in datagrams:
        group.bind_udp("127.0.0.1", port, endpoint.sink)
    return port


@pytest.fixture
def broker() -> Iterator[Broker]:
    """A server of the test's own, with the usual settings."""
    with serve() as broker:
        yield broker
