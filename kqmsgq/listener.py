"""The service: KqueueMsgQ, as the host runs it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kqmsgq.metrics import GAUGES, Counts
from kqmsgq.queues import Queues
from kqmsgq.session import Session
from kqmsgq.settings import KqmsgqSettings
from shared.metrics import Sample, samples
from shared.net.connection import Connection
from shared.plugin import Context, TcpEndpoint, UdpEndpoint, Verb


class KqmsgqService:
    """KqueueMsgQ on its one endpoint."""

    def __init__(self, context: Context, settings: KqmsgqSettings) -> None:
        self._access = context.access
        self.queues = Queues(settings, Counts(), context.log, context.recorder, context.budget)
        self.endpoints: Sequence[TcpEndpoint | UdpEndpoint] = (
            TcpEndpoint("kqmsgq", settings.port, self._open_session, pushes=True),
        )
        self.admin_verbs: Sequence[Verb] = (
            Verb(
                "consumers",
                "every consumer: its subscriptions, what waits for it, what it lost",
                self._consumers,
                ("dropped",),
            ),
        )

    async def take_settings(self, settings: KqmsgqSettings) -> None:
        """Connections keep the bounds that they began with."""
        self.queues.settings = settings

    async def run(self) -> None:
        """Nothing runs beside the connections."""

    def drain(self) -> None:
        """Nobody waits for an answer; what is in the outboxes is sent as at any connection's end."""

    def samples(self) -> Iterable[Sample]:
        return samples("kqmsgq", self.queues.counts, GAUGES, self.queues)

    def _open_session(self, connection: Connection) -> Session:
        return Session(connection, self.queues, self._access)

    async def _consumers(self, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
        """`dropped`: only those that lost messages."""
        return [
            {
                "peer": consumer.connection.peer,
                "subscriptions": consumer.subscriptions,
                "waiting_bytes": consumer.connection.outbox.size,
                "dropped_messages": consumer.dropped,
            }
            for consumer in self.queues.consumers
            if consumer.dropped or not arguments.get("dropped")
        ]
