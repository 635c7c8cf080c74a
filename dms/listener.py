"""The service: DMS on a store or in memory, as the host runs it."""

from collections.abc import Iterable, Sequence

import trio

from dms.admin import Admin
from dms.broker import Broker
from dms.dmsq_file import import_files
from dms.metrics import GAUGES
from dms.opening import open_broker
from dms.session import Session
from dms.settings import DmsSettings
from shared.metrics import Sample, samples
from shared.net.connection import Connection
from shared.plugin import Context, TcpEndpoint, UdpEndpoint, Verb

AGE_SECONDS = 10.0
"""How often the broker's age is kept: what a crash may add to a message's time."""


class DmsService:
    """DMS on its one endpoint."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.endpoints: Sequence[TcpEndpoint | UdpEndpoint] = (
            TcpEndpoint("dms", broker.settings.port, self._open_session, pushes=True),
        )
        self.admin_verbs: Sequence[Verb] = Admin(broker).verbs

    async def run(self) -> None:
        """Delays, lifetimes, notes."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._broker.times.run, self._broker.settle)
            nursery.start_soon(self._keep_age)

    def drain(self) -> None:
        self._broker.drain()

    def samples(self) -> Iterable[Sample]:
        return samples("dms", self._broker.counts, GAUGES, self._broker)

    def _open_session(self, connection: Connection) -> Session:
        return Session(connection, self._broker)

    async def _keep_age(self) -> None:
        while True:
            await trio.sleep(AGE_SECONDS)
            self._broker.note_age()
            self._broker.settle()


async def open_service(context: Context, settings: DmsSettings) -> DmsService:
    """Load the queues. Raises StoreError, BrokerError."""
    broker = await open_broker(context, settings)
    if broker.persistent:
        await import_files(broker)
    else:
        context.log.info("dms keeps everything in memory: all is gone at exit")
    return DmsService(broker)
