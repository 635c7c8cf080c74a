"""The service: DMS on a store or in memory, as the host runs it."""

from collections.abc import Iterable, Sequence

import trio

from dms.admin import Admin
from dms.definitions import definitions_of
from dms.dmsq_file import import_files
from dms.engine import Engine
from dms.metrics import GAUGES
from dms.opening import open_engine
from dms.refusals import Refusals
from dms.session import Session
from dms.settings import NAMESPACE, DmsSettings
from shared.access import Guard
from shared.metrics import Sample, ack_sample, samples, wait_sample
from shared.net.connection import Connection
from shared.plugin import Context, TcpEndpoint, UdpEndpoint
from shared.task_turns import TaskTurn
from shared.tracing import Tap

AGE_SECONDS = 10.0
"""How often the broker's age is stored: a crash may add this to a message's time."""


class DmsService:
    """DMS on its one endpoint."""

    def __init__(self, engine: Engine, access: Guard | None = None) -> None:
        self.engine = engine
        self._access = access
        self._refusals = Refusals(engine.counts, engine.log)
        self.endpoints: Sequence[TcpEndpoint | UdpEndpoint] = (
            TcpEndpoint("dms", engine.settings.port, self._open_session, pushes=True),
        )
        self.objects = Admin(engine, access).objects
        self.definitions = definitions_of(engine)

    async def take_settings(self, settings: DmsSettings) -> None:
        """Apply new settings to queues, except where CREATE_QUEUE set the option. Connections keep their
        bounds.
        """
        engine = self.engine
        engine.settings = settings
        turn = TaskTurn()
        for queue in tuple(engine.queues.values()):
            if not queue.deleted:
                engine.settings_changed(queue)
            if turn.over():
                engine.commit_pending()
                await turn.others()
        engine.commit_pending()

    async def run(self) -> None:
        """Run delays, lifetimes and notes."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.engine.times.timers.run, self.engine.commit_pending)
            nursery.start_soon(self._keep_age)
            nursery.start_soon(self.engine.waits.run, trio.sleep, trio.Event)

    def drain(self) -> None:
        self.engine.drain()

    def samples(self) -> Iterable[Sample]:
        engine = self.engine
        yield from samples("dms", engine.counts, GAUGES, engine)
        yield wait_sample("dms", engine.waits.seconds)
        if engine.persistent:
            yield ack_sample("dms", engine.store.ack_seconds(NAMESPACE))

    async def trace(self, tap: Tap) -> None:
        def take(queue: bytes, bodies: Sequence[bytes]) -> None:
            if tap.matches(queue):
                for body in bodies[: tap.room]:
                    tap.copy(queue, body)

        await tap.observe(self.engine.observers, take)

    def _open_session(self, connection: Connection) -> Session:
        return Session(connection, self.engine, self._refusals, self._access)

    async def _keep_age(self) -> None:
        while True:
            await trio.sleep(AGE_SECONDS)
            self.engine.note_age()
            self.engine.commit_pending()


async def open_service(context: Context, settings: DmsSettings) -> DmsService:
    """Load the queues. Raises StoreError, EngineError."""
    engine = await open_engine(context, settings)
    if engine.persistent:
        await import_files(engine)
    else:
        context.log.info(
            "dms keeps queues in memory alone: all messages are lost at exit; to keep them, set dms.persist"
        )
    return DmsService(engine, context.access)
