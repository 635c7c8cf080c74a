"""Topics as the target of a replay: by BATCH, so that each message is written once."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from logmq import wire
from logmq.client import connect
from shared.replaying import Batch, PastMessage, Replays, Target, TargetAddress, by_name


@asynccontextmanager
async def target(address: TargetAddress) -> AsyncIterator[Target]:
    """Raises ConnectionRefusedError where nobody answers."""
    async with connect(address.host, address.port, **address.how) as client:
        # The first chosen record may come after minutes of reading, which keep this loop busy. The server
        # closes connections without a request in their first 30 s, and would refuse the first batch.
        await client.ping()

        async def send(batch: Batch, writer: str, seq: int) -> None:
            for topic, messages in by_name(batch).items():
                await client.batch(topic.decode(), writer, seq, messages)

        yield Target(_refuses, send)


def _refuses(topic: bytes, message: PastMessage) -> str | None:
    try:
        wire.topic_untrusted(topic)
    except wire.Refusal:
        return "the name is no topic's"
    return None


REPLAYS = Replays(target)
