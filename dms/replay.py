"""Queues as the target of a replay: at least once, since a PRODUCE that is sent again is another message."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from dms.client import PORT, Client, connect
from dms.feeder import Feeder
from shared.client.dial import How


class QueueReplay:
    """A DMS server."""

    once_each = False

    def __init__(self, client: Client) -> None:
        self._client = client

    async def send(self, name: str, writer: str, seq: int, messages: Sequence[bytes]) -> None:
        """Where the queue is full it waits: what consumes it makes room."""
        await Feeder(self._client, name, wait=True, again=True).put(messages)


@asynccontextmanager
async def target(host: str, port: int | None, how: How) -> AsyncIterator[QueueReplay]:
    """Raises ConnectionRefusedError where nobody answers."""
    async with connect(host, PORT if port is None else port, **how) as client:
        yield QueueReplay(client)
