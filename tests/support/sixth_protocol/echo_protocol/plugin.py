"""The one object that the host sees."""

from collections.abc import Iterable, Mapping
from typing import Any

import attrs
import trio
from brokers.shared.metrics import Sample
from brokers.shared.net.settings import TlsSettings
from brokers.shared.objects import TOPICS, Action, Objects, key_of
from brokers.shared.plugin import Context, Plugin, TcpEndpoint, UdpEndpoint

from echo_protocol.session import Echo, EchoSession


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
        self.objects = [
            Objects(
                TOPICS,
                lambda: ["echo"],
                key_of,
                lambda parts: parts[0] if parts[0] == "echo" else None,
                self._row,
                (Action("crash", "Let the background work fail.", call=self._fail),),
            )
        ]

    async def run(self) -> None:
        await self._crash.wait()
        raise ZeroDivisionError("asked to crash")

    def drain(self) -> None: ...

    def samples(self) -> Iterable[Sample]:
        yield Sample("echo_bytes_total", self._echo.bytes_total, "Bytes echoed.")

    def _row(self, topic: str) -> Mapping[str, Any]:
        return {column.name: None for column in TOPICS.columns} | {
            "name": topic,
            "bytes": self._echo.bytes_total,
        }

    async def _fail(self, *_: Any) -> Any:
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
