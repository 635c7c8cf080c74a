"""The one object that the host sees."""

from collections.abc import Iterable, Mapping
from typing import Any

import attrs
import trio

from echo_protocol.session import Echo, EchoSession
from shared.errors import BrokerError
from shared.metrics import Sample
from shared.net.settings import TlsSettings
from shared.plugin import Context, Plugin, TcpEndpoint, UdpEndpoint, Verb


@attrs.frozen
class EchoSettings:
    """Section `[echo]`."""

    port: int = 7007
    shout: bool = False
    tls: TlsSettings = attrs.field(factory=TlsSettings)


class EchoService:
    def __init__(self, settings: EchoSettings) -> None:
        self._echo = Echo(settings.shout)
        self._crash = trio.Event()
        self.endpoints = [
            TcpEndpoint("echo", settings.port, lambda connection: EchoSession(self._echo, connection)),
            UdpEndpoint("count", settings.port, self._echo),
        ]
        self.admin_verbs = [
            Verb("count", "Bytes echoed so far.", self._count),
            Verb("crash", "Let the background work fail.", self._fail),
        ]

    async def run(self) -> None:
        await self._crash.wait()
        raise ZeroDivisionError("asked to crash")

    def drain(self) -> None: ...

    def samples(self) -> Iterable[Sample]:
        yield Sample("echo_bytes_total", self._echo.bytes_total, "Bytes echoed.")

    async def _count(self, arguments: Mapping[str, Any]) -> Any:
        if arguments:
            raise BrokerError(f"count takes no {next(iter(arguments))}")
        return {"bytes": self._echo.bytes_total}

    async def _fail(self, _: Mapping[str, Any]) -> Any:
        self._crash.set()
        return {}


async def open_echo(_: Context, settings: EchoSettings) -> EchoService:
    return EchoService(settings)


plugin = Plugin(
    name="echo",
    summary="What you say comes back.",
    settings=EchoSettings,
    open=open_echo,
    cli="echo_protocol.cli:app",
)
