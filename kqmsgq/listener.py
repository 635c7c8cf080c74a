"""The service: KqueueMsgQ, as the host runs it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kqmsgq.counts import Counts
from kqmsgq.queues import Queues
from kqmsgq.session import Session
from kqmsgq.settings import KqmsgqSettings
from shared.metrics import Sample
from shared.net.connection import Connection
from shared.plugin import Context, TcpEndpoint, UdpEndpoint, Verb


class KqmsgqService:
    """KqueueMsgQ on its one endpoint."""

    def __init__(self, context: Context, settings: KqmsgqSettings) -> None:
        self.queues = Queues(settings, Counts(), context.log, context.recorder)
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

    async def run(self) -> None:
        """Nothing runs beside the connections."""

    def drain(self) -> None:
        """Nobody waits for an answer; what is in the outboxes is sent as at any connection's end."""

    def samples(self) -> Iterable[Sample]:
        counts = self.queues.counts
        for name, value, help_ in (
            ("messages_produced_total", counts.messages_in, "Messages received from producers."),
            ("produced_bytes_total", counts.bytes_in, "Their bytes, headers included."),
            (
                "messages_delivered_total",
                counts.messages_delivered,
                "Messages handed to consumers, each to each.",
            ),
            ("messages_unrouted_total", counts.messages_unrouted, "Messages that nobody was subscribed to."),
            (
                "messages_dropped_total",
                counts.messages_dropped,
                "Messages dropped because their consumer did not read.",
            ),
            ("dropped_bytes_total", counts.bytes_dropped, "Their bytes."),
            (
                "consumers_dropped_from_total",
                counts.consumers_dropped_from,
                "Consumers that lost messages so.",
            ),
        ):
            yield Sample(f"kqmsgq_{name}", value, help_)
        for fault, closed in sorted(counts.faults.items()):
            yield Sample(
                "kqmsgq_faults_total",
                closed,
                "Connections closed for breaking the protocol.",
                labels=(("fault", fault),),
            )
        subscriptions, subscribed = self.queues.statistics()
        for name, value, help_ in (
            ("producers", counts.producers, "Producers connected."),
            ("consumers", counts.consumers, "Consumers connected."),
            ("consumers_subscribed", subscribed, "Consumers with a subscription."),
            ("subscriptions", subscriptions, "Subscriptions."),
            ("subscriptions_bytes", self.queues.subscriptions_bytes, "The memory charged for them."),
        ):
            yield Sample(f"kqmsgq_{name}", value, help_, kind="gauge")

    def _open_session(self, connection: Connection) -> Session:
        return Session(connection, self.queues)

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
