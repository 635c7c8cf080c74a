"""Topics as the target of a replay: by BATCH, so that each message is written once."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from logmq.client import PORT, Client, connect
from shared.client.dial import How


class TopicReplay:
    """A LogMQ server."""

    once_each = True

    def __init__(self, client: Client) -> None:
        self._client = client

    async def send(self, name: str, writer: str, seq: int, messages: Sequence[bytes]) -> None:
        await self._client.batch(name, writer, seq, messages)


@asynccontextmanager
async def target(host: str, port: int | None, how: How) -> AsyncIterator[TopicReplay]:
    """Raises ConnectionRefusedError where nobody answers."""
    async with connect(host, PORT if port is None else port, **how) as client:
        # Spark may sort for minutes before the first record comes, and keeps this loop busy meanwhile. The
        # server ends connections that ask for nothing in their first 30 s, and would refuse the first batch.
        await client.ping()
        yield TopicReplay(client)
