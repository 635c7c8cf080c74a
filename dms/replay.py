"""Queues as the target of a replay: at least once, since a PRODUCE that is sent again is another message."""

import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio

from dms.client import PORT, Client, connect
from dms.errors import QueueFull

FULL_SECONDS = 1.0
"""A queue that is full is tried again after so long: what consumes it makes room."""


class QueueReplay:
    """A DMS server."""

    once_each = False

    def __init__(self, client: Client) -> None:
        self._client = client

    async def send(self, name: str, writer: str, seq: int, messages: Sequence[bytes]) -> None:
        left = list(messages)
        while left:
            try:
                await self._client.produce_many(name, left, again=True)
                return
            except QueueFull as error:
                # The others are in the queue; places are those of what was asked for last.
                left = [left[place] for place in error.refused]
                await trio.sleep(FULL_SECONDS)


@asynccontextmanager
async def target(
    host: str, port: int | None, ssl_context: ssl.SSLContext | None
) -> AsyncIterator[QueueReplay]:
    """Raises ConnectionRefusedError where nobody answers."""
    async with connect(host, PORT if port is None else port, ssl_context=ssl_context) as client:
        yield QueueReplay(client)
