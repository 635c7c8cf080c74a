"""Queues as the target of a replay: at least once, because a PRODUCE sent again is another message."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dms import wire
from dms.client import connect
from dms.feeder import Feeder
from dms.wire import PAYLOAD_BYTES_MAX
from shared.replaying import Batch, PastMessage, Replays, Target, TargetAddress, by_name


@asynccontextmanager
async def target(address: TargetAddress) -> AsyncIterator[Target]:
    """Raises ConnectionRefusedError where nobody answers."""
    async with connect(address.host, address.port, **address.how) as client:

        async def send(batch: Batch, writer: str, seq: int) -> None:
            """Waits while a queue is full, until its consumers make room."""
            for queue, messages in by_name(batch).items():
                await Feeder(client, queue.decode(), wait=True, again=True).put(messages)

        yield Target(_refuses, send)


def _refuses(queue: bytes, message: PastMessage) -> str | None:
    try:
        wire.name_untrusted(queue)
    except wire.Refusal:
        return "the name is no queue's"
    if 2 + len(queue) + len(message.payload) > PAYLOAD_BYTES_MAX:
        return f"it is larger than a payload of {PAYLOAD_BYTES_MAX} bytes, name and all"
    return None


REPLAYS = Replays(target)
