"""Pub/sub on real sockets, in this process, without a store."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import attrs
import trio

from pubsub.fanout import Fanout
from pubsub.listener import PubsubService
from pubsub.metrics import Counts
from pubsub.sessions import Changed, Sessions
from pubsub.settings import PubsubSettings
from shared.net.network import Network
from shared.net.settings import NetSettings, TlsSettings
from shared.plugin import Context, TcpEndpoint, UdpEndpoint
from tests.pubsub.world import LOG

PATIENCE_SECONDS = 60.0
"""More than any of these tests takes on a busy machine, so that a hang fails and does not stay."""


@attrs.frozen
class Served:
    service: PubsubService
    port: int

    @property
    def value(self) -> dict[str, float]:
        """The metrics, those with labels as `name{label}`, all without `pubsub_`."""
        return {
            sample.name.removeprefix("pubsub_") + "".join(f"{{{label}}}" for _, label in sample.labels): (
                sample.value
            )
            for sample in self.service.samples()
        }

    async def until(self, **metrics: float) -> None:
        """Wait until metrics have these values."""
        while any(  # noqa: ASYNC110 (plain ints tell nobody when they change)
            self.value[name] != value for name, value in metrics.items()
        ):
            await trio.sleep(0.001)


@asynccontextmanager
async def served(
    settings: PubsubSettings | None = None, *, tls: TlsSettings | None = None
) -> AsyncIterator[Served]:
    """Both endpoints on one port of loopback."""
    settings = settings or PubsubSettings()
    changes: list[Changed] = []
    sessions = Sessions(settings, Counts(), LOG, save=changes.append, say=lambda line: None)
    service = PubsubService(Context(cast(Any, None), LOG), settings, sessions, cast(Any, None))
    tcp, udp = service.endpoints
    assert isinstance(tcp, TcpEndpoint)
    assert isinstance(udp, UdpEndpoint)
    assert isinstance(udp.sink, Fanout)
    group = Network(NetSettings()).group("pubsub", after_turn=lambda: None, log=LOG, tls=tls)
    async with trio.open_nursery() as nursery:
        ((_, port),) = group.bind_tcp("pubsub", "127.0.0.1", 0, tcp.open_session, pushes=tcp.pushes)
        group.bind_udp("127.0.0.1", int(port), udp.sink)
        await nursery.start(group.serve)
        try:
            with trio.fail_after(PATIENCE_SECONDS):
                yield Served(service, int(port))
        finally:
            nursery.cancel_scope.cancel()
