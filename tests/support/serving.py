"""A protocol's service on real sockets, in this process."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import attrs
import structlog
import trio

from shared.net.network import Group, Network
from shared.net.settings import NetSettings, TlsSettings
from shared.plugin import Service, TcpEndpoint, UdpEndpoint

PATIENCE_SECONDS = 60.0
"""More than any of these tests takes on a busy machine, so that a hang fails and does not stay."""


@attrs.frozen
class Serving:
    """`streams`: connections that end with it."""

    protocol: str
    service: Service
    group: Group
    port: int
    streams: list[trio.SocketStream] = attrs.field(factory=list)

    @property
    def value(self) -> dict[str, float]:
        """The metrics, those with labels as `name{label}`, all without the protocol's name."""
        return {
            sample.name.removeprefix(f"{self.protocol}_")
            + "".join(f"{{{label}}}" for _, label in sample.labels): sample.value
            for sample in self.service.samples()
        }

    async def until(self, **metrics: float) -> None:
        """Wait until metrics have these values."""
        while any(  # noqa: ASYNC110 (plain ints tell nobody when they change)
            self.value.get(name) != value for name, value in metrics.items()
        ):
            await trio.sleep(0.001)


AnyServing = TypeVar("AnyServing", bound=Serving)


@asynccontextmanager
async def serving(
    kind: type[AnyServing],
    protocol: str,
    service: Service,
    *,
    port: int = 0,
    net: NetSettings | None = None,
    tls: TlsSettings | None = None,
    after_turn: Callable[[], None] = lambda: None,
) -> AsyncIterator[AnyServing]:
    """All its endpoints on one port of loopback."""
    log = structlog.stdlib.get_logger("test")
    group = Group(protocol, Network(net or NetSettings()), after_turn=after_turn, log=log, tls=tls)
    for endpoint in service.endpoints:
        if isinstance(endpoint, TcpEndpoint):
            ((_, bound),) = group.bind_tcp(
                protocol, "127.0.0.1", port, endpoint.open_session, pushes=endpoint.pushes
            )
            port = int(bound)
        else:
            assert isinstance(endpoint, UdpEndpoint)
            group.bind_udp("127.0.0.1", port, endpoint.sink)
    async with trio.open_nursery() as nursery:
        await nursery.start(group.serve)
        server = kind(protocol, service, group, port)
        try:
            with trio.fail_after(PATIENCE_SECONDS):
                yield server
        finally:
            for stream in server.streams:
                await trio.aclose_forcefully(stream)
            nursery.cancel_scope.cancel()
