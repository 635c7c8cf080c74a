"""Topics as the target of a replay: by BATCH, so that each message is written once."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from logmq import wire
from logmq.client import PORT, Client, connect
from shared.client.dial import How
from shared.replaying import Batch, PastMessage, Replays, by_place


class TopicReplay:
    """A LogMQ server."""

    once_each = True

    def __init__(self, client: Client) -> None:
        self._client = client

    def refuses(self, topic: bytes, message: PastMessage) -> str | None:
        try:
            wire.topic_untrusted(topic)
        except wire.Refusal:
            return "the name is no topic's"
        return None

    async def send(self, batch: Batch, writer: str, seq: int) -> None:
        for topic, messages in by_place(batch).items():
            await self._client.batch(topic.decode(), writer, seq, messages)


@asynccontextmanager
async def target(host: str, port: int | None, how: How) -> AsyncIterator[TopicReplay]:
    """Raises ConnectionRefusedError where nobody answers."""
    async with connect(host, PORT if port is None else port, **how) as client:
        # Spark may sort for minutes before the first record comes, and keeps this loop busy meanwhile. The
        # server closes connections without a request in their first 30 s, and would refuse the first batch.
        await client.ping()
        yield TopicReplay(client)


REPLAYS = Replays(target)
