"""The service: DMS on a store or in memory, as the host runs it."""

from collections.abc import Iterable, Sequence

import trio

from dms.admin import Admin
from dms.broker import Broker
from dms.dmsq_file import import_files
from dms.opening import open_broker
from dms.session import Session
from dms.settings import DmsSettings
from dms.wire import Status
from shared.metrics import Sample
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
        broker, counts = self._broker, self._broker.counts
        for name, value, help_ in (
            ("messages_produced_total", counts.produced, "Messages taken in, dead letters too."),
            ("messages_delivered_total", counts.delivered, "Deliveries."),
            (
                "messages_redelivered_total",
                counts.redelivered,
                "Deliveries of what had come back.",
            ),
            ("messages_acked_total", counts.acked, "Messages acknowledged."),
            ("messages_returned_total", counts.returned, "Deliveries that came back: NACK, connection lost."),
            ("messages_dead_lettered_total", counts.dead_lettered, "Dead messages moved to their queue."),
            ("messages_dropped_total", counts.dropped, "Dead messages without a queue to go to."),
            ("messages_held_back_total", counts.held_back, "Times that a dead message's queue had no place."),
            ("messages_purged_total", counts.purged, "Messages taken out by an administrator."),
            ("messages_imported_total", counts.imported, "Messages that came from .dmsq files."),
            ("consumes_timed_out_total", counts.timeouts, "CONSUMEs that have waited in vain."),
            ("clients_refused_total", counts.clients_refused, "Connections above clients_max."),
            ("frames_too_late_total", counts.too_late, "Frames that did not come to their end in time."),
            ("changes_unkept_total", counts.unkept, "Changes answered though the disk has failed."),
            (
                "damaged_ranges_total",
                counts.damaged_ranges,
                "Places of queues' logs whose messages are lost.",
            ),
            ("snapshots_total", counts.snapshots, "Snapshots of queues."),
            ("cold_reads_total", counts.fetches, "Reads of messages that were not in memory."),
        ):
            yield Sample(f"dms_{name}", value, help_)
        for status, refused in sorted(counts.refusals.items()):
            yield Sample(
                "dms_requests_refused_total",
                refused,
                "Requests answered with ERROR.",
                labels=(("status", Status(status).name),),
            )
        queues = broker.queues.values()
        for name, value, help_ in (
            ("queues", len(queues), "Queues."),
            ("clients", len(broker.sessions), "Connections that have made their handshake."),
            ("messages", sum(queue.depth for queue in queues), "Messages in all queues, held ones included."),
            ("messages_held", sum(queue.held for queue in queues), "Messages that a connection holds."),
            ("consumes_waiting", sum(s.waiting for s in broker.sessions), "CONSUMEs that wait."),
            ("hot_bytes", broker.hot_bytes, "Memory for messages that nobody holds."),
        ):
            yield Sample(f"dms_{name}", value, help_, kind="gauge")

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
