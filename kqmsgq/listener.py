"""The service: KqueueMsgQ, as the host runs it."""

from collections.abc import Iterable, Sequence

from kqmsgq.admin import Admin
from kqmsgq.metrics import GAUGES, Counts
from kqmsgq.queues import Queues
from kqmsgq.session import Session
from kqmsgq.settings import KqmsgqSettings
from kqmsgq.wire import LENGTH_BYTES, NAME_AT, message_end, name_end
from shared.metrics import Sample, samples
from shared.net.connection import Connection
from shared.plugin import Context, TcpEndpoint, UdpEndpoint
from shared.tracing import Observer, Tap


async def open_service(context: Context, settings: KqmsgqSettings) -> "KqmsgqService":
    return KqmsgqService(context, settings)


class KqmsgqService:
    """KqueueMsgQ on its one endpoint."""

    def __init__(self, context: Context, settings: KqmsgqSettings) -> None:
        self._access = context.access
        self.queues = Queues(settings, Counts(), context.log, context.recorder, context.budget)
        self.endpoints: Sequence[TcpEndpoint | UdpEndpoint] = (
            TcpEndpoint("kqmsgq", settings.port, self._open_session, pushes=True),
        )
        self.objects = Admin(self.queues).objects

    async def take_settings(self, settings: KqmsgqSettings) -> None:
        self.queues.take_settings(settings)

    async def run(self) -> None:
        """Nothing runs beside the connections."""

    def drain(self) -> None:
        """Nothing to drain: there are no answers, and closing a connection sends its outbox."""

    def samples(self) -> Iterable[Sample]:
        return samples("kqmsgq", self.queues.counts, GAUGES, self.queues)

    async def trace(self, tap: Tap) -> None:
        every = set("*?") & set(tap.name)
        most = self.queues.settings

        def take(data: bytes) -> None:
            at = 0
            while at < len(data) and tap.room:
                after_name = name_end(data, at, most.name_bytes_max)
                assert after_name is not None
                end = message_end(data, after_name, most.message_bytes_max)
                name = data[at + NAME_AT : after_name]
                if not every or tap.matches(name):
                    tap.copy(name, data[after_name + LENGTH_BYTES : end])
                at = end or len(data)

        await tap.listen(lambda: self.queues.observe(Observer(take), b"" if every else tap.name.encode()))

    def _open_session(self, connection: Connection) -> Session:
        return Session(connection, self.queues, self._access)
