"""Queues as the target of a replay: at least once, since a PRODUCE that is sent again is another message."""

import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from dms.client import PORT, Client, connect
from dms.feeder import Feeder


class QueueReplay:
    """A DMS server."""

    once_each = False

    def __init__(self, client: Client) -> None:
        self._client = client

    async def send(self, name: str, writer: str, seq: int, messages: Sequence[bytes]) -> None:
        """Where the queue is full it waits: what consumes it makes room."""
        await Feeder(self._client, name, wait=True, again=True).put(messages)


@asynccontextmanager
async def target(
    host: str, port: int | None, ssl_context: ssl.SSLContext | None
) -> AsyncIterator[QueueReplay]:
    """Raises ConnectionRefusedError where nobody answers."""
    async with connect(host, PORT if port is None else port, ssl_context=ssl_context) as client:
        yield QueueReplay(client)
